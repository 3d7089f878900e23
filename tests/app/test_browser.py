"""The app and the pages in a real headless Chromium. Screenshots are kept in out/screenshots."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio")
pytest.importorskip("playwright.sync_api")

from coam import Registration, Warp, samples
from coam.app.engine import has_stylizer
from coam.types import Matches
from support import REPOSITORY
from support.chromium import PATIENCE, chromium

pytestmark = pytest.mark.browser
CASTLE = REPOSITORY.parent / "shared" / "data" / "multiview" / "sceaux.tar"
SCREENSHOTS = REPOSITORY / "out" / "screenshots"
TABS = (
    "Match",
    "Warp",
    "Register",
    "Geometry",
    "Explain",
    *["Stylize"] * has_stylizer(),
    "Compare",
    "Reconstruct",
)


@pytest.fixture(scope="module")
def browser():
    """With software WebGL, because test machines have no graphics card; pictures are drawn without it."""
    flags = "--enable-unsafe-swiftshader", "--disable-accelerated-2d-canvas", "--disable-gpu-rasterization"
    with chromium(*flags) as started:
        yield started


@contextmanager
def watched_page(browser, **options):
    """A page that fails the test when it asks another host for anything or when a script fails."""
    opened = browser.new_page(**options)
    opened.set_default_timeout(PATIENCE)
    requests, errors = [], []
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    foreign = [url for url in requests if urlsplit(url).scheme in ("http", "https", "ws", "wss")]
    foreign = [url for url in foreign if urlsplit(url).hostname != "127.0.0.1"]
    opened.close()
    assert foreign == []
    assert errors == []


@pytest.fixture
def page(browser):
    with watched_page(browser, viewport={"width": 1300, "height": 1000}) as opened:
        yield opened


SCREENS = {
    "wide": {"viewport": {"width": 1300, "height": 1500}},  # tall, for screenshots
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}


@pytest.fixture(params=SCREENS)
def screen(request, browser):
    """A page on a wide and on a phone's screen, and its name."""
    with watched_page(browser, **SCREENS[request.param]) as opened:
        yield opened, request.param


@pytest.fixture(scope="module")
def address():
    """The app as users start it, in a process of its own; the time until it can be used is reported."""
    (SCREENSHOTS / "report.txt").unlink(missing_ok=True)
    began = time.monotonic()
    served = subprocess.Popen(
        [sys.executable, "-m", "coam", "app", "--api"], stdout=subprocess.PIPE, text=True
    )
    url = served.stdout.readline().split(" is at ")[1].split()[0]
    report(f"start of the app: {time.monotonic() - began:.1f} s")
    yield url
    served.terminate()
    assert served.wait(timeout=60) == 0


# Parts that are cut off at the right or left edge of the screen; what scrolls by itself may be wider.
CUT_OFF = """() => {
  const width = document.documentElement.clientWidth, whole = document.documentElement.scrollWidth;
  const scrolls = e => /auto|scroll/.test(getComputedStyle(e).overflowX);
  const held = e => e !== document.body && (scrolls(e) || held(e.parentElement));
  const beyond = box => box.width > 1 && (box.right > width + 1 || box.left < -1);
  const out = [...document.querySelectorAll("body *")]
    .filter(e => e.checkVisibility?.({ visibilityProperty: true }) && beyond(e.getBoundingClientRect()))
    .filter(e => !held(e.parentElement)).map(e => `${e.tagName}#${e.id}.${e.className}`);
  return whole > width + 1 ? [`the page: ${whole} of ${width} pixels`, ...out] : out; }"""


def keep(page, name: str) -> None:
    """A screenshot, of a page that is nowhere wider than the screen."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    assert [frame.evaluate(CUT_OFF) for frame in page.frames if frame.evaluate(CUT_OFF)] == []


def upload(page, place: str, path: Path) -> None:
    page.set_input_files(f"#{place} input[type=file]", str(path))


def upload_pair(page, photos) -> None:
    for number, photo in enumerate(photos, start=1):
        upload(page, f"photo-{number}", photo)
    wait_for_photos(page)


def wait_for_photos(page) -> None:
    for number in (1, 2):
        page.wait_for_selector(f"#photo-{number} img")
    page.wait_for_timeout(800)  # until the server has made the previews


def open_app(page, address: str, resolution: str = "320") -> None:
    page.goto(address)
    page.wait_for_selector("#match-start")
    page.get_by_text("Settings: model").click()
    page.get_by_label("resolution (long side, pixels)").locator("visible=true").first.click()
    page.get_by_role("option", name=resolution, exact=True).first.click()


def open_tab(page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).first.click()


def refused(page, tab: str) -> str:
    """What the visitor reads after starting a job that cannot be done: on top, and where results would be."""
    page.click(f"#{tab}-start")
    message = page.locator(".toast-body, [data-testid=toast-body]").last
    message.wait_for()
    page.wait_for_timeout(700)  # until it has slid in
    below = answer(page, f"{tab}-status", "⚠").removeprefix("⚠").strip()
    assert below in " ".join(message.inner_text().split())
    return below


def until(page, expression: str, argument=None) -> None:
    """Wait until the expression holds. From here: the pages' policy forbids that they evaluate text."""
    ends = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(expression, argument):
        assert time.monotonic() < ends, f"never: {expression}"
        page.wait_for_timeout(50)


