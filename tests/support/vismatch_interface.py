"""The interface that vismatch 1.4 publishes, for machines on which the package does not install.

Written from its documentation: a matcher gives seven values from `_forward`; `forward` takes images (3, H, W)
in [0, 1], or paths, drops matches outside the images, and adds a homography with its inliers.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image


class BaseMatcher(torch.nn.Module):
    def __init__(self, device: str = "cpu", **kwargs: Any) -> None:
        super().__init__()
        self.device = device
        self.ransac_reproj_thresh = kwargs.get("ransac_reproj_thresh", 3)

    @torch.inference_mode()
    def forward(self, img0: Any, img1: Any) -> dict[str, Any]:
        images = [_as_tensor(image).to(self.device) for image in (img0, img1)]
        outputs = self._forward(*images)
        assert len(outputs) == 7
        assert all(value is None or isinstance(value, np.ndarray | torch.Tensor) for value in outputs)
        points0, points1, *rest, confidences = outputs
        none = np.empty((0, 2))
        all0, all1, desc0, desc1 = (none if value is None else value for value in rest)
        assert points0.shape == points1.shape
        assert points0.ndim == 2
        assert confidences.shape == (len(points0),)
        (height0, width0), (height1, width1) = (image.shape[-2:] for image in images)
        limits = ((points0, (width0, height0)), (points1, (width1, height1)))
        inside = np.all([((points >= 0) & (points < limit)).all(1) for points, limit in limits], axis=0)
        points0, points1, confidences = points0[inside], points1[inside], confidences[inside]
        homography, mask = cv2.findHomography(
            points0, points1, method=cv2.USAC_MAGSAC, ransacReprojThreshold=self.ransac_reproj_thresh
        )
        kept = mask[:, 0].astype(bool)
        return {
            "num_inliers": int(kept.sum()),
            "H": homography,
            "all_kpts0": all0,
            "all_kpts1": all1,
            "all_desc0": desc0,
            "all_desc1": desc1,
            "matched_kpts0": points0,
            "matched_kpts1": points1,
            "inlier_kpts0": points0[kept],
            "inlier_kpts1": points1[kept],
            "matched_confidences": confidences,
        }


def _as_tensor(image: Any) -> torch.Tensor:
    if isinstance(image, torch.Tensor):
        return image
    pixels = np.asarray(Image.open(image).convert("RGB"), np.float32) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1)


def module() -> ModuleType:
    """What `import vismatch` gives."""
    made = ModuleType("vismatch")

    def get_matcher(
        matcher_name: Any = "sift-lightglue", device: str = "cpu", max_num_keypoints: int = 2048, **_: Any
    ) -> Any:
        raise RuntimeError(f"Matcher {matcher_name} not yet supported, {device}, {max_num_keypoints}")

    made.BaseMatcher = BaseMatcher  # type: ignore[attr-defined]
    made.available_models = ["loftr", "sift-lightglue"]  # type: ignore[attr-defined]
    made.get_matcher = get_matcher  # type: ignore[attr-defined]
    return made
