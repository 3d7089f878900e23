"""The exported graphs, run by ONNX Runtime or OpenVINO with as many threads as torch has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.backends.folded import FoldedNetwork
from coam.errors import MissingExtraError
from coam.export.onnx import IMAGE_NAME, export_graphs, level_names
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE
from coam.models.registry import DescriptorModel

Arrays = list[npt.NDArray[Any]]


class ExportedNetwork(FoldedNetwork):
    """Graphs where they apply, torch elsewhere: images whose sides are no multiples of 32, attention maps."""

    def __init__(self, model: DescriptorModel) -> None:
        super().__init__(model, torch.device("cpu"), torch.float32)
        graphs = export_graphs(model)
        self._encode_graph = self._load(graphs.encode)
        self._decode_graph = self._load(graphs.decode)
        self._decode_inputs, self._fine_stride = graphs.decode_inputs, graphs.fine_stride

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        size = (image.shape[-2], image.shape[-1])
        if not _fits(size):
            return super().encode(image)
        levels = self._run(self._encode_graph, {IMAGE_NAME: image.float().cpu()})
        return EncodedImage(tuple(levels), size)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        if not (_fits(a.size) and _fits(b.size)):
            return super().decode(a, b)
        levels = dict(zip(level_names(len(a.levels)), [*a.levels, *b.levels], strict=True))
        parts = self._run(self._decode_graph, {name: levels[name] for name in self._decode_inputs})
        half = len(parts) // 2
        return self._dense(parts[:half], a), self._dense(parts[half:], b)

    def _run(self, graph: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return [torch.from_numpy(array) for array in self._infer(graph, arrays)]

    def _dense(self, parts: list[Tensor], image: EncodedImage) -> DenseDescriptors:
        fine = parts[2] if len(parts) > 2 else None
        return DenseDescriptors(parts[0], parts[1], self.model.stride, image.size, fine, self._fine_stride)

    def _load(self, graph: bytes) -> Any:
        raise NotImplementedError

    def _infer(self, graph: Any, inputs: dict[str, npt.NDArray[Any]]) -> Arrays:
        raise NotImplementedError


class ONNXRuntimeNetwork(ExportedNetwork):
    """ONNX Runtime on the CPU."""

    def _load(self, graph: bytes) -> Any:
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError("onnxruntime", "onnx") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Threads that wait by spinning steal the cores torch works on in between.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def _infer(self, graph: Any, inputs: dict[str, npt.NDArray[Any]]) -> Arrays:
        outputs: Arrays = graph.run(None, inputs)
        return outputs


class OpenVINONetwork(ExportedNetwork):
    """OpenVINO on the CPU, float32: left to itself it would choose bfloat16 where the CPU has it."""

    def _load(self, graph: bytes) -> Any:
        try:
            import openvino
        except ImportError as error:
            raise MissingExtraError("openvino", "openvino") from error
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        core = openvino.Core()
        return core.compile_model(core.read_model(graph), "CPU", settings).create_infer_request()

    def _infer(self, graph: Any, inputs: dict[str, npt.NDArray[Any]]) -> Arrays:
        results = graph.infer(inputs)
        return [np.array(results[output]) for output in graph.model_outputs]


def _fits(size: tuple[int, int]) -> bool:
    return size[0] % MULTIPLE == 0 and size[1] % MULTIPLE == 0