def answer(page, place: str, words: str, before: str = "") -> str:
    """The status text at `place` once it has `words` in it and is not what was there `before`."""
    until(
        page,
        "([place, words, before]) => { const t = document.querySelector(`#${place} .prose`)?.innerText || '';"
        " return t.includes(words) && t !== before; }",
        [place, words, before],
    )
    return page.inner_text(f"#{place} .prose")


def inner(page, place: str, ready: str):
    """The page inside the page at `place`, once the expression `ready` is true there.

    In view, because browsers draw nothing in frames that nobody sees.
    """
    page.wait_for_selector(f"#{place} iframe")
    page.locator(f"#{place} iframe").scroll_into_view_if_needed()
    frame = page.query_selector(f"#{place} iframe").content_frame()
    until(frame, ready)
    return frame


def save_first(page, tab: str, target: Path, number: int = 0) -> Path:
    page.wait_for_selector(f"#{tab}-files a")
    with page.expect_download() as download:
        page.locator(f"#{tab}-files a").nth(number).click()
    download.value.save_as(target)
    return target


def report(line: str) -> None:
    """Measured times and answers are kept beside the screenshots."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with (SCREENSHOTS / "report.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def correct_share(matches: Matches) -> float:
    """Of the matches of the bundled pair whose truth is known, those within three pixels of it."""
    truth, known = samples.motorcycle().true_points1(matches.points0)
    errors = np.linalg.norm(matches.points1 - truth, axis=1)[known]
    return float((errors <= 3).mean())


SET = (
    "(() => {{ const s = document.getElementById('{}'); "
    "s.value = {}; s.dispatchEvent(new Event('input')); }})()"
)


def test_one_pair_through_all_tabs(screen, address, tmp_path):
    """The photos stay while one moves between the tabs: Match, Warp, Geometry, Explain, Stylize, Compare."""
    page, name = screen
    pair = samples.motorcycle()
    first, second = tmp_path / "first.ppm", tmp_path / "second.jpg"
    Image.open(pair.left).convert("RGB").save(first)
    exif = Image.Exif()
    exif[0x0112] = 8  # stored on its side; viewers turn it back
    Image.open(pair.right).convert("RGB").transpose(Image.Transpose.ROTATE_270).save(
        second, exif=exif, quality=97
    )
    open_app(page, address)
    upload_pair(page, (first, second))
    for number in (1, 2):
        until(page, f"document.querySelector('#photo-{number} img').naturalWidth === 741")
    page.get_by_text("Settings: model").click()
    keep(page, f"start-{name}")

    # Match: figures, filters and colours at once, downloads.
    began = time.monotonic()
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    report(f"match at 320 pixels, {name}: {time.monotonic() - began:.1f} s: {words}")
    assert float(words.split("overlap score ")[1].split(":")[0]) > 0.9
    assert "the same place" in words
    frame = inner(page, "match-page", "window.coamPage && coamPage.visible().length > 0")
    count = frame.evaluate("coamPage.data.count")
    assert f"{count:,} of {count:,} matches" in frame.inner_text("#figures")
    assert "seconds matching" in frame.inner_text("#figures")
    frame.evaluate(SET.format("score", "s.min"))
    frame.evaluate(SET.format("lines", 30))
    frame.select_option("#colour", "model1")
    inliers = frame.evaluate("coamPage.inliers()")
    frame.evaluate(SET.format("threshold", 5))
    assert frame.evaluate("coamPage.inliers()") < inliers
    frame.select_option("#kept", "out")
    assert frame.evaluate("coamPage.visible().length") == count - frame.evaluate("coamPage.inliers()")
    frame.select_option("#colour", "direction")
    frame.wait_for_timeout(500)
    page.locator("#match-page").scroll_into_view_if_needed()
    keep(page, f"match-{name}")
    matches = Matches.load(save_first(page, "match", tmp_path / "matches.npz"))
    assert correct_share(matches) > 0.7

    # Geometry: a click shows its epipolar line in both photos; a stricter threshold fits again.
    open_tab(page, "Geometry")
    page.click("#geometry-start")
    words = answer(page, "geometry-status", "fundamental matrix")
    frame = inner(page, "geometry-page", "window.coamPage && coamPage.state.picking")
    frame.wait_for_timeout(700)
    x, y = frame.evaluate("coamPage.screenOf(0, 0)")
    frame.locator("#canvas").click(position={"x": x, "y": y})
    pick = frame.evaluate("coamPage.state.picks[0]")
    here, there = frame.evaluate("p => coamPage.epipolar(p.photo, p.x, p.y)", pick)
    assert abs(here[0] * pick["x"] + here[1] * pick["y"] + here[2]) / np.hypot(*here[:2]) < 0.01
    # The photos are rectified, so both lines are the point's own row.
    for line in (here, there):
        assert -(line[0] * 300 + line[2]) / line[1] == pytest.approx(pick["y"], abs=4)
    frame.focus("#canvas")
    frame.press("#canvas", "ArrowDown")
    assert frame.evaluate("coamPage.state.picks[0].y") == pytest.approx(pick["y"] + 2)
    frame.wait_for_timeout(400)
    page.locator("#geometry-page").scroll_into_view_if_needed()
    keep(page, f"geometry-{name}")
    model = json.loads(save_first(page, "geometry", tmp_path / "geometry.json").read_text())
    assert f"{model['inlier_count']:,} of" in words
    page.locator("#geometry-threshold input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#geometry-threshold input[type=range]").dispatch_event("pointerup")
    answer(page, "geometry-status", "within 1.25 px", words)

    # Warp: certainty, swipe, flicker.
    open_tab(page, "Warp")
    page.click("#warp-start")
    report(f"warp at 320 pixels, {name}: {answer(page, 'warp-status', 'certain')}")
    frame = inner(page, "warp-page", "window.coamWarp && coamWarp.ready()")
    share = frame.evaluate("coamWarp.state.share")
    frame.evaluate(SET.format("least", 0.9))
    assert 0.1 < frame.evaluate("coamWarp.state.share") < share
    found = frame.evaluate("coamWarp.placeOf(370, 250)")
    truth, known = pair.true_points1(np.array([[370.0, 250.0]], np.float32))
    assert known[0]
    assert np.linalg.norm(np.array(found) - truth[0]) < 25
    frame.evaluate(SET.format("least", 0.5))
    x, y = frame.evaluate("coamWarp.screenOf(0, 370, 250)")
    frame.locator("#canvas").hover(position={"x": x, "y": y})
    frame.wait_for_timeout(500)
    assert "% certain" in frame.inner_text("#help")
    page.locator("#warp-page").scroll_into_view_if_needed()
    keep(page, f"warp-{name}")
    for mode in ("flow", "certainty", "flicker"):
        frame.select_option("#mode", mode)
        frame.wait_for_timeout(700)
        if mode == "flow":
            keep(page, f"warp-flow-{name}")
    assert Warp.load(save_first(page, "warp", tmp_path / "ab.warp.npz")).forward.size == (741, 500)

    # Explain: a click in photo 1, understood in its pixels.
    open_tab(page, "Explain")
    image = page.locator("#explain-photo img")
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    words = answer(page, "explain-status", "answered")
    report(f"explain, {name}: {words}")
    clicked = [int(v) for v in words.split(")")[0].strip("(").split(",")]
    assert clicked == pytest.approx([0.5 * 741, 0.5 * 500], abs=5)
    found = [float(v) for v in words.split("(")[2].split(")")[0].split(",")]
    assert found[1] == pytest.approx(clicked[1], abs=6)  # rectified: its match lies in its own row
    page.fill("#explain-x input", "100")
    page.click("#explain-start")
    assert "(100, " in answer(page, "explain-status", "answered", words)
    page.wait_for_selector("#explain-picture img")
    page.wait_for_timeout(800)
    page.locator("#explain-picture").scroll_into_view_if_needed()
    keep(page, f"explain-{name}")

    # Compare: SIFT beside ours.
    open_tab(page, "Compare")
    page.click("#compare-start")
    words = answer(page, "compare-status", "· sift")
    frames = [inner(page, f"compare-page-{k}", "window.coamPage && coamPage.data.count > 50") for k in (1, 2)]
    assert f"{frames[1].evaluate('coamPage.data.count'):,}" in words
    assert "licence" in page.inner_text("#compare-table")
    page.wait_for_timeout(1500)
    page.locator("#compare-table").scroll_into_view_if_needed()
    keep(page, f"compare-{name}")

    if has_stylizer():
        open_tab(page, "Stylize")
        page.click("#stylize-start")
        report(f"stylize, {name}: {answer(page, 'stylize-status', 'pair score')}")
        page.wait_for_selector("#stylize-picture img")
        page.wait_for_timeout(800)
        page.locator("#stylize-picture").scroll_into_view_if_needed()
        keep(page, f"stylize-{name}")


def test_register_lays_photo_2_on_photo_1_or_says_why_not(screen, address, tmp_path):
    """Another sensor's view of the courtyard, turned and tilted; swipe, flicker, checkerboard, arrows."""
    page, name = screen
    photo = np.asarray(Image.open(samples.courtyard().image("day_01")).convert("RGB"))
    matrix = np.array([[1.02, -0.06, 20.0], [0.05, 1.04, -12.0], [3e-5, -2e-5, 1.0]])  # photo 2 -> photo 1
    size = photo.shape[1], photo.shape[0]
    first, second = tmp_path / "first.jpg", tmp_path / "second.png"
    Image.fromarray(photo).save(first, quality=95)
    seen = Image.fromarray(255 - photo[..., 2]).transform(
        size, Image.Transform.PERSPECTIVE, matrix.ravel()[:8], Image.Resampling.BICUBIC
    )
    seen.save(second)
    open_app(page, address)
    page.get_by_text("Settings: model").click()
    upload_pair(page, (first, second))
    open_tab(page, "Register")
    page.click("#register-start")
    words = answer(page, "register-status", "probability of")
    report(f"register at 320 pixels, {name}: {words}")
    assert "homography" in words
    assert float(words.split("probability of ")[1].split()[0]) > 0.9
    reasons = page.inner_text("#register-reasons")
    assert "photo 2 covers" in reasons
    assert "the simplest" in reasons
    frame = inner(page, "register-page", "window.coamPage && coamPage.data.inliers > 200")
    shown = "canvas.toDataURL()"
    frame.wait_for_timeout(700)
    seen_at = {}
    for mode in ("swipe", "blend", "difference", "checkerboard", "residuals"):
        frame.click(f"#mode-{mode}")
        frame.wait_for_timeout(300)
        seen_at[mode] = frame.evaluate(shown)
        if mode in ("swipe", "checkerboard", "residuals"):
            page.locator("#register-page").scroll_into_view_if_needed()
            keep(page, f"register-{mode}-{name}")
    assert len(set(seen_at.values())) == 5
    frame.click("#mode-flicker")
    frames = {frame.evaluate("coamPage.state.frame") for _ in range(8) if not frame.wait_for_timeout(250)}
    assert frames == {0, 1}
    frame.click("#mode-swipe")
    box = frame.locator("#canvas").bounding_box()
    page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    assert frame.evaluate("coamPage.state.at") < 0.4
    moved = Image.open(save_first(page, "register", tmp_path / "moved.png"))
    assert moved.size == size
    found = Registration.load(save_first(page, "register", tmp_path / "registration.json", 1))
    marks = np.array([[100.0, 80], [500, 90], [300, 300], [120, 400]])
    lifted = np.column_stack([marks, np.ones(4)]) @ matrix.T
    errors = np.linalg.norm(found.points(marks) - lifted[:, :2] / lifted[:, 2:], axis=1)
    assert errors.mean() < 1.5
    assert save_first(page, "register", tmp_path / "a.points", 2).read_text().startswith("mapX,mapY")

    # Two views of things at many depths: no transform is right, and it says so.
    upload_pair(page, [samples.courtyard().image(name) for name in ("day_04", "day_06")])
    page.click("#register-start")
    answer(page, "register-status", "not to be trusted")
    assert "agree on something else" in page.inner_text("#register-reasons")
    assert "refused: it is right" in inner(page, "register-page", "window.coamPage").inner_text("#refusal")
    page.wait_for_timeout(1000)
    page.locator("#register-status").scroll_into_view_if_needed()
    keep(page, f"register-refused-{name}")
    files = page.inner_text("#register-files")
    assert "registration" in files
    assert "photo-2-on-photo-1" not in files


