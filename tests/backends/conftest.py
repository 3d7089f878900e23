"""`benchmarks` is no part of the package: make it importable from wherever pytest is started.

And what runs kernels in Triton's interpreter, which lies with the first tests that did.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS.parent), str(TESTS / "matching")]
