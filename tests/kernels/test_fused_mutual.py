"""The fused search for mutual nearest neighbours against the plain one, interpreted or on a GPU."""

import pytest
import torch
from torch import Tensor

from coam.matching.mutual import MutualMatches, dual_softmax_nearest, mutual_nearest
from support.triton_interpreter import DEVICE, INTERPRETED, ON_GPU, needs_kernel

pytest.importorskip("triton")


def tied(count: int, size: int, seed: int) -> Tensor:
    return torch.randint(-1, 2, (count, size), generator=torch.Generator().manual_seed(seed)).float()


def sixteenths(count: int, size: int, seed: int) -> Tensor:
    """Nearly unit vectors of multiples of 1/16: products are exact in every type and order of summation."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)
    return unit.mul(16).round().div(16)


def fused_search(
    descriptors0: Tensor, descriptors1: Tensor, logit_scale: float | None = None
) -> MutualMatches:
    """The kernel in the smallest blocks, so that small inputs have several."""
    from coam.kernels.mutual import KernelShape, fused_mutual_nearest

    shape = KernelShape(block_rows=16, tile_columns=16, warps=4, stages=2)
    return fused_mutual_nearest(descriptors0.to(DEVICE), descriptors1.to(DEVICE), logit_scale, shape=shape)


def assert_equal_to_plain_search(descriptors0: Tensor, descriptors1: Tensor) -> None:
    fused = fused_search(descriptors0, descriptors1)
    plain = mutual_nearest(descriptors0, descriptors1)
    assert torch.equal(fused.index0.cpu(), plain.index0)
    assert torch.equal(fused.index1.cpu(), plain.index1)
    assert torch.equal(fused.similarity.cpu(), plain.similarity)
    assert fused.index0.dtype == fused.index1.dtype == torch.int64


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SIZES = [(1, 1, 3), (7, 5, 16), (40, 70, 3), (16, 16, 16), (65, 130, 20), (33, 1, 5), (1, 33, 5)]


@needs_kernel
@pytest.mark.parametrize(("rows", "columns", "size"), SIZES)
@pytest.mark.parametrize("make", [tied, sixteenths])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_plain_search(rows, columns, size, make, dtype):
    if dtype == torch.bfloat16 and INTERPRETED:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16, not the numbers")
    assert_equal_to_plain_search(make(rows, size, 1).to(dtype), make(columns, size, 2).to(dtype))


@needs_kernel
def test_slabs_of_rows_are_joined(monkeypatch):
    monkeypatch.setattr("coam.kernels.mutual.SLAB_BLOCKS", 2)  # 32 rows a slab: four slabs
    assert_equal_to_plain_search(tied(100, 4, 3), tied(60, 4, 4))


@needs_kernel
def test_splits_of_columns_are_joined(monkeypatch):
    monkeypatch.setattr("coam.kernels.mutual._splits", lambda blocks, tiles, shape, device: 3)
    assert_equal_to_plain_search(tied(30, 4, 5), tied(150, 4, 6))


@needs_kernel
def test_a_tied_row_above_takes_the_column_even_if_it_prefers_another():
    assert_equal_to_plain_search(
        torch.tensor([[1.0, 1.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    )


@needs_kernel
def test_all_equal_and_signed_zeros():
    assert_equal_to_plain_search(torch.ones(40, 4), torch.ones(50, 4))
    assert_equal_to_plain_search(torch.zeros(20, 4), -torch.ones(40, 4))


@needs_kernel
@pytest.mark.parametrize("logit_scale", [1.0, 20.0, 45.0])
@pytest.mark.parametrize(("rows", "columns"), [(50, 83), (96, 64)])  # with and without parts of tiles
@pytest.mark.parametrize("slab_blocks", [512, 2])
def test_dual_softmax(monkeypatch, logit_scale, rows, columns, slab_blocks):
    monkeypatch.setattr("coam.kernels.mutual.SLAB_BLOCKS", slab_blocks)
    descriptors0, descriptors1 = sixteenths(rows, 16, 7), sixteenths(columns, 16, 8)
    fused = fused_search(descriptors0, descriptors1, logit_scale)
    plain = dual_softmax_nearest(descriptors0, descriptors1, logit_scale)
    assert torch.equal(fused.index0.cpu(), plain.index0)
    assert torch.equal(fused.index1.cpu(), plain.index1)
    assert fused.probability is not None
    assert plain.probability is not None
    torch.testing.assert_close(fused.probability.cpu(), plain.probability, atol=1e-5, rtol=1e-4)


@needs_kernel
def test_what_is_supported():
    from coam.kernels.mutual import is_supported

    ones = torch.ones(4, 8)
    assert is_supported(ones, ones)
    assert is_supported(ones.half(), ones.half())
    assert not is_supported(ones, ones.half())
    assert not is_supported(ones.double(), ones.double())
    assert not is_supported(ones[:0], ones)
    assert not is_supported(torch.ones(4, 257), torch.ones(4, 257))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("make", [tied, sixteenths])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_public_search_on_the_gpu(make, dtype):
    descriptors0, descriptors1 = make(4096, 64, 9).to(dtype), make(5000, 64, 10).to(dtype)
    fused = mutual_nearest(descriptors0.cuda(), descriptors1.cuda())
    plain = mutual_nearest(descriptors0, descriptors1)
    assert torch.equal(fused.index0.cpu(), plain.index0)
    assert torch.equal(fused.index1.cpu(), plain.index1)
