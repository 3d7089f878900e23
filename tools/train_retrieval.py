"""The retrieval head of the default model: trained on a CPU, judged on places that it has not seen.

    python tools/train_retrieval.py DATA OUT --sets FOLDER           # figures; OUT/head.safetensors
    python tools/train_retrieval.py DATA OUT --sets FOLDER --ship    # and, where it pays, into the package

DATA is what tools/make_training_data.py makes: photos/, photos_val/, aligned/, aligned_val/, multiview/.
FOLDER holds photo sets of places that nothing was trained on. The encoder stays as it is; OUT keeps what it
pools of every photo, so a killed run goes on, and only training and judging are repeated.

Photos of one aligned group, and a photo and its copies (cropped, tilted, in made light: night, haze, other
sensors), show one place. Photos of a set may not overlap: a photo's neighbours in the order of names count as
its place, others of the set as nothing. All other photos are its negatives, the hardest count most (InfoNCE
over the whole bank). Beside the pooled vectors stands what the head makes of them: is a photo of the same
place among the first k of all held-out photos? Intervals are of a bootstrap over places.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from docs_tables import table_text
from torch.nn.functional import normalize, softplus

from coam import load_matcher
from coam.data.photometric import change_light
from coam.images import load_image
from coam.models.registry import DEFAULT_MODEL, packaged_weights, retrieval_path, save_retrieval_head
from coam.models.retrieval import DESCRIBED_AT, RetrievalConfig, RetrievalHead, pooled
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
KINDS = ("season", "exposures", "thermal", "day_night")
HELD_SEASONS = 400  # groups of season_more from this number on are held out
HELD_SETS = ("rgbd_kitchen",)  # of multiview
BEFORE = 640  # pixels, long side, at which photos were described before
SAVE_EVERY = 200
FIRST = (1, 10)  # of the ranked photos
CARD = {
    "licence": "Apache-2.0",
    "data": "web cameras in two seasons, exposures, visible and thermal, day and night, photo sets, single "
    "photos with made copies (the data of the model's own training; licences are mixed)",
}


@dataclass(frozen=True)
class Photo:
    """A photo, and what it is for."""

    path: Path
    place: str  # KIND/NAME; photos of KIND set need not overlap
    held_out: bool
    copies: int = 0


def list_photos(data: Path, sets: Path) -> list[Photo]:
    """All photos, those that say most about places first."""
    found: list[Photo] = []

    def add(folder: Path, kind: str, held_out: bool, copies: int) -> None:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
        place = f"{kind}/{folder.name}"
        found.extend(
            Photo(path, place, held_out, 0 if held_out else copies)
            for path in files
            if "depth" not in path.name
        )

    for kind in KINDS:
        for part in ("aligned_val", "aligned"):
            for group in sorted((data / part / kind).iterdir()):
                add(group, kind, part == "aligned_val", 0 if kind == "day_night" else 1)
    for group in sorted((data / "aligned" / "season_more").iterdir()):
        add(group, "season_more", int(group.name) >= HELD_SEASONS, 1)
    for folder in sorted(sets.iterdir()):
        add(folder, "set", True, 0)
    for folder in sorted((data / "multiview").iterdir()):
        add(folder, "set", folder.name in HELD_SETS, 1)
    for part in ("photos", "photos_val"):
        for index, path in enumerate(sorted((data / part).iterdir())):
            held_out = part == "photos_val" or index % 5 == 2
            if held_out or index % 5 < 2:
                found.append(Photo(path, f"photo/{path.stem}", held_out, 0 if held_out else 1))
    return found


# ---- what the encoder sees


def made_copy(rgb: npt.NDArray[np.uint8], random: np.random.Generator, light: torch.Generator) -> Any:
    """A part of a photo (H, W, 3), turned and tilted a little, in another light; of `DESCRIBED_AT` pixels."""
    scale = min(1.0, DESCRIBED_AT / max(rgb.shape))
    rgb = np.asarray(cv2.resize(rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
    height, width = rgb.shape[:2]
    size = random.uniform(0.55, 0.95) * np.array([width, height])
    corner = random.uniform(0, 1, 2) * ([width, height] - size)
    corners = corner + np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * size
    angle = np.radians(random.normal(0, 6))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = corners.mean(axis=0)
    corners = (corners - middle) @ turn.T + middle + random.uniform(-0.1, 0.1, (4, 2)) * size
    goal = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    homography = cv2.getPerspectiveTransform(corners.astype(np.float32), goal)
    shown = cv2.warpPerspective(rgb, homography, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    tensor = torch.from_numpy(shown).permute(2, 0, 1)[None].float() / 255
    lit = change_light(tensor, torch.ones(1), light)[0].permute(1, 2, 0)
    return (lit.numpy() * 255).round().astype(np.uint8)


def pooled_photos(photos: list[Photo], store: Path, side: int) -> tuple[Floats, Ints]:
    """Pooled vectors (N, D) of photos and their copies, and the photo (N,) of each; kept in `store`.

    side: pixels of the long side at which the encoder sees them.
    """
    vectors: list[Floats] = []
    of: list[int] = []
    done = 0
    if store.is_file():
        kept = read_plain_npz(store)
        vectors, of, done = list(kept["vectors"]), kept["of"].tolist(), int(kept["done"])
    if done < len(photos):
        matcher = load_matcher(device="cpu", resolution=side)
    for number in range(done, len(photos)):
        photo = photos[number]
        random = np.random.default_rng([number, 0])
        light = torch.Generator().manual_seed(number)
        rgb = load_image(photo.path).rgb
        for copy in range(1 + photo.copies):
            shown = rgb if copy == 0 else made_copy(rgb, random, light)
            vectors.append(pooled(matcher.prepare(shown).encoded.levels)[0].numpy())
            of.append(number)
        if (number + 1) % SAVE_EVERY == 0 or number + 1 == len(photos):
            with atomic_write(store) as temporary, open(temporary, "wb") as out:
                np.savez(out, vectors=np.array(vectors), of=np.array(of), done=np.array(number + 1))
            print(f"{number + 1} of {len(photos)} photos", file=sys.stderr, flush=True)
    return np.array(vectors, np.float32), np.array(of)


# ---- training


@dataclass(frozen=True)
class TrainOptions:
    """How the head is trained."""

    size: int = 256
    steps: int = 300
    batch: int = 384
    rate: float = 2e-3
    temperature: float = 0.05
    shrinkage: float = 0.3  # of the whitening it starts from, in mean variances
    neighbours: int = 2  # photos of a set that count as one place: so far apart in the order of names


def whitening(vectors: Floats, size: int, shrinkage: float) -> tuple[Floats, Floats]:
    """Mean (D,) and projection (size, D) onto principal directions, divided by their spread."""
    mean = vectors.mean(axis=0)
    _, singular, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    variance = singular**2 / len(vectors)
    weight = directions[:size] / np.sqrt(variance[:size] + shrinkage * variance.mean())[:, None]
    return mean, weight / np.linalg.norm((vectors - mean) @ weight.T, axis=1).mean()


def train(vectors: Floats, photos: list[Photo], of: Ints, options: TrainOptions) -> RetrievalHead:
    """A head from pooled vectors (N, D); `of` (N,) says of which photo each is."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    head = RetrievalHead(RetrievalConfig(vectors.shape[1], options.size))
    mean, weight = whitening(vectors, options.size, options.shrinkage)
    with torch.no_grad():
        head.project.weight.copy_(torch.from_numpy(weight))
        head.project.bias.copy_(torch.from_numpy(-weight @ mean))
    bank, photo = torch.from_numpy(vectors), torch.from_numpy(of)
    place = torch.from_numpy(np.unique([photos[i].place for i in of], return_inverse=True)[1])
    in_set = torch.tensor([photos[i].place.startswith("set/") for i in of])
    optimiser = torch.optim.Adam(head.parameters(), options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.steps)
    for _ in range(options.steps):
        drawn = torch.from_numpy(random.choice(len(of), min(options.batch, len(of)), replace=False))
        descriptors = head(bank)
        alike = descriptors[drawn] @ descriptors.T / options.temperature
        same = place[drawn][:, None] == place
        near = (photo[drawn][:, None] - photo).abs() <= options.neighbours
        positive = same & (near | ~in_set[drawn][:, None])
        positive[torch.arange(len(drawn)), drawn] = False
        against = torch.logsumexp(alike.masked_fill(same, -1e4), dim=1, keepdim=True)
        wrong = (softplus(against - alike) * positive).sum(dim=1) / positive.sum(dim=1).clamp(min=1)
        loss = wrong[positive.any(dim=1)].mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return head.eval()