def test_every_tab_fits_a_phone_and_shows_all_tabs(browser, address):
    with watched_page(browser, **SCREENS["phone"]) as page:
        open_app(page, address)  # with the settings open
        for tab in TABS:
            button = page.get_by_role("tab", name=tab, exact=True).first
            box = button.bounding_box()  # no tab hides in a menu, and a finger can hit each
            assert box["height"] >= 36
            button.click()
            page.wait_for_timeout(400)
            keep(page, f"empty-{tab.lower()}-phone")
            assert page.evaluate("document.documentElement.clientWidth") == 390


def test_a_turned_example_is_found_and_swapped_photos_are_new_ones(page, address):
    open_app(page, address)
    page.get_by_role("button", name="Example: motorcycle, turned and cut").click()
    wait_for_photos(page)
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    report(f"a turned and cut photo: {words}")
    assert int(words.split(" looks")[0].split()[-1]) >= 2  # as it is, and turned back
    sizes = "[1, 2].map(k => document.querySelector(`#photo-${k} img`).naturalWidth)"
    before = page.evaluate(sizes)
    page.click("#swap")
    until(page, f"([a, b]) => {{ const s = {sizes}; return s[0] === b && s[1] === a; }}", before)
    page.wait_for_timeout(600)
    page.click("#match-start")
    answer(page, "match-status", "…")  # at work: the words may be the same in the end
    assert "overlap score" in answer(page, "match-status", "overlap score")


