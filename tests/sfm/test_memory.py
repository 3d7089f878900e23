"""Memory of matching does not grow with the number of photos: the budget that docs/scale.md states."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUDGET_GB = 4.0

SCRIPT = """
import resource, sys
from pathlib import Path
import numpy as np
from PIL import Image
from coam.cli.sfm import load_for_sfm

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
paths = []
for index in range(200):
    noise = Image.fromarray(rng.integers(0, 255, (96, 128, 3), np.uint8))
    paths.append(folder / f"{index:03d}.jpg")
    noise.resize((1024, 768), Image.Resampling.BICUBIC).save(paths[-1])
matcher = load_for_sfm(None, "cpu", {"resolution": 1024, "max_matches": 4096})
for path in paths:  # every photo is encoded, in the cache that pairs use
    matcher._cached(path)
for _ in matcher.match_many([(paths[-1], paths[-2]), (paths[-3], paths[-4])]):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
def test_200_photos_at_1024_pixels_stay_within_the_budget(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    peak = float(run.stdout.split()[-1])
    print(f"peak {peak:.2f} GB")
    assert peak < BUDGET_GB
