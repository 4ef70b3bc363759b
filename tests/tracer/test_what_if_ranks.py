"""`--what-if` of DistributedDataParallel and fully_shard: as if the script gave the argument."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.nn.parallel import DistributedDataParallel

from tests.traces import names, ops
from torchtally.ledger import account
from torchtally.trace import Ending, Trace, World
from torchtally.tracer.session import recording

pytestmark = pytest.mark.one_case_in(3)

MIB = 2**20
LAYERS = 6
REDUCE, GATHER = "c10d.allreduce_", "c10d._allgather_base_"


def model() -> nn.Sequential:
    """Six matrices of 4 MiB."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(LAYERS))).cuda()


def step(module: nn.Module) -> None:
    module(torch.ones(64, 1024, device="cuda")).sum().backward()


def ddp(**options: Any) -> None:
    """The first step reduces all gradients in one bucket, and rebuilds buckets for the next one."""
    replicated = DistributedDataParallel(model(), **options)
    step(replicated)
    step(replicated)


def sharded(**options: Any) -> None:
    layers = model()
    for layer in layers:
        fsdp.fully_shard(layer, **options)
    step(fsdp.fully_shard(layers, **options))


def run(script: Any, *what_ifs: str, **options: Any) -> Trace:
    with recording("H100-SXM", script="train", what_ifs=what_ifs, world=World(8, 8, 0)) as recorder:
        dist.init_process_group("nccl")
        script(**options)
        return recorder.trace(Ending("exit"))


def peak_bytes(trace: Trace) -> int:
    return account(trace).memory.peak_bytes


@pytest.mark.parametrize(
    ("script", "name", "value"),
    [
        (ddp, "bucket_cap_mb", 1.0),
        (ddp, "bucket_cap_mb", 100.0),
        (ddp, "gradient_as_bucket_view", True),
        (sharded, "reshard_after_forward", False),
        (sharded, "reshard_after_forward", 2),
    ],
)
def test_it_is_as_if_the_script_gave_the_argument(script: Any, name: str, value: Any) -> None:
    tried, by_hand = run(script, f"{name}={value}"), run(script, **{name: value})
    assert names(tried) == names(by_hand)
    assert peak_bytes(tried) == peak_bytes(by_hand)


def test_small_buckets_are_a_reduction_for_each_matrix() -> None:
    assert len(ops(run(ddp, "bucket_cap_mb=1"), REDUCE)) == 1 + LAYERS
    assert len(ops(run(ddp, "bucket_cap_mb=100"), REDUCE)) == 1 + 1


def test_gradients_that_are_views_are_held_once() -> None:
    """Looked at when the last reduction begins: until buckets are rebuilt, both sets are there."""
    held_bytes = [
        account(trace).memory.timeline.at(ops(trace, REDUCE)[-1].clock)
        for trace in (run(ddp), run(ddp, "gradient_as_bucket_view=True"))
    ]
    assert held_bytes[0] - held_bytes[1] == LAYERS * 4 * MIB


@pytest.mark.thorough
def test_what_stays_gathered_is_gathered_once() -> None:
    again, once = run(sharded), run(sharded, "reshard_after_forward=False")
    assert (len(ops(again, GATHER)), len(ops(once, GATHER))) == (2 * LAYERS, LAYERS)
    assert peak_bytes(once) > peak_bytes(again)


def test_what_the_script_gives_is_replaced() -> None:
    given = run(ddp, "bucket_cap_mb=1", bucket_cap_mb=100)
    assert len(ops(given, REDUCE)) == 1 + LAYERS


def test_without_ranks_it_changes_nothing_and_says_so() -> None:
    with recording("H100-SXM", script="", what_ifs=("bucket_cap_mb=1",)) as recorder:
        step(model())
        trace = recorder.trace(Ending("exit"))
    assert any("bucket_cap_mb=1 changed nothing" in note.text for note in trace.notes)