def test_examples_of_real_photos_fill_both_places(page, address):
    open_app(page, address)
    sizes = "[1, 2].map(k => document.querySelector(`#photo-${k} img`)?.naturalWidth)"
    for name, widths in (("a town from a plane", [640, 640]), ("a box in a heap", [324, 512])):
        page.get_by_role("button", name=f"Example: {name}").click()
        until(page, f"([a, b]) => {{ const s = {sizes}; return s[0] === a && s[1] === b; }}", widths)
    page.wait_for_timeout(600)
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    assert float(words.split("overlap score ")[1].split(":")[0]) > 0.9
    keep(page, "box")


@pytest.mark.parametrize("kind", ["broken", "huge"])
def test_bad_uploads_get_a_clear_message(page, address, huge_png, tmp_path, kind):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload(page, "photo-1", broken if kind == "broken" else huge_png)
    page.locator(".toast-body, [data-testid=toast-body]").first.wait_for()  # said at once, before any job
    upload(page, "photo-2", samples.motorcycle().right)
    page.wait_for_selector("#photo-2 img")
    page.wait_for_timeout(1000)
    words = refused(page, "match")
    assert "photo 1" in words
    assert ("20000" in words.replace(",", "")) == (kind == "huge")
    assert str(tmp_path) not in words
    keep(page, f"refused-{kind}")


