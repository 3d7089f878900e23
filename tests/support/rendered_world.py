"""A world with known truth for tests: a wall with a ball before it, seen by exact ray casting."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WALL_Z = 4.0  # the wall is the plane z = 4 of the world
BALL = np.array([0.1, 0.0, 2.5])  # centre of the ball
RADIUS = 0.5


def camera_pose(centre: tuple[float, float, float], yaw_degrees: float) -> np.ndarray:
    """Camera-from-world (3, 4) of a camera at `centre`, turned about the vertical axis."""
    angle = np.radians(yaw_degrees)
    rotation = np.array([[np.cos(angle), 0, -np.sin(angle)], [0.0, 1, 0], [np.sin(angle), 0, np.cos(angle)]])
    return np.concatenate([rotation, (-rotation @ np.array(centre))[:, None]], axis=1)


def cast(pose: np.ndarray, camera: np.ndarray, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """World points (n, 3) that pixels (n, 2) see, and their depth (n,)."""
    rotation, translation = pose[:, :3], pose[:, 3]
    centre = -rotation.T @ translation
    rays = np.c_[(pixels - camera[:2, 2]) / camera[[0, 1], [0, 1]], np.ones(len(pixels))] @ rotation
    to_wall = (WALL_Z - centre[2]) / rays[:, 2]
    offset = centre - BALL
    a, b, c = (rays**2).sum(1), 2 * rays @ offset, offset @ offset - RADIUS**2
    root = b**2 - 4 * a * c
    to_ball = np.where(root > 0, (-b - np.sqrt(np.maximum(root, 0))) / (2 * a), np.inf)
    distance = np.minimum(to_wall, to_ball)
    return centre + rays * distance[:, None], distance  # rays have z = 1 in the camera: distance is depth


def render(pose: np.ndarray, camera: np.ndarray, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth colour photo (height, width, 3) uint8 painted on the world, and its depth (height, width)."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    points, depth = cast(pose, camera, np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float64))
    colour = 127.5 + 127.5 * np.sin(points * [3.0, 4.0, 5.0])
    return colour.reshape(height, width, 3).astype(np.uint8), depth.reshape(height, width).astype(np.float32)


def true_projection(
    pose0: np.ndarray, pose1: np.ndarray, camera: np.ndarray, pixels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where pixels (n, 2) of camera 0 are in camera 1, and whether camera 1 sees that place (ray casting)."""
    world, _ = cast(pose0, camera, pixels)
    local = world @ pose1[:, :3].T + pose1[:, 3]
    landed = local[:, :2] / local[:, 2:] * camera[[0, 1], [0, 1]] + camera[:2, 2]
    seen, _ = cast(pose1, camera, landed)
    return landed, np.linalg.norm(seen - world, axis=1) < 1e-6


def batched(array: np.ndarray) -> Tensor:
    """(1, ...) float32."""
    return torch.from_numpy(np.asarray(array, dtype=np.float32))[None]
