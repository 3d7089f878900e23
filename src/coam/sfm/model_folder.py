"""The model folder that `coam sfm` writes: the one place that knows the names of its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coam.errors import DataError


class ModelFolder:
    """Paths of the files of a model folder; none of them needs to exist."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.settings = self.root / "settings.json"  # the matcher and the options that it was made with
        self.pairs = self.root / "pairs.txt"  # the pairs that were matched
        self.matches = self.root / "matches.h5"  # matches of all pairs: grid ids, sub-pixel offsets, scores
        self.verified = self.root / "verified.h5"  # two-view geometries
        self.refined = self.root / "refined.h5"  # verified matches aligned in the photos
        self.keypoints = self.root / "keypoints.h5"  # refined keypoints: they lift new matches to 3D
        self.database = self.root / "database.db"  # the same for COLMAP
        self.sparse = self.root / "sparse"  # 0, 1, ...: models, largest first
        self.model = self.sparse / "0"  # the largest: binary, text/, points.ply (and dense.ply)
        self.page = self.root / "model.html"  # point cloud and cameras, for any browser
        self.summary = self.root / "summary.json"  # the figures, warnings and what was left out
        self.descriptors = self.root / "global_descriptors.npz"  # of the photos, for localization
        self.dense = self.root / "dense"  # workspace of dense stereo, while it runs

    def mapped(self, key: str) -> Path:
        """Mapped models before loop closure and bundle adjustment, while a run goes on."""
        return self.root / f"mapped-{key[:12]}"

    def has_matches(self) -> bool:
        """Whether pairs have been matched, by a finished run or by one that was stopped."""
        return self.matches.exists() or self.matches.with_name(self.matches.name + ".parts").exists()

    def finished_summary(self, key: str) -> dict[str, Any] | None:
        """The content of summary.json where the model of `key` is complete; None where it is not."""
        summary = read_json(self.summary)
        complete = all(path.exists() for path in (self.sparse, self.keypoints, self.database))
        return summary if complete and summary.get("key") == key else None

    def require_model(self) -> Path:
        """Folder of the largest COLMAP model, which must be there."""
        if not (self.model / "images.bin").is_file():
            raise DataError(
                f"{self.root}: holds no finished model; make one with: coam sfm PHOTOS -o {self.root}"
            )
        return self.model


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file of a model folder holds; empty where there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