def test_a_job_can_be_cancelled(page, address):
    open_app(page, address, "1024")
    page.get_by_role("button", name="Example: courtyard, night and day").click()
    wait_for_photos(page)
    page.click("#match-start")
    answer(page, "match-status", "…")
    page.click("#match-cancel")
    answer(page, "match-status", "cancelled")
    page.wait_for_timeout(3000)
    assert page.locator("#match-page iframe").count() == 0


def test_the_tour_comes_by_itself_on_the_first_visit_only(page, address):
    page.add_init_script("Object.defineProperty(navigator, 'webdriver', { get: () => false })")
    page.goto(address)
    page.locator(".coam-tour").wait_for()
    page.get_by_role("button", name="End the tour").click()
    page.reload()
    page.wait_for_selector("#match-start")
    page.wait_for_timeout(1500)
    assert page.locator(".coam-tour").count() == 0


def test_keys_start_the_work_and_move_between_tabs(page, address):
    open_app(page, address)
    page.get_by_role("button", name="Example: motorcycle", exact=True).click()
    wait_for_photos(page)
    page.keyboard.press("Control+Enter")
    answer(page, "match-status", "overlap score")
    frame = inner(page, "match-page", "window.coamPage && coamPage.visible().length > 0")
    frame.focus("#canvas")
    page.keyboard.press("f")
    until(frame, "coamPage.state.flicker")
    page.get_by_role("tab", name="Match", exact=True).first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('[role=tab][aria-selected=true]').innerText === 'Warp'")
    page.keyboard.press("Control+Enter")
    answer(page, "warp-status", "certain")


