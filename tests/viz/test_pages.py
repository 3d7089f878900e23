"""The self-contained pages: data, escaping, the point cloud."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from coam.errors import DataError
from coam.viz import SceneCamera, match_page, scene_page
from coam.viz.match_page import progressive_order
from coam.viz.scene import MOST_POINTS, upright_scene
from coam.viz.warp_page import warp_page

VOID = {"meta", "input", "br", "img", "link", "hr"}


class Reader(HTMLParser):
    """Checks that every element is closed, and keeps the data and all addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.data = ""
        self.in_data = False

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "srcset")]
        self.in_data = dict(attrs).get("id") == "data"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.in_data:
            self.data += text
            self.in_data = False


def read_page(page: str) -> dict:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.addresses == []  # pictures are set by script, from data URIs
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"base64,[\w+/=]+", "", page)) == []
    assert "default-src 'none'" in page
    assert "@@" not in re.sub(r'"[\w+/=]{40,}"', "", page)
    return json.loads(reader.data)


def decode(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), kind)


def test_match_page_embeds_exactly_the_matches(shifted_pair):
    data = read_page(match_page(shifted_pair))
    table = decode(data["matches"], "<f4").reshape(-1, 5)
    assert data["count"] == len(table) == 450
    np.testing.assert_array_equal(table[:, :2], shifted_pair.points0)
    np.testing.assert_array_equal(table[:, 2:4], shifted_pair.points1)
    np.testing.assert_array_equal(table[:, 4], shifted_pair.scores)
    assert sorted(decode(data["order"], "<u4").tolist()) == list(range(450))
    assert data["flicker"]["inliers"] >= 400
    assert data["overlap"] is None
    assert all(
        uri.startswith("data:image/jpeg;base64,") for uri in data["photos"] + data["flicker"]["frames"]
    )


def test_the_page_knows_the_colour_scale_and_the_verdict(shifted_pair):
    data = read_page(match_page(replace(shifted_pair, overlap=0.9)))
    assert data["scoreEnd"] == pytest.approx(0.95)
    assert data["doubtful"] is False
    data = read_page(match_page(replace(shifted_pair, scores=shifted_pair.scores / 100, overlap=0.1)))
    assert data["scoreEnd"] == 0.5
    assert data["doubtful"] is True
    page = match_page(shifted_pair.top(1), names=("a", "b"))
    assert "<title>a and b: 1 match</title>" in page


def test_names_cannot_break_out_of_the_page(shifted_pair):
    evil = "</script><script>alert(1)</script><!--\u2028"
    page = match_page(shifted_pair.top(20), names=(evil, '"><img src=x onerror=alert(1)>'))
    data = read_page(page)
    assert data["names"][0] == evil
    assert page.count("<script") == match_page(shifted_pair.top(20)).count("<script") == 2
    assert "<img" not in page
    assert "<title>@@DATA@@ and b: 20 matches</title>" in match_page(
        shifted_pair.top(20), names=("@@DATA@@", "b")
    )


def test_pages_of_no_and_few_matches(shifted_pair):
    assert read_page(match_page(shifted_pair.top(0)))["count"] == 0
    few = read_page(match_page(shifted_pair.top(3)))
    assert few["count"] == 3
    assert few["flicker"] is None


def test_every_beginning_of_the_order_is_spread():
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 100, (2000, 2)).astype(np.float32)
    points[:1500] /= 10  # three quarters in one hundredth of the area
    order = progressive_order(points, rng.random(2000).astype(np.float32))
    for count in (16, 48, 112):
        crowd = (points[order[:count]] <= 10).all(axis=1).mean()
        assert crowd < 0.2


def ring_cameras(count: int = 12, distance: float = 3.0) -> list[SceneCamera]:
    """Level cameras on a half ring around the origin; the world's y axis points down."""
    cameras = []
    for index, angle in enumerate(np.linspace(-0.9, 0.9, count) if count > 1 else [0.0]):
        back = np.array([np.sin(angle), 0, -np.cos(angle)])
        forward = -back
        right = np.cross([0, 1, 0], forward)
        rotation = np.stack([right, [0, 1, 0], forward])
        cameras.append(
            SceneCamera(f"photo{index}.jpg", rotation, -rotation @ (distance * back), 800.0, 640, 480)
        )
    return cameras


def test_scene_is_turned_upright_and_scaled():
    rng = np.random.default_rng(0)
    cloud = rng.normal(size=(5000, 3))
    cloud[0] = (0, -5, 0)  # high above: y is down in this world
    scene = upright_scene(cloud, np.full((5000, 3), 200), ring_cameras())
    assert scene.points[0, 1] > 1.5
    assert np.percentile(np.linalg.norm(scene.points, axis=1), 90) == pytest.approx(1, abs=0.01)
    eyes, corners = scene.frusta[:, 0], scene.frusta[:, 1:5]
    assert (eyes[:, 2] > 0.5).all()  # the cameras stand before the scene
    assert (corners[:, 0, 1] > corners[:, 3, 1]).all()  # top left is above bottom left
    toward = corners.mean(axis=1) - eyes
    inward = -eyes / np.linalg.norm(eyes, axis=1, keepdims=True)
    cosine = (toward * inward).sum(1) / np.linalg.norm(toward, axis=1)
    assert cosine.min() > 0.99  # and look at it
    sides = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    ratio = np.linalg.norm(sides[0], axis=1) / np.linalg.norm(sides[1], axis=1)
    np.testing.assert_allclose(ratio, 640 / 480, rtol=1e-4)


