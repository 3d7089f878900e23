"""Two photos in, one picture out: VIEW in the style of STYLE, at VIEW's own size."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coam.errors import CoamError, ConfigError
from coam.images import RGB, ImageLike
from coam.matcher import Matcher, PreparedImage, load_matcher
from coam.matching.flow import find_flow
from coam.matching.pair_score import overlap_probability
from coam.models.registry import DEFAULT_MODEL
from coam.stylization.guided import to_bytes, upsample_guided
from coam.stylization.network import StylizerFile, load_network
from coam.stylization.sampled import SampledImage, sample_by_flow
from coam.types import FloatArray

RESOLUTION = 768  # long side, in pixels, at which photos are matched and mended
SEEN_FROM = 0.4  # confidence from which STYLE shows a spot; with a half of VIEW as STYLE, 0.5 to 0.6 of it do
LEAST_OVERLAP = 0.5  # probability below which two photos are said not to show the same place


class NoOverlapError(CoamError):
    """The two photos do not seem to show the same place."""

    def __init__(self, overlap: float) -> None:
        super().__init__(
            f"the photos do not seem to show the same place (pair score {overlap:.2f}, wanted"
            f" {LEAST_OVERLAP}); use --force (force=True) to stylize all the same"
        )
        self.overlap = overlap


@dataclass(frozen=True)
class Stylized:
    """A stylized picture and what it was made of. Arrays (h, w, ...) are at the working resolution."""

    picture: RGB  # (H, W, 3), the size of VIEW
    view: RGB  # (H, W, 3)
    style: RGB  # (Hs, Ws, 3)
    sampled: RGB  # (h, w, 3): each position's best match in STYLE
    confidence: FloatArray  # (h, w) in [0, 1]
    stage1: RGB  # (H, W, 3): after the first network alone
    overlap: float  # probability that the photos show the same place; nan: not calibrated
    meta: dict[str, Any]  # seconds, trained, resolution: JSON values

    @property
    def seen(self) -> float:
        """The share of VIEW that STYLE shows too; the rest of the picture is guessed."""
        return float((self.confidence >= SEEN_FROM).mean())


class Stylizer:
    """A matcher and the two networks; see `load_stylizer`."""

    def __init__(self, matcher: Matcher, file: StylizerFile) -> None:
        self.matcher = matcher
        self.trained, self.card = file.trained, file.card
        self.network = file.network.to(matcher.device).eval()

    @torch.inference_mode()
    def stylize(
        self, view: ImageLike, style: ImageLike, strength: float = 1.0, force: bool = False
    ) -> Stylized:
        """VIEW in the style of STYLE. `strength` 0 gives VIEW, 1 the full style.

        Photos that do not seem to show the same place raise `NoOverlapError` unless `force` is set.
        """
        if not isinstance(strength, int | float) or not 0 <= strength <= 1:
            raise ConfigError(f"strength must lie between 0 and 1, not {strength!r}")
        start = time.perf_counter()
        a, b = self.matcher.prepare(view), self.matcher.prepare(style)
        sampled, overlap = self._sample(a, b)
        if overlap < LEAST_OVERLAP and not force:
            raise NoOverlapError(overlap)
        view_tensor = a.resized.tensor.to(self.matcher.device)
        style_tensor = b.resized.tensor.to(self.matcher.device)
        stage1, both = self.network(view_tensor, style_tensor, sampled.colours, sampled.evidence)
        picture = blend(a.image.rgb, upsample_guided(both[0], a.image.rgb), float(strength))
        return Stylized(
            picture=picture,
            view=a.image.rgb,
            style=b.image.rgb,
            sampled=to_bytes(sampled.colours[0]),
            confidence=sampled.confidence[0].float().cpu().numpy(),
            stage1=upsample_guided(stage1[0], a.image.rgb),
            overlap=overlap,
            meta={
                "seconds": round(time.perf_counter() - start, 3),
                "trained": self.trained,
                "matcher": self.matcher.file.name,
                "resolution": self.matcher.config.resolution,
                "strength": float(strength),
            },
        )

    def _sample(self, a: PreparedImage, b: PreparedImage) -> tuple[SampledImage, float]:
        """The sampled image of two prepared photos, and their pair score."""
        dense0, dense1 = self.matcher.describe(a, b)
        flow = find_flow(dense0, dense1, self.matcher.matching.logit_scale)
        statistics = flow.statistics()
        overlap = overlap_probability(statistics, self.matcher.file.card.get("pair_score"))
        if not bool((flow.matched.probability > 0).any()):
            overlap = 0.0  # not one mutual match is no evidence
        style = b.resized.tensor.to(self.matcher.device)
        return sample_by_flow(style, flow, dense0.size), overlap


def load_stylizer(
    weights: str | Path | None = None,
    model: str | Path = DEFAULT_MODEL,
    device: str | torch.device = "auto",
    resolution: int = RESOLUTION,
) -> Stylizer:
    """A stylizer with the packaged weights, or those of a .safetensors file; `model` names the matcher's."""
    return Stylizer(load_matcher(model, device, resolution=resolution), load_network(weights))


@cache
def _default_stylizer() -> Stylizer:
    return load_stylizer()


def stylize(view: ImageLike, style: ImageLike, strength: float = 1.0, force: bool = False) -> Stylized:
    """VIEW in the style of STYLE by the default stylizer, which is loaded once."""
    return _default_stylizer().stylize(view, style, strength, force)


def blend(view: RGB, picture: RGB, strength: float) -> RGB:
    """`strength` of the picture over the view, both (H, W, 3)."""
    if strength == 1.0:
        return picture
    mixed = view.astype(np.float32) * (1 - strength) + picture.astype(np.float32) * strength
    result: RGB = np.rint(mixed).astype(np.uint8)
    return result