# ---- judging


def found_among(descriptors: Floats, places: npt.NDArray[Any], first: int) -> npt.NDArray[np.float64]:
    """For each photo (N,): of kind set, the share of the `first` most similar others that are of its set;
    else whether one of them shows its place. As `coam sfm` ranks: the mean is taken out before.
    """
    centred = normalize(torch.from_numpy(descriptors - descriptors.mean(axis=0))).numpy()
    alike = centred @ centred.T
    np.fill_diagonal(alike, -2.0)
    best = np.argsort(-alike, axis=1)[:, :first]
    same = places[best] == places[:, None]
    in_set = np.char.startswith(places, "set/")
    return np.where(in_set, same.mean(axis=1), same.any(axis=1))


def interval(
    change: npt.NDArray[np.float64], places: npt.NDArray[Any], draws: int = 2000
) -> tuple[float, float]:
    """The middle 95 % of the mean of `change` (N,) over places drawn again."""
    random = np.random.default_rng(0)
    number = np.unique(places, return_inverse=True)[1]
    total, count = np.bincount(number, change), np.bincount(number)
    drawn = random.integers(0, len(count), (draws, len(count)))
    low, high = np.quantile(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), (0.025, 0.975))
    return float(low), float(high)


def judge(before: Floats, after: Floats, places: npt.NDArray[Any]) -> str:
    """The table: how often a place is found by either descriptors, and the interval of the change."""
    kinds = np.array([place.partition("/")[0] for place in places])
    rows = []
    for kind in sorted({*kinds} - {"photo"}):
        own = kinds == kind
        cells = []
        for first in FIRST:
            old, new = (found_among(each, places, first)[own] for each in (before, after))
            low, high = interval(new - old, places[own])
            cells += [
                f"{100 * old.mean():.1f}",
                f"{100 * new.mean():.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
            ]
        rows.append([kind, str(len(set(places[own]))), str(own.sum()), *cells])
    named = [
        f"{what} {first}" for first in FIRST for what in ("pooled, first", "head, first", "change, first")
    ]
    return table_text([f"{len(places)} photos", "places", "queries", *named], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--ship", action="store_true", help="put the head beside the default model's weights")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    photos = list_photos(options.data, options.sets)
    vectors, of = pooled_photos(photos, options.out / "pooled.npz", DESCRIBED_AT)
    held_out = np.array([photos[i].held_out for i in of])
    head = train(vectors[~held_out], photos, of[~held_out], TrainOptions())
    with torch.inference_mode():
        after = head(torch.from_numpy(vectors[held_out])).numpy()
    places = np.array([photos[i].place for i in of[held_out]])
    before, _ = pooled_photos([photos[i] for i in of[held_out]], options.out / "before.npz", BEFORE)
    print(judge(before, after, places))
    weights = packaged_weights(DEFAULT_MODEL)
    assert weights is not None
    copied = Path(shutil.copy(weights, options.out / weights.name))
    made = save_retrieval_head(head, copied, CARD)
    print(f"\n{made.name}: {made.stat().st_size / 1e3:.0f} kB", file=sys.stderr)
    if options.ship:
        shutil.copy(made, retrieval_path(weights))


if __name__ == "__main__":
    main()
