"""Streaming nearest neighbours against brute force on the whole matrix."""

import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coam.matching import mutual
from coam.matching.dense import DenseMatching
from coam.matching.mutual import dual_softmax_nearest, mutual_nearest, nearest, run_side_by_side
from coam.matching.settings import PRESETS


def first_maximum(values: Tensor, dim: int) -> Tensor:
    """The smallest index of the maximum, without trusting argmax."""
    size = values.shape[dim]
    shape = [1, 1]
    shape[dim] = size
    index = torch.arange(size).view(shape).expand(values.shape)
    is_best = values == values.amax(dim=dim, keepdim=True)
    return torch.where(is_best, index, size).amin(dim=dim)


def brute_force(descriptors0: Tensor, descriptors1: Tensor) -> tuple[Tensor, Tensor]:
    similarity = descriptors0 @ descriptors1.t()
    best1, best0 = first_maximum(similarity, 1), first_maximum(similarity, 0)
    index0 = torch.arange(len(descriptors0))
    is_mutual = best0[best1] == index0
    return index0[is_mutual], best1[is_mutual]


def unit(count: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)


def tied(count: int, size: int, seed: int) -> Tensor:
    """Whole numbers: products are exact in float32 in any order of summation, so ties are true ties."""
    return torch.randint(-1, 2, (count, size), generator=torch.Generator().manual_seed(seed)).float()


SIZES = [
    (1, 1), (1, 7), (7, 1), (7, 7), (63, 65), (64, 64), (300, 1025), (2050, 130), (257, 2049), (600, 4200),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("make", [unit, tied])
@pytest.mark.parametrize("chunk", [None, 1, 3, 256, 10_000])
def test_equals_brute_force(rows, columns, make, chunk):
    if chunk == 1:
        rows = min(rows, 70)
    descriptors0, descriptors1 = make(rows, 6, 1), make(columns, 6, 2)
    matches = mutual_nearest(descriptors0, descriptors1, chunk)
    index0, index1 = brute_force(descriptors0, descriptors1)
    assert torch.equal(matches.index0, index0)
    assert torch.equal(matches.index1, index1)
    expected = (descriptors0[index0] * descriptors1[index1]).sum(1)
    torch.testing.assert_close(matches.similarity, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("make", [unit, tied])
def test_equals_brute_force_on_the_default_grid(make):
    """128^2 positions a side. Brute force by rows, then by columns of the transposed problem."""
    descriptors0, descriptors1 = make(16384, 8, 3), make(16384, 8, 4)
    if make is unit:  # exact products, so that the two chunked brute forces agree with each other bit by bit
        descriptors0, descriptors1 = (d.mul(64).round() for d in (descriptors0, descriptors1))
    forward = torch.cat([(part @ descriptors1.t()).argmax(1) for part in descriptors0.split(1024)])
    backward = torch.cat([(part @ descriptors0.t()).argmax(1) for part in descriptors1.split(1024)])
    index0 = torch.nonzero(backward[forward] == torch.arange(16384)).squeeze(1)
    matches = mutual_nearest(descriptors0, descriptors1)
    assert len(index0) > 300
    assert torch.equal(matches.index0, index0)
    assert torch.equal(matches.index1, forward[index0])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    columns=st.integers(0, 90),
    size=st.integers(1, 3),
    chunk=st.one_of(st.none(), st.integers(1, 50)),
    seed=st.integers(0, 10_000),
)
def test_equals_brute_force_on_any_tied_input(rows, columns, size, chunk, seed):
    descriptors0, descriptors1 = tied(rows, size, seed), tied(columns, size, seed + 1)
    matches = mutual_nearest(descriptors0, descriptors1, chunk)
    if rows and columns:
        index0, index1 = brute_force(descriptors0, descriptors1)
    else:
        index0 = index1 = torch.zeros(0, dtype=torch.int64)
    assert torch.equal(matches.index0, index0)
    assert torch.equal(matches.index1, index1)


def test_a_tied_row_above_takes_the_column_even_if_it_prefers_another():
    # Column 1's first maximum is row 0, which prefers column 0 (also 1.0): so row 1 must stay alone.
    descriptors0 = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    descriptors1 = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    for chunk in (1, 2):
        matches = mutual_nearest(descriptors0, descriptors1, chunk)
        assert matches.index0.tolist() == [0]
        assert matches.index1.tolist() == [0]


def repeated(count: int, size: int, seed: int) -> Tensor:
    """Whole numbers that tie with themselves only: every descriptor stands there about three times."""
    generator = torch.Generator().manual_seed(seed)
    different = torch.randint(-99, 100, (count // 3, size), generator=generator).float()
    return different[torch.randint(0, len(different), (count,), generator=generator)]


def test_of_equal_rows_the_first_wins_however_their_products_round(monkeypatch):
    # as if rounding had made each of them a little more similar than the others
    monkeypatch.setattr(mutual, "_first_among_equals", lambda rows, columns, row: torch.ones_like(row).bool())
    descriptors0, descriptors1 = repeated(1500, 16, 1), repeated(3000, 16, 2)
    matches = mutual_nearest(descriptors0, descriptors1)
    index0, index1 = brute_force(descriptors0, descriptors1)
    assert torch.equal(matches.index0, index0)
    assert torch.equal(matches.index1, index1)


def test_all_equal_gives_the_first_pair():
    matches = mutual_nearest(torch.ones(500, 4), torch.ones(700, 4), chunk=64)
    assert (matches.index0.tolist(), matches.index1.tolist(), matches.similarity.tolist()) == (
        [0],
        [0],
        [4.0],
    )


def test_negative_similarities_are_no_special_case():
    matches = mutual_nearest(torch.tensor([[-1.0], [-2.0]]), torch.tensor([[3.0], [1.0]]))
    assert (matches.index0.tolist(), matches.index1.tolist(), matches.similarity.tolist()) == (
        [0],
        [1],
        [-1.0],
    )


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0)])
def test_nothing_to_match(rows, columns):
    for matches in (
        mutual_nearest(torch.ones(rows, 4), torch.ones(columns, 4)),
        dual_softmax_nearest(torch.ones(rows, 4), torch.ones(columns, 4), 10.0),
    ):
        assert len(matches) == 0
        assert matches.index0.dtype == matches.index1.dtype == torch.int64
        assert matches.similarity.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_compared_in_float32(dtype):
    descriptors0, descriptors1 = unit(200, 16, 5).to(dtype), unit(300, 16, 6).to(dtype)
    matches = mutual_nearest(descriptors0, descriptors1)
    index0, index1 = brute_force(descriptors0.float(), descriptors1.float())
    assert torch.equal(matches.index0, index0)
    assert torch.equal(matches.index1, index1)
    assert matches.similarity.dtype == torch.float32


