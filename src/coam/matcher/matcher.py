"""Any image-like in, `Matches` in original pixels out."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.backends import Backend, open_network
from coam.backends.batches import coarse_pairs, decode_pairs, split_encoded
from coam.caches import LRUCache
from coam.errors import ConfigError, ImageError, UntrainedWarning
from coam.geometry.coordinates import resize_points
from coam.geometry.homography import apply_homography, resize_matrix
from coam.images import ImageLike, LoadedImage, load_image
from coam.images.mask import Mask, MaskLike, load_mask, usable_at
from coam.images.patch_alignment import AlignOptions
from coam.images.resize import ResizedImage, resize_for_model
from coam.matcher.alignment import align
from coam.matcher.arguments import checked_keypoints, checked_pair, checked_point
from coam.matcher.dense_warp import DEFAULT_WARP, WarpOptions, checked_map_size, find_warp, warp_field
from coam.matcher.explain import Explanation, attention_of_point, similarity_map
from coam.matcher.rematch import RematchOptions, rematch
from coam.matcher.tiles import MAX_MATCHES, choose_matches, match_tiles
from coam.matcher.turns import TurnScout
from coam.matcher.views import EncodedViews, View, ViewPair
from coam.matching.coarse import CoarseMatches, coarse_matches
from coam.matching.dense import Candidates, matching_for
from coam.matching.mutual import one_by_one, run_side_by_side
from coam.matching.pair_score import overlap_probability
from coam.matching.settings import PRESETS, MatcherConfig, MatcherOptions, Preset
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.registry import DEFAULT_MODEL, ModelFile, load_model
from coam.models.retrieval import DESCRIBED_AT, pooled
from coam.tensors import as_array, pick_device, survive_forks
from coam.types import FloatArray, Grid, Matches, Size
from coam.warp import Warp

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

# Matches of the photos, found by the descriptors of a pair of views.
MatchDense = Callable[[tuple[DenseDescriptors, DenseDescriptors], ViewPair], Matches]
KEPT_MATCHERS = 4  # of `match`: a model and its encoded photos may take a gigabyte
PAIRS_AT_ONCE = 8  # decoded together on CUDA: more are no faster and take more memory


@dataclass(frozen=True)
class PreparedImage:
    """A photo, resized and encoded once, ready for any number of pairs."""

    image: LoadedImage
    resized: ResizedImage
    encoded: EncodedImage
    mask: Mask | None = None  # (H, W) usable pixels of the original photo; None: all

    @property
    def usable_share(self) -> float:
        """Of the photo's pixels."""
        return 1.0 if self.mask is None else float(self.mask.mean())

    @property
    def view(self) -> View:
        """The resized photo as a view of the original."""
        height, width = self.encoded.size
        return View(resize_matrix((self.image.size[0] / width, self.image.size[1] / height)), (width, height))


