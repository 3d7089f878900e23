"""The work behind the app: uploads, limits, caches, results."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from coam.app.engine import (
    LOOKS,
    PICTURES,
    Engine,
    Limits,
    draw_or_lines,
    figures_of,
    has_stylizer,
    meaning_of,
    model_names,
    summary_of,
    write_results,
)
from coam.app.page import result_folder
from coam.errors import ConfigError, ImageError
from coam.types import Matches
from coam.viz import match_page


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    limits = Limits(upload_bytes=300_000, photo_pixels=1_000_000, cached_photos=2)
    return Engine(limits=limits, uploads=tmp_path_factory.getbasetemp())


def test_bad_uploads_are_refused_in_words_without_paths(engine, tmp_path, huge_png):
    broken, large = tmp_path / "broken.jpg", tmp_path / "large.png"
    broken.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    large.write_bytes(bytes(400_000))
    assert huge_png.stat().st_size < 300_000
    for path, words in (
        (None, "missing"),
        (broken, "photo 1"),
        (large, "MB"),
        (huge_png, "20000"),
        (tmp_path / "gone.png", "upload it again"),
    ):
        with pytest.raises((ImageError, ConfigError), match=words) as caught:
            engine.read(path, "photo 1")
        assert "photo 1" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_settings_outside_the_limits_are_refused(engine):
    name = model_names()[0]
    with pytest.raises(ConfigError, match="model"):
        engine.matcher("../../etc/passwd.safetensors", 320, 100)
    with pytest.raises(ConfigError, match="resolution"):
        engine.matcher(name, 4096, 100)
    with pytest.raises(ConfigError, match="between 1 and 8192"):
        engine.matcher(name, 320, 100_000)
    with pytest.raises(ConfigError, match="one look, aligned look"):
        engine.matcher(name, 320, 100, "twice")


def test_explain_takes_one_look_and_match_what_was_chosen(engine):
    name = model_names()[0]
    assert engine.matcher(name, 320).config.looks == "once"
    assert [engine.matcher(name, 320, 64, words).config.looks for words in LOOKS] == [
        "once",
        "align",
        "search",
    ]
    # A network is made ready once for each setting, not at each click.
    assert engine.matcher(name, 320, 64, "aligned look") is engine.matcher(name, 320, 64, "aligned look")


def test_the_device_reaches_the_loader():
    asked = []

    def load(model, device):
        asked.append((model, device))
        raise ConfigError("no such device")

    with pytest.raises(ConfigError):
        Engine(load, device="cuda:7").matcher(model_names()[0], 320)
    assert asked == [(model_names()[0], "cuda:7")]


def test_a_photo_is_encoded_once_and_old_ones_are_forgotten(engine, photos, tmp_path):
    matcher = engine.matcher(model_names()[0], 320, 64)
    first, second = (engine.read(path, "photo") for path in photos)
    prepared = engine.prepare(matcher, first)
    assert engine.prepare(matcher, engine.read(photos[0], "photo")) is prepared
    engine.prepare(matcher, second)
    assert engine.prepare(matcher, first) is prepared
    other = tmp_path / "third.png"
    Image.new("RGB", (64, 64), (9, 90, 200)).save(other)
    engine.prepare(matcher, engine.read(other, "photo"))  # the second photo has to go
    assert engine.prepare(matcher, first) is prepared
    assert len(engine._prepared) == 2


def test_old_results_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, other = result_folder(60), tmp_path / "not-ours"
    (old / "matches.npz").write_bytes(b"x")
    other.mkdir()
    for path in (old, other):
        os.utime(path, (0, 0))
    young = result_folder(60)
    again = result_folder(60)
    assert sorted(tmp_path.iterdir()) == sorted([young, again, other])


def test_matching_and_its_files(engine, photos, tmp_path):
    matcher = engine.matcher(model_names()[0], 320, 64)
    assert matcher.config.resolution == 320
    prepared = [engine.prepare(matcher, engine.read(path, "photo")) for path in photos]
    matches = engine.match(matcher, *prepared)
    assert 0 < len(matches) <= 64
    assert matches.size0 == (400, 300)
    assert f"{len(matches)} matches** from one look in 1.2 s" in summary_of(matches, 1.25)
    matches.meta["looks"] = 9
    assert "from 9 looks in" in summary_of(matches, 1.25)
    for kind in PICTURES:
        picture, note = draw_or_lines(matches, kind)
        assert picture.size[0] > 300
        assert note == "" or "aligned" in note
    files = write_results(matches, picture, match_page(matches), tmp_path / "out")
    assert [path.rsplit(".", 1)[1] for path in files] == ["npz", "html", "png"]
    np.testing.assert_array_equal(Matches.load(files[0]).points0, matches.points0)
    page = (tmp_path / "out" / "matches.html").read_text()
    assert json.loads(page.split('type="application/json">')[1].split("</script>")[0])["count"] == len(
        matches
    )
    explanation = engine.explain(matcher, *prepared, (200.0, 150.0))
    assert explanation.point == (200.0, 150.0)


@pytest.mark.skipif(not has_stylizer(), reason="needs the stylizer's weights")
def test_stylizing_mixes_anew_and_refuses_other_places(photos, tmp_path):
    from coam import samples
    from coam.app.stylize import show, stylize_or_refuse, words_about
    from coam.errors import DataError

    yard = samples.courtyard()
    engine = Engine(uploads=tmp_path)
    matcher = engine.matcher(model_names()[0], 320)
    day, night = (
        engine.read(shutil.copy(yard.image(name), tmp_path), "photo") for name in ("day_04", "night_02")
    )
    full = engine.stylize(matcher, day, night)
    none = engine.stylize(matcher, day, night, strength=0.0)
    half = engine.stylize(matcher, day, night, strength=0.5)
    assert len(engine._stylized) == 1  # the networks ran once
    np.testing.assert_array_equal(none.picture, day.image.rgb)
    expected = (full.picture.astype(int) + day.image.rgb) / 2
    assert np.abs(half.picture - expected).max() <= 0.5
    assert full.picture.mean() < 0.75 * day.image.rgb.mean()  # night is darker
    picture, panel, files = show(full, tmp_path)
    assert picture.size == day.image.size
    assert panel.size[0] > 1.5 * panel.size[1]  # three pictures above two
    assert [os.path.basename(path) for path in files] == ["stylized.png", "panel.png"]
    np.testing.assert_array_equal(np.asarray(Image.open(files[0])), full.picture)
    assert f"pair score **{full.overlap:.2f}**" in words_about(full)

    other = engine.read(shutil.copy(photos[0], tmp_path), "photo")
    with pytest.raises(DataError, match="tick 'stylize all the same'") as caught:
        stylize_or_refuse(engine, matcher, (day, other), 1.0, False)
    assert "--force" not in str(caught.value)
    forced = stylize_or_refuse(engine, matcher, (day, other), 1.0, True)
    assert forced.overlap < 0.5
    assert "different places" in words_about(forced)
    with pytest.raises(DataError, match=f"pair score {forced.overlap:.2f}"):
        stylize_or_refuse(engine, matcher, (day, other), 1.0, False)  # having been forced once is no excuse


def drained(steps):
    """The words and the answer of a generator."""
    words = []
    while True:
        try:
            words.append(next(steps))
        except StopIteration as end:
            return words, end.value


@pytest.mark.parametrize("kind", ["ppm", "turned", "sixteen", "heic"])
def test_previews_show_what_browsers_cannot_and_stand_for_the_upload(tmp_path, kind):
    rng = np.random.default_rng(1)
    small = Image.fromarray(rng.integers(0, 255, (8, 12, 3)).astype(np.uint8))
    picture = small.resize((2400, 1600), Image.Resampling.BICUBIC)
    path = tmp_path / f"photo.{ {'ppm': 'ppm', 'heic': 'heic', 'sixteen': 'png'}.get(kind, 'jpg') }"
    if kind == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6  # to be turned by 90 degrees for viewing
        picture.save(path, exif=exif)
    elif kind == "sixteen":
        Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257).save(path)
    elif kind == "heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
        picture.save(path)
    else:
        picture.save(path)
    engine = Engine(limits=Limits(preview_side=600), uploads=tmp_path)
    (tmp_path / "made").mkdir()
    shown = engine.preview(path, "photo 1", tmp_path / "made")
    with Image.open(shown) as preview:
        assert preview.format == "JPEG"
        assert preview.size == ((400, 600) if kind == "turned" else (600, 400))
        assert 0x0112 not in preview.getexif()
    upload, behind = engine.read(path, "photo 1"), engine.read(shown, "photo 1")
    assert behind.digest == upload.digest
    assert behind.image.size == ((1600, 2400) if kind == "turned" else (2400, 1600))
    assert behind.shown == preview.size
    assert upload.shown == upload.image.size
    # A preview of a preview is one of the upload.
    (tmp_path / "again").mkdir()
    again = engine.read(engine.preview(shown, "photo 1", tmp_path / "again"), "photo 1")
    assert again.digest == upload.digest
    path.unlink()
    with pytest.raises(ImageError, match="upload it again"):
        engine.read(shown, "photo 1")


def test_two_files_that_look_alike_have_previews_of_their_own(tmp_path):
    picture = Image.new("RGB", (64, 64), (10, 200, 30))
    for name, folder in (("a.png", "one"), ("b.bmp", "two")):
        picture.save(tmp_path / name)
        (tmp_path / folder).mkdir()
    engine = Engine(uploads=tmp_path)
    first = engine.preview(tmp_path / "a.png", "photo 1", tmp_path / "one")
    second = engine.preview(tmp_path / "b.bmp", "photo 2", tmp_path / "two")
    assert engine.read(first, "photo 1").path.endswith("a.png")
    assert engine.read(second, "photo 2").path.endswith("b.bmp")


def test_a_pair_is_matched_once_and_its_figures_are_told(engine, photos):
    matcher = engine.matcher(model_names()[0], 320, 128)
    pair = [engine.read(path, "photo") for path in photos]
    assert not engine.is_matched(matcher, pair)
    words, found = drained(engine.match_pair(matcher, pair))
    assert [line.split()[0] for line in words] == ["looking", "looking", "matching", "judging"]
    assert {model.kind for model in found.models} == {"homography", "fundamental"}
    # The photos are views of one plane, moved by (24, 10).
    plane = found.models[0]
    np.testing.assert_allclose(plane.apply([[100, 100]]), [[124, 110]], atol=1)
    assert engine.is_matched(matcher, pair)
    again, same = drained(engine.match_pair(matcher, pair))
    assert again == []
    assert same is found
    figures = dict(figures_of(found))
    assert set(figures) >= {"seconds looking", "seconds matching", "seconds geometry"}
    assert not engine.is_matched(engine.matcher(model_names()[0], 320, 64), pair)


@pytest.mark.parametrize(
    ("overlap", "words"),
    [
        (0.95, "almost surely"),
        (0.6, "probably the same place"),
        (0.2, "probably not"),
        (np.nan, "no overlap score"),
    ],
)
def test_what_the_overlap_score_means(overlap, words):
    nothing = np.zeros((0, 2), np.float32)
    ids = np.zeros(0, np.int64)
    matches = Matches(nothing, nothing, np.zeros(0, np.float32), ids, ids, (9, 9), (9, 9), overlap=overlap)
    assert words in meaning_of(matches)
