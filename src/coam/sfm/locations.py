"""Where photos were taken: the answers of `coam.sfm.localize`, as objects, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.sfm.alignment import Pose
from coam.sfm.journal import replacing

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Location:
    """The answer for one query. `pose` is None where it was refused; `reason` then says why."""

    name: str
    pose: Pose | None  # camera-from-world
    inliers: int
    lifted: int  # matches that have a 3D point
    confidence: (
        float  # in [0, 1]: grows with inliers, their share and their spread; a rank, not a probability
    )
    camera: str  # "MODEL WIDTH HEIGHT PARAMS" as used or estimated
    matched: tuple[str, ...]  # photos of the model that gave inliers, best first
    reason: str = ""
    intrinsics: str = ""  # where the camera is from: "given", "the model's", "EXIF" or "estimated"

    @property
    def centre(self) -> Floats | None:
        """Camera centre (3,) in the model's world."""
        return None if self.pose is None else -self.pose[0].T @ self.pose[1]


def write_poses(locations: Sequence[Location], path: str | Path) -> Path:
    """`name qw qx qy qz tx ty tz`, one located query per line: the visual localization benchmark's format."""
    lines = []
    for location in locations:
        if location.pose is not None:
            numbers = [*quaternion(location.pose[0]), *location.pose[1]]
            lines.append(" ".join([location.name, *(f"{value:.10g}" for value in numbers)]) + "\n")
    with replacing(Path(path)) as temporary:
        temporary.write_text("".join(lines))
    return Path(path)


def quaternion(rotation: Floats) -> Floats:
    """(w, x, y, z) of a rotation matrix (3, 3), w not negative."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(rotation).as_quat()
    return np.array([w, x, y, z]) * (1.0 if w >= 0 else -1.0)


def locations_to_json(locations: Sequence[Location]) -> list[dict[str, Any]]:
    """Everything about every query, as JSON values."""
    return [
        {
            "name": location.name,
            "located": location.pose is not None,
            "qvec": None if location.pose is None else [float(v) for v in quaternion(location.pose[0])],
            "tvec": None if location.pose is None else [float(v) for v in location.pose[1]],
            "centre": None if location.centre is None else [float(v) for v in location.centre],
            "inliers": location.inliers,
            "lifted_matches": location.lifted,
            "confidence": location.confidence,
            "camera": location.camera,
            "intrinsics": location.intrinsics,
            "matched_photos": list(location.matched),
            "reason": location.reason,
        }
        for location in locations
    ]
