"""Stylization: mean L1 distance to the true colours on the common region (the paper's section 4.3).

Given a view and a style photo of the same scene, the wanted picture has the pose of the view and the colours
of the style photo. Where true correspondences are known, so are the wanted colours: those of the style photo
at the corresponding place. Two layouts: MegaDepth's (D2-Net's scene_info/, photos and depth maps), as in the
paper: 400 pairs drawn at random from the scenes of --scenes (default: the split `test`), the correspondence
by depth and pose, with a check of what is hidden; which 400 the paper drew is not public. Or a folder in
HPatches layout, or a folder of such folders (one table each): image 1 is the view, image k the style photo,
the homography the correspondence. The error is the mean absolute difference over the three channels, colours
in [0, 1], at a regular grid of positions of the view that the style photo shows as well.

Rows: do nothing (the view itself); global colour transfer (Reinhard et al. 2001: mean and spread of each
channel taken from the style photo, in Lab); histogram (each channel's distribution taken from the style
photo); warp only (the paper's sampled image: for EVERY position the colour of its best match; with a sparse
--matcher, a position moves as the match nearest to it); sampled (ours, after neighbours have voted); stage 1;
full (both stages). `--stylizer package.module:function` adds a method: function(view path, style path) ->
picture of the view's size.

Leaks (`--leaks`): `grey leak` is the mean colourfulness (largest minus smallest channel) of the result for a
grey style photo: it should be 0. `view leak` is how much the result changes when the view is recoloured,
divided by how much the view changed: 0 if nothing of the view's colour leaks in, 1 if all does. `swap` is how
much the result changes when the style photo is recoloured, divided likewise: it should be near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.data.depth import DEFAULT_DEPTH, common_probes
from coam.data.megadepth import DEFAULT_CHOICE, SPLITS, Scene, read_scenes, read_view
from coam.errors import ConfigError
from coam.evaluation.benchmarks.hpatches import known_homography, load_hpatches
from coam.evaluation.benchmarks.invariance import corresponding_positions
from coam.evaluation.metrics.tables import Metric, Row, mean_of
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.runner import Benchmark, Option
from coam.geometry.coordinates import resize_points
from coam.matcher import Matcher
from coam.types import PairMatcher, Size

Picture = npt.NDArray[np.uint8]  # (H, W, 3)
Stylizer = Callable[[Path, Path], Any]
COLUMNS = 96  # positions across the view
METHODS = (
    "do_nothing", "colour_transfer", "histogram", "warp_only", "sampled", "stage_1", "full", "stylizer",
)  # fmt: skip
LEAKS = ("grey_leak", "view_leak", "swap")


def corresponding_nowhere(size0: Size, size1: Size) -> tuple[Array, Array]:
    """Nothing of two photos corresponds."""
    return np.zeros((0, 2)), np.zeros((0, 2))


@dataclass(frozen=True)
class DepthPair(EvaluationPair):
    """A pair whose correspondences are known by depth; they are read when they are asked for."""

    correspond: Callable[[Size, Size], tuple[Array, Array]] = field(
        default=corresponding_nowhere, compare=False
    )


def load_stylization(root: Path, *, scenes: str = "test", count: int = 400) -> list[EvaluationPair]:
    """The pairs of MegaDepth, of a folder in HPatches layout, or of such sub-folders, each a subset.

    scenes: of MegaDepth, a split or scene ids with commas; count: so many of their pairs, drawn at random.
    """
    if (root / "scene_info").is_dir():
        return _depth_pairs(root, scenes, count)
    folders = sorted(f for f in root.iterdir() if f.is_dir()) if root.is_dir() else []
    if not folders or any(f.name[:2] in ("i_", "v_") for f in folders):
        return load_hpatches(root)
    return [
        replace(pair, name=f"{folder.name}/{pair.name}", subsets=(folder.name,))
        for folder in folders
        for pair in load_hpatches(folder)
    ]


def _depth_pairs(root: Path, scenes: str, count: int) -> list[EvaluationPair]:
    wanted = scenes if scenes in SPLITS else scenes.split(",")
    found = read_scenes(root / "scene_info", wanted, DEFAULT_CHOICE)
    every = [(scene, *pair) for scene in found for pair in scene.pairs.tolist()]
    chosen = np.random.default_rng(0).permutation(len(every))[:count]
    pairs: list[EvaluationPair] = []
    for scene, first, second in (every[k] for k in sorted(chosen)):
        view, style = (root / str(scene.photos[k]) for k in (first, second))
        known = partial(corresponding_by_depth, root, scene, first, second)
        name = f"{scene.name}/{view.stem} {style.stem}"
        pairs.append(DepthPair(name, view, style, sequence=scene.name.split(".")[0], correspond=known))
    return pairs


def corresponding_by_depth(
    root: Path, scene: Scene, first: int, second: int, size0: Size, size1: Size
) -> tuple[Array, Array]:
    """Grid positions (N, 2) of a photo of `size0` and their places (N, 2) in another that shows them too."""
    (_, view0), (_, view1) = (read_view(root, scene, k) for k in (first, second))
    (height0, width0), (height1, width1) = (view.depth.shape[-2:] for view in (view0, view1))
    step = max(1, width0 // COLUMNS)
    positions, valid = common_probes(view0, view1, step, DEFAULT_DEPTH)
    known = positions[valid].double().numpy()
    places = resize_points(known[:, :2], (size0[0] / width0, size0[1] / height0))
    there = resize_points(known[:, 2:], (size1[0] / width1, size1[1] / height1))
    return np.asarray(places, np.float64), np.asarray(there, np.float64)


def true_positions(pair: EvaluationPair, size0: Size, size1: Size) -> tuple[Array, Array]:
    """Positions (N, 2) of the view and where the style photo shows the same (N, 2)."""
    if isinstance(pair, DepthPair):
        return pair.correspond(size0, size1)
    return corresponding_positions(known_homography(pair), size0, size1, COLUMNS)


def sample_colours(picture: Picture, points: Array) -> Array:
    """Colours (N, 3) in [0, 1] of a picture (H, W, 3) at pixels (N, 2), bilinear, clamped to the picture."""
    from scipy.ndimage import map_coordinates

    places = points[:, ::-1].T  # rows, then columns
    channels = [map_coordinates(picture[..., k] / 255, places, order=1, mode="nearest") for k in range(3)]
    return np.stack(channels, axis=-1)


def mean_l1(colours: npt.ArrayLike, wanted: npt.ArrayLike) -> float:
    """Mean absolute difference over positions and channels, (N, 3) each; nan where nothing is common."""
    difference = np.abs(np.asarray(colours, dtype=np.float64) - np.asarray(wanted, dtype=np.float64))
    return float(difference.mean()) if difference.size else float("nan")


def transfer_colours(view: Picture, style: Picture) -> Picture:
    """The view with mean and spread of each Lab channel taken from the style photo."""
    import cv2

    source, target = (cv2.cvtColor(p, cv2.COLOR_RGB2LAB).astype(np.float64) for p in (view, style))
    spread = target.std(axis=(0, 1)) / np.maximum(source.std(axis=(0, 1)), 1e-6)
    moved = (source - source.mean(axis=(0, 1))) * spread + target.mean(axis=(0, 1))
    lab = np.clip(np.rint(moved), 0, 255).astype(np.uint8)
    return np.asarray(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB), dtype=np.uint8)


def match_histograms(view: Picture, style: Picture) -> Picture:
    """The view with the distribution of each RGB channel taken from the style photo."""
    moved = np.empty_like(view)
    for channel in range(3):
        _, index, counts = np.unique(view[..., channel], return_inverse=True, return_counts=True)
        share = (np.cumsum(counts) - counts / 2) / view[..., channel].size
        wanted = np.sort(style[..., channel], axis=None)
        values = np.interp(share, (np.arange(len(wanted)) + 0.5) / len(wanted), wanted)
        moved[..., channel] = np.rint(values)[index].reshape(view.shape[:2]).astype(np.uint8)
    return moved


def recolour(picture: Picture) -> Picture:
    """The same photo with its channels exchanged and a little darker: the same place, other colours."""
    turned = picture[..., [1, 2, 0]].astype(np.float64) * np.array([0.9, 0.75, 0.6])
    return np.asarray(np.rint(turned), dtype=np.uint8)


def colourfulness(picture: Picture) -> float:
    """Mean over pixels of the largest minus the smallest channel, in [0, 1]; 0 for a grey picture."""
    spread = picture.max(axis=2).astype(np.float64) - picture.min(axis=2)
    return float(spread.mean() / 255)


def score_stylization(
    pair: EvaluationPair,
    matcher: PairMatcher,
    stylizer: Stylizer | None = None,
    ours: Any = None,
    with_leaks: bool = False,
) -> Row:
    """L1 of every method on one pair.

    `matcher` warps (see `corresponding_to`). `ours` is a `coam.stylization.Stylizer`, or None to leave its
    rows (and the leaks) out.
    """
    from coam.images import load_image

    view, style = load_image(pair.image0), load_image(pair.image1)
    places, true_places = true_positions(pair, view.size, style.size)
    wanted = sample_colours(style.rgb, true_places)

    def error(picture: Picture) -> float:
        height, width = picture.shape[:2]  # made pictures may have another resolution than the view
        scale = (width / view.size[0], height / view.size[1])
        return mean_l1(sample_colours(picture, np.asarray(resize_points(places, scale), np.float64)), wanted)

    warped = corresponding_to(places, pair, matcher)
    row: Row = {"positions": float(len(places)), **dict.fromkeys((*METHODS, *LEAKS), float("nan"))}
    row["do_nothing"] = error(view.rgb)
    row["colour_transfer"] = error(transfer_colours(view.rgb, style.rgb))
    row["histogram"] = error(match_histograms(view.rgb, style.rgb))
    row["warp_only"] = mean_l1(sample_colours(style.rgb, warped), wanted)
    if ours is not None:
        result = ours.stylize(view, style, force=True)
        row["sampled"], row["stage_1"] = error(result.sampled), error(result.stage1)
        row["full"] = error(result.picture)
        if with_leaks:
            row |= _leaks(ours, view.rgb, style.rgb, result.picture)
    if stylizer is not None:
        made = load_image(stylizer(pair.image0, pair.image1))
        if made.size != view.size:
            raise ConfigError(
                f"the stylizer gave {made.size} pixels, wanted the size of the view, {view.size}"
            )
        row["stylizer"] = error(made.rgb)
    return row


def corresponding_to(places: Array, pair: EvaluationPair, matcher: PairMatcher) -> Array:
    """Where a matcher sends positions (N, 2) of photo 0 in photo 1.

    One of ours answers every position. A sparse matcher moves each position as the match nearest to it;
    without matches, to the same place of the other photo.
    """
    if hasattr(matcher, "match"):
        found = matcher.match(pair.image0, pair.image1, keypoints0=places.astype(np.float32))
        return np.asarray(found.points1, dtype=np.float64)
    from scipy.spatial import cKDTree

    (matches,) = matcher.match_many([(pair.image0, pair.image1)])
    if not len(matches):
        (width0, height0), (width1, height1) = matches.size0, matches.size1
        return np.asarray(resize_points(places, (width1 / width0, height1 / height0)))
    nearest = cKDTree(matches.points0).query(places)[1]
    return np.asarray(places + (matches.points1 - matches.points0)[nearest], dtype=np.float64)


def _leaks(ours: Any, view: Picture, style: Picture, picture: Picture) -> Row:
    grey = np.repeat(np.rint(style @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)[..., None], 3, axis=2)
    other_view, other_style = recolour(view), recolour(style)

    def change(first: Picture, second: Picture) -> float:
        return mean_l1(first.reshape(-1, 3) / 255, second.reshape(-1, 3) / 255)

    from_other_view = ours.stylize(other_view, style, force=True).picture
    from_other_style = ours.stylize(view, other_style, force=True).picture
    return {
        "grey_leak": colourfulness(ours.stylize(view, grey, force=True).picture),
        "view_leak": change(picture, from_other_view) / max(change(view, other_view), 1e-6),
        "swap": change(picture, from_other_style) / max(change(style, other_style), 1e-6),
    }


def find_stylizer(name: str) -> Stylizer:
    """The function behind package.module:function."""
    try:
        found = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--stylizer {name}: {error}; wanted package.module:function") from error
    if not callable(found):
        raise ConfigError(f"--stylizer {name} is not a function (view path, style path) -> picture")
    return found  # type: ignore[no-any-return]


def measure_stylization(
    matcher: PairMatcher,
    pairs: Sequence[EvaluationPair],
    *,
    stylizer: str | None,
    weights: Path | None,
    leaks: bool,
    device: str,
    resolution: int | None,
) -> Iterator[Row]:
    """Rows of the pairs: `score_stylization` with what the command line knows by name."""
    from coam.stylization import load_stylizer
    from coam.stylization.apply import RESOLUTION

    function = find_stylizer(stylizer) if stylizer else None
    ours = None
    if isinstance(matcher, Matcher):  # beside another matcher our stages say nothing of it
        ours = load_stylizer(weights, device=device, resolution=resolution or RESOLUTION)
    for pair in pairs:
        yield score_stylization(pair, matcher, function, ours, leaks)


STYLIZATION = Benchmark(
    name="stylization",
    load=load_stylization,
    options=(
        Option("scenes", str, "test", "Of MegaDepth: a split, or scene ids with commas."),
        Option("count", int, 400, "Of MegaDepth: so many pairs, drawn at random.", min=1),
    ),
    measure=measure_stylization,
    run_options=(
        Option("stylizer", str | None, None, "package.module:function (view path, style path) -> picture."),
        Option("weights", Path | None, None, "A stylizer's .safetensors file."),
        Option("leaks", bool, False, "Also whether colours of the view leak in.", ("--leaks",)),
        "device",
        "resolution",
    ),
    shared=("limit", "preset"),
    metrics=(
        *(
            Metric(
                f"L1 {key.replace('_', ' ')}", mean_of(key), "value", headline=True, higher_is_better=False
            )
            for key in METHODS
        ),
        Metric("grey leak", mean_of("grey_leak"), "value", higher_is_better=False),
        Metric("view leak", mean_of("view_leak"), "value", higher_is_better=False),
        Metric("swap", mean_of("swap"), "value"),
    ),
    rank_by="full",
    rank_higher_is_better=False,
)
