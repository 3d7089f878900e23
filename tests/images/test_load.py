"""Reading pictures of every kind, refusing the rest with one line, and resizing by the stated convention."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from coam.errors import ConfigError, ImageError
from coam.geometry.coordinates import resize_points
from coam.images import LoadedImage, load_image
from coam.images.resize import resize_for_model

QUADRANTS = np.array([[[250, 10, 10], [10, 250, 10]], [[10, 10, 250], [250, 250, 10]]], dtype=np.uint8)


def scene(width: int = 64, height: int = 48) -> np.ndarray:
    """Four flat quadrants: red, green / blue, yellow. Flat, so that JPEG keeps their colours."""
    rows = (np.arange(height) * 2 // height)[:, None]
    columns = (np.arange(width) * 2 // width)[None, :]
    return QUADRANTS[rows, columns]


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def one_line(error: pytest.ExceptionInfo[ImageError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert ";" in message, "an error says what to do after a semicolon"
    return message


# ---- every way in gives the same picture


def test_path_bytes_file_pil_array_and_tensor_agree(tmp_path: Path) -> None:
    rgb = scene()
    path = tmp_path / "photo.png"
    Image.fromarray(rgb).save(path)
    content = path.read_bytes()
    chw = torch.from_numpy(rgb).permute(2, 0, 1)
    with path.open("rb") as file:
        sources = [
            path,
            str(path),
            content,
            bytearray(content),
            io.BytesIO(content),
            file,
            Image.open(path),
            rgb,
            rgb / 255.0,
            rgb.astype(np.uint16) * 257,
            chw,
            chw.float() / 255,
            torch.from_numpy(rgb),
            chw.to(torch.float64) / 255,
            LoadedImage(rgb),
        ]
        for source in sources:
            loaded = load_image(source)
            assert loaded.rgb.dtype == np.uint8
            assert loaded.rgb.flags.c_contiguous
            np.testing.assert_array_equal(loaded.rgb, rgb)
            assert loaded.size == (64, 48)
    assert load_image(path).name == str(path)
    assert load_image(content).name is None


def test_an_array_is_copied() -> None:
    rgb = scene()
    loaded = load_image(rgb)
    rgb[:] = 0
    assert loaded.rgb[0, 0].tolist() == [250, 10, 10]


def test_grey_arrays_and_tensors_are_repeated() -> None:
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for source in (grey, grey[..., None], torch.from_numpy(grey), torch.from_numpy(grey)[None]):
        loaded = load_image(source)
        assert loaded.size == (4, 3)
        for channel in range(3):
            np.testing.assert_array_equal(loaded.rgb[..., channel], grey)


def test_bool_half_and_bfloat16() -> None:
    assert load_image(np.array([[True, False]])).rgb[0, :, 0].tolist() == [255, 0]
    assert load_image(np.full((2, 2), 0.5, np.float16)).rgb[0, 0].tolist() == [128, 128, 128]
    assert load_image(torch.full((3, 2, 2), 0.5, dtype=torch.bfloat16)).rgb[0, 0].tolist() == [128, 128, 128]


# ---- modes of files


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = scene(64, 48)
    # How the sensor stored it: the inverse of what the tag asks the viewer to do.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind, tolerance in (("JPEG", 8), ("PNG", 0), ("TIFF", 0), ("WEBP", 12)):
        data = encode(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **_best(kind))
        for source in (data, Image.open(io.BytesIO(data))):
            loaded = load_image(source)
            assert loaded.size == (64, 48), kind
            for y, x in ((12, 16), (12, 48), (36, 16), (36, 48)):
                difference = np.abs(loaded.rgb[y, x].astype(int) - upright[y, x])
                assert difference.max() <= tolerance, (kind, orientation, x, y)


def _best(kind: str) -> dict[str, Any]:
    return {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})


def test_focal_length_and_camera_come_from_exif() -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Maker", "Model 7\0"
    exif.get_ifd(0x8769)[0xA405] = 28
    loaded = load_image(encode(Image.fromarray(scene()), "JPEG", exif=exif))
    assert loaded.focal35 == 28.0
    assert loaded.camera == "Maker Model 7"
    plain = load_image(encode(Image.fromarray(scene()), "JPEG"))
    assert plain.focal35 is None
    assert plain.camera is None


def test_damaged_exif_does_not_refuse_the_picture() -> None:
    data = bytearray(encode(Image.fromarray(scene()), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0" + b"\xff" * 40))
    assert load_image(bytes(data)).size == (64, 48)


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    for kind in ("PNG", "TIFF"):
        loaded = load_image(encode(Image.fromarray(ramp), kind))
        np.testing.assert_array_equal(loaded.rgb[..., 1].ravel(), np.arange(256))
    assert load_image(np.array([[0, 128, 129, 65535, 65406, 65407]], np.uint16)).rgb[0, :, 0].tolist() == [
        0,
        0,
        1,
        255,
        254,
        255,
    ]


def test_sixteen_bit_colour_png() -> None:
    # Pillow cannot write one, so it is made by hand: 2 x 1 pixels, 16-bit RGB.
    row = struct.pack(">6H", 65535, 32896, 0, 257, 514, 40000)
    data = png(2, 1, b"\0" + row, bit_depth=16, colour_type=2)
    rgb = load_image(data).rgb
    assert np.abs(rgb[0].astype(int) - [[255, 128, 0], [1, 2, 155]]).max() <= 1


def grey_ramp(highest: int) -> np.ndarray:
    """100 x 100 values from 0 to `highest`, rising row by row."""
    return np.linspace(0, highest, 10_000).round().astype(np.uint16).reshape(100, 100)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_ten_bits_in_sixteen_fill_the_range(kind: str) -> None:
    """Without a stretch 1023 of 65535 would be 4 of 255; the 99.9th percentile, 1022, becomes white."""
    grey = load_image(encode(Image.fromarray(grey_ramp(1023)), kind)).rgb[..., 0]
    np.testing.assert_allclose(grey.ravel(), np.linspace(0, 255, 10_000), atol=1.1)
    assert (grey[-1, -10:] == 255).all()


def test_the_stretch_begins_below_a_quarter_of_the_range() -> None:
    for highest, lifted in ((15_000, True), (16_500, False), (65_535, False)):
        values = grey_ramp(highest)
        plain = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        loaded = load_image(values).rgb[..., 0]
        assert (not np.array_equal(loaded, plain)) == lifted, highest
        assert (loaded[-1, -1] == 255) == (lifted or highest == 65_535)
    # A few hot pixels do not hide that the rest is dark, and black stays black.
    hot = grey_ramp(1000)
    hot[0, :5] = 65_535
    assert load_image(hot).rgb[-1, -1, 0] == 255
    assert load_image(np.zeros((50, 50), np.uint16)).rgb.max() == 0


def test_low_range_colours_keep_their_hue_and_opacity() -> None:
    rgba = np.zeros((40, 40, 4), np.uint16)
    rgba[..., :3] = (1000, 500, 250)
    rgba[..., 3] = 65_535
    assert load_image(rgba).rgb[0, 0].tolist() == [255, 128, 64]


def test_low_range_sixteen_bit_colour_png_is_read_with_all_its_bits() -> None:
    """Pillow keeps the upper bytes: of 10 bits in 16 that would be four grey levels."""
    values = np.stack([grey_ramp(1023), grey_ramp(1023)[::-1], grey_ramp(512)], axis=-1)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    data = png(100, 100, rows, bit_depth=16, colour_type=2)
    rgb = load_image(data).rgb
    np.testing.assert_allclose(rgb, np.minimum(values / 1023 * 255, 255), atol=1.5)
    assert len(np.unique(rgb)) > 200


def test_one_bit_palette_cmyk_lab_and_float() -> None:
    bits = Image.fromarray(np.array([[255, 0], [0, 255]], np.uint8)).convert("1")
    assert load_image(encode(bits, "PNG")).rgb[..., 0].tolist() == [[255, 0], [0, 255]]
    palette = Image.fromarray(scene()).quantize(4)
    np.testing.assert_allclose(load_image(encode(palette, "GIF")).rgb, scene(), atol=2)
    cmyk = Image.fromarray(scene()).convert("CMYK")
    for data in (encode(cmyk, "JPEG", quality=95), encode(cmyk, "TIFF")):
        np.testing.assert_allclose(load_image(data).rgb[12, 16], scene()[12, 16], atol=8)
    real = Image.fromarray(np.array([[0.0, 0.5, 1.0]], np.float32))
    assert load_image(encode(real, "TIFF")).rgb[0, :, 0].tolist() == [0, 128, 255]


def test_transparent_pixels_show_white() -> None:
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, :, 0] = 200
    rgba[0, :, 3] = (0, 128, 255)
    want = [[255, 255, 255], [227, 127, 127], [200, 0, 0]]
    for source in (rgba, Image.fromarray(rgba), encode(Image.fromarray(rgba), "PNG")):
        assert load_image(source).rgb[0].tolist() == want
    grey_alpha = Image.fromarray(np.array([[[0, 0], [0, 255]]], np.uint8), mode="LA")
    assert load_image(encode(grey_alpha, "PNG")).rgb[0, :, 0].tolist() == [255, 0]
    keyed = Image.fromarray(np.array([[0, 1]], np.uint8), mode="P")
    keyed.putpalette([9, 9, 9, 40, 50, 60])
    data = encode(keyed, "PNG", transparency=0)
    assert load_image(data).rgb[0].tolist() == [[255, 255, 255], [40, 50, 60]]


def test_of_an_animation_the_first_frame() -> None:
    frames = [Image.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (200, 100, 0)]
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert Image.open(io.BytesIO(data)).n_frames == 3
        assert load_image(data).rgb[4, 4].tolist() == [200, 200, 200]


# ---- refusals


def png(width: int, height: int, raw: bytes, bit_depth: int = 8, colour_type: int = 0) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    compressed = zlib.compress(raw)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", compressed) + chunk(b"IEND", b"")


def test_a_bomb_is_refused_before_decoding(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png(60_000, 60_000, b"\0" * 100))
    before = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ImageError, match="60000 x 60000") as error:
        load_image(bomb)
    assert "bomb.png" in one_line(error)
    assert before == Image.MAX_IMAGE_PIXELS, "Pillow's own limit is left as it was"


def test_the_pixel_limit_is_exact() -> None:
    rgb = np.zeros((10, 10, 3), np.uint8)
    for source in (rgb, Image.fromarray(rgb), encode(Image.fromarray(rgb), "PNG")):
        assert load_image(source, max_pixels=100).size == (10, 10)
        with pytest.raises(ImageError, match="limit"):
            load_image(source, max_pixels=99)


def test_more_than_pillows_own_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(Image.fromarray(scene()), "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 // 3)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(io.BytesIO(data))
    np.testing.assert_array_equal(load_image(data).rgb, scene())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF"])
def test_truncated_files_are_refused(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = encode(Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)), kind)
    for share in (0.01, 0.2, 0.5, 0.8):
        path = tmp_path / f"cut.{kind.lower()}"
        path.write_bytes(data[: max(1, int(len(data) * share))])
        with pytest.raises(ImageError) as error:
            load_image(path)
        assert path.name in one_line(error)


def test_what_is_no_picture_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not a picture")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    heic = tmp_path / "phone.heic"
    heic.write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 40)
    cases = {
        "empty.jpg": "empty",
        "text.jpg": "not a picture",
        "loop.jpg": "cannot be opened",
        "pipe.jpg": "regular",
        "folder.jpg": "folder",
        "missing.jpg": "no such file",
        "a\0b": "cannot be opened",
    }
    for name, what in cases.items():
        with pytest.raises(ImageError, match=what) as error:
            load_image(f"{tmp_path}/{name}")
        assert name.split("\0")[0] in one_line(error)
    with pytest.raises(ImageError, match=r"HEIC|damaged|not a picture"):
        load_image(heic)
    with pytest.raises(ImageError, match="not a picture"):
        load_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")


def test_heic_is_read_and_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    picture = np.zeros((96, 128, 3), np.uint8)
    picture[:48, :64, 0] = 220  # the upper left quarter is red
    exif = Image.Exif()
    exif[0x0112] = (
        6  # HEIF has a property of its own for turns, which its reader applies; this only repeats it
    )
    exif[0x0110] = "Phone 7"
    path = tmp_path / "phone.heic"
    Image.fromarray(picture).save(path, exif=exif, quality=95)
    loaded = load_image(path)
    assert loaded.size == (128, 96)
    assert loaded.rgb[20, 20, 0] > 180
    assert loaded.rgb[20, 100, 0] < 40
    assert loaded.camera == "Phone 7"
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"is HEIC; install pillow-heif \(pip install .*\[heif\]'\)"):
        load_image(path)


def test_avif_needs_no_extra_where_pillow_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not features.check("avif"):
        pytest.skip("this Pillow was built without AVIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    picture = np.full((64, 96, 3), 200, np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.avif")
    assert abs(load_image(tmp_path / "a.avif").rgb.astype(int) - 200).max() < 5
    content = bytearray((tmp_path / "a.avif").read_bytes())
    content[8:12] = b"mif1"  # as some programs write it; the other brands still say AVIF
    assert load_image(bytes(content)).size == (96, 64)
    without = {name: opener for name, opener in Image.OPEN.items() if name != "AVIF"}
    monkeypatch.setattr(Image, "OPEN", without)
    with pytest.raises(ImageError, match="is AVIF; install pillow-heif"):
        load_image(tmp_path / "a.avif")


def test_urls_are_not_read() -> None:
    for url in ("http://example.org/a.jpg", "https://example.org/a.jpg", Path("https://example.org/a.jpg")):
        with pytest.raises(ImageError, match="URLs are not read") as error:
            load_image(url)
        one_line(error)


def test_reading_a_photo_does_not_import_torch(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "a.png")
    read = "import sys; from coam.images.load import load_image; load_image(sys.argv[1])"
    command = [sys.executable, "-c", read + "; print('torch' in sys.modules)", str(tmp_path / "a.png")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_photo_knows_where_its_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(scene()).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    assert load_image("a.png").path == str(tmp_path / "a.png")
    assert load_image(scene()).path is None
    assert LoadedImage(scene(), name="upload.jpg").path is None


def test_unreadable_objects_are_refused() -> None:
    for source in (io.StringIO("text"), b"", 7, None, [[1, 2], [3, 4]]):
        with pytest.raises(ImageError) as error:
            load_image(source)  # type: ignore[arg-type]
        one_line(error)
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(ImageError, match="cannot be read"):
        load_image(closed)


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.full((4, 4), np.nan), "NaN"),
        (np.full((4, 4, 3), np.inf, np.float32), "infinite"),
        (np.full((4, 4, 3), 200.0), r"scale them to \[0, 1\]"),
        (np.full((4, 4, 3), -0.5), "-0.5"),
        (np.zeros((4, 4, 3), np.int64), "int64"),
        (np.zeros((4, 4, 3), complex), "complex"),
        (np.zeros((4, 4), object), "object"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.zeros((4, 4, 2), np.uint8), r"\(4, 4, 2\)"),
        (np.zeros((2, 3, 4, 4), np.uint8), r"\(2, 3, 4, 4\)"),
        (np.zeros(4, np.uint8), r"\(4,\)"),
        (torch.zeros(2, 3, 4, 4), r"\(2, 3, 4, 4\)"),
        (torch.full((3, 4, 4), float("nan")), "NaN"),
        (torch.zeros(3, 0, 4), "no pixels"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(array: Any, what: str) -> None:
    with pytest.raises(ImageError, match=what) as error:
        load_image(array)
    one_line(error)


# ---- resizing


def blob(width: int, height: int, x: float, y: float, sigma: float) -> np.ndarray:
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    value = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2)) * 255
    return np.repeat(np.rint(value).astype(np.uint8)[..., None], 3, axis=2)


def centroid(grey: np.ndarray) -> tuple[float, float]:
    rows, columns = np.mgrid[: grey.shape[0], : grey.shape[1]]
    return float((columns * grey).sum() / grey.sum()), float((rows * grey).sum() / grey.sum())


@pytest.mark.parametrize(
    ("width", "height", "resolution"),
    [(640, 480, 320), (640, 480, 512), (641, 479, 512), (200, 150, 512), (1000, 700, 160), (300, 500, 512)],
)
def test_resampling_follows_the_pixel_convention(width: int, height: int, resolution: int) -> None:
    centre = (width * 0.37 + 0.21, height * 0.61 - 0.13)
    picture = blob(width, height, *centre, sigma=min(width, height) / 12)
    resized = resize_for_model(picture, resolution)
    measured_before = centroid(picture[..., 0].astype(float))
    measured_after = centroid(resized.tensor[0, 0].double().numpy())
    want = resize_points(np.array(measured_before), resized.scale)
    assert np.abs(np.array(measured_after) - want).max() < 1e-2
    back = resize_points(np.array(measured_after), (1 / resized.scale[0], 1 / resized.scale[1]))
    assert np.abs(back - centre).max() < 5e-2


def test_a_side_that_shrinks_beside_one_that_grows() -> None:
    picture = blob(900, 20, 400.3, 9.7, sigma=3.0)
    resized = resize_for_model(picture, 448, squash=True)
    assert tuple(resized.tensor.shape) == (1, 3, 448, 448)
    want = resize_points(np.array(centroid(picture[..., 0].astype(float))), resized.scale)
    assert np.abs(np.array(centroid(resized.tensor[0, 0].double().numpy())) - want).max() < 1e-2


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::2] = 254
    resized = resize_for_model(stripes, 128)
    assert torch.allclose(resized.tensor, torch.full_like(resized.tensor, 127 / 255), atol=1e-6)


@pytest.mark.parametrize(
    ("size", "options", "want"),
    [
        ((640, 480), {"resolution": 512}, (512, 384)),
        ((480, 640), {"resolution": 512}, (384, 512)),
        ((1000, 333), {"resolution": 512}, (512, 160)),  # 170.5 -> 5.33 * 32 -> 160
        ((1000, 345), {"resolution": 512}, (512, 192)),  # 176.64 -> 5.52 * 32 -> 192
        ((640, 480), {"resolution": 512, "squash": True}, (512, 512)),
        ((640, 480), {"resolution": 320}, (320, 256)),  # 240 = 7.5 * 32, halves go up
        ((640, 480), {"resolution": 80, "squash": True}, (96, 96)),  # 2.5 * 32
        ((128, 100), {"resolution": 512}, (512, 416)),  # exactly four times
        ((100, 80), {"resolution": 512}, (416, 320)),  # 400 x 320: no more than four times
        ((24, 18), {"resolution": 800}, (96, 64)),  # 96 x 72
        ((24, 18), {"resolution": 512, "squash": True}, (512, 512)),  # as published
        ((1, 1), {"resolution": 512}, (32, 32)),
        ((1, 60_000), {"resolution": 512}, (32, 512)),
        ((60_000, 1), {"resolution": 512}, (512, 32)),
    ],
)
def test_sizes_and_scales(size: tuple[int, int], options: dict[str, Any], want: tuple[int, int]) -> None:
    resized = resize_for_model(np.zeros((size[1], size[0], 3), np.uint8), **options)
    assert tuple(resized.tensor.shape) == (1, 3, want[1], want[0])
    assert resized.scale == (want[0] / size[0], want[1] / size[1])


def test_values_are_rgb_in_zero_to_one() -> None:
    resized = resize_for_model(scene(64, 64), 64)
    assert resized.tensor.dtype == torch.float32
    assert resized.tensor.is_contiguous()
    np.testing.assert_allclose(resized.tensor[0, :, 0, 0], np.array([250, 10, 10]) / 255, rtol=1e-6)


def test_impossible_resolutions_are_refused() -> None:
    for resolution in (0, -1):
        with pytest.raises(ConfigError, match="positive"):
            resize_for_model(scene(), resolution)


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 6000),
    height=st.integers(1, 6000),
    resolution=st.integers(32, 1600),
    u=st.floats(0, 1),
    v=st.floats(0, 1),
)
def test_points_go_there_and_back(width: int, height: int, resolution: int, u: float, v: float) -> None:
    factor = resolution / max(width, height)
    scale = (max(32, round(width * factor)) / width, max(32, round(height * factor)) / height)
    point = np.array([[u * (width - 1), v * (height - 1)]], np.float32)
    inverse = (1 / scale[0], 1 / scale[1])
    assert np.abs(resize_points(resize_points(point, scale), inverse) - point).max() < 1e-3
    tensor = torch.from_numpy(point)
    assert (resize_points(resize_points(tensor, scale), inverse) - tensor).abs().max() < 1e-3


def test_a_batch_of_one_is_one_picture() -> None:
    pixels = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)[1:]
    expected = pixels[0].permute(1, 2, 0).numpy()
    for tensor in (pixels, pixels[0], pixels.float() / 255, (pixels.float() / 255).requires_grad_()):
        np.testing.assert_array_equal(load_image(tensor).rgb, expected)
    grey = torch.full((1, 1, 4, 5), 0.2)
    np.testing.assert_array_equal(load_image(grey).rgb, np.full((4, 5, 3), 51))
