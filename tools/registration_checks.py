"""What docs/register.md says about made pairs, measured: a GeoTIFF, an elastic deformation, 10,000 x 10,000.

    python tools/registration_checks.py geotiff|elastic|large [--out FOLDER] [--side 10000]
    python tools/registration_checks.py marks --data FOLDER

Each prints what it found and writes docs/results/registration-NAME.json; then: make docs-tables.

The pictures are the bundled courtyard's. The moving image is another sensor's: its tones are bent and partly
turned round, it is blurred, and noise is added. Errors are means over a grid of the fixed image.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from docs_tables import RESULTS, Result, markdown

import coam
from coam import __version__, samples
from coam.evaluation.benchmarks.registration import load_registration
from coam.evaluation.matchers.by_name import find_matcher
from coam.geometry.homography import apply_homography, fit_homography, transfer_errors
from coam.geometry.motions import FITS
from coam.images import load_image
from coam.models.registry import DEFAULT_MODEL
from coam.registration.fitting import FitOptions, fit_transform
from coam.registration.outputs import write_outputs
from coam.registration.quality import RIGHT_PIXELS
from coam.registration.rasters import Raster, of_array, open_raster
from coam.registration.resampling import DEFAULT_RESAMPLE, resampled_tiles
from coam.registration.transforms import PlaneTransform

VIEW = "day_01"
MISPLACED = 30.0  # pixels from where a registration has it: a mark that was set on something else


def view() -> np.ndarray:
    """A view of the courtyard (H, W, 3)."""
    return load_image(samples.courtyard().image(VIEW)).rgb


def other_sensor(rgb: np.ndarray, seed: int = 0) -> np.ndarray:
    """One band (H, W) of 12 bits in 16, whose tones are not those of the photo."""
    grey = cv2.GaussianBlur(rgb.astype(np.float32) @ np.float32([0.2, 0.2, 0.6]), (0, 0), 0.8) / 255
    bent = 0.55 + 0.45 * np.cos(4.2 * grey)
    noise = np.random.default_rng(seed).normal(0, 0.02, grey.shape)
    return np.clip((bent + noise) * 3000 + 400, 0, 4095).astype(np.uint16)


def similarity(turn: float, scale: float, shift: tuple[float, float], size: tuple[int, int]) -> np.ndarray:
    """Turn in degrees and scale about the middle of `size`, then a shift in pixels; (3, 3)."""
    centre = (np.asarray(size) - 1) / 2
    a, b = scale * np.cos(np.radians(turn)), scale * np.sin(np.radians(turn))
    linear = np.array([[a, -b], [b, a]])
    matrix = np.eye(3)
    matrix[:2, :2], matrix[:2, 2] = linear, centre + shift - linear @ centre
    return matrix


def grid_of(size: tuple[int, int], cells: int = 40) -> np.ndarray:
    """Points (N, 2) over an image, a twentieth from its edges."""
    x, y = (np.linspace(0.05 * side, 0.95 * side, cells) for side in size)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


def geotiff(out: Path) -> dict[str, Any]:
    """A 16-bit band without a place on Earth, laid onto a GeoTIFF of the same scene."""
    import rasterio

    rgb = view()
    size = (rgb.shape[1], rgb.shape[0])
    place = rasterio.Affine(0.5, 0.0, 500_000.0, 0.0, -0.5, 5_300_000.0)
    with rasterio.open(
        out / "fixed.tif", "w", driver="GTiff", width=size[0], height=size[1], count=3, dtype="uint8",
        crs="EPSG:32633", transform=place,
    ) as file:  # fmt: skip
        file.write(np.moveaxis(rgb, -1, 0))
    made = similarity(7.0, 1.13, (23.4, -11.8), size)  # fixed -> moving
    moved = cv2.warpPerspective(other_sensor(rgb), made, size, flags=cv2.INTER_CUBIC)
    seen = cv2.warpPerspective(np.ones(size[::-1], np.uint8), made, size) > 0
    with rasterio.open(
        out / "moving.tif",
        "w",
        driver="GTiff",
        width=size[0],
        height=size[1],
        count=1,
        dtype="uint16",
        nodata=0,
    ) as file:
        file.write(np.where(seen, moved, 0).astype(np.uint16), 1)
    found = coam.register(out / "moving.tif", out / "fixed.tif")
    rasters = open_raster(out / "moving.tif"), open_raster(out / "fixed.tif")
    write_outputs(found, *rasters, [out / "registered.tif", out / "gcps.points"], DEFAULT_RESAMPLE)
    with rasterio.open(out / "registered.tif") as file:
        same = file.crs.to_epsg() == 32633 and file.transform == place and (file.width, file.height) == size
        kept = (file.dtypes[0], file.nodata)
    points = grid_of(size)
    error = np.linalg.norm(found.inverse_points(points) - apply_homography(made, points), axis=1) / 1.13
    return {
        "kind": found.transform.kind, "mean_error_px": float(error.mean()), "worst_px": float(error.max()),
        "crs_and_transform_kept": bool(same), "type_and_nodata": kept, "confidence": found.confidence,
    }  # fmt: skip


def elastic(amplitude: float = 10.0, wave: float = 300.0) -> dict[str, Any]:
    """Waves of 10 px amplitude: what a homography, a polynomial, a spline and the dense warp leave."""
    rgb = view()
    size = (rgb.shape[1], rgb.shape[0])
    x, y = np.meshgrid(*(np.arange(side, dtype=np.float32) for side in size))
    turn = 2 * np.pi / wave

    def places(points: np.ndarray) -> np.ndarray:  # fixed -> moving
        px, py = points.T
        return points + amplitude * np.stack([np.sin(turn * py + 0.4), np.sin(turn * px + 1.1)], axis=1)

    moving = other_sensor(rgb)
    flat = places(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64)).astype(np.float32)
    maps = flat.reshape(size[1], size[0], 2)
    fixed = cv2.remap(rgb, maps[..., 0], maps[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    points = grid_of(size)
    result: dict[str, object] = {}
    for model in ("homography", "polynomial", "spline", "dense", "auto"):
        found = coam.register(moving, fixed, model=model, force=True)
        error = np.linalg.norm(found.inverse_points(points) - places(points), axis=1)
        result[model] = {
            "kind": found.transform.kind,
            "mean_error_px": float(error.mean()),
            "p95": float(np.percentile(error, 95)),
        }
    return result


def geotiff_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The model found, its errors, and what was kept of both files."""
    kept = "kept" if found["crs_and_transform_kept"] else "lost"
    row = [found["kind"], f"{found['mean_error_px']:.2f}", f"{found['worst_px']:.2f}", kept]
    row.append(", ".join([found["type_and_nodata"][0], f"nodata {found['type_and_nodata'][1]:g}"]))
    return ["model", "mean error, px", "worst, px", "FIXED's CRS, transform and size", "MOVING's type"], [row]