class Matcher:
    """A model on a device, with settings; see `load_matcher`."""

    def __init__(
        self, file: ModelFile, config: MatcherConfig, device: torch.device, backend: str = "auto"
    ) -> None:
        survive_forks()
        self.file = file
        self.config = config.for_network(file.model.capabilities)
        self.device = device
        self.model = file.model.to(device).eval()
        self.network = open_network(self.model, device, backend)
        self.rematching = RematchOptions()
        self.aligning = AlignOptions()
        self._cache: LRUCache[str, PreparedImage] = LRUCache(config.cached_images)
        self.matching = matching_for(for_judging(self.config), file.model.logit_scale.item(), device)

    # ---- what users call

    def __repr__(self) -> str:
        config, untrained = self.config, "" if self.file.trained else ", untrained"
        return (
            f"Matcher({self.file.name}{untrained}, {self.device}, resolution={config.resolution}, "
            f"max_matches={config.max_matches}, looks={config.looks!r})"
        )

    @torch.inference_mode()
    def match(
        self,
        image0: ImageLike | PreparedImage,
        image1: ImageLike | PreparedImage,
        keypoints0: npt.ArrayLike | Tensor | None = None,
        keypoints1: npt.ArrayLike | Tensor | None = None,
        *,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
    ) -> Matches:
        """Matches of two photos, best first.

        keypoints0 (N, 2) and keypoints1 (M, 2): keypoints of any detector, in pixels of their photos; those
        that choose each other are matched, best first. With keypoints of one photo only, each gets its best
        match in the other photo, in order, without other views. Where keypoints are given, `ids0` or `ids1`
        are their row numbers, and there is no grid.

        mask0, mask1: arrays (H, W) or picture files, nonzero where the photo may be used; nothing is matched
        elsewhere.
        """
        start = time.perf_counter()
        a, b = self._prepare_both(image0, image1)
        a, b = _with_mask(a, mask0, "mask0"), _with_mask(b, mask1, "mask1")
        given = _Keypoints.checked(a, b, keypoints0, keypoints1)
        dense = self.network.decode(a.encoded, b.encoded)
        if given is None:
            matches = self._matches(a, b, self._between(a, b, dense))
        elif given.is_mutual:  # their points are the caller's: nothing is moved
            match_dense = partial(self._match_keypoints, a, b, given)
            matches = self._look_again(a, b, match_dense(dense, ViewPair(a.view, b.view)), match_dense)
        else:
            matches = self._aligned(a, b, self._locate_keypoints(a, b, dense, given))
        matches.meta["seconds"] = round(time.perf_counter() - start, 4)
        return matches

    @torch.inference_mode()
    def warp(
        self,
        image0: ImageLike | PreparedImage,
        image1: ImageLike | PreparedImage,
        size: int | None = None,
        options: WarpOptions = DEFAULT_WARP,
        *,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
    ) -> Warp:
        """Where every pixel of each photo lies in the other, and how certain that is; one look, both ways.

        size: long side in pixels of the maps (h, w, 2) and (h, w) that are returned; by default that of the
        photo, but at most the matcher's resolution. Places are in original pixels whatever the size.
        Masks as in `match`: where either pixel of a correspondence is left out, its certainty is 0.
        """
        start = time.perf_counter()
        a, b = self._prepare_both(image0, image1)
        a, b = _with_mask(a, mask0, "mask0"), _with_mask(b, mask1, "mask1")
        sizes = [checked_map_size(each.image.size, size, self.config.resolution) for each in (a, b)]
        shown = a.resized.tensor.to(self.device), b.resized.tensor.to(self.device)
        dense = self.network.decode(a.encoded, b.encoded)
        found = find_warp(*dense, self.matching.logit_scale, options, shown)
        overlap = overlap_probability(found.forward.statistics(), self.file.card.get("pair_score"))
        warp = Warp(
            warp_field(found.forward, found.certainty0, a, b, sizes[0]),
            warp_field(found.backward, found.certainty1, b, a, sizes[1]),
            overlap=overlap,
            meta=self._meta(a, b),
            image0=a.image.rgb,
            image1=b.image.rgb,
        )
        warp.meta["seconds"] = round(time.perf_counter() - start, 4)
        return warp

    def match_tiles(
        self,
        image0: ImageLike,
        image1: ImageLike,
        max_matches: int = MAX_MATCHES,
        *,
        mask0: MaskLike | None = None,
        mask1: MaskLike | None = None,
    ) -> Matches:
        """Matches of two large photos at full resolution, tile by tile, in bounded memory.

        Masks as in `match`.
        """
        return match_tiles(self, image0, image1, max_matches, mask0=mask0, mask1=mask1)

    @torch.inference_mode()
    def match_many(
        self, pairs: Iterable[tuple[ImageLike | PreparedImage, ImageLike | PreparedImage]]
    ) -> Iterator[Matches]:
        """Matches of many pairs; a photo given by its path is encoded once while it stays in the cache.

        A photo with a mask is given as `prepare(photo, mask)`.

        On CUDA pairs of the same sizes are decoded together. meta["seconds"] is the time since the result
        before was taken.
        """
        for masked, group in groupby(pairs, key=_has_mask):
            if masked:
                yield from (self.match(*checked_pair(pair)) for pair in group)
            else:
                yield from self._match_unmasked(group)

    @torch.inference_mode()
    def prepare(self, source: ImageLike | PreparedImage, mask: MaskLike | None = None) -> PreparedImage:
        """Read, resize and encode a photo, for use in many pairs; `mask` as in `match`."""
        if not isinstance(source, PreparedImage):
            image, resized = self._read(source)
            source = PreparedImage(image, resized, self.network.encode(resized.tensor))
        return _with_mask(source, mask, "mask")

    @torch.inference_mode()
    def describe(
        self, image0: ImageLike | PreparedImage, image1: ImageLike | PreparedImage
    ) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Dense descriptors of both photos at the network's resolution, each conditioned on the other."""
        return self.network.decode(self.prepare(image0).encoded, self.prepare(image1).encoded)

    @torch.inference_mode()
    def explain(
        self,
        image0: ImageLike | PreparedImage,
        image1: ImageLike | PreparedImage,
        point: tuple[float, float],
    ) -> Explanation:
        """Attention, similarity and distinctiveness maps for one point (x, y) of photo 0."""
        point = checked_point(point)
        a, b = self._cached(image0), self._cached(image1)
        width, height = a.image.size
        if not (0 <= point[0] <= width - 1 and 0 <= point[1] <= height - 1):
            raise ImageError(f"the point {point} lies outside photo 0, which is {width} x {height}")
        dense0, dense1 = self.network.decode(a.encoded, b.encoded)
        here = torch.tensor(point, dtype=torch.float32, device=self.device)
        inside = resize_points(here, a.resized.scale)
        asked = _Keypoints(np.asarray([point], dtype=np.float32), None)
        best = self._locate_keypoints(a, b, (dense0, dense1), asked).points1[0]
        return Explanation(
            image0=a.image.rgb,
            image1=b.image.rgb,
            point=point,
            best=(float(best[0]), float(best[1])),
            similarity=similarity_map(dense0, dense1, inside),
            attention=attention_of_point(self.network, a.encoded, b.encoded, inside),
            distinctiveness0=as_array(dense0.score[0, 0]),
            distinctiveness1=as_array(dense1.score[0, 0]),
        )

    @torch.inference_mode()
    def global_descriptor(self, source: ImageLike | PreparedImage) -> FloatArray:
        """One unit vector (D,) per photo, to propose pairs by cosine: which may show the same place.

        By the retrieval head, which sees all photos at one size; without one pooled, as `prepare` sees it.
        """
        head = self.file.retrieval
        if head is None:
            return as_array(pooled(self.prepare(source).encoded.levels)[0])
        image = source.image if isinstance(source, PreparedImage) else load_image(source)
        small = resize_for_model(image.rgb, DESCRIBED_AT).tensor.to(self.device)
        return as_array(head.to(self.device)(pooled(self.network.encode(small).levels))[0])

    def turn_scout(self) -> TurnScout:
        """What tells which photos lie on their side."""
        return TurnScout(self)

    def variant(self, **options: Unpack[MatcherOptions]) -> Matcher:
        """The same network with other settings (fields of `MatcherConfig`) and a cache of its own."""
        other = copy.copy(self)
        other.config = replace(self.config, **options).for_network(self.model.capabilities)
        other.matching = matching_for(for_judging(other.config), self.matching.logit_scale, self.device)
        other._cache = LRUCache(other.config.cached_images)
        return other

    # ---- how it is done

    def _match_unmasked(
        self, pairs: Iterable[tuple[ImageLike | PreparedImage, ImageLike | PreparedImage]]
    ) -> Iterator[Matches]:
        """`match_many`, the next pairs decoded while one is matched."""
        waiting: deque[tuple[PreparedImage, PreparedImage]] = deque()
        start = time.perf_counter()
        for found in self.matching.between_many(self._decoded(pairs, waiting)):
            matches = self._matches(*waiting.popleft(), found)
            matches.meta["seconds"] = round(time.perf_counter() - start, 4)
            yield matches
            start = time.perf_counter()

    def _decoded(
        self,
        pairs: Iterable[tuple[ImageLike | PreparedImage, ImageLike | PreparedImage]],
        waiting: deque[tuple[PreparedImage, PreparedImage]],
    ) -> Iterator[tuple[DenseDescriptors, DenseDescriptors]]:
        """Descriptors of every pair, in order; the photos wait for their matches."""
        at_once = PAIRS_AT_ONCE if self.device.type == "cuda" else 1
        remaining = iter(pairs)
        while sources := list(islice(remaining, at_once)):
            both = map(checked_pair, sources)
            batch = [(self._cached(source0), self._cached(source1)) for source0, source1 in both]
            waiting.extend(batch)
            yield from decode_pairs(self.network, [(a.encoded, b.encoded) for a, b in batch])

    def _read(self, source: ImageLike) -> tuple[LoadedImage, ResizedImage]:
        image = load_image(source)
        return image, resize_for_model(image.rgb, self.config.resolution, squash=self.config.squash)

    def _prepare_both(
        self, source0: ImageLike | PreparedImage, source1: ImageLike | PreparedImage
    ) -> tuple[PreparedImage, PreparedImage]:
        """Two photos; on CUDA, where a small network is mostly waiting, those of one size as one batch."""
        if (
            isinstance(source0, PreparedImage)
            or isinstance(source1, PreparedImage)
            or self.device.type != "cuda"
        ):
            return self.prepare(source0), self.prepare(source1)
        photos = self._read(source0), self._read(source1)
        tensors = [resized.tensor for _, resized in photos]
        encoded = (
            split_encoded(self.network.encode(torch.cat(tensors)))
            if tensors[0].shape == tensors[1].shape
            else [self.network.encode(tensor) for tensor in tensors]
        )
        return PreparedImage(*photos[0], encoded[0]), PreparedImage(*photos[1], encoded[1])

    def _cached(self, source: ImageLike | PreparedImage) -> PreparedImage:
        """`prepare`, once for each file while it stays as it is and others are not used more recently."""
        if not isinstance(source, str | Path):
            return self.prepare(source)
        status = os.stat(source) if os.path.exists(source) else None  # a replaced photo is another photo
        key = f"{source}:{status.st_mtime_ns}:{status.st_size}" if status else str(source)
        return self._cache.get(key, lambda: self.prepare(source))

    def _matches(self, a: PreparedImage, b: PreparedImage, found: Candidates) -> Matches:
        """Matches of the photos as they are; then, as the settings allow, through other views."""
        first = _on_usable_pixels(self._to_matches(a, b, found), a, b)
        return self._aligned(a, b, self._look_again(a, b, first, partial(self._match_views, a, b)))

    def _aligned(self, a: PreparedImage, b: PreparedImage, matches: Matches) -> Matches:
        """The matches as the pixels of the photos say, where the settings ask for it; given points stay."""
        if self.config.alignment == "none":
            return matches
        steps = max(self._grid(a).step), max(self._grid(b).step)
        aligned = align(matches, (a.image.rgb, b.image.rgb), steps, self.aligning, (a.mask, b.mask))
        if matches.meta["looks"] > 1 and aligned.grid1 is not None:
            aligned = replace(aligned, ids1=aligned.grid1.nearest(aligned.points1))
        return aligned

    def _look_again(
        self, a: PreparedImage, b: PreparedImage, matches: Matches, match_dense: MatchDense
    ) -> Matches:
        """The chosen ones of `matches`, or of better ones that `match_dense` finds in other views."""
        config = self.config
        matches.meta["looks"] = 1
        if config.looks != "once":
            lights = self.rematching.views.lights
            seen = (
                EncodedViews(a.image.rgb, self.network.encode, lights),
                EncodedViews(b.image.rgb, self.network.encode, lights),
            )

            def match_views(views: ViewPair) -> Matches:
                return match_dense(self.network.decode(seen[0][views.view0], seen[1][views.view1]), views)

            look = partial(self._look_coarsely, seen)
            matches = rematch(matches, match_views, look, config, self.rematching)
        return choose_matches(matches, config.max_matches, config.min_score, config.crowding)

    def _look_coarsely(
        self, seen: tuple[EncodedViews, EncodedViews], pairs: Sequence[ViewPair]
    ) -> list[CoarseMatches] | None:
        """Coarse matches of pairs of views; None where the network has none.

        So few cells gain nothing from a second core: each core of a CPU takes pairs of its own, one by one,
        so matches do not depend on the number of cores. Another device takes those of one size as a batch.
        """
        run = run_side_by_side if self.device.type == "cpu" else one_by_one
        views = zip(*pairs, strict=True)
        run([task for photo, own in zip(seen, views, strict=True) for task in photo.waiting(own)])
        encoded = [(seen[0][view0], seen[1][view1]) for view0, view1 in pairs]
        shares = [encoded] if run is one_by_one else [[pair] for pair in encoded]
        found = run([partial(self._matched_coarsely, share) for share in shares])
        return None if None in found else [each for share in found for each in share or ()]

    def _matched_coarsely(
        self, encoded: Sequence[tuple[EncodedImage, EncodedImage]]
    ) -> list[CoarseMatches] | None:
        """Coarse matches of encoded pairs; None where the network has no coarse descriptors."""
        described = coarse_pairs(self.network, encoded)
        if described is None:
            return None
        return [coarse_matches(one[0], other[0], self.matching.logit_scale) for one, other in described]

    def _between(
        self, a: PreparedImage, b: PreparedImage, dense: tuple[DenseDescriptors, DenseDescriptors]
    ) -> Candidates:
        """Matches on the grids. What masks leave out is searched as well, so that a point whose partner is
        masked finds it, and not the next best one; so more are asked for.
        """
        share = a.usable_share * b.usable_share
        return (self.matching if share == 1 else self.matching.before_masks(share)).between(*dense)

    def _match_views(
        self,
        a: PreparedImage,
        b: PreparedImage,
        dense: tuple[DenseDescriptors, DenseDescriptors],
        views: ViewPair,
    ) -> Matches:
        """Match what `views` show of the photos; the result is that of the photos themselves."""
        found = self._between(a, b, dense)
        points0 = apply_homography(views.view0.photo_from_view, as_array(found.points0))
        points1 = apply_homography(views.view1.photo_from_view, as_array(found.points1))
        matches = self._to_matches(a, b, found)
        assert matches.grid0 is not None
        assert matches.grid1 is not None
        mapped = replace(
            matches,
            points0=points0.astype(np.float32),
            points1=points1.astype(np.float32),
            ids0=matches.grid0.nearest(points0),
            ids1=matches.grid1.nearest(points1),
        )
        inside = _inside(points0, matches.size0) & _inside(points1, matches.size1)
        return _on_usable_pixels(mapped.select(inside), a, b)

    def _match_keypoints(
        self,
        a: PreparedImage,
        b: PreparedImage,
        given: _Keypoints,
        dense: tuple[DenseDescriptors, DenseDescriptors],
        views: ViewPair,
    ) -> Matches:
        """Mutual matches of keypoints of both photos, described by `dense` in `views`."""
        (shown0, points0), (shown1, points1) = (
            _shown(points, view) for points, view in zip((given.points0, given.points1), views, strict=True)
        )
        found = self.matching.between_keypoints(
            *dense, *(torch.from_numpy(points).to(self.device) for points in (points0, points1))
        )
        matches = self._to_matches(a, b, found)
        matches = replace(matches, ids0=shown0[matches.ids0], ids1=shown1[matches.ids1])
        return _on_usable_pixels(given.named(matches), a, b)

    def _locate_keypoints(
        self,
        a: PreparedImage,
        b: PreparedImage,
        dense: tuple[DenseDescriptors, DenseDescriptors],
        given: _Keypoints,
    ) -> Matches:
        """The best match in the other photo of each keypoint of one photo, in order."""
        if given.points0 is not None:
            points = resize_points(torch.from_numpy(given.points0).to(self.device), a.resized.scale)
            found = self.matching.of_keypoints(*dense, points)
        else:
            assert given.points1 is not None
            points = resize_points(torch.from_numpy(given.points1).to(self.device), b.resized.scale)
            back = self.matching.of_keypoints(dense[1], dense[0], points)
            found = Candidates(back.points1, back.points0, back.index1, back.index0, back.score)
        matches = self._to_matches(a, b, found)
        matches.meta["looks"] = 1
        return _on_usable_pixels(given.named(matches), a, b)

    def _grid(self, prepared: PreparedImage) -> Grid:
        """The grid of a photo in its original pixels."""
        height, width = prepared.encoded.size
        stride = self.model.capabilities.stride
        columns, rows = self.config.grid or width // stride, self.config.grid or height // stride
        step = (prepared.image.size[0] / columns, prepared.image.size[1] / rows)
        return Grid(columns, rows, (step[0] / 2 - 0.5, step[1] / 2 - 0.5), step)

    def _meta(self, a: PreparedImage, b: PreparedImage) -> dict[str, Any]:
        """What results say about how they were made."""
        return {
            "model": self.file.name,
            "trained": self.file.trained,
            "resolution": self.config.resolution,
            "image0": a.image.path,
            "image1": b.image.path,
        }

    def _to_matches(self, a: PreparedImage, b: PreparedImage, found: Candidates) -> Matches:
        """Matches in original pixels of what was found in the resized photos."""
        calibration = self.file.card.get("pair_score") if self.config.ranking == "dual_softmax" else None
        overlap = overlap_probability(found.statistics, calibration) if found.statistics else float("nan")
        if found.statistics and len(found.score) == 0:
            overlap = 0.0  # not one match is no evidence, whatever the statistics of rejected ones say
        return Matches(
            points0=_to_original(found.points0, a),
            points1=_to_original(found.points1, b),
            scores=as_array(found.score),
            ids0=found.index0.cpu().numpy().astype(np.int64),
            ids1=found.index1.cpu().numpy().astype(np.int64),
            size0=a.image.size,
            size1=b.image.size,
            grid0=self._grid(a),
            grid1=self._grid(b),
            overlap=overlap,
            meta=self._meta(a, b) | {"statistics": found.statistics},
            image0=a.image.rgb,
            image1=b.image.rgb,
        )


