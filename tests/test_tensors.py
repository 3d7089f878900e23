"""Products of matrices on every device."""

from __future__ import annotations

import torch

from coam.tensors import exact_products


def test_products_are_exact_inside_and_as_before_outside() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with exact_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
