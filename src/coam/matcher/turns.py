"""How photos lie: each is shown to the network at low resolution in all four quarter turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from coam.caches import LRUCache
from coam.images import load_image
from coam.matcher.views import Change, EncodedViews, View, changed_view
from coam.matching.coarse import coarse_matches
from coam.models.retrieval import pooled
from coam.tensors import as_array
from coam.types import FloatArray

if TYPE_CHECKING:
    from coam.matcher.matcher import Matcher

RESOLUTION = 384  # pixels, long side: which way up a photo is can be told at a glance
_KEPT = 24  # photos, in four turns each


class TurnScout:
    """Compares photos in quarter turns; `turns` are counter-clockwise, as of `numpy.rot90`."""

    def __init__(self, matcher: Matcher, resolution: int = RESOLUTION) -> None:
        self._network, self._scale = matcher.network, matcher.matching.logit_scale
        self._resolution = resolution
        self._seen: LRUCache[str, tuple[EncodedViews, list[View]]] = LRUCache(_KEPT)

    @torch.inference_mode()
    def descriptors(self, photo: str | Path) -> FloatArray:
        """Global descriptors (4, D) of a photo in all four turns."""
        encoded, views = self._views(photo)
        return np.stack([as_array(pooled(encoded[view].levels)[0]) for view in views])

    @torch.inference_mode()
    def evidence(self, photo0: str | Path, photo1: str | Path) -> FloatArray | None:
        """How much (4,) photo 0 as it is and photo 1 in each turn share; None: the network cannot say."""
        (encoded0, views0), (encoded1, views1) = self._views(photo0), self._views(photo1)
        found: list[float] = []
        for view in views1:
            coarse: Any = self._network.coarse_descriptors(encoded0[views0[0]], encoded1[view])
            if coarse is None:
                return None
            found.append(coarse_matches(coarse[0][0], coarse[1][0], self._scale).probability.sum())
        return np.array(found, np.float32)

    def _views(self, photo: str | Path) -> tuple[EncodedViews, list[View]]:
        def make() -> tuple[EncodedViews, list[View]]:
            rgb = load_image(photo).rgb
            size = (rgb.shape[1], rgb.shape[0])
            views = [changed_view(size, self._resolution, Change(turn=90.0 * turns)) for turns in range(4)]
            return EncodedViews(rgb, self._network.encode), views

        return self._seen.get(str(photo), make)
