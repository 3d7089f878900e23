"""The app and the pages in a real headless Chromium. Screenshots are kept in out/screenshots."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

pytest.importorskip("gradio")
pytest.importorskip("playwright.sync_api")

from playwright.sync_api import sync_playwright

from coam import samples
from coam.app import running_app
from coam.models.registry import load_model
from coam.types import Matches

pytestmark = pytest.mark.browser
SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"
PATIENCE = 120_000  # milliseconds; machines that run tests are busy
# Software WebGL, because test machines have no graphics card; no sandbox, because containers run as root.
FLAGS = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]


@pytest.fixture(scope="module")
def browser():
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page that fails the test when it asks another host for anything or when a script fails."""
    opened = browser.new_page(viewport={"width": 1300, "height": 1000})
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


@pytest.fixture(scope="module")
def address():
    with running_app() as url:
        yield url


@pytest.fixture(scope="module")
def photos():
    """The bundled real pair, 741 x 500."""
    pair = samples.motorcycle()
    return pair.left, pair.right


def keep(page, name: str, **options) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)


def upload(page, place: str, path: Path) -> None:
    page.set_input_files(f"#{place} input[type=file]", str(path))


def choose_resolution(page, tab: int, value: str) -> None:
    field = page.get_by_label("resolution (long side, pixels)").nth(tab)
    field.click()
    page.get_by_role("option", name=value, exact=True).first.click()


def test_match_two_uploads(page, address, photos, tmp_path):
    began = time.monotonic()
    page.goto(address)
    page.wait_for_selector("#match-start")
    for number, photo in enumerate(photos, start=1):
        upload(page, f"match-photo-{number}", photo)
        page.wait_for_selector(f"#match-photo-{number} img")
    choose_resolution(page, 0, "320")
    page.click("#match-start")
    page.wait_for_selector("#match-picture img")
    page.wait_for_selector("#match-files a")
    assert "matches" in page.inner_text("#match-status")
    assert "overlap score" in page.inner_text("#match-status")
    with page.expect_download() as download:
        page.locator("#match-files a").first.click()
    target = tmp_path / "matches.npz"
    download.value.save_as(target)
    assert len(Matches.load(target)) > 0
    page.get_by_text("Look closer").click()
    frame = page.frame_locator("#match-page iframe")
    frame.locator("#summary").wait_for()
    assert "matches" in frame.locator("#summary").inner_text()
    keep(page, "match", full_page=True)
    print(f"upload to download: {time.monotonic() - began:.1f} s")


def test_click_explains_and_another_click_changes_the_answer(page, address, photos):
    page.goto(address)
    page.get_by_role("tab", name="Explain").click()
    for number, photo in enumerate(photos, start=1):
        upload(page, f"explain-photo-{number}", photo)
        page.wait_for_selector(f"#explain-photo-{number} img")
    choose_resolution(page, 1, "320")
    image = page.locator("#explain-photo-1 img")
    answers, pictures = [], []
    for x, y in ((0.3, 0.3), (0.7, 0.6)):
        box = image.bounding_box()
        before = page.inner_text("#explain-status") if answers else ""
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.wait_for_function(
            "before => { const t = document.querySelector('#explain-status')?.innerText || '';"
            " return t.includes('answered') && t !== before; }",
            arg=before,
        )
        page.wait_for_function(
            "last => ![null, undefined, last].includes(document.querySelector('#explain-picture img')?.src)",
            arg=pictures[-1] if pictures else None,
        )
        answers.append(page.inner_text("#explain-status"))
        pictures.append(page.evaluate("document.querySelector('#explain-picture img').src"))
        keep(page, f"explain-{len(answers)}", full_page=True)
    assert answers[0] != answers[1]
    assert pictures[0] != pictures[1]
    # The click is understood in pixels of the photo, 741 x 500, which is letterboxed in its frame.
    clicked = [int(v) for v in answers[1].split(")")[0].strip("(").split(",")]
    assert clicked == pytest.approx([0.7 * 741, 0.6 * 500], abs=4)


@pytest.mark.parametrize("kind", ["broken", "huge"])
def test_bad_uploads_get_a_clear_message(page, address, photos, huge_png, tmp_path, kind):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload(page, "match-photo-1", broken if kind == "broken" else huge_png)
    upload(page, "match-photo-2", photos[1])
    page.wait_for_selector("#match-photo-2 img")
    page.wait_for_timeout(1500)
    page.click("#match-start")
    message = page.locator(".toast-body, [data-testid=toast-body]").first
    message.wait_for()
    words = message.inner_text()
    assert "photo 1" in words
    assert ("20000" in words.replace(",", "")) == (kind == "huge")
    assert str(tmp_path) not in words
    page.wait_for_timeout(700)  # until it has slid in
    keep(page, f"refused-{kind}")


def test_a_job_can_be_cancelled(page, address, photos):
    page.goto(address)
    page.wait_for_selector("#match-start")
    for number, photo in enumerate(photos, start=1):
        upload(page, f"match-photo-{number}", photo)
        page.wait_for_selector(f"#match-photo-{number} img")
    choose_resolution(page, 0, "1024")
    page.click("#match-start")
    page.wait_for_function("document.querySelector('#match-status')?.innerText.includes('…')")
    page.click("#match-cancel")
    page.wait_for_function("document.querySelector('#match-status')?.innerText.includes('cancelled')")
    page.wait_for_timeout(3000)
    assert page.locator("#match-picture img").count() == 0


def test_a_reconstruction_can_be_cancelled(page, address, photos):
    page.goto(address)
    page.get_by_role("tab", name="Reconstruct").click()
    page.set_input_files("#sfm-photos input[type=file]", [str(photo) for photo in photos])
    page.get_by_text(photos[1].stem).first.wait_for()
    page.click("#sfm-start")
    page.wait_for_function("document.querySelector('#sfm-status')?.innerText.includes(' s')")
    page.click("#sfm-cancel")
    page.wait_for_function("document.querySelector('#sfm-status')?.innerText.includes('cancelled')")
    keep(page, "reconstruct-cancelled")


def test_the_bundled_scene_is_reconstructed(page, address):
    trained = load_model().trained
    page.goto(address)
    page.get_by_role("tab", name="Reconstruct").click()
    if not trained or page.locator("#sfm-example").count() == 0:
        pytest.skip("needs trained weights and the bundled courtyard")
    page.click("#sfm-example")
    page.get_by_text("day_12").first.wait_for()
    choose_resolution(page, 2, "512")
    page.click("#sfm-start")
    page.wait_for_selector("#sfm-page iframe", timeout=1_200_000)
    words = page.inner_text("#sfm-status")
    registered = int(words.split(" of 12 photos")[0].split()[-1])
    assert registered >= 10
    frame = page.frame_locator("#sfm-page iframe")
    assert f"{registered} cameras" in frame.locator("#counts").inner_text()
    page.wait_for_timeout(2000)
    keep(page, "reconstruct", full_page=True)


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
    page.wait_for_function("window.coamPage && coamPage.visible().length === 300")
    x, y = page.evaluate("coamPage.screenOf(5, 0)")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.wait_for_function("coamPage.state.hover >= 0")
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
    page.wait_for_function("window.coamScene && coamScene.drawn() > 0")
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
