"""The app and the pages in a real headless Chromium. Screenshots are kept in out/screenshots."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio")
pytest.importorskip("playwright.sync_api")

from coam import samples
from coam.app.engine import has_stylizer
from coam.types import Matches
from support import REPOSITORY
from support.chromium import PATIENCE, chromium

pytestmark = pytest.mark.browser
SCREENSHOTS = REPOSITORY / "out" / "screenshots"


@pytest.fixture(scope="module")
def browser():
    """With software WebGL, because test machines have no graphics card."""
    with chromium("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader") as started:
        yield started


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
    """The app as users start it, in a process of its own; the time until it can be used is reported."""
    (SCREENSHOTS / "report.txt").unlink(missing_ok=True)
    began = time.monotonic()
    served = subprocess.Popen([sys.executable, "-m", "coam", "app"], stdout=subprocess.PIPE, text=True)
    url = served.stdout.readline().split(" is at ")[1].split()[0]
    report(f"start of the app: {time.monotonic() - began:.1f} s")
    yield url
    served.terminate()
    assert served.wait(timeout=60) == 0


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


def upload_pair(page, tab: str, photos) -> None:
    for number, photo in enumerate(photos, start=1):
        upload(page, f"{tab}-photo-{number}", photo)
    wait_for_photos(page, tab)


def wait_for_photos(page, tab: str) -> None:
    for number in (1, 2):
        page.wait_for_selector(f"#{tab}-photo-{number} img")


def refused(page, tab: str) -> str:
    """What the visitor reads after starting a job that cannot be done: on top, and where results would be."""
    page.wait_for_timeout(1500)  # until the server has the uploads
    page.click(f"#{tab}-start")
    message = page.locator(".toast-body, [data-testid=toast-body]").first
    message.wait_for()
    page.wait_for_timeout(700)  # until it has slid in
    below = answer(page, f"{tab}-status", "⚠").removeprefix("⚠").strip()
    assert below in " ".join(message.inner_text().split())
    return below


def answer(page, place: str, words: str, before: str = "") -> str:
    """The status text at `place` once it has `words` in it and is not what was there `before`."""
    page.wait_for_function(
        "([place, words, before]) => { const t = document.querySelector(`#${place} .prose`)?.innerText || '';"
        " return t.includes(words) && t !== before; }",
        arg=[place, words, before],
    )
    return page.inner_text(f"#{place} .prose")


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


def choose_resolution(page, value: str) -> None:
    page.get_by_label("resolution (long side, pixels)").locator("visible=true").click()
    page.get_by_role("option", name=value, exact=True).first.click()


def test_match_two_uploads(page, address, photos, tmp_path):
    began = time.monotonic()
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload_pair(page, "match", photos)
    page.get_by_role("radio", name="one look").check()
    keep(page, "start", full_page=True)
    began = time.monotonic()
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    report(f"match at 512 pixels, model loaded first: {time.monotonic() - began:.1f} s: {words}")
    assert "from one look" in words
    assert float(words.split("overlap score ")[1].split(":")[0]) > 0.9
    page.wait_for_selector("#match-picture img")
    page.wait_for_selector("#match-files a")
    with page.expect_download() as download:
        page.locator("#match-files a").first.click()
    target = tmp_path / "matches.npz"
    download.value.save_as(target)
    assert correct_share(Matches.load(target)) > 0.8
    page.get_by_text("Look closer").click()
    frame = page.frame_locator("#match-page iframe")
    frame.locator("#summary").wait_for()
    assert "matches" in frame.locator("#summary").inner_text()
    page.wait_for_timeout(1000)
    keep(page, "match", full_page=True)


def test_a_turned_photo_is_looked_at_again(page, address, photos, tmp_path):
    turned = tmp_path / "turned.jpg"
    Image.open(photos[0]).transpose(Image.Transpose.ROTATE_90).save(turned, quality=95)
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload_pair(page, "match", (photos[0], turned))
    choose_resolution(page, "320")
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    report(f"a turned photo: {words}")
    assert int(words.split(" looks")[0].split()[-1]) >= 2  # as it is, and turned back
    assert "the same place" in words.split("overlap score")[1]
    page.wait_for_selector("#match-files a")
    with page.expect_download() as download:
        page.locator("#match-files a").first.click()
    download.value.save_as(tmp_path / "matches.npz")
    matches = Matches.load(tmp_path / "matches.npz")
    expected = np.stack([matches.points0[:, 1], 740 - matches.points0[:, 0]], axis=1)
    assert np.median(np.linalg.norm(matches.points1 - expected, axis=1)) < 2
    page.wait_for_timeout(1000)
    keep(page, "match-turned", full_page=True)


def test_match_an_example(page, address):
    page.goto(address)
    page.get_by_role("button", name="Example: courtyard, day and night").first.click()
    wait_for_photos(page, "match")
    began = time.monotonic()
    page.click("#match-start")
    words = answer(page, "match-status", "overlap score")
    report(f"match at 512 pixels, thoroughly: {time.monotonic() - began:.1f} s: {words}")
    assert float(words.split("overlap score ")[1].split(":")[0]) > 0.9
    page.wait_for_selector("#match-picture img")
    page.wait_for_timeout(1000)
    keep(page, "match-day-night", full_page=True)


def test_click_explains_and_another_click_changes_the_answer(page, address, photos):
    page.goto(address)
    page.get_by_role("tab", name="Explain").click()
    upload_pair(page, "explain", photos)
    image = page.locator("#explain-photo-1 img")
    answers, pictures = [], []
    for x, y in ((0.3, 0.3), (0.7, 0.6), (0.45, 0.5)):
        box = image.bounding_box()
        began = time.monotonic()
        page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
        answers.append(answer(page, "explain-status", "answered", answers[-1] if answers else ""))
        page.wait_for_function(
            "last => ![null, undefined, last].includes(document.querySelector('#explain-picture img')?.src)",
            arg=pictures[-1] if pictures else None,
        )
        pictures.append(page.evaluate("document.querySelector('#explain-picture img').src"))
        report(f"click to picture: {time.monotonic() - began:.2f} s: {answers[-1]}")
        keep(page, f"explain-{len(answers)}", full_page=True)
    assert len(set(answers)) == len(set(pictures)) == 3
    # The click is understood in pixels of the photo, 741 x 500, which is letterboxed in its frame.
    clicked = [int(v) for v in answers[1].split(")")[0].strip("(").split(",")]
    assert clicked == pytest.approx([0.7 * 741, 0.6 * 500], abs=4)
    # The photos are rectified: a point's match lies in its own row.
    found = [float(v) for v in answers[1].split("(")[2].split(")")[0].split(",")]
    assert found[1] == pytest.approx(clicked[1], abs=4)


@pytest.mark.parametrize("kind", ["broken", "huge"])
def test_bad_uploads_get_a_clear_message(page, address, photos, huge_png, tmp_path, kind):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload(page, "match-photo-1", broken if kind == "broken" else huge_png)
    upload(page, "match-photo-2", photos[1])
    page.wait_for_selector("#match-photo-2 img")
    words = refused(page, "match")
    assert "photo 1" in words
    assert ("20000" in words.replace(",", "")) == (kind == "huge")
    assert str(tmp_path) not in words
    keep(page, f"refused-{kind}")


def test_a_job_can_be_cancelled(page, address, photos):
    page.goto(address)
    page.wait_for_selector("#match-start")
    upload_pair(page, "match", photos)
    choose_resolution(page, "1024")
    page.click("#match-start")
    answer(page, "match-status", "…")
    page.click("#match-cancel")
    answer(page, "match-status", "cancelled")
    page.wait_for_timeout(3000)
    assert page.locator("#match-picture img").count() == 0


def test_a_reconstruction_can_be_cancelled(page, address, photos):
    page.goto(address)
    page.get_by_role("tab", name="Reconstruct").click()
    page.set_input_files("#sfm-photos input[type=file]", [str(photo) for photo in photos])
    page.get_by_text(photos[1].stem).first.wait_for()
    page.click("#sfm-start")
    answer(page, "sfm-status", " s")
    page.click("#sfm-cancel")
    answer(page, "sfm-status", "cancelled")
    keep(page, "reconstruct-cancelled")


def test_the_bundled_scene_is_reconstructed(page, address, tmp_path):
    page.goto(address)
    page.get_by_role("tab", name="Reconstruct").click()
    page.click("#sfm-example")
    page.get_by_text("day_09").first.wait_for()
    choose_resolution(page, "320")
    page.click("#sfm-start")
    page.wait_for_selector("#sfm-page iframe", timeout=600_000)
    words = answer(page, "sfm-status", "photos")
    report(f"reconstruct: {words}")
    assert "6 of 6 photos" in words
    assert int(words.split(" points")[0].split()[-1].replace(",", "")) > 1500
    frame = page.frame_locator("#sfm-page iframe")
    assert "6 cameras" in frame.locator("#counts").inner_text()
    with page.expect_download() as download:
        page.locator("#sfm-files a").first.click()
    target = tmp_path / "model.zip"
    download.value.save_as(target)
    assert "0/points3D.bin" in zipfile.ZipFile(target).namelist()
    page.wait_for_timeout(2000)
    keep(page, "reconstruct", full_page=True)


@pytest.mark.skipif(not has_stylizer(), reason="needs the stylizer's weights")
def test_stylize_a_bundled_pair_then_weaker_then_refuse_another_place(page, address, photos, tmp_path):
    page.goto(address)
    page.get_by_role("tab", name="Stylize").click()
    page.get_by_role("button", name="Example: courtyard, day to night").click()
    wait_for_photos(page, "stylize")
    began = time.monotonic()
    page.click("#stylize-start")
    words = answer(page, "stylize-status", "pair score")
    for part in ("picture img", "panel img", "files a"):
        page.wait_for_selector(f"#stylize-{part}")
    report(f"stylize: {time.monotonic() - began:.1f} s: {words}")
    assert float(words.split("pair score ")[1].split()[0]) > 0.5
    full = downloaded(page, "#stylize-files a", tmp_path / "full.png")
    page.wait_for_timeout(1000)
    keep(page, "stylize", full_page=True)

    page.locator("#stylize-strength input[type=number]").fill("0")
    page.keyboard.press("Tab")
    page.click("#stylize-start")
    answer(page, "stylize-status", "pair score", words)
    page.wait_for_timeout(500)
    day = np.asarray(Image.open(samples.courtyard().image("day_04")).convert("RGB")).astype(int)
    itself = downloaded(page, "#stylize-files a", tmp_path / "itself.png")
    np.testing.assert_array_equal(itself, day)
    assert np.abs(full - day).mean() > 20

    page.locator("#stylize-photo-2").get_by_label("Remove Image").click()
    upload(page, "stylize-photo-2", photos[1])
    page.wait_for_selector("#stylize-photo-2 img")
    words = refused(page, "stylize")
    assert "pair score" in words
    assert "stylize all the same" in words
    keep(page, "stylize-refused")


def downloaded(page, link: str, target: Path):
    """The picture behind the first `link`, as whole numbers (H, W, 3)."""
    with page.expect_download() as download:
        page.locator(link).first.click()
    download.value.save_as(target)
    return np.asarray(Image.open(target).convert("RGB")).astype(int)


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
