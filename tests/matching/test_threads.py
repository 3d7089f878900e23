"""Shares of work side by side."""

import threading

import pytest
import torch

from coam.matching.mutual import dual_softmax_nearest, mutual_nearest
from coam.matching.threads import run_side_by_side


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


@pytest.mark.parametrize("temperature", [1 / 40, 1 / 200])  # without and with shifts of the exponents
def test_the_search_does_not_depend_on_the_number_of_threads(temperature):
    generator = torch.Generator().manual_seed(0)
    # -1, 0, 1: many ties, also across shares; sums are exact.
    a = torch.randint(-1, 2, (3001, 12), generator=generator).float() / 4
    b = torch.randint(-1, 2, (2500, 12), generator=generator).float() / 4
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        plain, soft = mutual_nearest(a, b), dual_softmax_nearest(a, b, temperature)
        torch.testing.assert_close(plain.index0, soft.index0)
        results.append(soft)
    for other in results[1:]:
        assert torch.equal(results[0].index0, other.index0)
        assert torch.equal(results[0].index1, other.index1)
        torch.testing.assert_close(results[0].probability, other.probability, rtol=1e-4, atol=1e-9)
