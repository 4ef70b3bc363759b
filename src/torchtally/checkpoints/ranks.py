"""The processes of one training: this process's rank, and collectives on small numbers.

A rank is one process with one device, started by `torchrun`, which sets the environment. Training
tensors use the device's backend (NCCL on GPUs, gloo on the CPU); host numbers use gloo, so that
reading them does not synchronize with a GPU.

Every rank must make the same calls: a collective that one rank skips hangs. So all decisions are
made from gathered numbers, which are bitwise equal on every rank.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed import ProcessGroup

from torchtally.checkpoints.seeds import derive_seed
from torchtally.errors import TallyError, UsageError

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Backends of the default group, by device type."""


class LostRanksError(TallyError):
    """Another rank has failed; this one has no error of its own."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One process among all; with `size` 1 collectives are no-ops."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among those of this machine: the index of its GPU."""
    group: ProcessGroup | None = None
    """A gloo group for the main thread's host numbers."""
    saving_group: ProcessGroup | None = None
    """A gloo group for the thread that writes checkpoints."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, numbers: Sequence[float | int]) -> list[list[float]]:
        """All ranks' numbers, in rank order; equally many from each. Exact in float64."""
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
        """The same for numbers on the training's device, without synchronizing."""
        if self.size == 1:
            return numbers[None]
        theirs = [torch.empty_like(numbers) for _ in range(self.size)]
        dist.all_gather(theirs, numbers)
        return torch.stack(theirs)

    def max(self, *numbers: int) -> tuple[int, ...]:
        """The elementwise maximum over all ranks; values below 2**53."""
        columns = zip(*self.gather([float(number) for number in numbers]), strict=True)
        return tuple(int(max(column)) for column in columns)

    def gather_values(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order: None, booleans, numbers, strings, and lists and dicts
        of them; tuples become lists with several ranks.
        """
        if self.size == 1:
            return [value]
        texts: list[bytes] = [b""] * self.size
        dist.all_gather_object(texts, msgspec.json.encode(value), group=self.group)
        return [msgspec.json.decode(text) for text in texts]

    def run_on_first(self, work: Callable[[], Any], what: str) -> Any:
        """Run `work` on rank 0 while the others wait; its result on every rank, as by
        `gather_values`.

        If it fails, rank 0 raises its error and the others LostRanksError: no rank hangs. The wait
        is bounded by the group's timeout, half an hour.
        """
        if self.size == 1:
            return work()
        result, failure = None, None
        try:
            result = [work()] if self.is_first else None
        except BaseException as error:
            failure = error
        done = self.gather_values(result)[0]
        if failure is not None:
            raise failure
        if done is None:
            raise LostRanksError(f"rank 0 has failed to {what}")
        return done[0]

    def wait(self) -> None:
        """Wait until every rank has called this."""
        if self.size > 1:
            dist.barrier(group=self.group)

    def sum(self, numbers: Sequence[float | int]) -> list[float]:
        """Sums over the ranks, in rank order: bitwise equal on every rank."""
        return [reduce(add, column) for column in zip(*self.gather(numbers), strict=True)]

    def seed(self, seed: int) -> int:
        """The seed of this rank: the given one for rank 0, a different one for every other.

        For what must differ between ranks, such as dropout.
        """
        return seed if self.is_first else derive_seed(seed, *b"rank", self.rank)


ALONE = Ranks()


def launched_rank() -> Ranks:
    """The rank of this process by torchrun's environment, without groups; ALONE without torchrun.

    Raises UsageError for an incomplete environment.
    """
    if "RANK" not in os.environ:
        return ALONE
    try:
        rank, size, local_rank = (
            int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        )
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"RANK is set to {os.environ['RANK']!r}, but {error} is missing or not a number. "
            "Start with torchrun, or unset RANK to train in one process."
        ) from error
    if not 0 <= rank < size:
        raise UsageError(f"RANK is {rank}, WORLD_SIZE {size}: start with torchrun.")
    return ALONE if size == 1 else Ranks(rank, size, local_rank)


_GROUPS: list[ProcessGroup | None] = []
"""Default groups, held until the process ends.

If DDP's reducer were the last to release one, its destructor would wait, holding the GIL, for
gloo's threads, and they need the GIL to release the tensors of their last collective (torch 2.13).
"""


@contextmanager
def join_ranks(device_type: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, ready to talk; ALONE without it, or where it starts one.

    Ends the process group, but not after an exception: that could wait for ranks that are gone, and
    `fail_together` ends the process.
    """
    own = launched_rank()
    if own.size == 1:
        yield own
        return
    if device_type not in BACKENDS:
        raise UsageError(f"device: several ranks need cuda or cpu, not {device_type}.")
    dist.init_process_group(BACKENDS[device_type], rank=own.rank, world_size=own.size)
    _GROUPS.append(dist.group.WORLD)
    group, saving_group = (dist.new_group(backend="gloo") for _ in range(2))
    yield replace(own, group=group, saving_group=saving_group)
    dist.destroy_process_group()
