"""Kernels run in Triton's interpreter without a GPU, compiled with one.

The interpreter must be chosen before Triton is imported, so without a GPU tests run in their own process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_GPU else "cpu"
needs_kernel = pytest.mark.skipif(not (INTERPRETED or ON_GPU), reason="runs in the interpreter's own process")
in_own_process = pytest.mark.skipif(INTERPRETED or ON_GPU, reason="the tests run in this process")


def run_in_the_interpreter(folder: Path) -> None:
    """All tests of a folder, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays can be converted" in run.stdout:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
