"""`Warp`: for every pixel of each of two photos its place in the other one, and a certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.geometry.coordinates import resize_points
from coam.images import RGB, ImageLike, load_image
from coam.types import FloatArray, Matches, Size

if TYPE_CHECKING:
    from PIL import Image

WITHIN = 3.0  # pixels of the original photo: certainty is the probability of an error below this
CERTAIN = 0.5  # from this certainty on a place is drawn and sampled by default


@dataclass(frozen=True)
class WarpField:
    """Where one photo is in another: maps (h, w), which may be smaller or larger than the photo itself.

    The pixel (row, column) of a map stands for `positions[row, column]`, a pixel of the photo.
    """

    points: FloatArray  # (h, w, 2) pixels (x, y) of the other original photo
    certainty: FloatArray  # (h, w) in [0, 1]: probability that `points` is within 3 px of the truth
    size: Size  # (width, height) of the photo
    other_size: Size  # (width, height) of the other photo

    @property
    def map_size(self) -> Size:
        """(width, height) of the maps."""
        height, width = self.certainty.shape
        return width, height

    @property
    def scale(self) -> tuple[float, float]:
        """Map pixels per pixel of the photo, in x and y."""
        return self.map_size[0] / self.size[0], self.map_size[1] / self.size[1]

    @property
    def positions(self) -> FloatArray:
        """(h, w, 2): the pixels (x, y) of the original photo that the maps' pixels stand for."""
        return map_positions(self.map_size, self.size)

    @property
    def displacement(self) -> FloatArray:
        """(h, w, 2): by how many pixels of the originals each position moves."""
        return self.points - self.positions

    def at(self, points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Places (N, 2) in the other photo of points (N, 2) of the photo, and their certainty (N,).

        Displacements are interpolated between the maps' pixels.
        """
        import cv2

        asked = np.asarray(points, dtype=np.float32).reshape(-1, 2)
        on_map = resize_points(asked, self.scale).astype(np.float32)
        places = np.empty_like(asked)
        certainty = np.empty(len(asked), dtype=np.float32)
        for start in range(0, len(asked), _REMAPPED):
            part = slice(start, start + _REMAPPED)
            x, y = on_map[part, 0][None], on_map[part, 1][None]
            moved, sure = (
                cv2.remap(values, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)[0]
                for values in (self.displacement, self.certainty)
            )
            places[part], certainty[part] = asked[part] + moved, sure
        return places, certainty

    def apply(self, other: ImageLike, min_certainty: float = 0.0) -> RGB:
        """The other photo as this one's camera would see it, (h, w, 3); black below `min_certainty`.

        other: the other photo, or anything aligned with it, at any size (a mask, a depth picture).
        """
        import cv2

        rgb = load_image(other).rgb
        height, width = rgb.shape[:2]
        shrink = max(self.size[0] / self.map_size[0], 1.0) * width / self.other_size[0]
        if shrink > 1:  # area means first: remapping looks at four neighbours only
            width, height = max(1, round(width / shrink)), max(1, round(height / shrink))
            rgb = np.asarray(cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA), dtype=np.uint8)
        scale = (width / self.other_size[0], height / self.other_size[1])
        places = resize_points(self.points, scale).astype(np.float32)
        drawn = cv2.remap(
            rgb, places[..., 0], places[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        seen = self.certainty >= min_certainty
        return np.where(seen[..., None], drawn, 0).astype(np.uint8)


_REMAPPED = 32_000  # points: OpenCV's maps have sides below 2^15


@dataclass(frozen=True)
class Warp:
    """The dense correspondence of two photos, both ways; see `coam.Matcher.warp`."""

    forward: WarpField  # of photo 0: places in photo 1
    backward: WarpField  # of photo 1: places in photo 0
    overlap: float = float("nan")  # probability that the two photos show the same place; nan: not calibrated
    meta: dict[str, Any] = field(default_factory=dict)  # model name, timing, paths of photos; JSON values
    image0: Any = field(default=None, compare=False)  # what was matched, kept for apply(); never saved
    image1: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        (width, height), (width1, height1) = self.forward.map_size, self.backward.map_size
        certain = float((self.forward.certainty > CERTAIN).mean())
        return f"Warp({width} x {height} and {width1} x {height1}, {certain:.0%} of photo 0 certain)"

    @property
    def points(self) -> FloatArray:
        """(h, w, 2): the places of photo 0's pixels in photo 1, in original pixels."""
        return self.forward.points

    @property
    def certainty(self) -> FloatArray:
        """(h, w): certainty of `points`, in [0, 1]."""
        return self.forward.certainty

    def apply(self, image: ImageLike | None = None, min_certainty: float = 0.0) -> RGB:
        """Photo 1 in the frame of photo 0, (h, w, 3); black where certainty is below `min_certainty`.

        image: anything aligned with photo 1 instead of it, at any size.
        """
        source = self.image1 if image is None else image
        if source is None:
            raise ConfigError("a warp that was loaded holds no photos; give photo 1 to apply()")
        return self.forward.apply(source, min_certainty)

    def sample(self, count: int = 2048, seed: int = 0, min_certainty: float = CERTAIN) -> Matches:
        """At most `count` matches spread evenly over what both photos show, surest first.

        Photo 0 is cut into about `count` blocks; of each block one pixel is drawn, at random among those of
        at least `min_certainty`. While matches are missing, blocks are halved and drawn from again.
        """
        if count < 0:
            raise ConfigError(f"sample takes a number of matches of at least 0, not {count}")
        rng = np.random.default_rng(seed)
        flat = self.forward.certainty.ravel()
        allowed = np.flatnonzero(flat >= min_certainty)
        chosen = _spread(allowed, self.forward.map_size, count, rng)
        chosen = chosen[np.argsort(-flat[chosen], kind="stable")]
        nowhere = np.full(len(chosen), -1, dtype=np.int64)
        return Matches(
            points0=self.forward.positions.reshape(-1, 2)[chosen],
            points1=self.forward.points.reshape(-1, 2)[chosen],
            scores=flat[chosen],
            ids0=nowhere,
            ids1=nowhere,
            size0=self.forward.size,
            size1=self.backward.size,
            overlap=self.overlap,
            meta=dict(self.meta),
            image0=self.image0,
            image1=self.image1,
        )

    def save(self, path: str | Path) -> Path:
        """Write .npz (everything but the photos) or .flo (Middlebury: photo 0's displacements only)."""
        from coam.warp.files import save_warp

        return save_warp(self, path)

    @staticmethod
    def load(path: str | Path) -> Warp:
        """Read the .npz that `save` wrote."""
        from coam.warp.files import load_warp

        return load_warp(path)

    def draw(self) -> Image.Image:
        """Displacements as colours: hue is direction, saturation length; what is uncertain is dark."""
        from coam.viz.flow import draw_flow

        return draw_flow(self.forward.displacement, self.forward.certainty)


def map_positions(map_size: Size, size: Size) -> FloatArray:
    """(h, w, 2): the pixels of a photo of `size` that those of a map of `map_size` stand for."""
    x, y = np.meshgrid(np.arange(map_size[0], dtype=np.float64), np.arange(map_size[1], dtype=np.float64))
    scale = (size[0] / map_size[0], size[1] / map_size[1])
    return resize_points(np.stack([x, y], axis=-1), scale).astype(np.float32)


def _spread(
    allowed: npt.NDArray[np.int64], map_size: Size, count: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """`count` of the allowed pixels (flat indices), one for each block before any block gives a second."""
    width, height = map_size
    side = max(1, int(np.sqrt(width * height / max(count, 1))))
    chosen = np.zeros(0, dtype=np.int64)
    remaining = rng.permutation(allowed)
    while len(remaining) and len(chosen) < count:
        blocks = (remaining // width // side) * (width // side + 1) + remaining % width // side
        _, first = np.unique(blocks, return_index=True)  # the first of each block, in random order
        taken = rng.permutation(first)[: count - len(chosen)]
        chosen = np.concatenate([chosen, remaining[taken]])
        remaining = np.delete(remaining, taken)
        side = max(1, side // 2)
    return chosen
