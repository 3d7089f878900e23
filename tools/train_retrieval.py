"""The retrieval head of the default model: trained on a CPU, judged on places that it has not seen.

    python tools/train_retrieval.py DATA OUT --sets FOLDER           # figures; OUT/NAME.retrieval.safetensors
    python tools/train_retrieval.py DATA OUT --sets FOLDER --ship    # and into the package

DATA is what tools/make_training_data.py makes: aligned/ and aligned_val/. FOLDER holds photo sets of places
that nothing was trained on. The encoder stays as it is; OUT keeps what it pools of every photo, so a killed
run goes on, and only training and judging are repeated.

Photos of one aligned group (two seasons, exposures, day and night, visible and thermal) show one place. All
photos of other places are negatives, and the hardest count most (InfoNCE over the whole bank). Beside the
pooled vectors stands what the head makes of them: is a photo of the same place among the first k of all
held-out photos? Photos of a set need not overlap: which share of the first k is of the set? Intervals are of
a bootstrap over places.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from docs_tables import table_text
from torch.nn.functional import normalize, softplus

from coam import load_matcher
from coam.models.registry import DEFAULT_MODEL, packaged_weights, retrieval_path, save_retrieval_head
from coam.models.retrieval import DESCRIBED_AT, RetrievalConfig, RetrievalHead, pooled
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
KINDS = ("season", "exposures", "thermal", "day_night")
HELD_SEASONS = 400  # groups of season_more from this number on are held out
SAVE_EVERY = 100
FIRST = (1, 10)  # of the ranked photos
CARD = {
    "licence": "Apache-2.0",
    "data": "web cameras in two seasons, exposures, day and night, visible and thermal pictures: the aligned "
    "groups of the model's own training (licences are mixed)",
}


@dataclass(frozen=True)
class Photo:
    """A photo, and what it is for."""

    path: Path
    place: str  # KIND/NAME; photos of kind set need not overlap
    held_out: bool


def list_photos(data: Path, sets: Path) -> list[Photo]:
    """All photos, by place."""
    found: list[Photo] = []

    def add(folder: Path, kind: str, held_out: bool) -> None:
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".png"))
        found.extend(Photo(path, f"{kind}/{folder.name}", held_out) for path in files)

    for kind in KINDS:
        for part in ("aligned_val", "aligned"):
            for group in sorted((data / part / kind).iterdir()):
                add(group, kind, part == "aligned_val")
    for group in sorted((data / "aligned" / "season_more").iterdir()):
        add(group, "season_more", int(group.name) >= HELD_SEASONS)
    for folder in sorted(sets.iterdir()):
        add(folder, "set", True)
    return found


def pooled_photos(photos: list[Photo], store: Path) -> Floats:
    """Pooled vectors (N, D) of photos; kept in `store`."""
    vectors = list(read_plain_npz(store)["vectors"]) if store.is_file() else []
    if len(vectors) < len(photos):
        matcher = load_matcher(device="cpu", resolution=DESCRIBED_AT)
    for number in range(len(vectors), len(photos)):
        vectors.append(pooled(matcher.prepare(photos[number].path).encoded.levels)[0].numpy())
        if (number + 1) % SAVE_EVERY == 0 or number + 1 == len(photos):
            with atomic_write(store) as temporary, open(temporary, "wb") as out:
                np.savez(out, vectors=np.array(vectors))
            print(f"{number + 1} of {len(photos)} photos", file=sys.stderr, flush=True)
    return np.array(vectors, np.float32)


# ---- training


@dataclass(frozen=True)
class TrainOptions:
    """How the head is trained."""

    size: int = 256
    steps: int = 60
    rate: float = 5e-3
    temperature: float = 0.05
    shrinkage: float = 0.3  # of the whitening it starts from, in mean variances


def whitening(vectors: Floats, size: int, shrinkage: float) -> tuple[Floats, Floats]:
    """Mean (D,) and projection (size, D) onto principal directions, divided by their spread."""
    mean = vectors.mean(axis=0)
    _, singular, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    variance = singular**2 / len(vectors)
    weight = directions[:size] / np.sqrt(variance[:size] + shrinkage * variance.mean())[:, None]
    return mean, weight / np.linalg.norm((vectors - mean) @ weight.T, axis=1).mean()


def train(vectors: Floats, places: npt.NDArray[Any], options: TrainOptions) -> RetrievalHead:
    """A head from pooled vectors (N, D) and their places (N,)."""
    head = RetrievalHead(RetrievalConfig(vectors.shape[1], options.size))
    mean, weight = whitening(vectors, options.size, options.shrinkage)
    with torch.no_grad():
        head.project.weight.copy_(torch.from_numpy(weight))
        head.project.bias.copy_(torch.from_numpy(-weight @ mean))
    bank, place = torch.from_numpy(vectors), torch.from_numpy(np.unique(places, return_inverse=True)[1])
    same = place[:, None] == place
    positive = same & ~torch.eye(len(place), dtype=torch.bool)
    paired = positive.any(dim=1)
    optimiser = torch.optim.Adam(head.parameters(), options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(1, options.steps))
    for _ in range(options.steps):
        descriptors = head(bank)
        alike = descriptors @ descriptors.T / options.temperature
        against = torch.logsumexp(alike.masked_fill(same, -1e4), dim=1, keepdim=True)
        wrong = (softplus(against - alike) * positive).sum(dim=1) / positive.sum(dim=1).clamp(min=1)
        loss = wrong[paired].mean()
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
    for kind in sorted({*kinds}):
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
    vectors = pooled_photos(photos, options.out / "pooled.npz")
    places, held_out = np.array([p.place for p in photos]), np.array([p.held_out for p in photos])
    head = train(vectors[~held_out], places[~held_out], TrainOptions())
    with torch.inference_mode():
        after = head(torch.from_numpy(vectors[held_out])).numpy()
    print(judge(vectors[held_out], after, places[held_out]))
    weights = packaged_weights(DEFAULT_MODEL)
    assert weights is not None
    copied = Path(shutil.copy(weights, options.out / weights.name))
    made = save_retrieval_head(head, copied, CARD)
    print(f"\n{made.name}: {made.stat().st_size / 1e3:.0f} kB", file=sys.stderr)
    if options.ship:
        shutil.copy(made, retrieval_path(weights))


if __name__ == "__main__":
    main()
