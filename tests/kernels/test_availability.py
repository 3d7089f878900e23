"""Where fused kernels are used, and that a machine on which they fail goes on without them."""

import sys
from types import SimpleNamespace

import pytest
import torch

from coam.kernels import availability as fused

CUDA = torch.device("cuda")


@pytest.fixture
def machine(monkeypatch):
    """A machine with a CUDA device and Triton, on which kernels run."""
    probe = SimpleNamespace(doubles=lambda device: True)
    monkeypatch.delenv("COAM_TRITON", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fused, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setitem(sys.modules, "coam.kernels.probe", probe)
    fused._runs_kernels.cache_clear()
    yield probe
    fused._runs_kernels.cache_clear()


def test_kernels_are_used_where_they_run(machine, monkeypatch):
    assert fused.can_fuse(CUDA)
    assert not fused.can_fuse(torch.device("cpu"))
    monkeypatch.setenv("COAM_TRITON", "0")
    assert not fused.can_fuse(CUDA)


def test_an_old_device_goes_without_them(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not fused.can_fuse(CUDA)


def test_without_a_compiler_there_is_one_warning_and_plain_kernels(machine):
    def fail(device):
        raise RuntimeError("Failed to find C compiler\nand more lines")

    machine.doubles = fail
    with pytest.warns(UserWarning, match="Failed to find C compiler.*C compiler, or set COAM_TRITON=0"):
        assert not fused.can_fuse(CUDA)
    assert not fused.can_fuse(CUDA)  # asked once


def test_a_cuda_build_without_a_driver_is_a_cpu(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not fused.can_fuse(CUDA)


def test_a_wrong_kernel_is_not_used(machine):
    machine.doubles = lambda device: False
    assert not fused.can_fuse(CUDA)
