"""The model folder that `coam sfm` writes: the one place that knows the names of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coam.errors import DataError
from coam.store.checksums import file_digest, folder_digests
from coam.store.documents import read_json

_FIGURES = {
    "registered_images": int,
    "sparse_points": int,
    "mean_track_length": float,
    "mean_reprojection_error": float,
    "dense_points": (int, str),
}
SUMMARY = {  # the shape of summary.json
    **_FIGURES,
    "photos": int,
    "models": [_FIGURES],
    "verified_pairs": int,
    "registered": [str],
    "not_registered": [str],
    "left_out": [str],
    "warnings": [str],
    "seconds": float,
    "photos_folder": str,
    "key": str,
    "turned": {str: int},
    "world": dict,
    "dense_key": str,
    "dense_seconds": float,
    "files": {str: str},
}
_MATCHER = {"kind": str, "model": str, "weights": str, "settings": dict}
SETTINGS = {"matcher": _MATCHER, "matching": _MATCHER, "options": dict}  # the shape of settings.json


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
        self.dense_points = self.model / "dense.ply"  # coloured, with normals; only where asked for
        self.page = self.root / "model.html"  # point cloud and cameras, for any browser
        self.summary = self.root / "summary.json"  # the figures, warnings and what was left out
        self.world = self.root / "world.json"  # how the model became metres; only where asked for
        self.descriptors = self.root / "global_descriptors.npz"  # of the photos, for localization
        self.orientation = self.root / "orientation"  # which way up photos are: what was compared
        self.upright = self.orientation / "upright"  # copies of those that lie on their side
        self.dense = self.root / "dense"  # warps and depth maps, while dense points are made

    def mapped(self, key: str) -> Path:
        """Mapped models before loop closure and bundle adjustment, while a run goes on."""
        return self.root / f"mapped-{key[:12]}"

    def legs(self, key: str) -> Path:
        """Models of a part of the photos of large places, while they are mapped."""
        return self.root / f"legs-{key[:12]}"

    def has_matches(self) -> bool:
        """Whether pairs have been matched, by a finished run or by one that was stopped."""
        return self.matches.exists() or self.matches.with_name(self.matches.name + ".parts").exists()

    def read_summary(self, key: str | None = None) -> dict[str, Any] | None:
        """The content of summary.json; None where it is missing, damaged, or of another key than given."""
        try:
            summary: dict[str, Any] = read_json(self.summary, SUMMARY)
        except DataError:
            return None
        finished = "registered_images" in summary and "verified_pairs" in summary
        return summary if finished and key in (None, summary.get("key")) else None

    def read_settings(self) -> dict[str, Any]:
        """The content of settings.json; empty where it is missing or damaged."""
        try:
            settings: dict[str, Any] = read_json(self.settings, SETTINGS)
        except DataError:
            return {}
        return settings

    def checksums(self) -> dict[str, str]:
        """Checksums of the files of the finished model, by their path in the folder."""
        return folder_digests(self.root, [self.keypoints, self.database, self.page, self.sparse])

    def damaged(self, summary: dict[str, Any]) -> list[str]:
        """Files of the finished model that are missing or not as they were written, by their path.

        Where the summary has no checksums (it is from before they were kept) only what is missing is found.
        """
        written = summary.get("files", {})
        if not written:
            return [p.name for p in (self.sparse, self.keypoints, self.database) if not p.exists()]
        return [name for name, digest in written.items() if not self._is_whole(name, digest)]

    def _is_whole(self, name: str, digest: str) -> bool:
        try:
            return file_digest(self.root / name) == digest
        except OSError:
            return False

    def require_model(self) -> Path:
        """Folder of the largest COLMAP model, which must be there, and whole where checksums are known."""
        again = f"coam sfm PHOTOS -o {self.root}"
        if not (self.model / "images.bin").is_file():
            raise DataError(f"{self.root}: holds no finished model; make one with: {again}")
        own = f"{self.model.relative_to(self.root).as_posix()}/"
        written = (self.read_summary() or {}).get("files", {})
        for name, digest in written.items():
            needed = name == self.keypoints.name or (name.startswith(own) and name.endswith(".bin"))
            if needed and not self._is_whole(name, digest):
                raise DataError(f"{self.root / name}: is damaged; make it again with: {again}")
        return self.model
