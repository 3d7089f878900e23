"""Distributed matching: several processes or a Ray cluster, with the same results as one process.

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
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from coam.errors import CoamError, ConfigError, DataError, MissingExtraError
from coam.sfm.matching.match_pairs import MatchingPlan, match_records, plan_matching, store_results
from coam.sfm.photos import PhotoFolder
from coam.store.journal import Pair, PairJournal, Record
from coam.types import PairMatcher

LoadMatcher = Callable[[], PairMatcher]  # must be picklable: a function of a module, or a partial of one
Chunk = dict[Pair, str]  # pairs and their stamps
Records = list[tuple[Pair, Record]]
CHUNK_PAIRS = 16
MAX_LOSSES_IN_A_ROW = 5  # workers that die without finishing anything: then it is the work, not the worker


def _chunks(plan: MatchingPlan, size: int) -> list[Chunk]:
    """What is left to do in chunks, the first one last: they are taken from the end."""
    todo = list(plan.todo.items())
    return [dict(todo[begin : begin + size]) for begin in range(0, len(todo), size)][::-1]


def _photos_of(chunk: Chunk, photos: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `photos` (by name) that a chunk needs."""
    return {name: photos[name] for pair in chunk for name in pair}


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


def _work_on(chunk: Chunk, paths: Mapping[str, Path]) -> Records:
    assert _matcher is not None
    return list(match_records(_matcher, paths, chunk))


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
    there are; results and resuming as in `coam.sfm.matching.match_pairs`.
    """
    plan = plan_matching(load(), folder, pairs, output)
    results = _run_on_processes(plan, _chunks(plan, chunk_pairs), load, workers, threads)
    return store_results(plan.journal, plan.stamps, results, show_progress)


def _run_on_processes(
    plan: MatchingPlan, waiting: list[Chunk], load: LoadMatcher, workers: int, threads: int
) -> Iterator[tuple[Pair, Record]]:
    losses = 0
    gpus = sys.modules["torch"].cuda.device_count() if "torch" in sys.modules else 0
    context = get_context("spawn")  # not fork: torch's threads and CUDA do not survive a fork
    while waiting:
        running: dict[Future[Records], Chunk] = {}
        for_workers = (load, threads, context.Value("i", 0), gpus)
        with ProcessPoolExecutor(workers, context, _start_worker, for_workers) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * workers:
                        chunk = waiting[-1]
                        running[pool.submit(_work_on, chunk, _photos_of(chunk, plan.paths))] = chunk
                        waiting.pop()
                    for job in wait(running, return_when=FIRST_COMPLETED).done:
                        records = job.result()
                        running.pop(job)
                        losses = 0
                        yield from records
            except BrokenProcessPool:  # a worker died and the pool with it; unfinished chunks are done again
                losses += 1
                if losses > MAX_LOSSES_IN_A_ROW:
                    raise DataError(
                        f"{losses} workers died one after another; there may be too little memory, "
                        "try fewer --workers"
                    ) from None
                for job, chunk in running.items():
                    if job.done() and job.exception() is None:
                        yield from job.result()
                    else:
                        waiting.append(chunk)


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
) -> PairJournal:
    """Match on a Ray cluster at `address` ("local": started here for this call; None: the one that is
    running). gpus_per_worker: how much of a GPU every worker gets, for example 1 or 0.25; with 0 Ray hides
    the GPUs from them.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    started_here = not ray.is_initialized()
    if started_here:
        connect_to_ray(address, workers)
    try:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        _require_gpus(resources.get("GPU", 0.0), workers, gpus_per_worker)
        plan = plan_matching(load(), folder, pairs, output)
        results = _run_on_ray(plan, _chunks(plan, chunk_pairs), load, workers, gpus_per_worker)
        return store_results(plan.journal, plan.stamps, results, show_progress)
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

        def match(self, chunk: Chunk, photos: dict[str, Any]) -> Records:
            """photos: name -> reference to the bytes of a file."""
            for name, reference in photos.items():
                if name not in self.paths:
                    target = Path(self.folder.name) / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(ray.get(reference))
                    self.paths[name] = target
            return list(match_records(self.matcher, self.paths, chunk))

    return MatchWorker


def _run_on_ray(
    plan: MatchingPlan, waiting: list[Chunk], load: LoadMatcher, workers: int, gpus: float
) -> Iterator[tuple[Pair, Record]]:
    import ray

    photos = {name: ray.put(path.read_bytes()) for name, path in _photos_of(plan.todo, plan.paths).items()}
    worker_class = _worker_class(gpus)
    running: dict[Any, tuple[Any, Chunk]] = {}
    losses = 0

    def give(actor: Any) -> None:
        chunk = waiting.pop()
        running[actor.match.remote(chunk, _photos_of(chunk, photos))] = actor, chunk

    for _ in range(min(workers, len(waiting))):
        give(worker_class.remote(load))
    while running:
        (job,), _ = ray.wait(list(running), num_returns=1)
        actor, chunk = running.pop(job)
        try:
            records: Records = ray.get(job)
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
        yield from records
