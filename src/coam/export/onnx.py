"""The network as two ONNX graphs: encode once per image, decode once per pair.

Both take images of any size whose sides are multiples of 32. Batch norm is folded; preprocessing is inside.
Of an image longer than `meeting_side` (see the metadata of the graphs) the levels of strides 16 and 32 are of
a copy of that size, encoded by the same graph: see `DescriptorNetwork.meeting_copy`.
"""

from __future__ import annotations

import io
import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from coam.errors import CoamError, import_extra
from coam.models.folding import fold_batch_norm
from coam.models.network import OWN_LEVELS, DescriptorNetwork
from coam.models.outputs import EncodedImage
from coam.models.registry import ModelFile
from coam.store.atomic import atomic_write

OPSET = 17
STRIDES = (2, 4, 8, 16, 32)
IMAGE_NAME = "image"  # (B, 3, H, W) in [0, 1]
LEVEL_NAMES = tuple(f"level{stride}" for stride in STRIDES)
PART_NAMES = ("descriptors", "score", "fine")  # of each image; a network without refinement has no `fine`
TOLERANCE = 1e-3  # largest difference to torch that is let pass, of descriptors of unit length
_NO_PADDING = (2**20, 2**20)  # "the image fills the map": no cell is masked out or cropped


@dataclass(frozen=True)
class Exported:
    """Serialized graphs, and what is needed to run them and to read what comes out."""

    encode: bytes
    decode: bytes
    decode_inputs: tuple[str, ...]  # of `level_names`, those that the decode graph has
    fine_stride: int  # of the outputs `fine`


class _Encode(nn.Module):
    def __init__(self, model: DescriptorNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return self.model.encode(image).levels


class _Decode(_Encode):
    def forward(self, *levels: Tensor) -> tuple[Tensor, ...]:
        half = len(levels) // 2
        a, b = EncodedImage(levels[:half], _NO_PADDING), EncodedImage(levels[half:], _NO_PADDING)
        parts = [(dense.descriptors, dense.score, dense.fine) for dense in self.model.decode(a, b)]
        return tuple(part for dense in parts for part in dense if part is not None)


def level_names(levels: int) -> list[str]:
    """Names of so many levels of image 0, then of image 1; the decode graph takes those that it reads."""
    return [f"{name}_{image}" for image in (0, 1) for name in LEVEL_NAMES[:levels]]


@torch.no_grad()
def export_graphs(model: DescriptorNetwork) -> Exported:
    """Both graphs of a network, float32."""
    onnx = import_extra("onnx", "onnx")
    folded = fold_batch_norm(model).float().cpu()
    # Two sizes: nothing in the decode graph may depend on the images having the same one.
    images = [torch.rand(1, 3, 64, 96), torch.rand(1, 3, 96, 64)]
    encoded = [_encode_with_small_copy(folded, image) for image in images]
    dense = folded.decode(*encoded)
    levels, count = [*encoded[0].levels, *encoded[1].levels], len(encoded[0].levels)
    parts = PART_NAMES if dense[0].fine is not None else PART_NAMES[:2]
    outputs = [f"{name}{image}" for image in (0, 1) for name in parts]
    encode = _export(_Encode(folded), (images[0],), [IMAGE_NAME], list(LEVEL_NAMES[:count]))
    decode = _export(_Decode(folded), tuple(levels), level_names(count), outputs)
    inputs = tuple(entry.name for entry in onnx.load_from_string(decode).graph.input)
    return Exported(encode, decode, inputs, dense[0].fine_stride)


def _encode_with_small_copy(model: DescriptorNetwork, image: Tensor) -> EncodedImage:
    """An image as one that meets at a smaller size: nothing in the graph may depend on its own."""
    own = model.encode(image)
    if model.capabilities.meeting_side is None:
        return own
    copy = model.encode(image[..., 32:, 32:])
    return replace(own, levels=(*own.levels[:OWN_LEVELS], *copy.levels[OWN_LEVELS:]))


def _export(module: nn.Module, arguments: tuple[Tensor, ...], inputs: list[str], outputs: list[str]) -> bytes:
    buffer = io.BytesIO()
    free = {name: {0: "batch", 2: f"{name}_height", 3: f"{name}_width"} for name in [*inputs, *outputs]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer names every shape it reads; sizes stay free all the same
        torch.onnx.export(
            module.eval(),
            arguments,
            buffer,  # type: ignore[arg-type]
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=free,
            opset_version=OPSET,
            dynamo=False,
        )
    return buffer.getvalue()


def export_onnx(file: ModelFile, folder: str | Path) -> tuple[Path, Path]:
    """Write NAME.encode.onnx and NAME.decode.onnx with the model's card; returns their paths."""
    onnx = import_extra("onnx", "onnx")
    graphs = export_graphs(file.model)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "name": file.name,
        "architecture": file.architecture,
        "sha256": file.sha256,
        "stride": str(file.model.capabilities.stride),
        "fine_stride": str(graphs.fine_stride),
        "meeting_side": str(file.model.capabilities.meeting_side or ""),  # pixels; empty: any
        "temperature": str(file.model.logit_scale.item()),
        "card": json.dumps(file.card),
    }
    paths = folder / f"{file.name}.encode.onnx", folder / f"{file.name}.decode.onnx"
    for path, content in zip(paths, (graphs.encode, graphs.decode), strict=True):
        graph = onnx.load_from_string(content)
        onnx.helper.set_model_props(graph, facts)
        onnx.checker.check_model(graph)
        with atomic_write(path) as temporary:
            onnx.save(graph, temporary)
    return paths


@torch.no_grad()
def check_onnx(file: ModelFile, paths: tuple[Path, Path], size: tuple[int, int] = (160, 192)) -> float:
    """Largest difference of ONNX Runtime's descriptors and scores to torch's, for images of two sizes.

    Raises CoamError where it exceeds `TOLERANCE`.
    """
    onnxruntime = import_extra("onnxruntime", "onnx")
    sessions = [onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in paths]
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(1, 3, *side, generator=generator) for side in (size, (size[1], size[0]))]
    model = file.model.cpu().eval()
    expected = model.decode(*(model.encode(image) for image in images))
    levels = [level for image in images for level in sessions[0].run(None, {IMAGE_NAME: image.numpy()})]
    given = dict(zip(level_names(len(levels) // 2), levels, strict=True))
    found = sessions[1].run(None, {entry.name: given[entry.name] for entry in sessions[1].get_inputs()})
    half = len(found) // 2
    worst = max(
        float(np.abs(ours.numpy() - theirs).max())
        for dense, parts in zip(expected, (found[:half], found[half:]), strict=True)
        for ours, theirs in zip((dense.descriptors, dense.score), parts, strict=False)
    )
    if not worst < TOLERANCE:
        raise CoamError(f"the exported graphs differ from torch by {worst:.2g}; report this with the model")
    return worst
