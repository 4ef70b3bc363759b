"""Collectives of a simulated rank, beside those of real ranks that run the same program."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import torchtally
from tests.train.ranks.processes import on_ranks
from tests.virtual.distributed import programs
from tests.virtual.distributed.programs import main
from tests.virtual.distributed.replicas import REPLICAS
from tests.virtual.distributed.shards import SHARDS
from torchtally.trace import Trace
from torchtally.work import Kind, cost_of

Collectives = Counter[tuple[str, tuple[int, ...], int]]
"""(operator, ranks of its group, bytes of all its tensors) and how often."""
PROGRAMS = programs.PROGRAMS | REPLICAS | SHARDS
SIZES = (2, 4)
ALIKE = {"c10d.allgather_": "c10d._allgather_base_"}
"""On the CPU, FSDP1 gathers into a list (`FlatParamHandle._all_gather_flat_param`)."""
NOT_COUNTED = ("wait_tensor", "_wrap_tensor_autograd")
"""They communicate nothing."""


def tensor_bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(tensor_bytes, value)) if isinstance(value, (list, tuple)) else 0


class Counting(TorchDispatchMode):
    """Counts the collectives that pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Collectives = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        name = func.name().split(".")[0].replace("::", ".")
        if name.startswith(("c10d.", "_c10d_functional.")) and not name.endswith(NOT_COUNTED):
            arguments = (*args, *(kwargs or {}).values())
            name = ALIKE.get(name, name)
            self.counts[name, ranks_of(arguments), tensor_bytes(arguments)] += 1
        return func(*args, **(kwargs or {}))


def ranks_of(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Of the group among the arguments: its name, or an object of TorchScript."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(argument)))
        if isinstance(argument, dist.ProcessGroup):
            return tuple(dist.get_process_group_ranks(argument))
        if isinstance(argument, str) and argument not in ("sum", "avg", "max", "min"):
            group = dist.distributed_c10d._resolve_process_group(argument)
            return tuple(dist.get_process_group_ranks(group))
    raise AssertionError(f"no group in {arguments}")


def counted(names: list[str]) -> dict[str, Collectives]:
    """By program, in a real rank."""
    dist.init_process_group("gloo")
    counts = {}
    for name in names:
        with Counting() as counting:
            PROGRAMS[name]("cpu")
        counts[name] = counting.counts
    dist.destroy_process_group()
    return counts


@cache
def real(size: int) -> list[dict[str, Collectives]]:
    """By rank, of so many."""
    answers: list[dict[str, Collectives]] = on_ranks(counted, size, list(PROGRAMS))
    return answers


def simulated(name: str, rank: int, size: int) -> Collectives:
    return counts_of(torchtally.run(
        lambda: main("cuda", PROGRAMS[name]), gpu=f"{size}xH100-SXM", rank=rank, writes="real"
    ))  # fmt: skip


def counts_of(trace: Trace) -> Collectives:
    counts: Collectives = Counter()
    for op in trace.ops:
        call = trace.calls[op.call]
        if cost_of(call)[0] is Kind.COMMUNICATION:
            group = call.literal("group")
            assert isinstance(group, int)
            tensors_bytes = sum(spec.elements * spec.itemsize_bytes for spec in call.inputs)
            name = ALIKE.get(call.name, call.name)
            counts[name, trace.groups[group].ranks, tensors_bytes] += 1
    return counts


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("size", SIZES)
def test_a_rank_makes_the_collectives_of_a_real_one(name: str, size: int) -> None:
    for rank in (0, size - 1):
        assert simulated(name, rank, size) == real(size)[rank][name]
