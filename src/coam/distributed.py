"""The same matching on several processes or machines, with the same results.

Pairs are cut into chunks; a worker holds a matcher and gets one chunk at a time; only the process that
started the work writes results. A worker that dies loses one chunk, which is given to another. A pair's
matches depend on its two photos and the matcher alone, never on the worker, so any number of workers gives
the same file.

On Ray, objects hold the photos' bytes rather than encoded features: 0.3 MB travel faster than a feature
pyramid of tens of MB, and a GPU encodes the photo again in less time than the difference. Every worker
encodes a photo once while it stays in its cache, and chunks are cut so that it mostly does.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from coam.errors import CoamError, ConfigError, DataError, MissingExtraError
from coam.sfm.journal import Pair, PairJournal, Record
from coam.sfm.match_pairs import (
    PairMatcher,
    PairProgress,
    cached_images,
    match_chunk,
    matcher_key,
    order_pairs,
    pair_stamps,
)
from coam.sfm.photos import PhotoFolder

LoadMatcher = Callable[
    [], PairMatcher
]  # must be picklable: a function of a module, or functools.partial of one
CHUNK_PAIRS = 16
MAX_LOSSES_IN_A_ROW = 5  # workers that die without finishing anything: then it is the work, not the worker


@dataclass(frozen=True)
class Work:
    """What is left to do, cut into chunks."""

    journal: PairJournal
    stamps: dict[Pair, str]
    chunks: list[list[Pair]]
    paths: dict[str, Path]


def plan_work(
    folder: PhotoFolder,
    pairs: Sequence[Pair],
    output: Path,
    load: LoadMatcher,
    chunk_pairs: int = CHUNK_PAIRS,
) -> Work:
    """Pairs that `output` does not hold yet, in an order that suits caches, in chunks."""
    matcher = load()
    stamps = pair_stamps(pairs, {p.name: p.digest for p in folder.photos}, matcher_key(matcher))
    journal = PairJournal(output)
    todo = order_pairs(journal.missing(stamps), cached_images(matcher))
    chunks = [todo[begin : begin + chunk_pairs] for begin in range(0, len(todo), chunk_pairs)]
    return Work(journal, stamps, chunks, {p.name: p.path for p in folder.photos})


def _collect(work: Work, results: Iterator[dict[Pair, Record]], show_progress: bool) -> PairJournal:
    left = sum(len(chunk) for chunk in work.chunks)
    with PairProgress(len(work.stamps), len(work.stamps) - left, show_progress) as progress:
        for records in results:
            work.journal.append(records)
            progress.advance(len(records))
    work.journal.finish(work.stamps)
    return work.journal


# ---- processes of this machine

_matcher: PairMatcher | None = None  # of a worker process


def _start_worker(load: LoadMatcher, threads: int, started: Any, gpus: int) -> None:
    """started: how many workers there are already, shared by them; gpus: how many this machine has."""
    global _matcher
    with started.get_lock():
        rank = started.value
        started.value += 1
    if gpus > 1:
        import torch

        torch.cuda.set_device(rank % gpus)  # what the device "cuda" without a number means from now on
    _matcher = load()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def _work_on(
    paths: Mapping[str, Path], chunk: Sequence[Pair], stamps: Mapping[Pair, str]
) -> dict[Pair, Record]:
    assert _matcher is not None
    return match_chunk(_matcher, paths, chunk, stamps)


def match_on_processes(
    folder: PhotoFolder,
    pairs: Sequence[Pair],
    output: str | Path,
    load: LoadMatcher,
    workers: int = 2,
    chunk_pairs: int = CHUNK_PAIRS,
    threads: int = 1,
    show_progress: bool = False,
) -> PairJournal:
    """Match on `workers` processes of `threads` threads each, which take turns in choosing one of the GPUs
    there are; results and resuming as in `coam.sfm.match_pairs`.
    """
    work = plan_work(folder, pairs, Path(output), load, chunk_pairs)
    return _collect(work, _run_on_processes(work, load, workers, threads), show_progress)


def _run_on_processes(
    work: Work, load: LoadMatcher, workers: int, threads: int
) -> Iterator[dict[Pair, Record]]:
    waiting = list(reversed(work.chunks))
    losses = 0
    gpus = sys.modules["torch"].cuda.device_count() if "torch" in sys.modules else 0
    context = get_context("spawn")  # not fork: torch's threads and CUDA do not survive a fork
    while waiting:
        running: dict[Future[dict[Pair, Record]], list[Pair]] = {}
        for_workers = (load, threads, context.Value("i", 0), gpus)
        with ProcessPoolExecutor(workers, context, _start_worker, for_workers) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * workers:
                        chunk = waiting[-1]
                        job = pool.submit(
                            _work_on, _needed(work.paths, chunk), chunk, _needed(work.stamps, chunk)
                        )
                        running[job] = waiting.pop()
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for job in finished:
                        records = job.result()
                        running.pop(job)
                        losses = 0
                        yield records
            except (
                BrokenProcessPool
            ):  # one worker died: the pool is gone, but only unfinished chunks are done again
                losses += 1
                if losses > MAX_LOSSES_IN_A_ROW:
                    raise DataError(f"{losses} workers died one after another; there may be too little "
                    f"memory, "
                                    "try fewer --workers") from None  # fmt: skip
                for job, chunk in running.items():
                    if job.done() and job.exception() is None:
                        yield job.result()
                    else:
                        waiting.append(chunk)


def _needed(values: Mapping[Any, Any], chunk: Sequence[Pair]) -> dict[Any, Any]:
    """The part of a mapping (by photo or by pair) that a chunk needs."""
    names = {name for pair in chunk for name in pair}
    return {key: values[key] for key in values if key in names or key in chunk}


# ---- Ray


def match_on_ray(
    folder: PhotoFolder,
    pairs: Sequence[Pair],
    output: str | Path,
    load: LoadMatcher,
    address: str | None = None,
    workers: int = 2,
    chunk_pairs: int = CHUNK_PAIRS,
    gpus_per_worker: float = 0.0,
    show_progress: bool = False,
    on_start: Callable[[list[Any]], None] | None = None,
) -> PairJournal:
    """Match on a Ray cluster at `address` ("local": started here for this call; None: the one that is
    running). gpus_per_worker: how much of a GPU every worker gets, for example 1 or 0.25; with 0 Ray hides
    the GPUs from them.

    on_start: gets the worker actors, to watch them (or, in tests, to kill one).
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    started_here = not ray.is_initialized()
    if started_here:
        connect_to_ray(address, workers)
    try:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        _require_gpus(resources.get("GPU", 0.0), workers, gpus_per_worker)
        work = plan_work(folder, pairs, Path(output), load, chunk_pairs)
        return _collect(work, _run_on_ray(work, load, workers, gpus_per_worker, on_start), show_progress)
    finally:
        if started_here:
            ray.shutdown()


