"""Transforms: there and back, on disk, and what is damaged."""

from __future__ import annotations

import json

import numpy as np
import pytest

from coam.errors import DataError
from coam.registration.transforms import (
    DisplacementMap,
    LocalTransform,
    PlaneTransform,
    Polynomial,
    Reframed,
    Spline,
    Transform,
    transform_from_json,
)
from support.known_registration import TURN

POINTS = np.array([[10, 20], [300, 40], [150, 220], [399, 299.0]])


def polynomial() -> LocalTransform:
    coefficients = np.array([[1, 0], [0, 2], [3, 0], [0, 0], [0, -4], [5, 0.0]])
    return LocalTransform("polynomial", TURN, Polynomial(2, np.array([200, 150.0]), 200.0, coefficients))


def spline() -> LocalTransform:
    centres = np.array([[50, 50], [350, 60], [200, 150], [60, 250.0]])
    weights = np.array([[9, 0], [0, 8], [-9, -8], [2, 1], [1, 0], [0, 3], [2, 0.0]])
    return LocalTransform("spline", TURN, Spline(centres, 400.0, weights))


def dense() -> LocalTransform:
    values = np.random.default_rng(0).uniform(-3, 3, (3, 4, 2)).astype(np.float32)
    return LocalTransform("dense", TURN, DisplacementMap(values, (100.0, 100.0)))


ALL = [PlaneTransform("similarity", TURN), polynomial(), spline(), dense()]


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.kind)
def test_there_and_back(transform: Transform) -> None:
    assert transform.points(transform.inverse_points(POINTS)) == pytest.approx(POINTS, abs=1e-3)


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.kind)
def test_json_keeps_everything(transform: Transform) -> None:
    again = transform_from_json(json.loads(json.dumps(transform.to_json())))
    assert again.kind == transform.kind
    assert again.inverse_points(POINTS) == pytest.approx(transform.inverse_points(POINTS), abs=1e-9)


def test_monomials_by_hand() -> None:
    design = Polynomial.design(np.array([[3.0, 5.0]]), 2, np.array([1.0, 1.0]), 2.0)  # x = 1, y = 2
    assert sorted(design[0].tolist()) == [1, 1, 1, 2, 2, 4]


def test_spline_kernel_by_hand() -> None:
    row = Spline.design(np.array([[2.0, 0.0]]), np.array([[0.0, 0.0], [2.0, 0.0]]), 1.0)[0]
    assert row == pytest.approx([4 * np.log(2), 0, 1, 2, 0])


def test_a_map_is_bilinear_inside_and_constant_beyond() -> None:
    values = np.zeros((1, 2, 2), np.float32)
    values[0, 1] = [4, -8]
    field = DisplacementMap(values, (10.0, 10.0))  # grid points at 4.5 and 14.5
    found = field.at(np.array([[4.5, 0], [9.5, 3], [14.5, 9], [99.0, 50]]))
    assert found == pytest.approx(np.array([[0, 0], [2, -4], [4, -8], [4, -8]]), abs=0.13)  # OpenCV: 1/32 px


def test_a_reframed_transform_is_moved_after() -> None:
    shift = np.array([[1, 0, -7], [0, 1, -9], [0, 0, 1.0]])
    moved = Reframed(polynomial(), shift)
    assert moved.points(POINTS) == pytest.approx(polynomial().points(POINTS) - [7, 9])
    assert moved.inverse_points(POINTS - [7, 9]) == pytest.approx(polynomial().inverse_points(POINTS))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("plane", {"matrix": [[1, 0], [0, 1]]}),
        ("plane", {"matrix": [[1, 0, 0], [0, 1, 0], [0, 0, "x"]]}),
        ("plane", {"kind": "magic"}),
        ("polynomial", {"local": {"degree": 9, "centre": [0, 0], "scale": 1, "coefficients": []}}),
        ("spline", {"local": {"centres": [[0, 0]], "scale": 0, "weights": [[0, 0]] * 4}}),
        ("dense", {"local": {"rows": 10**9, "columns": 1, "float32": "", "step": [1, 1]}}),
        ("dense", {"local": {"rows": 1, "columns": 1, "float32": "AAAA", "step": [1, 1]}}),
    ],
)
def test_damaged_transforms_are_refused(kind: str, change: dict[str, object]) -> None:
    transform = {"plane": ALL[0], "polynomial": ALL[1], "spline": ALL[2], "dense": ALL[3]}[kind]
    with pytest.raises((DataError, ValueError, KeyError)):
        transform_from_json({**transform.to_json(), **change})