def elastic_table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Model, what it became, mean error and what 95 % of places stay below."""
    rows = [
        [model, found["kind"], f"{found['mean_error_px']:.2f}", f"{found['p95']:.2f}"]
        for model, found in result.items()
    ]
    return ["`--model`", "is", "mean error, px", "95 % of places below, px"], rows


def large_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The side of both images, the model found, its errors and the peak memory of its process."""
    row = [f"{found['side']:,}", found["kind"], f"{found['mean_error_px']:.2f}", f"{found['worst_px']:.2f}"]
    row += [f"{found['confidence']:.2f}", f"{found['peak_memory_gb']:.1f}"]
    return ["pixels a side", "model", "mean error, px", "worst, px", "confidence", "peak memory, GB"], [row]


def large(out: Path, side: int = 10_000) -> dict[str, Any]:
    """A mosaic of side x side and the same moved by a known similarity, registered; with its peak memory."""
    # A process for each step, so that the peak memory of registering is its own.
    with get_context("spawn").Pool(1, maxtasksperchild=1) as alone:
        made = alone.apply(make_large, (out, side))
        return {"side": side} | alone.apply(register_large, (out, made))


def make_large(out: Path, side: int) -> np.ndarray:
    """OUT/fixed.tif, OUT/moving.tif of side x side, written by tiles, and the motion (3, 3) between them."""
    import tifffile

    views = [load_image(samples.courtyard().image(f"day_{n:02d}")).rgb for n in range(1, 13)]
    rng = np.random.default_rng(0)
    fixed = np.lib.format.open_memmap(out / "fixed.npy", "w+", np.uint8, (side, side, 3))
    cell = 2500  # pixels a side of one photo, which is turned and mirrored so that none is there twice
    for top in range(0, side, cell):
        for left in range(0, side, cell):
            photo = np.rot90(views[int(rng.integers(len(views)))], int(rng.integers(4)))[
                :, :: int(rng.choice([-1, 1]))
            ]
            drawn = cv2.resize(np.ascontiguousarray(photo), (cell, cell), interpolation=cv2.INTER_CUBIC)
            part = fixed[top : top + cell, left : left + cell]
            grain = rng.normal(0, 6, part.shape[:2]).astype(np.float32)
            grain = cv2.GaussianBlur(grain, (0, 0), 1.2)[..., None] * 3  # detail at full resolution
            part[...] = np.clip(drawn[: part.shape[0], : part.shape[1]] + grain, 0, 255).astype(np.uint8)
    tifffile.imwrite(out / "fixed.tif", fixed, photometric="rgb")
    made = similarity(4.0, 1.05, (130.0, -210.0), (side, side))  # moving -> fixed
    source: Raster = of_array(fixed)
    target = tifffile.memmap(out / "moving.tif", shape=(side, side), dtype=np.uint16)
    to_moving = PlaneTransform("similarity", np.linalg.inv(made))
    for window, pixels, _ in resampled_tiles(source, to_moving, (side, side)):
        rows = slice(window.top, window.top + window.height)
        target[rows, window.left : window.left + window.width] = other_sensor(pixels, window.top)
    target.flush()
    del fixed, target, source
    (out / "fixed.npy").unlink()
    return made


