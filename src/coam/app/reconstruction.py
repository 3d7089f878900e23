"""Reconstructions that go on whether somebody watches or not: photos, the running command, the model."""

from __future__ import annotations

import html
import re
import secrets
import shutil
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from coam.app.commands import Command
from coam.app.engine import Engine
from coam.errors import ConfigError, DataError
from coam.images import load_image
from coam.store.documents import read_json

# How a line of `coam sfm` begins a stage -> what the page calls it.
STAGES = {
    "": "loading the model",
    r"\d+ photos?, \d+ pairs? ": "matching pairs of photos",
    "matched; verifying": "checking which pairs agree",
    "aligning matches": "aligning matches in the photos",
    r"\d+ tracks; ": "building the model",
}
_PROGRESS = re.compile(r"[^:]+: (?P<done>\d+) of (?P<total>\d+)\b[^,]*(?:,(?P<rest>.*))?")
_LEFT = re.compile(r"about [^,]+ left")
_MOST_KEPT = 4  # finished reconstructions that can still be looked at
_THUMBNAIL = 96  # pixels


@dataclass
class Reconstruction:
    """One of them. Photos are files of ours in `folder`/photos; `names` tells what visitors call them."""

    folder: Path
    names: dict[str, str]  # file of ours -> name of the upload
    command: Command
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))  # who knows it may see and end it
    located: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # photos located afterwards -> the answer
    busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def finished(self) -> bool:
        return not self.command.running and (self.model / "summary.json").is_file()

    def remove(self) -> None:
        """End it and delete all of it."""
        self.command.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Reconstructions:
    """Those of this app by key: one runs at a time, the last finished ones are kept."""

    def __init__(self) -> None:
        self._all: dict[str, Reconstruction] = {}
        self._lock = threading.Lock()

    def start(
        self, engine: Engine, paths: Sequence[str] | None, folder: Path, model: str, resolution: int
    ) -> Reconstruction:
        """Check the uploads, write them anew, begin; one that still runs is ended: nobody waits for it."""
        names = collect_photos(engine, paths, folder / "photos")
        arguments = ["sfm", str(folder / "photos"), "--output", str(folder / "model"), "--model", model]
        arguments += ["--resolution", str(resolution), "--device", engine.device]
        with self._lock:
            for other in self._all.values():
                if other.command.running:
                    other.command.stop()
            while len(self._all) >= _MOST_KEPT:
                self._all.pop(next(iter(self._all))).remove()
            new = Reconstruction(folder, names, Command(arguments, engine.limits.reconstruction_seconds))
            self._all[new.key] = new
        return new

    def find(self, key: Any) -> Reconstruction:
        """The one of that key; a `DataError` where there is none (any more)."""
        found = self._all.get(key) if isinstance(key, str) else None
        if found is None or not found.folder.is_dir():
            raise DataError("this reconstruction is no longer there; reconstruct again")
        return found

    def close(self) -> None:
        """End what runs and delete everything."""
        with self._lock:
            for work in self._all.values():
                work.remove()
            self._all.clear()


def collect_photos(engine: Engine, paths: Sequence[str] | None, folder: Path) -> dict[str, str]:
    """Write uploads that are photos within the limits into `folder`, under names of ours; all names."""
    if not paths or len(paths) < 2:
        raise ConfigError("choose at least two photos of one place")
    if len(paths) > engine.limits.max_photos:
        raise ConfigError(
            f"{len(paths)} photos are too many here; at most {engine.limits.max_photos} (or use: coam sfm)"
        )
    folder.mkdir(parents=True)
    names: dict[str, str] = {}
    for number, path in enumerate(paths, start=1):
        ours = f"photo_{number:03d}.jpg"
        write_photo(engine, path, f"photo {number}", folder / ours)
        names[ours] = free_name(Path(str(path)).name, set(names.values()))
    return names


