"""The working folder of the recipes, from the developers' data: who trains, who is held out.

    python tools/make_training_data.py DATA OUT            # unpack, split, shrink: a minute
    python tools/make_training_data.py DATA OUT --align    # and move aligned photos onto each other
    python tools/make_training_data.py DATA OUT --tracks   # and reconstruct the photo sets by SIFT

DATA holds photos/, aligned/, styles/, multiview/ and rgbd_kitchen/ with their tars. OUT gets what the
recipes name: photos/, styles/, aligned/KIND/GROUP/, aligned_fit/ (by `coam data align`; season_rough/ holds
webcams whose matches miss by more than 0.75 px), packed/tracks.safetensors and rgbd.safetensors; and what no
recipe may name: photos_val/, aligned_val/. Held out is the last of every 25 photos, of every 5 webcams and of
every 8 groups of the other kinds, in the order of their names, and the third of the three day-night webcams.
Every stage goes on after a stop; the two long ones take about half an hour of one core each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

# tar in aligned/ -> folder in OUT/aligned; which of so many groups is held out (0: none)
ALIGNED = {
    "season_webcams": ("season", 5),
    "season_webcams_more": ("season_more", 0),
    "day_night_webcams": ("day_night", 3),
    "exposures": ("exposures", 8),
    "visible_thermal": ("thermal", 8),
}
PHOTOS_HELD_OUT = 25
SIDE, QUALITY = 576, 85  # pixels, long side, and JPEG quality of photos that train
FITTED = ("season", "season_more", "day_night", "thermal")  # exposures come from one tripod
ROUGH = 0.75  # pixels, median residual; beyond, the fine stage does not learn from a group
SETS = (
    "liberty", "maryrose", "goldcape", "ethiopian_head", "dtu_scan65", "dtu_scan114", "kitchen", "fern",
    "flower", "cyprus", "room",
)  # fmt: skip


def unpacked(archive: Path, folder: Path) -> Path:
    """The archive's files in a folder of their own."""
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.half")
        shutil.rmtree(half, ignore_errors=True)
        with tarfile.open(archive) as content:
            content.extractall(half, filter="data")
        half.rename(folder)
    return folder


def split(names: list[Path], every: int) -> Iterator[tuple[Path, bool]]:
    """Each name, and whether it is held out: the last of every so many."""
    for index, name in enumerate(sorted(names)):
        yield name, every > 0 and index % every == every - 1


def shrink(source: Path, target: Path) -> None:
    """A photo at the size at which it trains."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(source) as photo:
        photo = photo.convert("RGB")
        photo.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        photo.save(target, quality=QUALITY)


def unpack(data: Path, out: Path) -> None:
    """Photos, styles, aligned groups and photo sets, those held out apart from the others."""
    raw = out / "raw"
    photos = [p for tar in sorted((data / "photos").glob("*.tar"))
              for p in unpacked(tar, raw / tar.stem).rglob("*") if p.is_file()]  # fmt: skip
    for photo, held_out in split(photos, PHOTOS_HELD_OUT):
        shrink(photo, out / ("photos_val" if held_out else "photos") / f"{photo.stem}.jpg")
    for style in unpacked(data / "styles/styles.tar", raw / "styles").rglob("*"):
        if style.suffix.lower() in (".jpg", ".png"):
            shrink(style, out / "styles" / f"{style.parent.name}_{style.stem}.jpg")
    for archive, (kind, every) in ALIGNED.items():
        groups = [g for g in unpacked(data / f"aligned/{archive}.tar", raw / archive).iterdir() if g.is_dir()]
        for group, held_out in split(groups, every):
            target = out / ("aligned_val" if held_out else "aligned") / kind / group.name
            if not target.exists():
                shutil.copytree(group, target)
    for name in SETS:
        unpacked(data / f"multiview/{name}.tar", out / "multiview" / name)
    unpacked(data / "rgbd_kitchen/frames.tar", out / "multiview/rgbd_kitchen")


def coam(*arguments: object) -> None:
    """Run a command of the package."""
    print("$ coam", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "coam", *map(str, arguments)], check=True)


def align(out: Path) -> None:
    """`coam data align`, and groups parted by how well their photos fit."""
    for kind in FITTED:
        whole = out / "aligned_whole" / kind
        coam("data", "align", out / "aligned" / kind, "-o", whole)
        for group in sorted(whole.iterdir()):
            report = group / "alignment.json"
            if report.is_file() and len(list(group.glob("*.*"))) > 2:
                part = kind.removesuffix("_more")
                if part == "season" and worst_residual(report) > ROUGH:
                    part = "season_rough"
                target = out / "aligned_fit" / part / group.name
                shutil.copytree(group, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.json"))


def worst_residual(report: Path) -> float:
    """Pixels by which the matches of a group's worst photo miss in the median."""
    photos = json.loads(report.read_text())["photos"]
    return max((photo["residual"] for photo in photos if photo.get("residual") is not None), default=0.0)


def reconstruct(out: Path) -> None:
    """COLMAP models of the photo sets by SIFT, and their tracks as one file."""
    scenes = []
    for name in SETS:
        photos, model = out / "multiview" / name, out / "models" / name
        coam("data", "from-photos", photos, "-o", model, "--threads", 1)
        scenes.append(f"{model}={photos}")
    (out / "packed").mkdir(exist_ok=True)
    coam("data", "pack-tracks", *scenes, "-o", out / "packed/tracks.safetensors", "--max-side", 800)
    coam("data", "pack-rgbd", out / "multiview/rgbd_kitchen", "-o", out / "packed/rgbd.safetensors")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--align", action="store_true")
    parser.add_argument("--tracks", action="store_true")
    options = parser.parse_args()
    unpack(options.data, options.out)
    if options.align:
        align(options.out)
    if options.tracks:
        reconstruct(options.out)


if __name__ == "__main__":
    main()