def register_large(out: Path, made: np.ndarray) -> dict[str, Any]:
    """The registration of OUT/moving.tif, its error beside `made`, and the peak memory of this process."""
    start = time.perf_counter()
    rasters = open_raster(out / "moving.tif"), open_raster(out / "fixed.tif")
    found = coam.register(*rasters)
    middle = time.perf_counter()
    write_outputs(found, *rasters, [out / "registered.tif", out / "registered.checker.jpg"], DEFAULT_RESAMPLE)
    points = grid_of(rasters[1].size)
    back = apply_homography(np.linalg.inv(made), points)
    inside = ((back >= 0) & (back <= np.array(rasters[0].size) - 1)).all(axis=1)
    error = np.linalg.norm(found.points(back[inside]) - points[inside], axis=1)
    return {
        "kind": found.transform.kind, "mean_error_px": float(error.mean()), "worst_px": float(error.max()),
        "windows": found.meta["windows"], "confidence": found.confidence, "seconds": round(middle - start, 1),
        "seconds_to_write": round(time.perf_counter() - middle, 1),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }  # fmt: skip


def polynomial_misses(degree: int, points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Misses (N,) of a polynomial in x and y fitted to points (N, 2) and their targets (N, 2)."""
    x, y = ((points - points.mean(axis=0)) / points.std(axis=0)).T
    design = np.stack([x**i * y**j for i in range(degree + 1) for j in range(degree + 1 - i)], axis=1)
    return np.linalg.norm(design @ np.linalg.lstsq(design, targets, rcond=None)[0] - targets, axis=1)


def marks(data: Path) -> dict[str, Any]:
    """All models on pairs whose hand marks a homography fitted to these misses by more than 5 px."""
    found: dict[str, Any] = {}
    matcher = coam.load_matcher()
    for pair in load_registration(data / "dev_multimodal"):
        assert pair.correspondences is not None
        marks0, marks1 = pair.correspondences[:, :2], pair.correspondences[:, 2:]
        if transfer_errors(marks0, marks1, fit_homography(marks0, marks1)).mean() <= RIGHT_PIXELS:
            continue
        matches = matcher.match(pair.image0, pair.image1)
        rows: dict[str, Any] = {}
        for model in ("similarity", "affine", "homography", "polynomial", "spline", "auto"):
            fit = fit_transform(matches.points0, matches.points1, matches.size1, FitOptions(model=model))
            if fit is None:
                continue
            miss = np.linalg.norm(fit.transform.points(marks0) - marks1, axis=1)
            ideal = FITS[model](marks0, marks1) if model in FITS else None
            own = np.nan if ideal is None else transfer_errors(marks0, marks1, ideal).mean()
            rows[model] = [miss.mean(), miss[miss < MISPLACED].mean(), own]
        for degree in (2, 3):
            own = polynomial_misses(degree, marks0, marks1).mean()
            rows[f"polynomial of degree {degree}"] = [np.nan, np.nan, own]
        found[pair.name] = {model: [float(value) for value in row] for model, row in rows.items()}
    return found


def marks_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Pair, model, mean miss of all marks, of those not misplaced, and if fitted to the marks."""
    rows = [
        [pair, model, *("-" if np.isnan(value) else f"{value:.2f}" for value in (mean, rest, own))]
        for pair, models in found.items()
        for model, (mean, rest, own) in models.items()
    ]
    columns = ["pair", "model", "all marks, px", "without those misplaced", "fitted to the marks themselves"]
    return columns, rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("check", choices=["geotiff", "elastic", "large", "marks"])
    parser.add_argument("--out", type=Path, default=Path("out/registration"))
    parser.add_argument("--side", type=int, default=10_000, help="pixels, of large")
    parser.add_argument("--data", type=Path, help="holds dev_multimodal/, for marks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checks: dict[str, Any] = {
        "geotiff": (lambda: geotiff(options.out), geotiff_table),
        "elastic": (elastic, elastic_table),
        "large": (lambda: large(options.out, options.side), large_table),
        "marks": (lambda: marks(options.data), marks_table),
    }
    measure, table = checks[options.check]
    result = measure()
    print(json.dumps(result, indent=1))
    weights = {DEFAULT_MODEL: find_matcher(DEFAULT_MODEL).model_hash}
    command = f"python tools/registration_checks.py {options.check}"
    if options.check == "marks":
        command += " --data $DATA"
    columns, rows = table(result)
    source = Result(command, __version__, weights, columns, rows)
    source.save(RESULTS / f"registration-{options.check}.json")
    print(markdown(source))


if __name__ == "__main__":
    main()