def write_photo(engine: Engine, path: str | None, label: str, target: Path) -> None:
    """Write an upload anew: what a command reads is then surely a picture of the allowed size."""
    photo = engine.read(path, label)
    exif = Image.Exif()
    if photo.image.focal35:  # the camera model starts from it
        exif.get_ifd(0x8769)[0xA405] = round(photo.image.focal35)
    Image.fromarray(photo.image.rgb).save(target, quality=95, exif=exif)


def free_name(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name} ({number})", number + 1
    return free


@dataclass(frozen=True)
class Stage:
    """How far the command is."""

    number: int  # of `STAGES`
    share: float | None  # of the stage, where that is known
    left: str  # time left for the stage, in words


def stage_of(lines: Sequence[str]) -> Stage:
    """How far a command that said these lines is."""
    number, share, left = 0, None, ""
    for line in lines:
        begun = next((k for k, start in enumerate(STAGES) if start and re.match(start, line)), None)
        if begun is not None and begun > number:
            number, share, left = begun, None, ""
        elif (told := _PROGRESS.fullmatch(line)) and int(told["total"]):
            share = min(1.0, int(told["done"]) / int(told["total"]))
            words = _LEFT.search(told["rest"] or "")
            left = words[0] if words else ""
    return Stage(number, share, left)


def stages_html(stage: Stage, seconds: float) -> str:
    """The stages as a list: done, under way with a bar and the time left, to come."""
    items = []
    for number, name in enumerate(STAGES.values()):
        state = "done" if number < stage.number else "now" if number == stage.number else "later"
        bar = ""
        if state == "now":
            value = "" if stage.share is None else f' value="{stage.share:.3f}"'
            bar = f'<progress{value} aria-label="{name}"></progress>'
            told = [] if stage.share is None else [f"{stage.share:.0%}"]
            told += [stage.left] if stage.left else []
            bar += f"<span>{' · '.join(told)}</span>"
        mark = {"done": "✓", "now": "▸", "later": "·"}[state]
        items.append(f'<li class="{state}"><b aria-hidden="true">{mark}</b> {name} {bar}</li>')
    so_far = f'<p class="stages">{seconds:.0f} s so far</p>'
    return f'<ol class="stages" aria-live="off">{"".join(items)}</ol>{so_far}'


@dataclass(frozen=True)
class PhotoState:
    """What became of a photo."""

    name: str
    state: str  # "in the model", "doubted", "left out", "located", "not located"
    why: str


def photo_states(
    work: Reconstruction, summary: dict[str, Any], observations: dict[str, int]
) -> list[PhotoState]:
    """State of each photo of a finished reconstruction. observations: photo -> 3D points it shows."""
    registered, states = set(summary["registered"]), []
    for ours, name in work.names.items():
        taken_out = any(line.startswith(f"{ours}: taken out") for line in work.command.lines)
        if ours in registered:
            states.append(PhotoState(name, "in the model", f"shows {observations.get(ours, 0):,} points"))
        elif taken_out:
            states.append(
                PhotoState(name, "doubted", "what it shares with others contradicts its place or theirs")
            )
        else:
            states.append(PhotoState(name, "left out", _why_missing(ours, summary)))
    for name, answer in work.located.items():
        where = f"{answer['inliers']} inliers, confidence {answer['confidence']:.2f}"
        states.append(
            PhotoState(name, "located" if answer["located"] else "not located", answer["reason"] or where)
        )
    return states


def _why_missing(name: str, summary: dict[str, Any]) -> str:
    for line in [*summary["left_out"], *summary["warnings"]]:
        if name in line:
            if "no pair with them was verified" in line:
                return "no other photo shows the same place with enough matches: take some between them"
            if "some pairs were verified" in line:
                return "pairs agree, but too few to place it: more photos between it and the others may help"
            return str(line.partition(": ")[2] or line)
    return "too few matches with the others"