def test_scene_page_embeds_points_colours_and_cameras():
    rng = np.random.default_rng(0)
    cloud, colours = rng.normal(size=(1000, 3)), rng.integers(0, 256, (1000, 3))
    data = read_page(scene_page(cloud, colours, ring_cameras(), title="<b>scene</b>"))
    assert data["count"] == 1000
    # In random order, each point with its own colour.
    placed = upright_scene(cloud, colours, ring_cameras()).points
    shown = np.hstack(
        [decode(data["points"], "<f4").reshape(-1, 3), decode(data["colours"], "u1").reshape(-1, 3)]
    )
    expected = np.hstack([placed, colours]).astype(np.float32)
    np.testing.assert_array_equal(shown[np.lexsort(shown.T)], expected[np.lexsort(expected.T)])
    assert (shown[:, :3] != placed).any()
    assert decode(data["frusta"], "<f4").size == 12 * 18
    assert data["names"][3] == "photo3.jpg"
    assert data["title"] == "<b>scene</b>"


def test_scene_awkward_inputs():
    assert read_page(scene_page(np.zeros((0, 3)), np.zeros((0, 3)), []))["count"] == 0
    one = upright_scene([[1, 2, 3]], [[0, 0, 0]], [])
    np.testing.assert_allclose(one.points, [[0, 0, 0]])
    assert one.colours.min() > 100  # a model without colours is not black on black
    strays = np.array([[0, 0, 0], [np.nan, 0, 0], [1, 1, np.inf]])
    assert len(upright_scene(strays, np.full((3, 3), 9), ring_cameras(2)).points) == 1
    many = upright_scene(
        np.random.default_rng(0).normal(size=(MOST_POINTS + 10, 3)), np.ones((MOST_POINTS + 10, 3)), []
    )
    assert len(many.points) == MOST_POINTS
    with pytest.raises(DataError, match="one colour per point"):
        scene_page(np.zeros((3, 3)), np.zeros((2, 3)), [])
    bad = ring_cameras(1)[0]._replace(translation=np.array([np.nan, 0, 0]))
    with pytest.raises(DataError, match="not registered"):
        scene_page(np.zeros((3, 3)), np.zeros((3, 3)), [bad])


def test_scene_page_shows_photos_in_their_cameras():
    photos = [np.full((60, 80, 3), 20 * k, np.uint8) for k in range(12)]
    page = scene_page(
        np.zeros((5, 3)), np.ones((5, 3)), ring_cameras(), photos=photos, located=["photo3.jpg"]
    )
    data = read_page(page)
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in data["photos"])
    assert [name for name, there in zip(data["names"], data["located"], strict=True) if there] == [
        "photo3.jpg"
    ]
    assert read_page(scene_page(np.zeros((5, 3)), np.ones((5, 3)), ring_cameras()))["photos"] == []
    with pytest.raises(DataError, match="one photo per camera"):
        scene_page(np.zeros((5, 3)), np.ones((5, 3)), ring_cameras(), photos=photos[:3])


def test_match_page_carries_residuals_and_matrices_of_models(shifted_pair):
    plane, two_view = shifted_pair.homography(), shifted_pair.fundamental()
    data = read_page(match_page(shifted_pair, models=[plane, two_view], figures=[("a", "<b>")], pick=True))
    names = [model["name"] for model in data["models"]]
    assert names == ["homography", "fundamental matrix"]
    for model, shown in zip((plane, two_view), data["models"], strict=True):
        residuals = decode(shown["residuals"], "<f4")
        np.testing.assert_allclose(residuals, model.residuals, rtol=1e-4, atol=1e-4)
        assert ((residuals <= shown["threshold"]) == model.inliers).mean() > 0.99
    np.testing.assert_allclose(data["models"][0]["homography"], plane.matrix.ravel())
    np.testing.assert_allclose(data["models"][1]["fundamental"], two_view.matrix.ravel())
    assert data["figures"] == [["a", "<b>"]]


def test_warp_page_keeps_places_and_certainty():
    rows, columns = np.mgrid[:40, :60].astype(np.float32)
    points = np.stack([2 * columns + 5, 2 * rows - 3], axis=-1)  # of the photo, which is twice as large
    displacement = points - np.stack([2 * columns + 0.5, 2 * rows + 0.5], axis=-1)
    certainty = np.zeros((40, 60), np.float32)
    certainty[:, 30:] = 1
    photo = np.full((80, 120, 3), 90, np.uint8)
    page = warp_page(photo, photo, np.full((40, 60, 3), 70, np.uint8), points, displacement, certainty)
    data = read_page(page)
    width, height = data["grid"]
    places = decode(data["places"], "<f4").reshape(height, width, 2)
    np.testing.assert_array_equal(places, points[2::4, 2::4])
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(data["certainty"].split(",")[1]))))
    assert grey.shape == (40, 60)
    assert (grey[:, :28] == 0).all()
    assert (grey[:, 32:] == 255).all()
    assert data["sizes"] == [[120, 80], [120, 80]]
    with pytest.raises(DataError, match="one size"):
        warp_page(photo, photo, photo, points, displacement, certainty)
