"""The fused sub-pixel search against the plain one, in Triton's interpreter or on a GPU."""

import pytest
import torch

from coam.matching.grid import sample_map
from coam.matching.refine import refine_softargmax
from support.triton_interpreter import DEVICE, needs_kernel

pytest.importorskip("triton")


@needs_kernel
@pytest.mark.parametrize(
    ("size", "shape0", "shape1", "radius", "dtype"),
    [
        (32, (9, 12), (9, 12), 2, torch.float32),
        (20, (7, 5), (4, 11), 1, torch.float32),
        (32, (9, 12), (10, 8), 2, torch.float16),
        (5, (3, 3), (2, 2), 3, torch.float32),
    ],
)
def test_same_as_the_plain_search(size, shape0, shape1, radius, dtype):
    from coam.kernels.refine import fused_seek, is_supported

    generator = torch.Generator().manual_seed(3)
    fine0, fine1 = (torch.randn(size, *shape, generator=generator).to(dtype) for shape in (shape0, shape1))
    assert is_supported(fine0, fine1, radius)
    inside = [torch.tensor([shape[1], shape[0]]) * 2.0 for shape in (shape0, shape1)]
    # Inside, at the border, beyond it, and exactly between two cells.
    points0 = torch.rand(21, 2, generator=generator) * (inside[0] + 4) - 2
    near1 = torch.rand(21, 2, generator=generator) * (inside[1] + 4) - 2
    near1[:6] = torch.tensor([[1.5, 1.5], [1.5, 3.5], [3.5, 1.5], [0.5, 0.5], [2.5, 1.5], [-0.5, 1.5]])
    query = sample_map(fine0[None], points0[None], 2.0)[0]
    plain = refine_softargmax(query, fine1, near1, 2.0, radius, size**-0.5)
    arguments = [tensor.to(DEVICE) for tensor in (fine0, fine1, points0, near1)]
    fused = fused_seek(*arguments, 2.0, radius, size**-0.5)
    tolerance = {"rtol": 0, "atol": 2e-4}
    torch.testing.assert_close(fused.points.cpu(), plain.points, **tolerance)
    torch.testing.assert_close(fused.peak.cpu(), plain.peak, **tolerance)
    torch.testing.assert_close(fused.spread.cpu(), plain.spread, **tolerance)


def test_what_does_not_fit_is_left_to_the_plain_search():
    from coam.kernels.refine import is_supported

    small, large = torch.zeros(32, 4, 4), torch.zeros(128, 4, 4)
    assert is_supported(small, small, 2)
    assert not is_supported(large, large, 2)
    assert not is_supported(small, small, 4)
    assert not is_supported(small, small.half(), 2)


@needs_kernel
@pytest.mark.parametrize(("size", "dtype"), [(64, torch.float32), (20, torch.float16)])
def test_unit_samples(size, dtype):
    from coam.kernels.refine import fused_unit_samples

    generator = torch.Generator().manual_seed(4)
    feature_map = torch.randn(size, 6, 9, generator=generator).to(dtype)
    points = torch.rand(45, 2, generator=generator) * torch.tensor([40.0, 28.0]) - 2  # some beyond the border
    expected = sample_map(feature_map[None], points[None], 4.0, normalise=True)[0]
    found = fused_unit_samples(feature_map.to(DEVICE), points.to(DEVICE), 4.0)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-3
    torch.testing.assert_close(found.float().cpu(), expected, rtol=0, atol=tolerance)
