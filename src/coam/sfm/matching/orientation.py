"""Photos that lie on their side and do not say so: found from a few pairs, matched upright, and turned back.

A network matches photos that are turned by up to forty degrees. Each photo is compared with the few that
look most like it, in any turn, at low resolution; their relative turns are put together over all photos.
Those that must be turned are matched as upright copies. What is stored are matches of the copies;
`TurnedBack` reads them in pixels of the files, so everything behind matching sees the photos as they are.

All turns are quarters, counter-clockwise, as of `numpy.rot90`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import rotate_points
from coam.images import load_image
from coam.sfm.matching.match_pairs import CACHE_IMAGES, CHUNK_PAIRS, LoadMatcher, order_pairs, store_results
from coam.sfm.matching.pair_matches import grid_from_array, grid_to_array
from coam.sfm.matching.stamps import matcher_key, pair_stamps, text_digest
from coam.sfm.photos import Photo, PhotoFolder
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.atomic import atomic_write
from coam.store.journal import Pair, PairJournal, Record
from coam.types import FloatArray, Grid, IntArray, Matches, Size

Evidence = Mapping[Pair, npt.NDArray[Any]]  # pair -> (4,): what they share when photo 1 is turned so often


CHUNK_PHOTOS = 16  # that a worker describes at once


class TurnScoutLike(Protocol):
    """What compares photos in quarter turns: `coam.matcher.turns.TurnScout`, or anything like it."""

    def descriptors(self, photo: Path) -> FloatArray:
        """Global descriptors (4, D) of a photo in all four turns."""
        ...

    def evidence(self, photo0: Path, photo1: Path) -> FloatArray | None:
        """How much (4,) photo 0 and photo 1 in each turn have in common."""
        ...


@dataclass(frozen=True)
class OrientationOptions:
    """When a photo counts as turned. Chosen on the courtyard."""

    compared: int = 4  # photos, most alike in any turn, that each is compared with
    min_evidence: float = 3.0  # coarse cells that find each other: pairs with fewer say nothing
    lead: float = 1.5  # times the evidence for any other turn: below that a photo is left as it is
    sweeps: int = 20  # over all photos, each of which takes the turn that most speaks for


DEFAULT_ORIENTATION = OrientationOptions()


def find_turns(
    scout: TurnScoutLike,
    matcher: Any,
    folder: PhotoFolder,
    place: Path,
    options: OrientationOptions = DEFAULT_ORIENTATION,
    show_progress: bool = False,
    workers: Workers = HERE,
    load: LoadMatcher | None = None,
) -> dict[str, int]:
    """By how many quarters photos must be turned to stand upright: those that must, by name.

    What is compared is kept in journals in the folder `place`, so that a killed run goes on. load: makes the
    same matcher in a worker (picklable); without it all is done here.
    """
    if load is None:
        workers = HERE
    make = partial(_scout_of, load, scout if workers is HERE else None)
    names = folder.names
    digests = {photo.name: photo.digest for photo in folder.photos} | {"": ""}
    paths = {photo.name: photo.path for photo in folder.photos}
    key = f"turns {matcher_key(matcher)}"
    looks = PairJournal(place / "turned_descriptors.h5")
    stamps = pair_stamps([(name, "") for name in names], digests, key)
    todo = [name for name, _ in looks.missing(stamps)]
    task = Task(partial(_looking, make), todo, CHUNK_PHOTOS, files=paths, reads=lambda n: [n], network=True)
    records = (((n, ""), Record({"look": look}, {}, stamps[n, ""])) for n, look in workers.run(task))
    store_results(looks, stamps, records, show_progress, "which way up")
    pairs = similar_in_any_turn(
        names, np.stack([looks.read((n, "")).columns["look"] for n in names]), options.compared
    )
    looks.close()
    found = PairJournal(place / "turns.h5")
    wanted = pair_stamps(pairs, digests, key)
    left = order_pairs(found.missing(wanted), CACHE_IMAGES)
    task = Task(partial(_comparing, make), left, CHUNK_PAIRS, files=paths, reads=lambda p: p, network=True)
    records = ((pair, Record({"evidence": seen}, {}, wanted[pair])) for pair, seen in workers.run(task))
    store_results(found, wanted, records, show_progress, "comparing turns")
    evidence = {pair: found.read(pair).columns["evidence"] for pair in wanted}
    found.close()
    return {name: turn for name, turn in solve_turns(names, evidence, options).items() if turn}


def _scout_of(load: Any, scout: TurnScoutLike | None) -> TurnScoutLike:
    """The scout that is here, or one of a worker's own matcher."""
    return scout or load().turn_scout()


