"""How many runs go on at a time, and what of the machine each of them sees."""

import os
from collections.abc import Mapping

import torch

from torchtally.train.config import TrainConfig
from torchtally.train.trainer import device_of

VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"


def share(
    config: TrainConfig,
    *,
    workers: int | None,
    threads: int | None,
    runs: int,
    environment: Mapping[str, str] = os.environ,
) -> tuple[dict[str, str], ...]:
    """The machine divided among `workers`, or as many as suit it; no more than there are runs.

    What each worker gets, as variables of its environment.

    A worker for each GPU, and more share them out. On the CPU one, or as many as have `threads`
    cores each where that is given, here or by OMP_NUM_THREADS. Raises UsageError for a device that
    is not there.
    """
    visible = _gpus(config, environment)
    cores = _cores()
    set_threads = threads or _whole(environment.get(THREADS, ""))
    if workers is None:
        workers = len(visible) or (max(cores // set_threads, 1) if set_threads else 1)
    workers = max(min(workers, runs), 1)
    of_each = set_threads or max(cores // workers, 1)
    return tuple(
        {THREADS: str(of_each), **({VISIBLE: visible[n % len(visible)]} if visible else {})}
        for n in range(workers)
    )


def _gpus(config: TrainConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that runs are spread over; none where the config names one, or the CPU."""
    device = device_of(config)
    if device.type != "cuda" or device.index is not None:
        return ()
    named = environment.get(VISIBLE, "")
    # Names of MIG parts and UUIDs stay as they are; torch counts those that it can use.
    names = [word.strip() for word in named.split(",") if word.strip()]
    count = torch.cuda.device_count()
    return tuple(names[:count]) if names else tuple(map(str, range(count)))


def _cores() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) else None
