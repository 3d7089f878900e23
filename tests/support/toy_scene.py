"""A room whose geometry is known exactly, and a matcher that knows it: no learning, no image content."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from coam.types import Grid, Matches

# Waves through space that colour the surfaces: about 9 to 20 pixels long in the pictures of the small scene.
TEXTURE = np.random.default_rng(5).normal(size=(9, 3)) * np.linspace(12, 26, 9)[:, None]


CORNER = (  # (normal, offset, limits on x and y)
    ((0.6, 0.0, 0.8), 1.6, None),
    ((-0.6, 0.0, 0.8), 1.6, None),
    ((0.0, 1.0, 0.0), 1.4, None),
    ((0.0, 0.0, 1.0), -0.6, ((-0.7, 0.7), (-0.5, 0.9))),
)
STREET = (  # two rows of houses, the pavement, and what closes the view far ahead
    ((1.0, 0.0, 0.0), 2.0, None),
    ((-1.0, 0.0, 0.0), 2.0, None),
    ((0.0, 1.0, 0.0), 1.2, None),
    ((0.0, 0.0, 1.0), 24.0, None),
)


@dataclass
class Scene:
    """Cameras on an arc before a corner: two walls and a floor, and a box in front of them."""

    count: int = 8
    size: tuple[int, int] = (640, 480)
    focal: float = 600.0
    step: float = 8.0
    seed: int = 0
    planes: tuple = CORNER
    rotations: np.ndarray = field(init=False)
    translations: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        rotations, translations = [], []
        for angle in np.linspace(-40, 40, self.count):
            a = np.radians(angle)
            distance = 6.0 * generator.uniform(0.85, 1.2)
            centre = np.array([distance * np.sin(a), generator.uniform(-0.6, 0.3), -distance * np.cos(a)])
            target = np.array([0.0, 0.2, 0.0]) + generator.normal(0, 0.15, 3)
            forward = (target - centre) / np.linalg.norm(target - centre)
            right = np.cross([0.0, 1.0, 0.0], forward)
            right /= np.linalg.norm(right)
            down = np.cross(forward, right)
            rotation = np.stack([right, down, forward])
            rotations.append(rotation)
            translations.append(-rotation @ centre)
        self.rotations, self.translations = np.array(rotations), np.array(translations)

    @property
    def names(self) -> list[str]:
        return [f"view{index:02d}.png" for index in range(self.count)]

    @property
    def calibration(self) -> np.ndarray:
        width, height = self.size
        # the middle of the image in our convention (first pixel centre at 0)
        return np.array([[self.focal, 0, width / 2 - 0.5], [0, self.focal, height / 2 - 0.5], [0, 0, 1]])

    @property
    def projections(self) -> np.ndarray:
        return np.array(
            [self.calibration @ np.c_[r, t] for r, t in zip(self.rotations, self.translations, strict=True)]
        )

    @property
    def centres(self) -> np.ndarray:
        return np.array([-r.T @ t for r, t in zip(self.rotations, self.translations, strict=True)])

    @property
    def grid(self) -> Grid:
        width, height = self.size
        middle = (self.step - 1) / 2
        return Grid(
            int(width // self.step), int(height // self.step), (middle, middle), (self.step, self.step)
        )

    def surface(self, image: int, points: np.ndarray) -> np.ndarray:
        """World points (N, 3) seen at pixels (N, 2); nan where nothing is."""
        rays = np.c_[points, np.ones(len(points))] @ np.linalg.inv(self.calibration).T @ self.rotations[image]
        origin = self.centres[image]
        best = np.full(len(points), np.inf)
        for normal, offset, limits in self.planes:
            n = np.array(normal)
            with np.errstate(divide="ignore", invalid="ignore"):
                t = (offset - origin @ n) / (rays @ n)
            hit = origin + t[:, None] * rays
            ok = (t > 0.1) & np.isfinite(t)
            if limits is not None:
                ok &= (hit[:, 0] > limits[0][0]) & (hit[:, 0] < limits[0][1])
                ok &= (hit[:, 1] > limits[1][0]) & (hit[:, 1] < limits[1][1])
            best = np.where(ok & (t < best), t, best)
        return np.where(np.isfinite(best)[:, None], origin + best[:, None] * rays, np.nan)

    def project(self, image: int, world: np.ndarray) -> np.ndarray:
        """Pixels (N, 2) of world points (N, 3); nan behind the camera."""
        p = world @ self.rotations[image].T + self.translations[image]
        pixels = p @ self.calibration.T
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(p[:, 2:] > 0.05, pixels[:, :2] / pixels[:, 2:], np.nan)

    def write_photos(self, folder: Path) -> Path:
        """Pictures of a textured surface: the oracle does not look at them, but refinement does."""
        folder.mkdir(parents=True, exist_ok=True)
        width, height = self.size
        ys, xs = np.mgrid[0:height, 0:width]
        for index, name in enumerate(self.names):
            world = np.nan_to_num(self.surface(index, np.c_[xs.ravel(), ys.ravel()].astype(float)))
            waves = sum(np.sin(world @ direction + 1.0) for direction in TEXTURE)
            colour = 127 + 35 * waves[:, None] * np.array([1.0, 0.9, 0.8]) + 10 * np.sin(world)
            pixels = np.clip(colour, 0, 255).reshape(height, width, 3).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name)
        return folder


@dataclass
class Street(Scene):
    """Cameras that walk ahead, one step after the other, between two rows of houses."""

    count: int = 8
    size: tuple[int, int] = (400, 304)
    focal: float = 300.0
    planes: tuple = STREET

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        rotations, translations = [], []
        for index in range(self.count):
            centre = np.array([*generator.uniform(-0.2, 0.2, 2), index])
            rotation = Rotation.from_euler("yx", generator.uniform(-6, 6, 2), degrees=True).as_matrix()
            rotations.append(rotation)
            translations.append(-rotation @ centre)
        self.rotations, self.translations = np.array(rotations), np.array(translations)


@dataclass
class OracleMatcher:
    """Matches from true geometry: grid ids, offsets with noise, drop-outs and outliers."""

    scene: Scene
    noise: float = 0.3  # pixels
    outliers: float = 0.1
    keep: float = 0.6
    seed: int = 0
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def fingerprint(self) -> str:
        return f"oracle {self.scene} {self.noise} {self.outliers} {self.keep} {self.seed}"

    def index(self, image: object) -> int:
        return self.scene.names.index(Path(str(image)).name)

    def shown(self, a: int, b: int, world: np.ndarray) -> np.ndarray:
        """What photo b is thought to show of the points (N, 3) that photo a shows."""
        return world

    def match_many(self, pairs):
        for first, second in pairs:
            yield self.match(first, second)

    def match(self, image0, image1, keypoints0=None) -> Matches:
        a, b = self.index(image0), self.index(image1)
        self.calls.append((Path(str(image0)).name, Path(str(image1)).name))
        generator = np.random.default_rng([self.seed, a, b])
        scene, grid = self.scene, self.scene.grid
        ids0 = np.arange(len(grid)) if keypoints0 is None else np.full(len(keypoints0), -1)
        points0 = grid.positions(ids0).astype(float) if keypoints0 is None else np.asarray(keypoints0, float)
        world = self.shown(a, b, scene.surface(a, points0))
        true1 = scene.project(b, world)
        width, height = scene.size
        inside = np.isfinite(true1).all(1) & (true1 > 0).all(1) & (true1 < [width - 1, height - 1]).all(1)
        back = scene.surface(b, np.nan_to_num(true1))
        inside &= np.linalg.norm(np.nan_to_num(back - world, nan=9.0), axis=1) < 1e-3  # not hidden
        inside &= generator.random(len(ids0)) < (self.keep if keypoints0 is None else 1.0)
        ids0, points0, true1 = ids0[inside], points0[inside], true1[inside]
        scores = generator.uniform(0.5, 1.0, len(ids0))
        wrong = generator.random(len(ids0)) < self.outliers
        measured = true1 + generator.normal(0, self.noise, true1.shape)
        measured[wrong] = generator.uniform(0, [width - 1, height - 1], (int(wrong.sum()), 2))
        scores[wrong] -= 0.3
        ids1 = grid.nearest(measured)
        order = np.argsort(-scores, kind="stable")
        if keypoints0 is None:  # mutual: every grid position of image 1 is used once
            _, unique = np.unique(ids1[order], return_index=True)
            order = order[np.sort(unique)]
        return Matches(
            points0[order].astype(np.float32), measured[order].astype(np.float32),
            scores[order].astype(np.float32),
            ids0[order], ids1[order] if keypoints0 is None else np.full(len(order), -1),
            scene.size, scene.size, grid, grid, overlap=1.0 if len(order) > 30 else 0.0,
        )  # fmt: skip


@dataclass
class FooledMatcher(OracleMatcher):
    """Takes every house for the one that stands as near to the other camera: three steps on is the same."""

    scene: Street = field(default_factory=Street)
    period: int = 3  # steps

    def shown(self, a: int, b: int, world: np.ndarray) -> np.ndarray:
        """Of photos three or more steps apart, most houses are others."""
        houses = int((b - a) / self.period) * self.period
        generator = np.random.default_rng([a, b])
        fooled = (np.abs(world[:, 0]) > 1.99) & (generator.random(len(world)) < 0.8)
        return world + np.outer(fooled, [0.0, 0.0, houses])


class LookAlikes(OracleMatcher):
    """Views 4 to 7 show a place that looks as views 0 to 3 do; the network does not believe much in that."""

    def match(self, image0, image1, keypoints0=None):
        a, b = self.index(image0), self.index(image1)
        if (a < 4) == (b < 4):
            return super().match(image0, image1, keypoints0)
        found = super().match(image0, self.scene.names[b % 4])
        return replace(found, scores=found.scores * 0.01, overlap=0.0 if a == b % 4 else 0.4)


def true_model(photos: Path, truth: dict, folder: Path, points: tuple = ()) -> Path:
    """A COLMAP model of the photos with the true poses, and points seen by the photos that `points` name."""
    import pycolmap

    from coam.sfm.cameras import camera_from_spec

    model = pycolmap.Reconstruction()
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    camera.camera_id = 1
    model.add_camera_with_trivial_rig(camera)
    names = sorted(path.name for path in photos.iterdir())
    for number, name in enumerate(names, 1):
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(truth[name][0]), truth[name][1])
        image = pycolmap.Image(name=name, camera_id=1, image_id=number, keypoints=np.full((9, 2), 150.0))
        model.add_image_with_trivial_frame(image, pose)
    for number, seen in enumerate(points):
        track = pycolmap.Track()
        for name in seen:
            track.add_element(names.index(name) + 1, number)
        model.add_point3D(np.array([0.0, 0.0, 1.0]), track, np.zeros(3, np.uint8))
    folder.mkdir()
    model.write(folder)
    return folder