def connect_to_ray(address: str | None, workers: int) -> None:
    """Connect to a cluster, or start one on this machine for `address` "local"."""
    import ray

    try:
        if address == "local":
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
        else:
            ray.init(address=address or "auto", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise CoamError(
            f"no Ray cluster at {address or 'auto'}; start one with: ray start --head, or use --ray local"
        ) from error


def _require_gpus(there: float, workers: int, each: float) -> None:
    """One line where Ray would wait for GPUs that do not come."""
    if workers * each > there:
        raise ConfigError(
            f"{workers} workers with {each:g} GPUs each need {workers * each:g}, the Ray cluster has "
            f"{there:g}; give fewer --workers or --gpus-per-worker"
        )


def _worker_class(gpus: float) -> Any:
    import ray

    @ray.remote(num_cpus=1, num_gpus=gpus)
    class MatchWorker:
        """Holds a matcher and the photos it has been sent."""

        def __init__(self, load: LoadMatcher) -> None:
            self.matcher = load()
            self.folder = tempfile.TemporaryDirectory(prefix="coam-")
            self.paths: dict[str, Path] = {}

        def match(
            self, photos: dict[str, Any], chunk: list[Pair], stamps: dict[Pair, str]
        ) -> dict[Pair, Record]:
            """photos: name -> reference to the bytes of a file."""
            for name, reference in photos.items():
                if name not in self.paths:
                    target = Path(self.folder.name) / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(ray.get(reference))
                    self.paths[name] = target
            return match_chunk(self.matcher, self.paths, chunk, stamps)

    return MatchWorker


def _run_on_ray(
    work: Work, load: LoadMatcher, workers: int, gpus: float, on_start: Callable[[list[Any]], None] | None
) -> Iterator[dict[Pair, Record]]:
    import ray

    names = {name for chunk in work.chunks for pair in chunk for name in pair}
    photos = {name: ray.put(work.paths[name].read_bytes()) for name in sorted(names)}
    worker_class = _worker_class(gpus)
    actors = [worker_class.remote(load) for _ in range(min(workers, max(1, len(work.chunks))))]
    if on_start is not None:
        on_start(actors)
    waiting = list(reversed(work.chunks))
    running: dict[Any, tuple[Any, list[Pair]]] = {}
    losses = 0

    def give(actor: Any) -> None:
        chunk = waiting.pop()
        job = actor.match.remote(_needed(photos, chunk), chunk, _needed(work.stamps, chunk))
        running[job] = actor, chunk

    for actor in actors:
        if waiting:
            give(actor)
    while running:
        (job,), _ = ray.wait(list(running), num_returns=1)
        actor, chunk = running.pop(job)
        try:
            records: dict[Pair, Record] = ray.get(job)
        except ray.exceptions.RayActorError as error:
            losses += 1
            if losses > MAX_LOSSES_IN_A_ROW:
                raise DataError(f"{losses} workers died one after another; see the logs of Ray") from error
            waiting.append(chunk)
            give(worker_class.remote(load))
            continue
        losses = 0
        if waiting:
            give(actor)
        yield records
