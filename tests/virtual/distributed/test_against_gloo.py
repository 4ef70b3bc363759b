"""Collectives and memory of a simulated rank, beside real ranks that run the same program."""

import gc
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import torchtally
from tests.train.ranks.processes import on_ranks
from tests.virtual.distributed import programs
from tests.virtual.distributed.live_storages import LiveStorages, peak_of
from tests.virtual.distributed.programs import main
from tests.virtual.distributed.replicas import REPLICAS
from tests.virtual.distributed.shards import SHARDS
from torchtally.trace import Trace
from torchtally.work import Kind, cost_of

pytestmark = pytest.mark.one_case_in(12)

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


class Measured(NamedTuple):
    """Of a program, in a real rank."""

    collectives: Collectives
    peak_bytes: int


def measured(names: list[str]) -> dict[str, Measured]:
    """By program, in a real rank."""
    dist.init_process_group("gloo")
    answers = {}
    for name in names:
        gc.collect()
        with Counting() as counting, LiveStorages() as live:
            PROGRAMS[name]("cpu")
        answers[name] = Measured(counting.counts, live.peak_bytes)
    dist.destroy_process_group()
    return answers


@cache
def real(size: int, names: tuple[str, ...]) -> list[dict[str, Measured]]:
    """By rank, of so many."""
    answers: list[dict[str, Measured]] = on_ranks(measured, size, list(names))
    return answers


TEST = "test_a_rank_communicates_and_holds_what_a_real_one_does["


@pytest.fixture(scope="module")
def names(request: pytest.FixtureRequest) -> dict[int, tuple[str, ...]]:
    """The programs of this run's cases, by the number of ranks: those are measured, at once."""
    cases = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.name.startswith(TEST)
    ]
    return {size: tuple(case["name"] for case in cases if case["size"] == size) for size in SIZES}


def simulated(name: str, rank: int, size: int) -> Trace:
    return torchtally.run(
        lambda: main("cuda", PROGRAMS[name]), gpu=f"{size}xH100-SXM", rank=rank, writes="real"
    )


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


MAP_BYTES = 4
"""A number for each parameter says whether it was used: on the host, and a copy on the device."""
ONLY_REAL_BYTES = {"ddp_static_graph": 3 * 6 * MAP_BYTES, "ddp_unused": (3 * 6 + 2) * MAP_BYTES}
OWN_MEMORY = {
    "flat_mixed": "gloo reduces bfloat16 in a copy",
    "fsdp_mixed": "gloo reduces bfloat16 in a copy; the CPU's layer norm keeps bfloat16 statistics",
    "ddp_fp16": "what follows a reduction of gloo's runs in its threads",
    "ddp_own_hook": "what follows a reduction of gloo's runs in its threads",
    "primitives": "gloo gathers and scatters in copies",
}
"""Programs whose memory on the CPU is not that on a GPU, and why."""


@pytest.mark.thorough("the cases beside it", cases=("4-ddp_views",))
@pytest.mark.thorough(
    "the cases of two ranks, each of which waits for fewer real processes",
    cases=("4-fsdp_resharded_to_2",),
)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
@pytest.mark.parametrize("size", SIZES)
def test_a_rank_communicates_and_holds_what_a_real_one_does(
    name: str, size: int, names: dict[int, tuple[str, ...]]
) -> None:
    """At its peak, to the byte."""
    for rank in (0, size - 1):
        trace, there = simulated(name, rank, size), real(size, names[size])[rank][name]
        assert counts_of(trace) == there.collectives
        if name not in OWN_MEMORY:
            expected_bytes = peak_of(trace) + ONLY_REAL_BYTES.get(name, 0)
            repeats = 0
            while there.peak_bytes > expected_bytes and repeats < 3:
                # gloo's threads let go of tensors a moment late, now and then
                there = on_ranks(measured, size, [name])[rank][name]
                repeats += 1
            assert there.peak_bytes == expected_bytes


def test_a_tensor_that_stays_is_seen() -> None:
    """The comparison can fail: one tensor more, by either count."""
    with LiveStorages() as live:
        kept = torch.ones(1000)
        gone = torch.ones(500) + 1
        del gone
    assert live.peak_bytes == 4 * (1000 + 500 + 500)
    assert kept.numel() == 1000

    def script() -> None:
        kept = torch.ones(1000, device="cuda")
        del kept

    assert peak_of(torchtally.run(script, gpu="H100-SXM")) == 0
