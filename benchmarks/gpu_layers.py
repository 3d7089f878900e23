"""Every fused layer of the default network on a CUDA device: error against plain torch, and how fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tests.support import plain_layers
from torch import Tensor

from benchmarks.gpu_timing import Row, line_of, microseconds, say
from coam.kernels import convolution, linear
from coam.kernels import encoder as fused_encoder
from coam.kernels import stacked as fused_stacked
from coam.kernels.linear import TileShape
from coam.kernels.stacked import FusedStacked
from coam.models.folding import fold_batch_norm
from coam.models.registry import load_model

NAMES = (
    "linear", "unit_linear", "logistic_head", "convolve_depthwise", "stem", "convolve", "upsample_and_add",
)  # fmt: skip
WORST_ERROR = 4e-3  # relative, of float16 against float32
LINEAR_TILES = [
    (128, 128, 64, 8, 3), (128, 64, 64, 4, 3), (128, 32, 64, 4, 3), (64, 64, 64, 4, 3), (64, 32, 64, 4, 4),
    (32, 64, 64, 4, 4), (32, 32, 128, 4, 3), (16, 64, 128, 4, 3),
]  # fmt: skip
NORM_TILES = [
    (32, 64, 256, 4, 2), (64, 64, 256, 8, 2), (16, 64, 256, 4, 2), (32, 32, 256, 4, 2), (64, 64, 256, 4, 2)
]  # fmt: skip
CONVOLUTION_TILES = [
    (128, 64, 32, 4, 3), (128, 64, 16, 4, 4), (128, 64, 64, 4, 3), (64, 64, 32, 4, 4), (64, 64, 64, 4, 3),
    (128, 128, 32, 8, 3), (64, 32, 64, 4, 3), (128, 32, 32, 4, 4), (256, 64, 32, 8, 3),
]  # fmt: skip


@contextmanager
def recorded_calls() -> Iterator[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """Calls of the fused layers, one for every shape, while the network runs."""
    calls: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
    result: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    before = []
    for module in (fused_encoder, fused_stacked):
        for name in NAMES:
            if hasattr(module, name):
                function = getattr(module, name)
                before.append((module, name, function))

                def keep(*given: Any, _name: str = name, _function: Any = function, **options: Any) -> Any:
                    calls.setdefault(signature(_name, given, options), (_name, given, options))
                    return _function(*given, **options)

                setattr(module, name, keep)
    try:
        yield result
    finally:
        for module, name, function in before:
            setattr(module, name, function)
        result += calls.values()


def signature(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str:
    """Name, shapes and options of a call."""
    parts = [name]
    for value in (*arguments, *options.values()):
        if isinstance(value, Tensor):
            parts.append("x".join(map(str, value.shape)))
        elif hasattr(value, "weight"):
            parts.append("w" + "x".join(map(str, value.weight.shape)))
            parts += [f"s{value.stride}"] if hasattr(value, "stride") else []
        elif isinstance(value, int | float) and not isinstance(value, bool):
            parts.append(f"{value:g}")
    given = (key for key, value in options.items() if value is not None and value is not False)
    return " ".join([*parts, *given])


def widened(value: Any) -> Any:
    """Tensors of half precision in float32."""
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float16 else value


def measure_layers(model_file: str, size: int, device: torch.device) -> list[Row]:
    """Each layer of encoding and decoding two images: error, time, time in plain torch, time by tiles."""
    model = fold_batch_norm(load_model(model_file).model).to(device=device, dtype=torch.float16)
    network = FusedStacked(model.to(memory_format=torch.channels_last))
    images = torch.rand(2, 3, size, size, device=device)
    with recorded_calls() as calls:
        network.describe_group(network.encode(images))
    rows = []
    for name, arguments, options in calls:
        function = getattr(fused_stacked, name, None) or getattr(fused_encoder, name)
        plain = getattr(plain_layers, name)
        found = function(*arguments, **options)
        wide = plain(*map(widened, arguments), **{key: widened(value) for key, value in options.items()})
        error = float((found.float() - wide).norm() / wide.norm())
        fits = arguments if name != "stem" else (arguments[0].half(), *arguments[1:])
        row: Row = {
            "layer": signature(name, arguments, options),
            "error": error,
            "passed": error < WORST_ERROR,
            "us": microseconds(lambda f=function, a=arguments, o=options: f(*a, **o)),
            "plain_us": microseconds(lambda f=plain, a=fits, o=options: f(*a, **o)),
        }
        row |= by_tiles(name, function, arguments, options)
        rows.append(row)
        say(line_of(row))
    ours, theirs = (sum(row[key] for row in rows) for key in ("us", "plain_us"))
    say(f"each once: fused {ours:.0f} us, plain {theirs:.0f} us")
    return rows


def by_tiles(
    name: str, function: Callable[..., Tensor], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Row:
    """Microseconds for other ways to cut the work, fastest first."""
    if name == "linear":
        inner = arguments[0].shape[1]
        candidates = NORM_TILES if options.get("norm") else LINEAR_TILES
        outputs = arguments[1].weight.shape[0]
        candidates = [c for c in candidates if c[1] < 2 * max(outputs, 32) and c[2] < 2 * max(inner, 64)]
        own = linear.default_tiles(arguments[0].shape[0], inner, outputs)
    elif name == "convolve":
        candidates = CONVOLUTION_TILES
        batch, height, width, channels = arguments[0].shape
        own = convolution.default_tiles(batch * height * width, channels, arguments[1].weight.shape[0])
    else:
        return {}
    times: dict[str, float] = {}
    for candidate in candidates:
        tiles = TileShape(*candidate)
        try:
            times[str(candidate)] = microseconds(
                lambda t=tiles: function(*arguments, **{**options, "tiles": t})
            )
        except Exception as error:  # tiles may not fit the device
            times[f"{candidate} {type(error).__name__}"] = float("inf")
    if name == "convolve":
        try:
            times["cuDNN with bias and ReLU"] = cudnn_microseconds(*arguments[:2])
        except RuntimeError as error:
            times[f"cuDNN {error}"] = float("inf")
    best = sorted(times.items(), key=lambda item: item[1])[:4]
    return {"own": f"{own.rows},{own.columns},{own.step}", "tiles": " ".join(f"{k}:{v:.1f}" for k, v in best)}


def cudnn_microseconds(x: Tensor, layer: linear.Linear) -> float:
    """cuDNN's own fused convolution, without the residual."""
    weight = layer.weight.view(len(layer.weight), 3, 3, -1).permute(0, 3, 1, 2)
    one = (1, 1)
    return microseconds(
        lambda: torch.cudnn_convolution_relu(x.permute(0, 3, 1, 2), weight, layer.bias, one, one, one, 1)
    )