def states_html(states: Sequence[PhotoState], pictures: dict[str, str]) -> str:
    """The photos with their states as a table. pictures: name -> data URI of a thumbnail."""
    rows = []
    for each in states:
        picture = pictures.get(each.name, "")
        image = f'<img src="{picture}" alt="" width="64">' if picture else ""
        name, why = html.escape(each.name), html.escape(each.why)
        kind = each.state.replace(" ", "-")
        cells = "".join(f"<td>{cell}</td>" for cell in (image, name, f"<b>{each.state}</b>", why))
        rows.append(f'<tr class="{kind}">{cells}</tr>')
    head = "<tr><th></th><th>photo</th><th>state</th><th>why</th></tr>"
    return f'<div class="scroll"><table class="photos">{head}{"".join(rows)}</table></div>'


def scene_of(work: Reconstruction) -> tuple[str, dict[str, int]]:
    """The 3D page of a finished reconstruction, photos in their frusta, and the points each photo shows."""
    import pycolmap

    from coam.sfm.colmap_model import read_model
    from coam.sfm.mapping.model_files import scene_cameras
    from coam.viz import scene_page

    model = read_model(work.model / "sparse" / "0")
    points = [point for _, point in sorted(model.points3D.items())]
    cameras = [(work.names[ours], *camera) for ours, *camera in scene_cameras(model)]
    files = [work.photos / ours for ours, *_ in scene_cameras(model)]
    for name, answer in work.located.items():
        if answer["located"]:
            width, height, focal = (float(word) for word in answer["camera"].split()[1:4])
            w, x, y, z = answer["qvec"]
            rotation = pycolmap.Rotation3d(np.array([x, y, z, w])).matrix()
            cameras.append((name, rotation, np.asarray(answer["tvec"]), focal, int(width), int(height)))
            files.append(work.folder / answer["file"])
    page = scene_page(
        np.array([point.xyz for point in points]).reshape(-1, 3),
        np.array([point.color for point in points], np.uint8).reshape(-1, 3),
        cameras,
        photos=[load_image(file).rgb for file in files],
        located=[name for name, answer in work.located.items() if answer["located"]],
    )
    shown = {image.name: image.num_points3D for image in map(model.image, model.reg_image_ids())}
    return str(page), shown


def thumbnails(work: Reconstruction) -> dict[str, str]:
    """Name of each photo -> data URI of its thumbnail."""
    from coam.viz.html import photo_uri

    files = {name: work.photos / ours for ours, name in work.names.items()}
    files |= {name: work.folder / answer["file"] for name, answer in work.located.items()}
    made = {}
    for name, file in files.items():
        with Image.open(file) as picture:
            picture.draft("RGB", (_THUMBNAIL * 2, _THUMBNAIL * 2))
            picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
            made[name] = photo_uri(np.asarray(picture.convert("RGB")), 75)
    return made


def summary_of(work: Reconstruction) -> dict[str, Any]:
    """The figures of a finished reconstruction; a `DataError` where no photo was placed."""
    summary: dict[str, Any] = read_json(work.model / "summary.json", advice="try again")
    if summary["registered_images"] == 0:
        raise DataError(summary["warnings"][0])
    return summary


def words_about(summary: dict[str, Any]) -> str:
    """One line of Markdown about a finished reconstruction."""
    words = [
        f"**{summary['registered_images']} of {summary['photos']} photos**",
        f"**{summary['sparse_points']:,} points**",
        f"track length {summary['mean_track_length']:.2f}",
        f"reprojection error {summary['mean_reprojection_error']:.2f} px",
        f"{summary['seconds']:.0f} s",
    ]
    return "  ·  ".join(words)


def archive_of(work: Reconstruction, page: str) -> str:
    """Everything in one .zip, its path: the model folder as `coam sfm` left it, its photos, and `page`."""
    target = work.folder / "reconstruction.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for folder in (work.model, work.photos):
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.write(file, file.relative_to(work.folder))
        archive.writestr("scene.html", page)
    return str(target)