@dataclass(frozen=True)
class _Keypoints:
    """Keypoints that a caller gave, of one photo or both, in original pixels."""

    points0: FloatArray | None  # (N, 2)
    points1: FloatArray | None  # (M, 2)

    @staticmethod
    def checked(a: PreparedImage, b: PreparedImage, keypoints0: Any, keypoints1: Any) -> _Keypoints | None:
        """None where none were given."""
        if keypoints0 is None and keypoints1 is None:
            return None
        return _Keypoints(
            None if keypoints0 is None else checked_keypoints(keypoints0, a.image.size, 0),
            None if keypoints1 is None else checked_keypoints(keypoints1, b.image.size, 1),
        )

    @property
    def is_mutual(self) -> bool:
        return self.points0 is not None and self.points1 is not None

    def named(self, matches: Matches) -> Matches:
        """`matches`, whose ids are row numbers of the keypoints, at exactly the points that were given."""
        if self.points0 is not None:
            matches = replace(matches, points0=self.points0[matches.ids0], grid0=None)
        if self.points1 is not None:
            matches = replace(matches, points1=self.points1[matches.ids1], grid1=None)
        return matches


def _shown(points: FloatArray | None, view: View) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Row numbers (K,) of those of points (N, 2), original pixels, that a view shows, and where (K, 2)."""
    assert points is not None
    in_view = apply_homography(np.linalg.inv(view.photo_from_view), points)
    shown = ((in_view >= -0.5) & (in_view <= np.asarray(view.size) - 0.5)).all(axis=1)
    return np.flatnonzero(shown), in_view[shown].astype(np.float32)


def _has_mask(pair: Any) -> bool:
    photos = pair if isinstance(pair, tuple | list) else ()
    return any(isinstance(photo, PreparedImage) and photo.mask is not None for photo in photos)


def _with_mask(prepared: PreparedImage, mask: MaskLike | None, label: str) -> PreparedImage:
    return prepared if mask is None else replace(prepared, mask=load_mask(mask, prepared.image.size, label))


def _on_usable_pixels(matches: Matches, a: PreparedImage, b: PreparedImage) -> Matches:
    """The matches whose points lie on usable pixels of both photos."""
    for photo, name in ((a, "points0"), (b, "points1")):
        if photo.mask is not None:
            matches = matches.select(usable_at(photo.mask, getattr(matches, name)))
    return matches


def _to_original(points: Tensor, prepared: PreparedImage) -> FloatArray:
    """Resized pixels (K, 2) to original ones, kept inside the photo."""
    scale = prepared.resized.scale
    exact = points.cpu().double()  # on the CPU: not every device has double precision
    original = as_array(resize_points(exact, (1 / scale[0], 1 / scale[1])))
    width, height = prepared.image.size
    clipped: FloatArray = np.clip(original, 0, np.asarray([width - 1, height - 1], dtype=np.float32))
    return clipped


def for_judging(config: MatcherConfig) -> MatcherConfig:
    """The settings of a view: few or only sure matches may be wanted, more are needed to judge it by."""
    return replace(
        config,
        max_matches=max(config.max_matches, RematchOptions.judged),
        min_score=min(config.min_score, MatcherConfig.min_score),
    )


def _inside(points: npt.NDArray[np.float64], size: Size) -> npt.NDArray[np.bool_]:
    """Which points (K, 2) lie on a photo of `size` (width, height), between its outermost pixel centres."""
    return np.asarray(((points >= 0) & (points <= np.asarray(size) - 1)).all(axis=1))


def load_matcher(
    model: str | Path = DEFAULT_MODEL,
    device: str | torch.device = "auto",
    preset: Preset | str = "default",
    max_keypoints: int | None = None,
    backend: Backend | str = "auto",
    **options: Unpack[MatcherOptions],
) -> Matcher:
    """A matcher by model name, .safetensors file or hub's folder; `options` are fields of `MatcherConfig`.

    `backend` is the way the network is run (`coam.backends.BACKENDS`); "auto" is the fastest.
    """
    if preset not in PRESETS:
        raise ConfigError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    if max_keypoints is not None:
        options["max_matches"] = max_keypoints
    known = MatcherConfig.__dataclass_fields__
    for key in options:
        if key not in known:
            raise ConfigError(f"the matcher has no option {key!r}; it has {', '.join(known)}")
    file = load_model(model)
    if not file.trained:
        text = f"{file.name} has no trained weights here, so its matches mean nothing"
        warnings.warn(text, UntrainedWarning, stacklevel=2)
    return Matcher(file, replace(PRESETS[preset], **options), pick_device(device), backend)


class LoadOptions(MatcherOptions, total=False):
    """What `load_matcher` takes, as keywords."""

    model: str | Path
    device: str | torch.device
    preset: Preset | str
    max_keypoints: int | None
    backend: Backend | str


_LOADED: LRUCache[str, Matcher] = LRUCache(KEPT_MATCHERS)


def match(
    image0: ImageLike,
    image1: ImageLike,
    keypoints0: npt.ArrayLike | Tensor | None = None,
    keypoints1: npt.ArrayLike | Tensor | None = None,
    *,
    mask0: MaskLike | None = None,
    mask1: MaskLike | None = None,
    **options: Unpack[LoadOptions],
) -> Matches:
    """Matches of two photos: `Matcher.match`, with options as in `load_matcher`.

    Matchers with the last few combinations of options are kept, so a model is not loaded for every pair.
    """
    key = repr(sorted(options.items()))
    matcher = _LOADED.get(key, lambda: load_matcher(**options))
    return matcher.match(image0, image1, keypoints0, keypoints1, mask0=mask0, mask1=mask1)