def test_the_tour_explains_the_page_and_goes_by_keyboard(page, address):
    page.goto(address)
    page.wait_for_selector("#match-start")
    page.click("#tour-start")
    page.locator(".coam-tour").wait_for()
    keep(page, "tour")
    seen = set()
    for _ in range(10):
        if page.locator(".coam-tour").count() == 0:
            break
        seen.add(page.inner_text(".coam-tour p"))
        page.keyboard.press("Enter")  # the button for the next step has the focus
        page.wait_for_timeout(250)
    assert len(seen) >= 4
    assert page.evaluate("localStorage.getItem('coam-tour-seen')") == "1"
    page.click("#tour-start")
    page.keyboard.press("Escape")
    assert page.locator(".coam-tour").count() == 0


# Ratio of luminances, as WCAG counts it, of every text that is seen, with what lies under it.
CONTRASTS = """() => {
  const parse = c => { const v = c.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
  const out = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, box = e?.getBoundingClientRect();
    const seen = e?.checkVisibility?.({ opacityProperty: true, visibilityProperty: true }) && box.width >= 3;
    if (!walker.currentNode.data.trim() || !seen || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    let under = e, back = null;
    for (; under && !back; under = under.parentElement) {
      const c = parse(getComputedStyle(under).backgroundColor);
      if (c[3] > .99) back = c;
    }
    const a = light(parse(getComputedStyle(e).color)), b = light(back || [255, 255, 255]);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    out.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
  }
  return out; }"""
