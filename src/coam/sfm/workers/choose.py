"""Which workers the options of a command ask for."""

from __future__ import annotations

from coam.errors import ConfigError
from coam.sfm.workers.pool import HERE, Workers
from coam.sfm.workers.processes import Processes
from coam.sfm.workers.ray_actors import RayActors


def choose_workers(count: int = 1, ray: str | None = None, gpus_per_worker: float = 0.0) -> Workers:
    """`count` workers: actors of the Ray cluster at `ray` ("local": one started for this), or processes of
    this machine; one without Ray is this process.
    """
    if ray is not None:
        return RayActors(count, ray, gpus_per_worker)
    if gpus_per_worker:
        raise ConfigError("--gpus-per-worker is for --ray; processes of one machine take turns on its GPUs")
    return HERE if count == 1 else Processes(count)
