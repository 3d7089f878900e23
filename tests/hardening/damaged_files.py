"""Flipped bits and cut ends in every format of ours: noticed, or without effect. Never other values."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from coam.data.packed import PackedTracks
from coam.errors import DataError
from coam.models.registry import load_model, save_model
from coam.sfm.colmap_model import read_model
from coam.sfm.model_folder import ModelFolder
from coam.sfm.workspace import load_model as load_sfm_model
from coam.store.checksums import content_digest
from coam.store.documents import read_json, write_sealed_json
from coam.store.journal import PairJournal, Record
from coam.store.matches import load_matches, save_matches
from coam.types import Matches
from coam.warp.field import Warp, WarpField
from coam.warp.files import load_warp, save_warp
from hardening.attempts import Attack
from support.damage import flipped
from support.packed_tracks import make_packed
from support.small_networks import small_stacked
from support.some_matches import some_matches


@dataclass(frozen=True)
class Format:
    """A sound file, and what is read from it as one digest."""

    path: Path
    digest: Callable[[Path], str]


def digest_of_matches(matches: Matches) -> str:
    names = ("points0", "points1", "scores", "ids0", "ids1")
    header = {
        "sizes": [matches.size0, matches.size1],
        "grids": [str(matches.grid0), str(matches.grid1)],
        "overlap": str(matches.overlap),
        "meta": json.dumps(matches.meta, sort_keys=True),
    }
    return content_digest(header, {name: getattr(matches, name) for name in names})


def _digest_of_warp(path: Path) -> str:
    warp = load_warp(path)
    sides = {"forward": warp.forward, "backward": warp.backward}
    arrays = {
        f"{name} {what}": getattr(side, what)
        for name, side in sides.items()
        for what in ("points", "certainty")
    }
    return content_digest(
        {"sizes": [warp.forward.size, warp.backward.size], "meta": json.dumps(warp.meta)}, arrays
    )


def _digest_of_network(path: Path) -> str:
    file = load_model(str(path))
    arrays = {name: value.numpy() for name, value in file.model.state_dict().items()}
    return content_digest({"name": file.name, "card": json.dumps(file.card)}, arrays)


def _digest_of_tracks(path: Path) -> str:
    fields = vars(PackedTracks.load(path))
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    return content_digest({name: fields[name] for name in ("scenes", "names")}, arrays)


RECORDS = {
    (f"a{n}", f"b{n}"): Record(
        {"ids": np.arange(60, dtype=np.int32) * n, "xy": np.full((60, 2), n / 7)},
        {"n": np.array(n)},
        f"stamp {n}",
    )
    for n in range(8)
}


def _journal_digests(path: Path) -> dict[tuple[str, str], str]:
    """Of each pair that is there; those that are damaged are missing, and made again."""
    journal = PairJournal(path)
    try:
        missing = set(journal.missing({pair: record.stamp for pair, record in RECORDS.items()}))
        found = {pair: journal.read(pair) for pair in RECORDS if pair not in missing}
        return {p: content_digest({"stamp": r.stamp}, {**r.columns, **r.values}) for p, r in found.items()}
    finally:
        journal.close()
        path.with_name(path.name + ".damaged").unlink(missing_ok=True)


def make_formats(folder: Path) -> dict[str, Format]:
    """Sound files of every format of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    formats = {}
    for ending in ("npz", "h5", "json"):
        save_matches(some_matches(40), folder / f"matches.{ending}")
        formats[f"matches.{ending}"] = Format(
            folder / f"matches.{ending}", lambda path: digest_of_matches(load_matches(path))
        )
    rng = np.random.default_rng(0)
    points, certainty = (rng.uniform(0, 1, (12, 16, *last)).astype(np.float32) for last in ((2,), ()))
    field = WarpField(points, certainty, (160, 120), (160, 120))
    save_warp(Warp(field, field, overlap=0.5, meta={"model": "a"}), folder / "a.warp.npz")
    formats["warp"] = Format(folder / "a.warp.npz", _digest_of_warp)
    save_model(small_stacked(), folder / "weights.safetensors", "sound", {"licence": "x"}, torch.float32)
    formats["weights"] = Format(folder / "weights.safetensors", _digest_of_network)
    make_packed([points[0], points[1]], [(0, 1)], [10.0], [0, 0]).save(folder / "tracks.safetensors")
    formats["tracks"] = Format(folder / "tracks.safetensors", _digest_of_tracks)
    write_sealed_json(folder / "sealed.json", {"points": 1885, "names": ["a", "b"], "error": 0.25})
    formats["sealed json"] = Format(folder / "sealed.json", lambda path: content_digest(read_json(path), {}))
    return formats


