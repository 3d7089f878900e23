"""Any image-like in, `Matches` in original pixels out."""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.backends import open_network
from coam.backends.batches import decode_pairs, split_encoded
from coam.caches import LRUCache
from coam.errors import ConfigError, ImageError, UntrainedWarning
from coam.geometry.coordinates import resize_points
from coam.geometry.homography import apply_homography
from coam.images import ImageLike, LoadedImage, load_image
from coam.images.resize import ResizedImage, resize_for_model
from coam.matcher.arguments import checked_keypoints, checked_pair, checked_point
from coam.matcher.dense_warp import DEFAULT_WARP, WarpOptions, checked_map_size, find_warp, warp_field
from coam.matcher.explain import Explanation, attention_of_point, similarity_map
from coam.matcher.rematch import RematchOptions, rematch
from coam.matcher.tiles import choose_matches, match_tiles
from coam.matcher.views import EncodedViews, ViewPair
from coam.matching.dense import Candidates, matching_for
from coam.matching.pair_score import coarse_evidence, overlap_probability
from coam.matching.settings import PRESETS, MatcherConfig
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.registry import DEFAULT_MODEL, ModelFile, load_model
from coam.tensors import as_array, pick_device
from coam.types import FloatArray, Grid, Matches, Size
from coam.warp import Warp

PAIRS_AT_ONCE = 8  # decoded together on CUDA: more are no faster and take more memory


@dataclass(frozen=True)
class PreparedImage:
    """A photo, resized and encoded once, ready for any number of pairs."""

    image: LoadedImage
    resized: ResizedImage
    encoded: EncodedImage


