"""The fused search for mutual nearest neighbours on a CUDA device: exact, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_timing import Row, line_of, measure, milliseconds, say
from coam.matching.mutual import MutualMatches, mutual_nearest

DEVICE = torch.device("cuda")
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
PLAIN_CHUNK = 4096  # a given chunk selects the plain torch path
SIZES = [(1, 1), (7, 5), (127, 1000), (4097, 2000), (16384, 16384), (65536, 65536), (70000, 300)]
LOGIT_SCALE = 1 / 0.03  # of the dual softmax


def tied(count: int, size: int, seed: int) -> Tensor:
    """-1, 0, 1: sums are exact in every type and order, so equal is equal."""
    return torch.randint(-1, 2, (count, size), generator=_generator(seed), device=DEVICE).float()


def sixteenths(count: int, size: int, seed: int) -> Tensor:
    """Nearly unit vectors of multiples of 1/16: exact as well."""
    return unit(count, size, seed).mul(16).round().div(16)


def unit(count: int, size: int, seed: int) -> Tensor:
    """Random unit vectors."""
    random = torch.randn(count, size, generator=_generator(seed), device=DEVICE)
    return torch.nn.functional.normalize(random, dim=1)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(DEVICE).manual_seed(seed)


def brute_force(a: Tensor, b: Tensor) -> MutualMatches:
    """The definition, on the whole matrix: first maximum of its row and of its column."""
    similarity = a.float() @ b.float().t()
    value, column = similarity.max(dim=1)
    column = (similarity == value.unsqueeze(1)).to(torch.uint8).argmax(dim=1)  # the first, whatever max gives
    best = similarity.amax(dim=0)
    first_row = torch.empty(len(b), dtype=torch.int64, device=DEVICE)
    for start in range(0, len(b), 4096):
        part = slice(start, start + 4096)
        first_row[part] = (similarity[:, part] == best[part]).to(torch.uint8).argmax(dim=0)
    row = torch.arange(len(a), device=DEVICE)
    index0 = row[first_row[column] == row]
    return MutualMatches(index0, column[index0], value[index0])


def compare(found: MutualMatches, expected: MutualMatches) -> tuple[float, bool]:
    """Share of common matches, and whether all, with their similarities, are equal."""
    pairs = [m.index0 * 2**31 + m.index1 for m in (found, expected)]
    common = torch.isin(pairs[0], pairs[1]).sum().item()
    same = len(found) == len(expected) == common and torch.equal(found.similarity, expected.similarity)
    return common / max(len(found), len(expected), 1), bool(same)


def checks() -> list[Row]:
    """The kernel against brute force; exact inputs must agree exactly, others in 99.9 % of the matches."""
    from coam.kernels.mutual import fused_mutual_nearest

    rows: list[Row] = []
    for type_name, dtype in TYPES.items():
        for make in (tied, sixteenths, unit):
            for count, others in SIZES:
                a, b = make(count, 64, 1).to(dtype), make(others, 64, 2).to(dtype)
                fused = fused_mutual_nearest(a, b)
                large = count * others > 2**29
                expected = mutual_nearest(a, b, chunk=PLAIN_CHUNK) if large else brute_force(a, b)
                share, same = compare(fused, expected)
                passed = share > 0.999 if make is unit else same
                rows.append(
                    {"type": type_name, "input": make.__name__, "rows": count, "columns": others}
                    | {"matches": len(expected), "same": share, "passed": passed}
                )
                say(line_of(rows[-1]))
        rows.append(check_softmax(type_name, dtype))
        say(line_of(rows[-1]))
    return rows


def check_softmax(type_name: str, dtype: torch.dtype) -> Row:
    """Dual softmax probabilities of the kernel against those of the whole matrix in float64."""
    from coam.kernels.mutual import fused_mutual_nearest

    a, b = sixteenths(3000, 64, 3).to(dtype), sixteenths(4001, 64, 4).to(dtype)
    fused = fused_mutual_nearest(a, b, 20.0)
    logits = 20.0 * a.double() @ b.double().t()
    expected = (logits.softmax(0) * logits.softmax(1))[fused.index0, fused.index1]
    assert fused.probability is not None
    error = ((fused.probability.double() - expected).abs() / expected).max().item()
    row = {"type": type_name, "input": "dual softmax", "rows": 3000, "columns": 4001, "matches": len(fused)}
    return row | {"same": 1.0 - error, "passed": error < 1e-4}


def rates() -> list[Row]:
    """The kernel, the whole search, the plain path and a bare matrix product of the same shape."""
    from coam.kernels.mutual import _rows_of, default_shape, fused_mutual_nearest

    big = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)
    rows = [measure("matrix product 8192^3", lambda: big @ big, 2 * 8192**3, type="float16")]
    for count in (16384, 65536):
        for type_name, dtype in TYPES.items():
            a, b = unit(count, 64, 5).to(dtype), unit(count, 64, 6).to(dtype)
            work = 2.0 * count * count * 64
            facts = {"count": count, "type": type_name}
            plain, sums = (default_shape(dtype, with_sums) for with_sums in (False, True))
            actions: dict[str, Callable[[], Any]] = {
                "matrix product, written out": lambda a=a, b=b: a @ b.t(),
                "kernel": lambda a=a, b=b, s=plain: _rows_of(a, b, None, s),
                "kernel with softmax": lambda a=a, b=b, s=sums: _rows_of(a, b, LOGIT_SCALE, s),
                "mutual nearest": lambda a=a, b=b: fused_mutual_nearest(a, b),
                "dual softmax nearest": lambda a=a, b=b: fused_mutual_nearest(a, b, LOGIT_SCALE),
            }
            if type_name != "bfloat16":
                actions["plain torch"] = lambda a=a, b=b: mutual_nearest(a, b, chunk=PLAIN_CHUNK)
            rows += [measure(name, action, work, **facts) for name, action in actions.items()]
    return rows


def shapes() -> list[Row]:
    """Time of the search by kernel shape, float16, at 65536 and 16384 positions a side."""
    from coam.kernels.mutual import KernelShape, fused_mutual_nearest

    candidates = [
        KernelShape(128, 64, 4, 3), KernelShape(128, 64, 8, 3), KernelShape(64, 128, 8, 3),
        KernelShape(64, 64, 4, 3), KernelShape(64, 64, 4, 4), KernelShape(128, 128, 8, 3),
        KernelShape(64, 128, 4, 3), KernelShape(128, 32, 4, 4), KernelShape(64, 64, 8, 3),
        KernelShape(128, 64, 8, 3, 2), KernelShape(64, 64, 4, 3, 8),
    ]  # fmt: skip
    rows = []
    large = [unit(65536, 64, seed).half() for seed in (7, 8)]
    small = [d[:16384].contiguous() for d in large]
    for shape in candidates:
        row: Row = {"shape": str(shape)}
        for name, (a, b) in (("16384", small), ("65536", large)):
            for kind, options in (("mutual", ()), ("softmax", (LOGIT_SCALE,))):
                try:
                    row[f"{kind}_{name}"] = milliseconds(
                        lambda a=a, b=b, o=options, s=shape: fused_mutual_nearest(a, b, *o, shape=s), 5, 1
                    )
                except Exception as error:  # a shape may not fit the device
                    row[f"{kind}_{name}"] = float("inf")
                    say(f"{shape}: {type(error).__name__}: {str(error).splitlines()[0]}")
        rows.append(row)
        say(line_of(row))
    return rows
