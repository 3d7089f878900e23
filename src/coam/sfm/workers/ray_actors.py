"""Workers that are actors of a Ray cluster, on this machine or on many.

Objects hold the files' bytes, not what a network makes of them: 0.3 MB travel faster than a feature pyramid
of tens of MB, and a GPU encodes a photo again in less time than the difference. A worker keeps the files it
has been sent, and chunks are cut so that it mostly needs those. The cluster keeps them as long as there are
chunks that read them.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coam.errors import CoamError, ConfigError, DataError, import_extra
from coam.sfm.workers.pool import Bench, Outcome, Pool, Task, Work, WorkerDied

ANSWERS_WITHIN = 10.0  # seconds: a head node that does not is not there; Ray itself would ask for minutes
ASKED_EVERY = 5.0  # seconds
GONE_AFTER = 25.0  # seconds of silence; after a minute Ray would end this process, with what is not kept


class _Head:
    """The head node of the cluster, which is asked now and then whether it is still there.

    address: "HOST:PORT", or empty for one that cannot be asked from here.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.gone = False
        self._asked = time.monotonic()
        self._silent_since: float | None = None

    def check(self) -> None:
        """One line where it is gone, in time for results to be kept."""
        if not self.address or time.monotonic() - self._asked < ASKED_EVERY:
            return
        self._asked = time.monotonic()
        if answers(self.address):
            self._silent_since = None
            return
        self._silent_since = self._silent_since or self._asked
        if self._asked - self._silent_since >= GONE_AFTER:
            self.gone = True
            raise DataError(
                "the head node of the Ray cluster is gone; run the same line again to go on, also without Ray"
            )


def answers(address: str) -> bool:
    """Whether somebody listens at "HOST:PORT"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWERS_WITHIN).close()
    except (OSError, OverflowError, ValueError):
        return False
    return True


class _Actor:
    def __init__(self, handle: Any, sent: dict[str, Any], head: _Head) -> None:
        self._handle, self._sent, self._head = handle, sent, head
        self.answer: Any = None

    def give(self, jobs: list[Any], files: Mapping[str, Path]) -> None:
        import ray

        for name, path in files.items():
            if name not in self._sent:
                self._sent[name] = ray.put(path.read_bytes())
        # In a dictionary references stay references: the actor fetches only what it has not got.
        self.answer = self._handle.do.remote(jobs, {name: self._sent[name] for name in files})

    def take(self) -> Outcome:
        import ray

        errors = ray.exceptions
        gone = (errors.RayActorError, errors.ObjectLostError, errors.NodeDiedError, errors.OutOfMemoryError)
        try:
            outcome: Outcome = ray.get(self.answer)
        except gone as error:
            raise WorkerDied from error
        return outcome

    def stop(self) -> None:
        import ray

        if not self._head.gone:  # else that would wait for it
            ray.kill(self._handle)


class RayActors(Pool[_Actor]):
    """`count` actors of a cluster at `address` ("local": started here, until `close`; else one that runs).

    gpus: how much of a GPU an actor gets that computes with a network, for example 1 or 0.25; with 0 Ray
    hides the GPUs from it.
    """

    def __init__(self, count: int, address: str, gpus: float = 0.0) -> None:
        super().__init__(count)
        self.address, self.gpus = address, gpus
        self._opened = False
        self._head = _Head("")
        self._sent: dict[str, Any] = {}  # of the task at hand: name of a file -> reference to its bytes
        self._unread: Counter[str] = Counter()  # in how many items not done yet a file is read
        import_extra("ray", "ray")

    def run(self, task: Task) -> Iterator[Any]:
        """The results of a task, chunk by chunk as they are done."""
        if task.items:
            self._connect()
        self._unread = Counter(name for item in task.items for name in set(task.reads(item)))
        try:
            yield from super().run(task)
        finally:
            self._sent.clear()

    def _connect(self) -> None:
        import ray

        if not ray.is_initialized():
            connect_to_ray(self.address, self.count)
            self._opened = True
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call,unused-ignore]
        require_gpus(resources.get("GPU", 0.0), self.count, self.gpus)
        address = ray.get_runtime_context().gcs_address
        self._head = _Head(address if answers(address) else "")

    def finished(self, task: Task, chunk: Sequence[Any]) -> None:
        """Files that no other item reads leave the cluster's memory."""
        self._unread.subtract(name for item in chunk for name in set(task.reads(item)))
        for name in {name for item in chunk for name in task.reads(item)}:
            if not self._unread[name]:
                self._sent.pop(name, None)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self._opened and not self._head.gone:
            import ray

            ray.shutdown()
            self._opened = False

    def hire(self, task: Task) -> _Actor:
        """A new actor."""
        gpus = self.gpus if task.network else 0.0
        return _Actor(_actor_class().options(num_gpus=gpus).remote(task.start), self._sent, self._head)

    def first_done(self, busy: Collection[_Actor]) -> _Actor:
        """The first of them that has done its chunk or is dead."""
        import ray

        by_answer = {worker.answer: worker for worker in busy}
        while True:
            self._head.check()
            done, _ = ray.wait(list(by_answer), num_returns=1, timeout=ASKED_EVERY)
            if done:
                return by_answer[done[0]]


@cache
def _actor_class() -> Any:
    import ray

    @ray.remote(num_cpus=1)
    class SfmWorker:
        """Holds a bench and the files it has been sent."""

        def __init__(self, start: Callable[[], Work]) -> None:
            self.bench = Bench(start)
            self.folder = tempfile.TemporaryDirectory(prefix="coam-")
            self.paths: dict[str, Path] = {}

        def do(self, jobs: list[Any], files: dict[str, Any]) -> Outcome:
            """files: name -> reference to the bytes of a file."""
            for name, reference in files.items():
                if name not in self.paths:
                    # A folder for each: names may be paths, and lead anywhere.
                    target = Path(self.folder.name) / str(len(self.paths)) / Path(name).name
                    target.parent.mkdir()
                    target.write_bytes(ray.get(reference))
                    self.paths[name] = target
            return self.bench.do(jobs, self.paths)

    return SfmWorker


def connect_to_ray(address: str, workers: int) -> None:
    """Connect to a cluster, or start one on this machine for `address` "local"."""
    import ray

    if address == "local":
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
        return
    start_one = "start one with: ray start --head, or use --ray local"
    known = address.removeprefix("ray://")
    asked = known.rpartition(":")[2].isdecimal()
    if asked and not answers(known):
        raise CoamError(f"no Ray cluster at {address}; {start_one}")
    try:
        ray.init(address=address, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        reason = f"is not there; {start_one}"
        if asked:
            reason = "lets nobody in without its token; set RAY_AUTH_TOKEN"
        raise CoamError(f"the Ray cluster at {address} {reason}") from error


def require_gpus(there: float, workers: int, each: float) -> None:
    """One line where Ray would wait for GPUs that do not come."""
    if workers * each > there:
        raise ConfigError(
            f"{workers} workers with {each:g} GPUs each need {workers * each:g}, the Ray cluster has "
            f"{there:g}; give fewer --workers or --gpus-per-worker"
        )
