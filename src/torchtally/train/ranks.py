"""The processes of one training: which of them this is, and what they tell each other.

A rank is one process with one device. `torchrun` starts them and says in the environment which is
which. Tensors of the training go by the device's own backend (NCCL on GPUs, gloo on the CPU); the
host's small numbers go by gloo, so that reading them waits for no GPU.

Every rank must come to the same call: what one rank alone asks for, it waits for in vain. So all
that is decided from data is decided from numbers that were gathered, which are the same on every
rank to the bit.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed import ProcessGroup

from torchtally.errors import TallyError, UsageError

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Of the default group, by the type of device that is trained on."""


class LostRanksError(TallyError):
    """Another rank has ended or failed. This one is well, and has nothing more to say."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among all. By itself (`size` 1) it talks to nobody."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those of this machine: the number of its GPU."""
    group: ProcessGroup | None = None
    """By gloo, for the main thread's host numbers."""
    saving_group: ProcessGroup | None = None
    """By gloo, for the thread that writes checkpoints."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def saving(self) -> "Ranks":
        """The same ranks, for the thread that writes checkpoints."""
        return replace(self, group=self.saving_group)

    def gather(self, numbers: Sequence[float | int]) -> list[list[float]]:
        """Every rank's numbers, in the order of ranks; as many from each. Exact in float64."""
        own = [float(number) for number in numbers]
        if self.size == 1:
            return [own]
        mine = torch.tensor(own, dtype=torch.float64, device="cpu")
        theirs = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(theirs, mine, group=self.group)
        return [theirs_here.tolist() for theirs_here in theirs]

    def gather_on_device(
        self, numbers: Shaped[Tensor, " numbers"]
    ) -> Shaped[Tensor, "ranks numbers"]:
        """The same for numbers on the training's device; the host waits for nothing."""
        if self.size == 1:
            return numbers[None]
        theirs = [torch.empty_like(numbers) for _ in range(self.size)]
        dist.all_gather(theirs, numbers)
        return torch.stack(theirs)

    def max(self, *numbers: int) -> tuple[int, ...]:
        """The largest of all ranks, one by one; below 2**53."""
        columns = zip(*self.gather([float(number) for number in numbers]), strict=True)
        return tuple(int(max(column)) for column in columns)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value: None, booleans, numbers, strings, bytes, and lists and dicts of them.

        Tuples come as lists, with one rank too. The other ranks' values do not matter.
        """
        sent = msgspec.msgpack.encode(value if self.is_first else None)
        if self.size > 1:
            length = torch.tensor(len(sent), device="cpu")
            dist.broadcast(length, 0, group=self.group)
            content = np.frombuffer(sent.ljust(int(length))[: int(length)], np.uint8).copy()
            dist.broadcast(torch.from_numpy(content), 0, group=self.group)
            sent = content.tobytes()
        return msgspec.msgpack.decode(sent)

    def run_on_first(self, work: Callable[[], Any], what: str) -> Any:
        """Rank 0 works, the others wait for it; its result, as `from_first`, on every rank.

        Where it fails, rank 0 raises what it raised and the others LostRanksError: none hangs.
        The wait is bounded by the group's timeout, half an hour.
        """
        if self.size == 1:
            return work()
        if not self.is_first:
            is_done, result = self.broadcast(None)
            if not is_done:
                raise LostRanksError(f"rank 0 has failed to {what}")
            return result
        try:
            result = work()
        except BaseException:
            self.broadcast((False, None))
            raise
        return self.broadcast((True, result))[1]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def sum(self, numbers: Sequence[float | int]) -> list[float]:
        """Sums over the ranks, in their order: the same bits on every rank."""
        return [reduce(add, column) for column in zip(*self.gather(numbers), strict=True)]

    def seed(self, seed: int) -> int:
        """A rank's own from one of all: the same for rank 0, another for every other.

        For what must differ between ranks, as dropout; what must not has the seed itself.
        """
        if self.is_first:
            return seed
        sequence = np.random.SeedSequence(seed, spawn_key=(*b"rank", self.rank))
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


ALONE = Ranks()


def launched_rank() -> Ranks:
    """Which rank the environment says that this process is, before any talks; ALONE without one.

    Raises UsageError for an environment that is none of torchrun's.
    """
    if "RANK" not in os.environ:
        return ALONE
    try:
        rank, size, local_rank = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"RANK is set to {os.environ['RANK']!r}, as for one rank of many, but {error} is not "
            "there or no number. Start with torchrun, or unset RANK to train alone."
        ) from error
    if not 0 <= rank < size:
        raise UsageError(f"RANK is {rank}, WORLD_SIZE {size}: start with torchrun.")
    return ALONE if size == 1 else Ranks(rank, size, local_rank)


@contextmanager
def join_ranks(device_type: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, ready to talk; ALONE without it, or where it starts one.

    Ends the process group, but not after an exception: that could wait for ranks that are gone, and
    `failing_together` ends the process.
    """
    own = launched_rank()
    if own.size == 1:
        yield own
        return
    if device_type not in BACKENDS:
        raise UsageError(f"device: {device_type} has no ranks. Train on cuda or on the cpu.")
    dist.init_process_group(BACKENDS[device_type], rank=own.rank, world_size=own.size)
    group, saving_group = (dist.new_group(backend="gloo") for _ in range(2))
    yield replace(own, group=group, saving_group=saving_group)
    dist.destroy_process_group()
