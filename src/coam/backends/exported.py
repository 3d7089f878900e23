"""The exported graphs, run by ONNX Runtime or OpenVINO with as many threads as torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.backends.eager import FoldedNetwork
from coam.errors import import_extra
from coam.export.onnx import IMAGE_NAME, export_graphs, level_names
from coam.models.network import OWN_LEVELS, DescriptorNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE

RunGraph = Callable[[dict[str, npt.NDArray[Any]]], list[npt.NDArray[Any]]]  # outputs of inputs by name


class ExportedNetwork(FoldedNetwork):
    """Graphs where they apply, torch elsewhere: for attention maps and sides that are no multiples of 32."""

    def __init__(self, model: DescriptorNetwork, load: Callable[[bytes], RunGraph]) -> None:
        super().__init__(model, torch.device("cpu"), torch.float32)
        graphs = export_graphs(model)
        self._encode_graph, self._decode_graph = load(graphs.encode), load(graphs.decode)
        self._decode_inputs, self._fine_stride = graphs.decode_inputs, graphs.fine_stride

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        size = (image.shape[-2], image.shape[-1])
        if not _fits(size):
            return super().encode(image)
        image = image.float().cpu()
        levels = _run(self._encode_graph, {IMAGE_NAME: image})
        copy = self.model.meeting_copy(image)
        if copy is not None:
            levels[OWN_LEVELS:] = _run(self._encode_graph, {IMAGE_NAME: copy})[OWN_LEVELS:]
        return EncodedImage(tuple(levels), size)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        if not (_fits(a.size) and _fits(b.size)):
            return super().decode(a, b)
        levels = dict(zip(level_names(len(a.levels)), [*a.levels, *b.levels], strict=True))
        parts = _run(self._decode_graph, {name: levels[name] for name in self._decode_inputs})
        half = len(parts) // 2
        return self._dense(parts[:half], a), self._dense(parts[half:], b)


def _fits(size: tuple[int, int]) -> bool:
    return all(side % MULTIPLE == 0 for side in size)


def load_onnxruntime(graph: bytes) -> RunGraph:
    """A serialized graph in ONNX Runtime on the CPU."""
    onnxruntime = import_extra("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Threads that wait by spinning steal the cores torch works on in between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def load_openvino(graph: bytes) -> RunGraph:
    """A serialized graph in OpenVINO on the CPU, float32: left to itself it would choose bfloat16."""
    openvino = import_extra("openvino", "openvino")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    core = openvino.Core()
    request = core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()

    def run(inputs: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        results = request.infer(inputs)
        return [np.array(results[output]) for output in request.model_outputs]  # the next call writes there

    return run


def _run(graph: RunGraph, inputs: dict[str, Tensor]) -> list[Tensor]:
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    return [torch.from_numpy(array) for array in graph(arrays)]
