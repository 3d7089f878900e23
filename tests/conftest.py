"""Tiny data sets that tests of several rooms read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coam.evaluation.pairs import EvaluationPair
from support.simple_matchers import save, textured
from support.toy_pictures import write_photos


@pytest.fixture
def hpatches_root(tmp_path: Path) -> Path:
    """i_one with six .ppm and identity homographies (darker and darker), v_two: .png shifted by k px."""
    root = tmp_path / "hpatches"
    base = textured(0)
    save(root / "i_one" / "1.ppm", base)
    for k in range(2, 7):
        save(root / "i_one" / f"{k}.ppm", (base * (1 - 0.1 * (k - 1))).astype(np.uint8))
        (root / "i_one" / f"H_1_{k}").write_text("1 0 0\n0 1 0\n0 0 1\n")
    large = textured(1, (200, 150))
    save(root / "v_two" / "1.png", large[10:130, 10:170])
    for k in (2, 3):
        save(root / "v_two" / f"{k}.png", large[10:130, 10 + k : 170 + k])
        (root / "v_two" / f"H_1_{k}").write_text(f"1.0 0.0 {-k}\n0.0 1.0 0.0\n0.0 0.0 1.0\n")
    return root


@pytest.fixture
def make_pairs(tmp_path: Path) -> Callable[[int, int], list[EvaluationPair]]:
    """`sequences` sequences of `count` pairs (1, k), as HPatches has 108 of 5."""

    def make(sequences: int, count: int) -> list[EvaluationPair]:
        pairs = []
        for s in range(sequences):
            for k in range(1, count + 2):
                path = tmp_path / "photos" / f"s{s}" / f"{k}.png"
                if not path.exists():
                    save(path, np.full((8, 8, 3), (s * 7 + k) % 255, np.uint8))
            for k in range(2, count + 2):
                folder = tmp_path / "photos" / f"s{s}"
                pairs.append(
                    EvaluationPair(
                        f"s{s}/1-{k}", folder / "1.png", folder / f"{k}.png", f"s{s}", homography=np.eye(3)
                    )
                )
        return pairs

    return make


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root for training, with the folder photos/."""
    root = tmp_path_factory.mktemp("data")
    write_photos(root / "photos")
    return root
