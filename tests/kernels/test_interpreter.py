"""All kernels in Triton's interpreter, where there is no GPU."""

from pathlib import Path

import pytest

from support.triton_interpreter import in_own_process, run_in_the_interpreter

pytest.importorskip("triton")


@pytest.mark.slow  # only `make test-kernels` runs it, though Triton may be installed
@in_own_process
def test_kernels_in_the_interpreter():
    run_in_the_interpreter(Path(__file__).parent)
