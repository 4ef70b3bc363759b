"""How long the script's DataLoaders take for their batches, by the host's clock.

A step's predicted time begins with its batch in the host's memory. Where loading takes longer than
the step, the real run waits for it, so it is measured: on the machine at hand, which is not the
real one's, and in workers beside a simulation that needs the same CPU.
"""

import struct
import sys
from collections.abc import Callable
from mmap import mmap
from types import FrameType
from typing import Any

import torch.utils.data
from torch.utils.data import DataLoader

from torchtally import torch_private as private
from torchtally.isolation.natives import TIME
from torchtally.trace import BatchLoading, Frame
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.stand_ins import StandIn, instead_of

SLOT = struct.Struct("dq")
"""Seconds and batches of one process."""


class SharedTimes:
    """Times of one DataLoader. Forked workers share the memory; each writes into a slot of its
    own.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._slots = mmap(-1, SLOT.size * max(1, workers))

    def add(self, seconds: float) -> None:
        worker = torch.utils.data.get_worker_info()
        place = SLOT.size * (worker.id if worker else 0)
        total_s, batches = SLOT.unpack_from(self._slots, place)
        SLOT.pack_into(self._slots, place, total_s + seconds, batches + 1)

    def loading(self, frame: Frame | None) -> BatchLoading:
        pairs = list(SLOT.iter_unpack(self._slots[:]))
        seconds, batches = sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
        return BatchLoading(frame, self.workers, batches, seconds)


class LoadingTimes:
    """Times of all DataLoaders that the script iterates over."""

    def __init__(self, own_frame: Callable[[FrameType | None], Frame | None]) -> None:
        self._own_frame = own_frame
        self._times: dict[tuple[Frame | None, int], SharedTimes] = {}
        self._by_dataset: dict[int, SharedTimes] = {}
        """The latest of each, by its id, which is the same in forked workers."""

    def facts(self) -> tuple[BatchLoading, ...]:
        facts = (times.loading(frame) for (frame, _), times in self._times.items())
        return tuple(loading for loading in facts if loading.batches)

    def stand_ins(self) -> list[StandIn]:
        native_iter = DataLoader.__iter__

        def iterate(loader: DataLoader[Any]) -> Any:
            self._begin(loader, sys._getframe(1))
            return native_iter(loader)

        fetches = (instead_of(name, self._time(name)) for name in private.FETCHES)
        return [StandIn(DataLoader, "__iter__", iterate), *fetches]

    def _begin(self, loader: DataLoader[Any], caller: FrameType | None) -> None:
        key = self._own_frame(caller), loader.num_workers
        times = self._times.setdefault(key, SharedTimes(loader.num_workers))
        self._by_dataset[id(loader.dataset)] = times

    def _time(self, name: private.PrivateName) -> Callable[..., Any]:
        native = getattr(name.owner, name.name)

        def fetch(fetcher: Any, indices: Any) -> Any:
            start_s = TIME.perf_counter()
            with SCRIPT_TIME.stopped():  # told by itself
                batch = native(fetcher, indices)
            times = self._by_dataset.get(id(fetcher.dataset))
            if times is not None:
                times.add(TIME.perf_counter() - start_s)
            return batch

        return fetch
