"""Many places in one folder: are they kept apart?

    python tools/mixed_folder.py DATA OUT [--sets NAMES] [--each 12] [--none 8] [--resolution 800]

DATA: what the maintainers' data holds (multiview/NAME.tar, photos/photos-0N.tar). Puts --each photos of every
set, evenly spaced by name, and --none photos of anything into OUT/photos: SET_NAME.jpg and none_NAME.jpg.
They are reconstructed into OUT/model, which goes on where it was, with defaults, but for --orientation as-is:
all are upright. Prints for every set how many of its photos came into its largest model, and how many photos
of elsewhere into any of its models.
"""

from __future__ import annotations

import argparse
import random
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np

from coam.cli.sfm import load_for_sfm
from coam.sfm.colmap_model import model_poses, read_model
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions

SETS = "alexander,fox,goldcape,kitchen,lund,maryrose,sacre_coeur,sceaux"
NONE = "none"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--each", type=int, default=12)
    parser.add_argument("--none", type=int, default=8)
    parser.add_argument(
        "--photos", default="photos-00", help="the archive that photos of none are drawn from"
    )
    parser.add_argument("--resolution", type=int)
    chosen = parser.parse_args()
    photos, sets = chosen.out / "photos", chosen.sets.split(",")
    if not photos.exists():
        photos.mkdir(parents=True)
        for name in sets:
            extract(chosen.data / "multiview" / f"{name}.tar", photos, name, chosen.each)
        extract(chosen.data / "photos" / f"{chosen.photos}.tar", photos, NONE, chosen.none, seed=0)
    settings = {"max_matches": 4096}
    if chosen.resolution is not None:
        settings["resolution"] = chosen.resolution
    matcher, options = load_for_sfm(None, "auto", settings), SfmOptions(orientation="as-is")
    summary = run_sfm(photos, chosen.out / "model", matcher, options, print)
    folders = sorted((chosen.out / "model" / "sparse").iterdir(), key=lambda path: int(path.name))
    models = [sorted(model_poses(read_model(folder))) for folder in folders]
    count = Counter(set_of(path.name, sets) for path in photos.iterdir())
    print("| set | photos | in its largest model | in other models of it | photos of elsewhere |")
    print("|---|---|---|---|---|")
    for name in sets:
        own = [Counter(set_of(photo, sets) for photo in model) for model in models]
        own = [inside for inside in own if inside.most_common(1)[0][0] == name]
        placed = [inside[name] for inside in own]
        wrong = sum(inside.total() - inside[name] for inside in own)
        print(f"| {name} | {count[name]} | {max(placed, default=0)} | {placed[1:] or 'none'} | {wrong} |")
    pairs, removed = summary["verified_pairs"], summary["contradicted_pairs"]
    print(f"{count.total()} photos, {pairs} pairs verified, {removed} contradicted or not confirmed")


def extract(archive: Path, target: Path, name: str, count: int, seed: int | None = None) -> None:
    """Write `count` photos of an archive, evenly spaced by name or, with a seed, drawn at random."""
    with tarfile.open(archive) as tar:
        members = sorted((member for member in tar if member.isfile()), key=lambda member: member.name)
        count = min(count, len(members))
        if seed is None:
            chosen = [members[i] for i in np.rint(np.linspace(0, len(members) - 1, count)).astype(int)]
        else:
            chosen = random.Random(seed).sample(members, count)
        for member in chosen:
            content = tar.extractfile(member)
            assert content is not None
            (target / f"{name}_{Path(member.name).name}").write_bytes(content.read())


def set_of(photo: str, sets: list[str]) -> str:
    """The set that a photo was taken from."""
    return next((name for name in sets if photo.startswith(f"{name}_")), NONE)


if __name__ == "__main__":
    main()