def attacks(folder: Path, flips: int = 20, cuts: int = 5) -> Iterator[Attack]:
    """`flips` flipped bits and `cuts` cut ends of every format, and of journals."""
    for name, form in make_formats(folder).items():
        truth, content = form.digest(form.path), form.path.read_bytes()
        for number, damaged in enumerate(_damaged(content, flips, cuts)):
            run = partial(_compare, damaged, form.path.suffix, form.digest, truth)
            yield Attack("damaged files", f"{name}-{number}", run)
    journal = PairJournal(folder / "journal.h5")
    journal.append(RECORDS)
    journal.finish()
    journal.close()
    known = _journal_digests(folder / "journal.h5")
    assert len(known) == len(RECORDS)
    for number, damaged in enumerate(_damaged((folder / "journal.h5").read_bytes(), flips, cuts)):
        yield Attack("damaged files", f"journal-{number}", partial(_compare_journal, damaged, known))


def colmap_attacks(model_folder: Path, flips: int = 10, cuts: int = 3) -> Iterator[Attack]:
    """Damage in sparse/*.bin, with our checksums (noticed) and as a model of others (without)."""
    for path in sorted((model_folder / "sparse" / "0").glob("*.bin")):
        for number, damaged in enumerate(_damaged(path.read_bytes(), flips, cuts)):
            for reader in (_own_model, _foreign_model):
                run = partial(reader, model_folder, path.name, damaged)
                yield Attack("damaged models", f"{reader.__name__}-{path.name}-{number}", run)
    for name in ("keypoints.h5",):
        content = (model_folder / name).read_bytes()
        for number, damaged in enumerate(_damaged(content, flips, cuts)):
            yield Attack(
                "damaged models", f"{name}-{number}", partial(_own_model, model_folder, name, damaged)
            )


def _damaged(content: bytes, flips: int, cuts: int) -> Iterator[bytes]:
    yield from flipped(content, flips, seed=3)
    for cut in range(cuts):
        yield content[: len(content) * cut // cuts]


def _compare(content: bytes, ending: str, digest: Callable[[Path], str], truth: str, folder: Path) -> str:
    path = folder / f"a{ending}"
    path.write_bytes(content)
    return "same" if digest(path) == truth else "silent"


def _compare_journal(content: bytes, known: dict[tuple[str, str], str], folder: Path) -> str:
    path = folder / "a.h5"
    path.write_bytes(content)
    found = _journal_digests(path)
    if any(known[pair] != digest for pair, digest in found.items()):
        return "silent"
    if len(found) < len(known):
        raise DataError(f"{len(known) - len(found)} pairs are damaged; they are made again")
    return "same"


def _own_model(model_folder: Path, name: str, content: bytes, folder: Path) -> str:
    files = ModelFolder(folder)
    shutil.copy(model_folder / "summary.json", files.summary)
    shutil.copy(model_folder / "keypoints.h5", files.keypoints)
    shutil.copytree(model_folder / "sparse" / "0", files.model)
    target = files.root / name if (files.root / name).exists() else files.model / name
    before = target.read_bytes()
    target.write_bytes(content)
    load_sfm_model(folder)
    return "same" if content == before else "silent"


def _foreign_model(model_folder: Path, name: str, content: bytes, folder: Path) -> str:
    """As `coam sfm --reference` reads a model: COLMAP keeps no checksum, so only its structure can break."""
    model = folder / "model"
    model.mkdir()
    for path in (model_folder / "sparse" / "0").glob("*.bin"):
        shutil.copy(path, model)
    (model / name).write_bytes(content)
    read_model(model)
    return "read"