def test_swapping_the_sides_swaps_the_matches():
    descriptors0, descriptors1 = tied(333, 5, 7), tied(555, 5, 8)
    forward = mutual_nearest(descriptors0, descriptors1)
    backward = mutual_nearest(descriptors1, descriptors0)
    pairs = set(zip(forward.index0.tolist(), forward.index1.tolist(), strict=True))
    assert pairs == set(zip(backward.index1.tolist(), backward.index0.tolist(), strict=True))


# Above 1/70 exponentials need no shift; with 0.001 they would overflow float32.
@pytest.mark.parametrize("logit_scale", [1.0, 20.0, 69.0, 71.0, 100.0, 1000.0])
@pytest.mark.parametrize(
    ("rows", "columns", "chunk"), [(400, 1100, None), (400, 1100, 17), (700, 4200, None)]
)
def test_dual_softmax_equals_brute_force(logit_scale, rows, columns, chunk):
    descriptors0, descriptors1 = unit(rows, 16, 9), unit(columns, 16, 10)
    matches = dual_softmax_nearest(descriptors0, descriptors1, logit_scale, chunk)
    plain = mutual_nearest(descriptors0, descriptors1, chunk)
    assert torch.equal(matches.index0, plain.index0)
    assert torch.equal(matches.index1, plain.index1)
    logits = (descriptors0.double() @ descriptors1.double().t()) * logit_scale
    expected = (logits.softmax(0) * logits.softmax(1))[matches.index0, matches.index1]
    assert matches.probability is not None
    # Similarities carry float32 rounding (about 1e-7), which logit_scale magnifies.
    torch.testing.assert_close(
        matches.probability.double(), expected, atol=1e-5, rtol=max(1e-5, 1e-6 * logit_scale)
    )


@pytest.mark.parametrize(("length0", "length1"), [(30, 20), (300, 1), (1, 300)])
def test_dual_softmax_of_long_descriptors(length0, length1):
    descriptors0, descriptors1 = length0 * unit(50, 8, 11), length1 * unit(60, 8, 12)
    matches = dual_softmax_nearest(descriptors0, descriptors1, 1.0, chunk=7)
    logits = descriptors0.double() @ descriptors1.double().t()
    expected = (logits.softmax(0) * logits.softmax(1))[matches.index0, matches.index1]
    assert matches.probability is not None
    torch.testing.assert_close(matches.probability.double(), expected, atol=1e-4, rtol=0)


def test_nearest_answers_every_query():
    queries, descriptors1 = tied(777, 4, 13), tied(1300, 4, 14)
    expected = first_maximum(queries @ descriptors1.t(), 1)
    for chunk in (None, 100):
        index1, similarity = nearest(queries, descriptors1, chunk)
        assert torch.equal(index1, expected)
        torch.testing.assert_close(similarity, (queries * descriptors1[expected]).sum(1))