def _looking(make: Callable[[], TurnScoutLike]) -> Work:
    """What a worker does with names of photos."""
    scout = make()

    def look(names: Iterable[str], paths: Mapping[str, Path]) -> Iterator[tuple[str, FloatArray]]:
        for name in names:
            yield name, np.asarray(scout.descriptors(paths[name]))

    return look


def _comparing(make: Callable[[], TurnScoutLike]) -> Work:
    """What a worker does with pairs of photos."""
    scout = make()

    def compare(pairs: Iterable[Pair], paths: Mapping[str, Path]) -> Iterator[tuple[Pair, FloatArray]]:
        for pair in pairs:
            evidence = scout.evidence(paths[pair[0]], paths[pair[1]])
            yield pair, np.zeros(4, np.float32) if evidence is None else np.asarray(evidence, np.float32)

    return compare


def similar_in_any_turn(names: Sequence[str], looks: FloatArray, count: int) -> list[Pair]:
    """Each photo with the `count` most similar others, however they lie. looks (n, 4, D): in all turns."""
    centred = looks - looks.mean(axis=(0, 1)) if len(names) > 2 else looks
    centred = centred / np.maximum(np.linalg.norm(centred, axis=2, keepdims=True), 1e-12)
    pairs = set()
    for index, name in enumerate(names):
        likeness = (centred @ centred[index, 0]).max(axis=1)
        likeness[index] = -np.inf
        for other in np.argsort(-likeness, kind="stable")[: min(count, len(names) - 1)]:
            pairs.add((min(name, names[other]), max(name, names[other])))
    return sorted(pairs)


def solve_turns(
    names: Sequence[str], evidence: Evidence, options: OrientationOptions = DEFAULT_ORIENTATION
) -> dict[str, int]:
    """The turn (0 to 3) of every photo that most of `evidence` agrees with; most photos stand upright.

    Photos are joined, the surest pairs first, and then each takes the turn that its pairs speak for. Of a
    set of photos that hang together all could be turned alike: the fewest are.
    """
    votes: dict[str, list[tuple[str, npt.NDArray[Any]]]] = defaultdict(list)
    sure = []
    for (a, b), found in evidence.items():
        if found.max() >= options.min_evidence:
            votes[a].append((b, found[[0, 3, 2, 1]]))  # seen from b: a is turned the other way
            votes[b].append((a, found))
            ordered = np.sort(found)
            sure.append((float(ordered[-1] - ordered[-2]), a, b, int(found.argmax())))
    turn, group = dict.fromkeys(names, 0), {name: [name] for name in names}
    for _, a, b, relative in sorted(sure, key=lambda edge: (-edge[0], edge[1:])):
        if group[a] is not group[b]:
            change = (turn[a] + relative - turn[b]) % 4
            for name in group[b]:
                turn[name] = (turn[name] + change) % 4
            joined = group[a] + group[b]
            group.update(dict.fromkeys(joined, joined))
    for _ in range(options.sweeps):
        before = dict(turn)
        for name in names:
            if votes[name]:
                turn[name] = int(_ballot(name, turn, votes).argmax())
        if turn == before:
            break
    for members in {id(joined): joined for joined in group.values()}.values():
        _as_few_as_possible(members, turn, evidence)
    for name in names:
        if turn[name]:
            ballot = _ballot(name, turn, votes)
            others = np.delete(ballot, turn[name])
            if ballot[turn[name]] < options.lead * others.max():
                turn[name] = 0
    return turn


def _ballot(
    name: str, turn: Mapping[str, int], votes: Mapping[str, Sequence[tuple[str, npt.NDArray[Any]]]]
) -> FloatArray:
    """How much (4,) speaks for each turn of a photo, when the others lie as `turn` says."""
    ballot = np.zeros(4, np.float32)
    for other, found in votes[name]:
        for relative in range(4):
            ballot[(turn[other] + relative) % 4] += found[relative]
    return ballot


def _as_few_as_possible(members: Sequence[str], turn: dict[str, int], evidence: Evidence) -> None:
    """Turn all `members` alike so that most stay as they are; of two halves, those that match better do."""
    counts = np.bincount([turn[name] for name in members], minlength=4)
    alike = np.zeros(4)
    inside = set(members)
    for (a, b), found in evidence.items():
        if a in inside and b in inside and turn[a] == turn[b]:
            alike[turn[a]] = max(alike[turn[a]], found[0])
    best = max(range(4), key=lambda t: (counts[t], alike[t], -t))
    for name in members:
        turn[name] = (turn[name] - best) % 4


