"""`benchmarks` is no part of the package: make it importable from wherever pytest is started."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