def test_nearest_without_candidates():
    assert nearest(torch.ones(0, 3), torch.ones(0, 3))[0].shape == (0,)
    with pytest.raises(ValueError, match="no descriptors"):
        nearest(torch.ones(2, 3), torch.ones(0, 3))


def test_the_papers_ranking_compares_by_equation_2():
    descriptors0, descriptors1 = unit(4, 8, 15), unit(5, 8, 16)
    score0, score1 = torch.tensor([1.0, 0.5, 0.0, 0.25]), torch.tensor([0.5, 1.0, 0.1, 0.2, 0.3])
    matching = DenseMatching(PRESETS["paper"], 20.0)
    folded = matching._weighed(descriptors0, score0) @ matching._weighed(descriptors1, score1).t()
    expected = score0[:, None] * score1[None] * (descriptors0 @ descriptors1.t())
    torch.testing.assert_close(folded, expected)


def test_bad_options():
    with pytest.raises(ValueError, match="chunk"):
        mutual_nearest(torch.ones(2, 2), torch.ones(2, 2), chunk=0)
    with pytest.raises(ValueError, match="logit_scale"):
        dual_softmax_nearest(torch.ones(2, 2), torch.ones(2, 2), logit_scale=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["mutual_nearest(a, b)", "dual_softmax_nearest(a, b, 20.0)"])
def test_a_256_grid_needs_little_memory(search):
    """65,536 positions a side: the matrix would take 16 GiB; the search may take 2 GiB besides the inputs."""
    program = f"""
import resource, torch
from coam.matching.mutual import mutual_nearest, dual_softmax_nearest
torch.manual_seed(0)
a, b = (torch.nn.functional.normalize(torch.randn(65536, 64), dim=1) for _ in range(2))
mutual_nearest(a[:64], b[:64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len({search}) > 10_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2 * 2**20  # kilobytes


# ---- shares of work side by side


@pytest.fixture(autouse=True)
def _threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_results_come_in_order_and_torch_keeps_its_threads():
    torch.set_num_threads(3)
    seen = []
    results = run_side_by_side([lambda k=k: seen.append(torch.get_num_threads()) or k for k in range(5)])
    assert results == [0, 1, 2, 3, 4]
    assert seen == [1] * 5
    assert torch.get_num_threads() == 3


def test_as_many_threads_as_torch_has_and_their_mode_is_the_callers():
    torch.set_num_threads(2)
    both = threading.Barrier(2, timeout=10)  # a third thread at the same time would break it

    def task() -> tuple[int, bool]:
        both.wait()
        return threading.get_ident(), torch.is_inference_mode_enabled()

    with torch.inference_mode():
        inside = run_side_by_side([task] * 4)
    assert len({thread for thread, _ in inside}) == 2
    assert threading.get_ident() not in {thread for thread, _ in inside}
    assert all(mode for _, mode in inside)
    assert not any(mode for _, mode in run_side_by_side([task] * 4))
    torch.set_num_threads(1)
    here = threading.get_ident()
    assert run_side_by_side([threading.get_ident] * 3) == [here] * 3  # one core: here


def test_an_error_reaches_the_caller_and_the_next_call_works():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        run_side_by_side([lambda: 1, lambda: 1 // 0])
    assert torch.get_num_threads() == 2
    assert run_side_by_side([lambda: 1, lambda: 2]) == [1, 2]


def test_a_second_caller_does_its_work_alone():
    torch.set_num_threads(2)
    inside = threading.Event()
    done = threading.Event()

    def wait() -> int:
        inside.set()
        assert done.wait(10)
        return 1

    first = threading.Thread(target=run_side_by_side, args=([wait, wait],))
    first.start()
    assert inside.wait(10)
    here = threading.get_ident()
    assert run_side_by_side([threading.get_ident, threading.get_ident]) == [here, here]
    done.set()
    first.join()


@pytest.mark.parametrize("logit_scale", [40.0, 200.0])  # without and with shifts of the exponents
def test_the_search_does_not_depend_on_the_number_of_threads(logit_scale):
    generator = torch.Generator().manual_seed(0)
    # -1, 0, 1: many ties, also across shares; sums are exact.
    a = torch.randint(-1, 2, (3001, 12), generator=generator).float() / 4
    b = torch.randint(-1, 2, (2500, 12), generator=generator).float() / 4
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        plain, soft = mutual_nearest(a, b), dual_softmax_nearest(a, b, logit_scale)
        torch.testing.assert_close(plain.index0, soft.index0)
        results.append(soft)
    for other in results[1:]:
        assert torch.equal(results[0].index0, other.index0)
        assert torch.equal(results[0].index1, other.index1)
        torch.testing.assert_close(results[0].probability, other.probability, rtol=1e-4, atol=1e-9)