# ---- upright copies


def upright_folder(folder: PhotoFolder, turns: Mapping[str, int], copies: Path) -> PhotoFolder:
    """The same photos, those in `turns` as upright copies in the folder `copies`; names stay as they are."""
    return replace(
        folder, photos=tuple(upright_photo(p, turns.get(p.name, 0), copies) for p in folder.photos)
    )


def upright_photo(photo: Photo, turn: int, copies: Path) -> Photo:
    """A photo as its upright copy, which is written where it is not there yet."""
    if turn == 0:
        return photo
    digest = text_digest(f"{photo.digest} turned {turn}")
    path = copies / f"{digest}.jpg"
    if not path.is_file():
        from PIL import Image

        with atomic_write(path) as temporary:
            upright = np.ascontiguousarray(np.rot90(load_image(photo.path).rgb, turn))
            Image.fromarray(upright).save(temporary, format="JPEG", quality=97, subsampling=0)
    return replace(photo, path=path, digest=digest, size=turned_size(photo.size, turn))


def turned_size(size: Size, turn: int) -> Size:
    """(width, height) of a picture of `size`, turned."""
    return (size[1], size[0]) if turn % 2 else size


# ---- back to the pixels of the files


def turn_grid(grid: Grid, size: Size, turn: int) -> Grid:
    """The grid of a picture of `size` when the picture is turned."""
    if turn % 4 == 0:
        return grid
    (x, y), (across, down) = grid.origin, grid.step
    last = size[0] - 1 - x - (grid.columns - 1) * across
    once = Grid(grid.rows, grid.columns, (y, last), (down, across))
    return turn_grid(once, turned_size(size, 1), turn % 4 - 1)


def turn_ids(ids: IntArray, grid: Grid, turn: int) -> IntArray:
    """Ids (N,) of the same positions in the turned grid."""
    if turn % 4 == 0:
        return ids
    row, column = ids // grid.columns, ids % grid.columns
    once = (grid.columns - 1 - column) * grid.rows + row
    swapped = Grid(grid.rows, grid.columns, grid.origin, grid.step)
    return turn_ids(once, swapped, turn % 4 - 1)


def turn_record(record: Record, turn0: int, turn1: int) -> Record:
    """The stored matches of a pair when its photos are turned."""
    columns, values = dict(record.columns), dict(record.values)
    sizes = [tuple(int(side) for side in values["sizes"][i : i + 2]) for i in (0, 2)]
    for side, turn, size in (("0", turn0, sizes[0]), ("1", turn1, sizes[1])):
        grid = grid_from_array(values[f"grid{side}"])
        ids = columns[f"ids{side}"]
        columns[f"ids{side}"] = turn_ids(ids.astype(np.int64), grid, turn).astype(ids.dtype)
        values[f"grid{side}"] = grid_to_array(turn_grid(grid, (size[0], size[1]), turn))
    for _ in range(turn1 % 4):  # a step to the right becomes one upwards
        offsets = columns["offsets"]
        columns["offsets"] = np.stack([offsets[:, 1], -offsets[:, 0]], axis=1)
    turned = [*turned_size(sizes[0], turn0), *turned_size(sizes[1], turn1)]  # type: ignore[arg-type]
    values["sizes"] = np.array(turned, np.int64)
    return Record(columns, values, record.stamp)


def turn_first_photo(matches: Matches, turn: int) -> Matches:
    """The matches of a pair when its first photo is turned."""
    if turn % 4 == 0:
        return matches
    grid = matches.grid0
    return replace(
        matches,
        points0=rotate_points(matches.points0, turn, *matches.size0),
        ids0=matches.ids0 if grid is None else turn_ids(matches.ids0, grid, turn),
        grid0=None if grid is None else turn_grid(grid, matches.size0, turn),
        size0=turned_size(matches.size0, turn),
        image0=None,
    )


class TurnedBack(PairJournal):
    """Stored matches of upright copies, read in pixels of the files."""

    def __init__(self, path: Path, turns: Mapping[str, int]) -> None:
        super().__init__(path)
        self.turns = turns

    def read(self, pair: Pair) -> Record:
        """The matches of one pair in pixels of the files."""
        turn0, turn1 = (self.turns.get(name, 0) for name in pair)
        return turn_record(super().read(pair), -turn0, -turn1)
