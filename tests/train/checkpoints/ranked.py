"""What ranks do in their own processes: save shards, fail at it, and read them back."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.train.checkpoints.saving import described, whole
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.ranks import Ranks, join_ranks
from torchtally.checkpoints.snapshot import Snapshot
from torchtally.checkpoints.storage import read, write
from torchtally.errors import CheckpointError

SHAPES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "model/even": ((8, 3), 0),
    "model/uneven": ((7, 2), 0),
    "model/few": ((2, 5), 0),
    "model/columns": ((3, 9), 1),
    "model/replicated": ((4, 4), None),
    "optimizer/even/exp_avg": ((8, 3), 0),
}
"""Of the whole, and the axis that is cut."""


def full(name: str, step: int) -> Tensor:
    shape, _ = SHAPES[name]
    return torch.arange(torch.Size(shape).numel()).reshape(shape) + 1000.0 * step


def tensors_on(rank: int, size: int, step: int) -> dict[str, Tensor]:
    mesh = init_device_mesh("cpu", (size,))
    tensors: dict[str, Tensor] = {
        name: distribute_tensor(
            full(name, step), mesh, [Replicate() if axis is None else Shard(axis)]
        )
        for name, (_, axis) in SHAPES.items()
    }
    tensors["model/plain"] = torch.arange(6.0) + step
    tensors[f"random/{rank:05}/torch"] = torch.full((5,), rank + 10 * step)
    return tensors


def _write(run: Path, step: int, own: Ranks) -> None:
    tensors, snapshot = tensors_on(own.rank, own.size, step), Snapshot()
    snapshot.take(tensors)
    saving = replace(own, group=own.saving_group)
    write(tensors, snapshot.copies(), Checkpoints(run), described(step, own.size), saving)


def save_on_ranks(run: Path, step: int) -> None:
    with join_ranks("cpu") as own:
        _write(run, step, own)


def read_on_ranks(run: Path, step: int) -> int:
    """How many tensors were read, each of them as it was saved."""
    with join_ranks("cpu") as own:
        checkpoints, contents = Checkpoints(run), whole(run, step)
        targets = {
            name: torch.zeros_like(tensor)
            for name, tensor in tensors_on(own.rank, own.size, step).items()
            if name in contents.tensors
        }
        read(targets, checkpoints, contents, own)
        for name, target in targets.items():
            value = target.full_tensor() if isinstance(target, DTensor) else target
            expected = tensors_on(own.rank, own.size, step)[name]
            if isinstance(expected, DTensor):
                expected = full(name, step)
            assert torch.equal(value, expected), name
        return len(targets)


def fail_on_rank(run: Path, step: int, failing: int, how: str) -> str:
    """What this rank is told when one of them cannot write, or is killed."""
    with join_ranks("cpu") as own:
        native = os.write

        def fault(handle: int, part: Any) -> int:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(28, f"No space left on rank {failing}")

        if own.rank == failing:
            os.write = fault  # type: ignore[assignment]
        try:
            _write(run, step, own)
        except CheckpointError as error:
            return str(error)
        finally:
            os.write = native
        return ""