class Matcher:
    """A model on a device, with settings; see `load_matcher`."""

    def __init__(
        self, file: ModelFile, config: MatcherConfig, device: torch.device, backend: str = "auto"
    ) -> None:
        self.file = file
        self.config = config.for_network(file.model.capabilities)
        self.device = device
        self.model = file.model.to(device).eval()
        self.network = open_network(self.model, device, backend)
        self.rematching = RematchOptions()
        self._cache: LRUCache[str, PreparedImage] = LRUCache(config.cached_images)
        self.matching = matching_for(for_judging(self.config), file.model.logit_scale.item(), device)

    # ---- what users call

    @torch.inference_mode()
    def match(
        self,
        image0: ImageLike | PreparedImage,
        image1: ImageLike | PreparedImage,
        keypoints0: npt.ArrayLike | None = None,
    ) -> Matches:
        """Matches of two photos, best first.

        With `keypoints0` (N, 2), pixels of photo 0, each keypoint gets its best match in photo 1, in order,
        without other views.
        """
        start = time.perf_counter()
        a, b = self._prepare_both(image0, image1)
        wanted = None if keypoints0 is None else checked_keypoints(keypoints0, a.image.size)
        dense = self.network.decode(a.encoded, b.encoded)
        if wanted is None:
            matches = self._matches(a, b, self.matching.between(*dense))
        else:
            matches = self._match_keypoints(a, b, dense, wanted)
        matches.meta["seconds"] = round(time.perf_counter() - start, 4)
        return matches

    @torch.inference_mode()
    def warp(
        self,
        image0: ImageLike | PreparedImage,
        image1: ImageLike | PreparedImage,
        size: int | None = None,
        options: WarpOptions = DEFAULT_WARP,
    ) -> Warp:
        """Where every pixel of each photo lies in the other, and how certain that is; one look, both ways.

        size: long side in pixels of the maps (h, w, 2) and (h, w) that are returned; by default that of the
        photo, but at most the matcher's resolution. Places are in original pixels whatever the size.
        """
        start = time.perf_counter()
        a, b = self._prepare_both(image0, image1)
        sizes = [checked_map_size(each.image.size, size, self.config.resolution) for each in (a, b)]
        found = find_warp(*self.network.decode(a.encoded, b.encoded), self.matching.logit_scale, options)
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

    def match_tiles(self, image0: ImageLike, image1: ImageLike, max_matches: int = 8192) -> Matches:
        """Matches of two large photos at full resolution, tile by tile, in bounded memory."""
        return match_tiles(self, image0, image1, max_matches)

    @torch.inference_mode()
    def match_many(self, pairs: Iterable[tuple[ImageLike, ImageLike]]) -> Iterator[Matches]:
        """Matches of many pairs; a photo given by its path is encoded once while it stays in the cache.

        On CUDA pairs of the same sizes are decoded together. meta["seconds"] is the time since the result
        before was taken.
        """
        waiting: deque[tuple[PreparedImage, PreparedImage]] = deque()
        start = time.perf_counter()
        for found in self.matching.between_many(self._decoded(pairs, waiting)):
            matches = self._matches(*waiting.popleft(), found)
            matches.meta["seconds"] = round(time.perf_counter() - start, 4)
            yield matches
            start = time.perf_counter()

    @torch.inference_mode()
    def prepare(self, source: ImageLike | PreparedImage) -> PreparedImage:
        """Read, resize and encode a photo, for use in many pairs."""
        if isinstance(source, PreparedImage):
            return source
        image, resized = self._read(source)
        return PreparedImage(image, resized, self.network.encode(resized.tensor))

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
        best = self._match_keypoints(a, b, (dense0, dense1), np.asarray([point], dtype=np.float32)).points1[0]
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
        """One unit vector per photo, from the encoder's two deepest levels, to propose pairs by cosine."""
        levels = self.prepare(source).encoded.levels[-2:]
        pooled = [level.float().clamp(min=1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)[0] for level in levels]
        vector = torch.cat([p / p.norm() for p in pooled])
        return as_array(vector / vector.norm())

    def variant(self, **options: Any) -> Matcher:
        """The same network with other settings (fields of `MatcherConfig`) and a cache of its own."""
        other = copy.copy(self)
        other.config = replace(self.config, **options).for_network(self.model.capabilities)
        other.matching = matching_for(for_judging(other.config), self.matching.logit_scale, self.device)
        other._cache = LRUCache(other.config.cached_images)
        return other

    # ---- how it is done

    def _decoded(
        self,
        pairs: Iterable[tuple[ImageLike, ImageLike]],
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
        matches = self._to_matches(a, b, found)
        matches.meta["looks"] = 1
        if self.config.looks != "once":
            seen = (
                EncodedViews(a.image.rgb, self.network.encode),
                EncodedViews(b.image.rgb, self.network.encode),
            )
            views, evidence = partial(self._match_views, a, b, seen), partial(self._evidence, seen)
            looks, resolution = self.config.looks, self.config.resolution
            matches = rematch(matches, views, looks, resolution, self.rematching, evidence)
        return choose_matches(matches, self.config.max_matches, self.config.min_score, self.config.crowding)

    def _evidence(self, seen: tuple[EncodedViews, EncodedViews], views: ViewPair) -> float | None:
        """How much of what `views` show is found by coarse descriptors; None where the network has none."""
        coarse = self.network.coarse_descriptors(seen[0][views.view0], seen[1][views.view1])
        if coarse is None:
            return None
        return coarse_evidence(coarse[0][0], coarse[1][0], self.matching.logit_scale)

    def _match_views(
        self, a: PreparedImage, b: PreparedImage, seen: tuple[EncodedViews, EncodedViews], views: ViewPair
    ) -> Matches:
        """Match what `views` show of the photos; the result is that of the photos themselves."""
        found = self.matching.between(*self.network.decode(seen[0][views.view0], seen[1][views.view1]))
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
        return mapped.select(_inside(points0, matches.size0) & _inside(points1, matches.size1))

    def _match_keypoints(
        self,
        a: PreparedImage,
        b: PreparedImage,
        dense: tuple[DenseDescriptors, DenseDescriptors],
        keypoints: FloatArray,
    ) -> Matches:
        points0 = resize_points(torch.from_numpy(keypoints).to(self.device), a.resized.scale)
        matches = self._to_matches(a, b, self.matching.of_keypoints(*dense, points0))
        matches.meta["looks"] = 1
        return replace(matches, points0=keypoints)  # exactly what was given, not its round trip

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
    preset: str = "default",
    max_keypoints: int | None = None,
    backend: str = "auto",
    **options: Any,
) -> Matcher:
    """A matcher by model name or .safetensors path; `options` are fields of `MatcherConfig`.

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


_DEFAULT: dict[str, Matcher] = {}


def match(image0: ImageLike, image1: ImageLike, **options: Any) -> Matches:
    """Matches of two photos; options as in `load_matcher`. The model is loaded once and kept."""
    key = repr(sorted(options.items(), key=lambda item: item[0]))
    if key not in _DEFAULT:
        _DEFAULT[key] = load_matcher(**options)
    return _DEFAULT[key].match(image0, image1)
