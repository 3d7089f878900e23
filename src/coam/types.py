"""The values that travel between rooms.

The pixel convention of everything public, stated once: the centre of the top-left pixel is (0, 0), x runs
right, y runs down, points are (x, y), and coordinates are those of the ORIGINAL photo after its EXIF
orientation has been applied. Other conventions are converted in `coam.geometry.coordinates` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing import Unpack

    import cv2
    from PIL import Image

    from coam.geometry.ransacs import RansacKeywords
    from coam.geometry.two_view_models import (
        EssentialMatrix,
        FundamentalMatrix,
        Homography,
        RelativePose,
        TwoViewModel,
    )

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Size = tuple[int, int]  # (width, height) in pixels

SAME_PLACE = 0.5  # the overlap from which two photos are said to show the same place
_PER_MATCH = ("points0", "points1", "scores", "ids0", "ids1")  # fields of `Matches` with a row for each


def matches_in_words(count: int) -> str:
    """The number with its noun: 1 match, 2,048 matches."""
    return f"{count:,} match{'' if count == 1 else 'es'}"


@dataclass(frozen=True)
class Grid:
    """The regular positions of one image at which descriptors are compared.

    A grid position is a keypoint: its id, row * columns + column, depends on the image and the matcher's
    settings only, never on the other image, so matches of many pairs chain into tracks by id.
    """

    columns: int
    rows: int
    origin: tuple[float, float]  # (x, y) of id 0 in original pixels
    step: tuple[float, float]  # distance between neighbours in original pixels

    def __len__(self) -> int:
        return self.columns * self.rows

    def positions(self, ids: IntArray) -> FloatArray:
        """Positions (N, 2) in original pixels of the grid ids (N,)."""
        ids = np.asarray(ids, dtype=np.int64)
        column, row = ids % self.columns, ids // self.columns
        x = self.origin[0] + column * self.step[0]
        y = self.origin[1] + row * self.step[1]
        return np.stack([x, y], axis=-1).astype(np.float32)

    def nearest(self, points: npt.NDArray[np.floating[Any]]) -> IntArray:
        """Ids (N,) of the grid positions nearest to points (N, 2) in original pixels."""
        cells = np.rint((points - np.asarray(self.origin)) / np.asarray(self.step)).astype(np.int64)
        column = cells[:, 0].clip(0, self.columns - 1)
        row = cells[:, 1].clip(0, self.rows - 1)
        return np.asarray(row * self.columns + column, dtype=np.int64)


class PairMatcher(Protocol):
    """What reconstruction and evaluation need of a matcher: `coam.Matcher`, or anything that has this."""

    def match_many(self, pairs: Iterable[tuple[Path, Path]]) -> Iterable[Matches]:
        """One `Matches` per pair of photo files, in order; a photo is best read once while it is in use."""
        ...


class Match(NamedTuple):
    """One match; `Matches` gives these when iterated."""

    point0: tuple[float, float]  # (x, y) in photo 0
    point1: tuple[float, float]  # (x, y) in photo 1
    score: float


@dataclass(frozen=True)
class Matches:
    """Correspondences between two photos, best first.

    `points0[i]` in photo 0 corresponds to `points1[i]` in photo 1. `ids0`, `ids1` name the grid positions the
    match came from (the nearest ones after a second look); the sub-pixel offset is
    `points1 - grid1.positions(ids1)`. For a photo whose keypoints the caller gave, they are the row numbers
    of these, and its grid is None.

    `matches[:100]`, `matches[matches.scores > 0.5]` and `matches[[3, 1]]` are `Matches` again; `matches[0]`,
    and what a loop gives, is one `Match`: `for point0, point1, score in matches`.
    """

    points0: FloatArray  # (N, 2) pixels of the original photo 0
    points1: FloatArray  # (N, 2) pixels of the original photo 1
    scores: FloatArray  # (N,) in [0, 1], higher is better
    ids0: IntArray  # (N,) grid ids in photo 0, or row numbers of its given keypoints
    ids1: IntArray  # (N,) grid ids in photo 1, or row numbers of its given keypoints
    size0: Size  # (width, height) of photo 0
    size1: Size  # (width, height) of photo 1
    grid0: Grid | None = None
    grid1: Grid | None = None
    overlap: float = float("nan")  # probability that the two photos show the same place; nan: not calibrated
    # Model name, timing, looks; image0, image1: paths of photos that were read from files. JSON values only
    meta: dict[str, Any] = field(default_factory=dict)
    image0: Any = field(default=None, compare=False)  # what was matched, kept for draw(); never saved
    image1: Any = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Match: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any]) -> Matches: ...
    def __getitem__(self, index: Any) -> Match | Matches:
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            (x0, y0), (x1, y1) = self.points0[index].tolist(), self.points1[index].tolist()
            return Match((x0, y0), (x1, y1), float(self.scores[index]))
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        chosen = np.asarray(index)
        return self.select(chosen if chosen.size else chosen.astype(np.int64))

    def __iter__(self) -> Iterator[Match]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        (width0, height0), (width1, height1) = self.size0, self.size1
        known = "" if np.isnan(self.overlap) else f", overlap {self.overlap:.2f}"
        photos = f"photos of {width0} x {height0} and {width1} x {height1}"
        return f"Matches({matches_in_words(len(self))}, {photos}{known})"

    @property
    def is_doubtful(self) -> bool:
        """Whether the photos probably do not show the same place; False where that is not known."""
        return bool(self.overlap < SAME_PLACE)

    @property
    def probabilities(self) -> FloatArray:
        """Probability (N,) of each match to lie within 3 pixels of the truth; nan where not calibrated.

        Pixels of photos up to the matcher's resolution (800 by default); of larger ones, of the resized one.
        """
        from coam.geometry.match_probability import match_probability

        return match_probability(self.scores, self.overlap, str(self.meta.get("model")))

    def top(self, count: int) -> Matches:
        """The `count` best matches."""
        return self.select(np.arange(min(count, len(self))))

    def select(self, index: npt.NDArray[Any]) -> Matches:
        """The matches at `index` (integers or a boolean mask)."""
        return replace(self, **{name: getattr(self, name)[index] for name in _PER_MATCH})

    @staticmethod
    def join(parts: Sequence[Matches]) -> Matches:
        """The matches of all parts, which are of one pair; everything else is that of the first part."""
        columns: Any = {name: np.concatenate([getattr(p, name) for p in parts]) for name in _PER_MATCH}
        return replace(parts[0], **columns)

    def to_cv2(self) -> tuple[list[cv2.KeyPoint], list[cv2.KeyPoint], list[cv2.DMatch]]:
        """OpenCV's keypoints of both photos and the matches of their indices, as for `cv2.drawMatches`.

        Match i joins keypoint i of each; its distance is 1 - score, a keypoint's response the score, and its
        size the step of its photo's grid (1 without one). Pixels are OpenCV's already.
        """
        import cv2

        sides = (self.points0, self.grid0), (self.points1, self.grid1)
        scores = self.scores.astype(float).tolist()
        keypoints0, keypoints1 = (
            [
                cv2.KeyPoint(x, y, 1.0 if grid is None else max(grid.step), -1.0, score)
                for (x, y), score in zip(points.astype(float).tolist(), scores, strict=True)
            ]
            for points, grid in sides
        )
        matches = [cv2.DMatch(i, i, 1.0 - score) for i, score in enumerate(scores)]
        return keypoints0, keypoints1, matches

    def homography(self, **options: Unpack[RansacKeywords]) -> Homography | None:
        """Homography photo 0 -> photo 1 that most matches obey; None where they determine none.

        Options of this and the next three: `threshold` (pixels, 3; 1 in the others), `estimator` ("auto":
        PoseLib where it is installed, else OpenCV), `confidence`, `max_iterations`, `seed`.
        """
        from coam.geometry.of_matches import homography

        return homography(self, **options)

    def fundamental(self, **options: Unpack[RansacKeywords]) -> FundamentalMatrix | None:
        """Fundamental matrix (x1^T F x0 = 0) of the two photos; options as in `homography`."""
        from coam.geometry.of_matches import fundamental

        return fundamental(self, **options)

    def essential(
        self, intrinsics0: npt.ArrayLike, intrinsics1: npt.ArrayLike, **options: Unpack[RansacKeywords]
    ) -> EssentialMatrix | None:
        """Essential matrix for two camera matrices (3, 3) in pixels; options as in `homography`."""
        from coam.geometry.of_matches import essential

        return essential(self, intrinsics0, intrinsics1, **options)

    def pose(
        self, intrinsics0: npt.ArrayLike, intrinsics1: npt.ArrayLike, **options: Unpack[RansacKeywords]
    ) -> RelativePose | None:
        """Pose camera 0 -> camera 1 (X1 = R X0 + t, t of length 1) for two camera matrices (3, 3) in pixels.

        Where the matches show one plane only there are two: the other is its `alternative`, and `remark` says
        so. Options as in `homography`.
        """
        from coam.geometry.of_matches import pose

        return pose(self, intrinsics0, intrinsics1, **options)

    def inliers(self, model: TwoViewModel) -> Matches:
        """The matches that a homography, a fundamental or essential matrix or a pose explains."""
        return self.select(model.explains(self.points0, self.points1))

    def save(self, path: str | Path) -> Path:
        """Write a file of matches, by the ending of `path`: .npz, .h5 or .json."""
        from coam.store.matches import save_matches

        return save_matches(self, path)

    @staticmethod
    def load(path: str | Path) -> Matches:
        """Read what `save` wrote."""
        from coam.store.matches import load_matches

        return load_matches(path)

    def draw(self, **options: Any) -> Image.Image:
        """The two photos side by side with match lines; options as in `coam.viz.draw_matches`.

        `inliers=` a model or a mask (N,) shows which matches are explained. Matches that were loaded open the
        photo files they came from, where these are still there.
        """
        from coam.viz import draw_matches

        return draw_matches(self, **options)

    def _repr_png_(self) -> bytes | None:
        from coam.viz.notebook import matches_as_png

        return matches_as_png(self)

    def _repr_html_(self) -> str:
        from coam.viz.notebook import matches_as_html

        return matches_as_html(self)
