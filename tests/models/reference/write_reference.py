"""Write encoders.json: activations and names of the reference implementations on formula weights.

Wants torchvision and efficientnet_lite_pytorch importable. torchvision's models need none of its compiled
operators, so a wheel that does not fit the installed torch will do: registering those operators is left out.
Run from the repository root: PYTHONPATH=src python tests/models/reference/write_reference.py
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")

from efficientnet_lite_pytorch import EfficientNet  # noqa: E402
from torchvision import models  # noqa: E402

from coam.models.encoders.efficientnet import lite1_name  # noqa: E402
from support.encoder_reference import REFERENCE, formula_values, level_summary, names_digest, synthetic_image  # noqa: E402

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)


def record(
    model: nn.Module, taps: list[nn.Module], statistics: Any, rename: Any = lambda name: name
) -> list[Any]:
    """Summaries of what the modules `taps` give for the synthetic image, with formula weights in `model`."""
    state = {
        name: formula_values(rename(name) or name, tuple(value.shape))
        for name, value in model.state_dict().items()
        if value.is_floating_point()
    }
    model.load_state_dict(state, strict=False)
    summaries: list[Any] = []
    for tap in taps:
        tap.register_forward_hook(lambda _module, _inputs, output: summaries.append(level_summary(output)))
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in statistics)
    with torch.no_grad():
        model.eval()((synthetic_image() - mean) / std)
    return summaries


def own_part(state: dict[str, Tensor], left_out: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if not name.startswith(left_out)}


def resnet(model: Any, original: bool = False) -> dict[str, Any]:
    if original:
        for stage in (model.layer2, model.layer3, model.layer4):
            stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    levels = record(model, [model.relu, model.layer1, model.layer2, model.layer3, model.layer4], IMAGENET)
    return {"names_sha256": names_digest(own_part(model.state_dict(), ("fc.",))), "levels": levels}


def efficientnet_b1() -> dict[str, Any]:
    model = models.efficientnet_b1()
    levels = record(model, [model.features[i] for i in (1, 2, 3, 5, 7)], IMAGENET)
    names = names_digest(own_part(model.state_dict(), ("classifier.", "features.8.")))
    return {"names_sha256": names, "levels": levels}


def efficientnet_lite1() -> dict[str, Any]:
    model = EfficientNet.from_name("efficientnet-lite1", image_size=None)  # padding by the actual size
    return {"levels": record(model, [model._blocks[i] for i in (0, 3, 6, 14, 20)], LITE, lite1_name)}


if __name__ == "__main__":
    reference = {
        "resnet34": resnet(models.resnet34()),
        "resnet50": resnet(models.resnet50()),
        "resnet50_original": resnet(models.resnet50(), original=True),
        "efficientnet_b1": efficientnet_b1(),
        "efficientnet_lite1": efficientnet_lite1(),
    }
    REFERENCE.write_text(json.dumps(reference, indent=1) + "\n")