NAMELESS = """() => [...document.querySelectorAll('button, input:not([type=file]), select, iframe, img')]
  .filter(e => e.checkVisibility?.() && e.getBoundingClientRect().width > 3)
  .filter(e => !(e.getAttribute('aria-label') || e.title || e.alt || e.innerText?.trim() || e.labels?.length
    || e.querySelector('img[alt]:not([alt=""])') || e.getAttribute('aria-labelledby') || e.closest('label')
    || e.placeholder))
  .map(e => e.outerHTML.slice(0, 160))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read_and_controls_have_names(page, address, scheme):
    """On every tab, and in the pages inside those that have one."""
    page.emulate_media(color_scheme=scheme)
    open_app(page, address)
    page.get_by_role("button", name="Example: motorcycle", exact=True).click()
    wait_for_photos(page)
    for tab in TABS:
        open_tab(page, tab)
        if tab in ("Match", "Warp", "Geometry"):
            page.click(f"#{tab.lower()}-start")
            inner(page, f"{tab.lower()}-page", "!!window.coamPage || !!window.coamWarp?.ready()")
        page.wait_for_timeout(400)
        if tab == "Geometry":
            keep(page, f"controls-{scheme}")
        for frame in page.frames:
            faint = {text: round(ratio, 2) for ratio, text in frame.evaluate(CONTRASTS) if ratio < 4.5}
            assert faint == {}, tab
            assert frame.evaluate(NAMELESS) == [], tab


def test_a_reconstruction_goes_on_after_a_reload_and_places_another_photo(page, address, tmp_path):
    """Stages, states, photos in their cameras, a click on one, another photo located, all downloaded."""
    page.set_viewport_size({"width": 1300, "height": 1500})
    page.goto(address)
    page.wait_for_selector("#match-start")
    open_tab(page, "Reconstruct")
    until(page, "document.querySelector('#pair').offsetParent === null")  # it has photos of its own
    page.click("#sfm-example")
    page.get_by_text("day_09").first.wait_for()
    page.locator("#sfm-resolution input").click()
    page.get_by_role("option", name="320", exact=True).first.click()
    page.click("#sfm-start")
    page.wait_for_selector("#sfm-stages li.now")
    page.wait_for_selector("#sfm-stages li.done")  # the model is loaded, pairs are matched
    page.wait_for_timeout(1500)
    keep(page, "reconstruct-stages")
    page.reload()
    page.wait_for_selector("#match-start")
    open_tab(page, "Reconstruct")
    page.wait_for_selector("#sfm-stages li.now, #sfm-page iframe")
    report("reconstruction after a reload: still there")
    page.wait_for_selector("#sfm-page iframe", timeout=600_000)
    words = answer(page, "sfm-status", "points")
    report(f"reconstruct: {words}")
    assert "6 of 6 photos" in words
    assert page.locator("#sfm-states tr.in-the-model").count() == 6
    frame = inner(page, "sfm-page", "window.coamScene && coamScene.textures.filter(Boolean).length === 6")
    frame.wait_for_timeout(800)
    corners = [frame.evaluate(f"coamScene.project(coamScene.cornerOf(2, {k}))") for k in (1, 2, 3, 4)]
    x, y = np.mean(corners, axis=0)[:2]
    frame.locator("#canvas").click(position={"x": float(x), "y": float(y)})
    frame.wait_for_selector("#photo:not([hidden])")
    chosen = frame.evaluate("coamScene.chosen()")
    assert frame.inner_text("#photoName") == frame.evaluate("i => coamScene.data.names[i]", chosen)
    assert frame.evaluate("document.getElementById('photoImage').naturalWidth") > 100
    page.locator("#sfm-status").scroll_into_view_if_needed()
    keep(page, "reconstruct")
    upload(page, "sfm-query", samples.courtyard().image("day_10"))
    page.wait_for_selector("#sfm-query img")
    page.wait_for_timeout(1000)
    page.click("#sfm-locate")
    words = answer(page, "sfm-located", "confidence")
    report(f"located: {words}")
    page.wait_for_selector("#sfm-states tr.located")
    frame = inner(page, "sfm-page", "window.coamScene && coamScene.data.names.length === 7")
    assert frame.evaluate("coamScene.data.located") == [False] * 6 + [True]
    page.wait_for_timeout(1500)
    keep(page, "reconstruct-located")
    names = zipfile.ZipFile(save_first(page, "sfm", tmp_path / "all.zip")).namelist()
    assert {"model/sparse/0/points3D.bin", "photos/photo_001.jpg", "scene.html"} <= set(names)


@pytest.mark.skipif(not CASTLE.is_file(), reason="the shared data is not on this machine")
def test_photos_of_a_castle_become_a_model_on_a_phone(browser, address, tmp_path):
    with tarfile.open(CASTLE) as archive:
        archive.extractall(tmp_path, filter="data")
    photos = sorted(tmp_path.glob("*.jpg"))
    with watched_page(browser, **SCREENS["phone"]) as page:
        page.goto(address)
        page.wait_for_selector("#match-start")
        open_tab(page, "Reconstruct")
        page.set_input_files("#sfm-photos input[type=file]", [str(photo) for photo in photos[:6]])
        page.get_by_text(photos[5].stem).first.wait_for()
        page.locator("#sfm-resolution input").click()
        page.get_by_role("option", name="512", exact=True).first.click()
        page.click("#sfm-start")
        page.wait_for_selector("#sfm-page iframe", timeout=600_000)
        words = answer(page, "sfm-status", "points")
        report(f"a castle of six photos: {words}")
        assert "6 of 6 photos" in words
        frame = inner(page, "sfm-page", "coamScene?.textures.filter(Boolean).length === 6")
        until(frame, "coamScene.shown() === coamScene.data.count")
        page.locator("#sfm-page").scroll_into_view_if_needed()
        keep(page, "reconstruct-phone")
        upload(page, "sfm-query", photos[6])
        page.wait_for_selector("#sfm-query img")
        page.wait_for_timeout(1000)
        page.click("#sfm-locate")
        words = answer(page, "sfm-located", "confidence")
        report(f"the seventh photo of the castle: {words}")
        page.wait_for_selector("#sfm-states tr.located")
        keep(page, "reconstruct-located-phone")


def test_a_reconstruction_can_be_cancelled(page, address):
    page.goto(address)
    page.wait_for_selector("#match-start")
    open_tab(page, "Reconstruct")
    page.click("#sfm-example")
    page.get_by_text("day_09").first.wait_for()
    page.click("#sfm-start")
    page.wait_for_selector("#sfm-stages li.now")
    page.click("#sfm-cancel")
    answer(page, "sfm-status", "cancelled")


def test_match_page_hover_filter_and_flicker(page, tmp_path):
    from coam.viz import match_page

    rng = np.random.default_rng(0)
    photo = np.kron(rng.integers(40, 220, (15, 20, 3)), np.ones((20, 20, 1))).astype(np.uint8)
    points = rng.uniform((0, 0), (399, 299), (300, 2)).astype(np.float32)
    scores = np.linspace(1, 0, 300).astype(np.float32)
    ids = np.arange(300)
    matches = Matches(points, points, scores, ids, ids, (400, 300), (400, 300), image0=photo, image1=photo)
    file = tmp_path / "page.html"
    file.write_text(match_page(matches, names=("<b>a</b>", "b")), encoding="utf-8")
    page.goto(file.as_uri())
    until(page, "window.coamPage && coamPage.visible().length === 300")
    x, y = page.evaluate("coamPage.screenOf(5, 0)")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    until(page, "coamPage.state.hover >= 0")
    hovered = page.evaluate("coamPage.state.hover")
    assert f"score {scores[hovered]:.3f}" in page.inner_text("#tip")
    keep(page, "match-page-hover")
    page.evaluate(
        "const s = document.getElementById('score'); s.value = 0.5; s.dispatchEvent(new Event('input'))"
    )
    shown = page.evaluate("coamPage.visible().length")
    assert shown == int((scores >= page.evaluate("coamPage.state.least")).sum())
    assert 140 <= shown <= 160
    before = page.evaluate("coamPage.screenOf(0, 0)")
    page.mouse.move(box["x"] + 200, box["y"] + 300)
    page.mouse.wheel(0, -600)
    page.wait_for_timeout(300)
    assert page.evaluate("coamPage.screenOf(0, 0)") != before
    page.click("#flicker")
    frames = {page.evaluate("coamPage.state.frame") for _ in range(8) if not page.wait_for_timeout(250)}
    assert frames == {0, 1}
    assert page.locator("b", has_text="a").count() == 0  # names are text, not markup


def test_scene_page_draws_points_and_turns(page, tmp_path):
    from coam.viz import scene_page

    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(20_000, 3))
    colours = np.tile([[250, 60, 20]], (20_000, 1))
    camera = ("photo", np.eye(3), np.array([0, 0, 4.0]), 800.0, 640, 480)
    file = tmp_path / "scene.html"
    file.write_text(scene_page(cloud, colours, [camera]), encoding="utf-8")
    page.goto(file.as_uri())
    until(page, "window.coamScene && coamScene.drawn() > 0")
    if page.evaluate("!document.createElement('canvas').getContext('webgl')"):
        pytest.skip("this browser has no WebGL")
    count_red = """() => { const gl = document.getElementById('canvas').getContext('webgl');
      const w = gl.drawingBufferWidth, h = gl.drawingBufferHeight, p = new Uint8Array(4 * w * h);
      gl.readPixels(0, 0, w, h, gl.RGBA, gl.UNSIGNED_BYTE, p);
      let n = 0; for (let i = 0; i < p.length; i += 4) n += p[i] > 200 && p[i + 1] < 100; return n; }"""
    assert page.evaluate(count_red) > 5_000
    yaw = page.evaluate("coamScene.view.yaw")
    page.mouse.move(700, 500)
    page.mouse.down()
    page.mouse.move(800, 500, steps=4)
    page.mouse.up()
    assert page.evaluate("coamScene.view.yaw") == pytest.approx(yaw - 0.6, abs=0.02)
    distance = page.evaluate("coamScene.view.distance")
    page.mouse.wheel(0, 300)
    page.wait_for_timeout(300)
    assert page.evaluate("coamScene.view.distance") > 1.2 * distance
    page.select_option("#camera", "0")
    page.wait_for_timeout(300)
    assert page.evaluate("coamScene.view.eye !== null")
    keep(page, "scene-page")


# A sum over all pixels that depends on where each is.
PIXELS = """() => { const p = new Uint8Array(4 * canvas.width * canvas.height);
  gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, p);
  let sum = 0; p.forEach((v, i) => { sum = (sum * 31 + v * (i % 251)) % 1000000007; }); return sum; }"""


def test_scene_page_with_a_million_points(page, tmp_path):
    """While the view moves a part is drawn; when it rests the others are added, as if drawn at once."""
    from coam.viz import scene_page

    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(1_000_000, 3))
    colours = rng.integers(0, 256, (1_000_000, 3))
    file = tmp_path / "scene.html"
    file.write_text(
        scene_page(cloud, colours, [("photo", np.eye(3), np.array([0, 0, 4.0]), 800.0, 640, 480)])
    )
    page.goto(file.as_uri())
    until(page, "window.coamScene && coamScene.shown() === 1000000")
    page.mouse.move(500, 500)
    page.mouse.down()
    page.mouse.move(520, 510, steps=5)
    page.evaluate("budget = 30000")  # a slow machine's
    page.mouse.move(560, 530, steps=2)
    assert page.evaluate("coamScene.shown()") < 1_000_000
    page.mouse.up()
    until(page, "coamScene.shown() === 1000000")
    added = page.evaluate(PIXELS)
    page.evaluate("budget = 1e6, draw()")
    until(page, "budget === 1e6 || coamScene.shown() === 1000000")
    until(page, "coamScene.shown() === 1000000")
    assert page.evaluate(PIXELS) == added
    keep(page, "scene-million")
