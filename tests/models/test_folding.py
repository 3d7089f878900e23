"""Batch norm folded into convolutions."""

import pytest
import torch

from coam.models.folding import fold_batch_norm
from coam.models.registry import build_model


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("stacked", {}),
        ("stacked", {"encoder": "resnet34"}),
        ("cdunet", {"encoder": "resnet50"}),
        ("cdunet", {"encoder": "efficientnet_b1"}),
    ],
)
def test_folding_changes_nothing_but_rounding(architecture, config):
    torch.manual_seed(0)
    model = build_model(architecture, config).eval()
    for module in model.modules():  # statistics as after training, not zeros and ones
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2.0)
            module.weight.data.uniform_(0.5, 1.5)
    folded = fold_batch_norm(model)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())
    image = torch.rand(1, 3, 64, 96)
    with torch.inference_mode():
        for ours, theirs in zip(folded.encode(image).levels, model.encode(image).levels, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())  # a copy was folded
