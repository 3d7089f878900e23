"""Layers with their activation taken by oneDNN, against the same layers of torch."""

import pytest
import torch
from torch import nn

from coam.backends import eager, fused_layers
from coam.backends.eager import FoldedNetwork
from coam.backends.fused_layers import FusedLayer, fuse_activations, takes_activations
from coam.models.stacked import StackedCDUNet, StackedConfig

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not takes_activations(CPU, torch.float32), reason="this torch has no oneDNN")


def conv(*arguments: int, **options: int) -> nn.Module:
    return nn.Conv2d(*arguments, **options).to(memory_format=torch.channels_last)


SEQUENCES = {
    "1x1, ReLU6": lambda: [conv(8, 48, 1), nn.Identity(), nn.ReLU6(inplace=True)],
    "depthwise, stride 2": lambda: [conv(8, 8, 4, stride=2, padding=1, groups=8), nn.ReLU6()],
    "3x3, ReLU, twice": lambda: [conv(8, 8, 3, padding=1), nn.ReLU(), conv(8, 4, 3, padding=1), nn.ReLU()],
    "nothing after it": lambda: [conv(8, 4, 1), nn.ReLU(), conv(4, 1, 1)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SEQUENCES)
@torch.inference_mode()
def test_convolutions_give_the_same(name, dtype):
    if not takes_activations(CPU, dtype):
        pytest.skip("this CPU computes no bfloat16")
    torch.manual_seed(0)
    plain, fused = nn.Sequential(*SEQUENCES[name]()).to(dtype), nn.Sequential()
    for key, layer in plain.named_children():
        fused.add_module(key, layer)
    features = (20 * torch.randn(2, 8, 12, 20)).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = plain(features.clone())
    fuse_activations(nn.ModuleList([fused]))
    kinds = [type(layer) for layer in fused]
    assert FusedLayer in kinds
    assert nn.ReLU not in kinds
    assert nn.ReLU6 not in kinds
    torch.testing.assert_close(fused(features), expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@torch.inference_mode()
def test_a_linear_layer_with_either_gelu(approximate):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 32), nn.GELU(approximate), nn.Linear(32, 16))
    tokens = 3 * torch.randn(2, 7, 16)
    expected = plain(tokens)
    fuse_activations(plain)
    assert [type(layer) for layer in plain] == [FusedLayer, nn.Identity, nn.Linear]
    torch.testing.assert_close(plain(tokens), expected, atol=2e-6, rtol=1e-5)


def test_layers_outside_a_sequence_and_other_activations_stay():
    network = nn.ModuleDict(
        {"conv": conv(3, 3, 1), "relu": nn.ReLU(), "two": nn.Sequential(conv(3, 3, 1), nn.SiLU())}
    )
    fuse_activations(network)
    assert not any(isinstance(module, FusedLayer) for module in network.modules())


@torch.inference_mode()
def test_a_folded_network_computes_the_same_where_nothing_can_be_fused(monkeypatch):
    model = StackedCDUNet(StackedConfig(width=32, heads=2, rounds=(1, 1), decoder_widths=(24, 16, 8)))
    fused = FoldedNetwork(model, CPU, torch.float32)
    monkeypatch.setattr(eager, "takes_activations", lambda device, dtype: False)
    plain = FoldedNetwork(model, CPU, torch.float32)
    count = [sum(isinstance(m, FusedLayer) for m in network.model.modules()) for network in (fused, plain)]
    assert count[0] > 40
    assert count[1] == 0
    images = torch.rand(2, 1, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    described = [network.decode(*map(network.encode, images)) for network in (fused, plain)]
    for one, other in zip(*described, strict=True):
        torch.testing.assert_close(one.descriptors, other.descriptors, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(one.score, other.score, atol=1e-5, rtol=1e-4)


def test_other_types_and_devices_are_left_to_torch():
    assert not takes_activations(CPU, torch.float16)
    assert not takes_activations(torch.device("cuda"), torch.float32)


def not_with_these_arguments(self, features):
    raise RuntimeError("expected at most 9 argument(s) but received 10")


def without_activation(self, features):
    fused = torch.nn.functional.conv2d if self.shape else torch.nn.functional.linear
    return fused(features, self.weight, self.bias, *([1, 1] if self.shape else []))


@pytest.mark.parametrize("forward", [not_with_these_arguments, without_activation])
def test_operators_of_another_torch_that_differ_are_not_used(forward, monkeypatch):
    fused_layers._is_right.cache_clear()
    before = torch.random.get_rng_state()
    with monkeypatch.context() as patched:
        patched.setattr(FusedLayer, "forward", forward)
        assert not takes_activations(CPU, torch.float32)
    fused_layers._is_right.cache_clear()
    assert takes_activations(CPU, torch.float32)
    assert torch.equal(torch.random.get_rng_state(), before)  # a user's seed gives what it gave
