"""The contract of a network: what it is given, what it returns, and what it declares about itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.encoders.base import Encoder
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE, pad_image

Refinement = Literal["fine", "quadratic", "paper", "none"]
OWN_LEVELS = 3  # strides 2, 4, 8: of an image that meets at a smaller size, these are at its own


@dataclass(frozen=True)
class Capabilities:
    """What a network can do for those who run it. Everybody asks this, nobody asks for its name."""

    stride: int  # pixels between the cells of its descriptor map
    # Ways in which a match can become sub-pixel, best first; "fine" needs a fine map trained for it.
    refinements: tuple[Refinement, ...] = ("quadratic", "paper", "none")
    half: torch.dtype = torch.bfloat16  # the half type that holds its activations on CUDA
    coarse_to_fine: bool = False  # its coarse map says where the fine one is to be compared (CAPSNet)
    meeting_side: int | None = None  # pixels, long side: larger images meet at this size; None: at their own
    bfloat16_on_cpu: bool = False  # matches in bfloat16 on a CPU were measured to be as precise


class Network(Protocol):
    """What a matcher needs of a network; a backend reads only what its own `encode` gave."""

    @abstractmethod
    def encode(self, image: Tensor) -> EncodedImage:
        """All that depends on one image alone: image (B, 3, H, W) in [0, 1], RGB, any size."""

    @abstractmethod
    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""

    @abstractmethod
    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride; may be empty."""

    def coarse_descriptors(self, a: EncodedImage, b: EncodedImage) -> tuple[Tensor, Tensor] | None:
        """`DenseDescriptors.coarse` of both images without decoding them; None where a network has none."""
        return None


class DescriptorNetwork(nn.Module, Network):
    """Base of the networks that describe one image while looking at the other.

    A network is one file: a frozen dataclass of its configuration (JSON values, every field with a default,
    named by `Config`), and a subclass that is built from it, sets `config` and `encoder`, and implements
    `decode`, `attention_maps`, `logit_scale`, `capabilities` and, where an image needs more than the encoder,
    `encode`. One line in `registry.NETWORKS` gives the architecture a name, one in `registry.MODELS` what
    users type; then weights are saved, loaded, trained, exported and matched like those of any other.

    Images come in as RGB in [0, 1], of any size; preprocessing is the encoder's. `models.padding` has
    `pad_image` for what strides need and `crop_cells` to take padding off every output again. The maps that
    `decode` gives have the stride that `capabilities` declares. A network knows nothing of files, devices,
    optimisers or losses.
    """

    Config: ClassVar[type[Any]]

    config: Any  # an instance of `Config`
    encoder: Encoder

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this network, as configured, can do."""

    @property
    @abstractmethod
    def logit_scale(self) -> Tensor:
        """Factor () on similarities of descriptors in a softmax."""

    def encode(self, image: Tensor) -> EncodedImage:
        """The encoder's pyramid of image (B, 3, H, W) in [0, 1], any size."""
        return EncodedImage(tuple(self.encoder(pad_image(image))), (image.shape[-2], image.shape[-1]))

    def meeting_copy(self, image: Tensor) -> Tensor | None:
        """What attention is shown of an image (B, 3, H, W), padded, that is larger than `meeting_side`."""
        side, largest = self.capabilities.meeting_side, max(image.shape[-2:])
        if side is None or largest <= side:
            return None
        size = [max(1, round(length * side / largest / MULTIPLE)) * MULTIPLE for length in image.shape[-2:]]
        copy = F.interpolate(image.float(), size, mode="bilinear", antialias=True, align_corners=False)
        return copy.to(image.dtype)

    def forward(self, image_a: Tensor, image_b: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """`encode` and `decode` in one; images of one size are encoded as one batch."""
        if image_a.shape != image_b.shape:
            return self.decode(self.encode(image_a), self.encode(image_b))
        both = self.encode(torch.cat([image_a, image_b]))
        halves = list(zip(*(level.chunk(2) for level in both.levels), strict=True))
        return self.decode(EncodedImage(halves[0], both.size), EncodedImage(halves[1], both.size))
