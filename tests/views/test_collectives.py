"""Collectives: exposed and hidden time, by group and line."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchtally
from torchtally.chips import Cluster, chip
from torchtally.ledger import Ledger
from torchtally.report.prose import in_words
from torchtally.timing.hosts import ESTIMATED_ISSUE
from torchtally.timing.network import RankGroup, collective
from torchtally.timing.roofline import Roofline
from torchtally.views import by
from torchtally.views.collectives import NetworkTime, evidence_of, network_time

MIB = 2**20


def step() -> None:
    """A reduction of 64 MiB behind a product that takes longer, and one that is waited for."""
    dist.init_process_group("nccl")
    pair = dist.new_group([0, 1])
    a = torch.empty(16384, 16384, dtype=torch.bfloat16, device="cuda")
    gradients = torch.empty(64 * MIB // 4, device="cuda")
    work = dist.all_reduce(gradients, async_op=True)
    a @ a
    work.wait()
    dist.all_reduce(gradients[: MIB // 4], group=pair)
    gradients.add_(1)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    trace = torchtally.run(step, gpu="8xH100-SXM")
    ledger = torchtally.account(trace, roofline=Roofline(chip("H100-SXM")))
    ledger.check()
    return ledger


def test_what_runs_behind_a_product_is_hidden(ledger: Ledger) -> None:
    """But for its beginning, when the host has not issued the product yet."""
    table = by(ledger, "collective")
    names = [column.name for column in table.columns]
    rows = {row[names.index("ranks")]: dict(zip(names, row, strict=True)) for row in table.rows}
    cluster = Cluster(chip("H100-SXM"), 8, 8)
    small = collective("all_reduce", MIB, RankGroup(2), cluster)
    large = collective("all_reduce", 64 * MIB, RankGroup(8), cluster)
    for ranks, transfer in ((2, small), (8, large)):
        assert rows[ranks]["payload_bytes"] == transfer.payload_bytes
        assert rows[ranks]["network_s"] == pytest.approx(transfer.seconds)
        assert rows[ranks]["algorithm"] == transfer.way
        assert rows[ranks]["bus_bytes_per_s"] == pytest.approx(transfer.bus_bytes_per_s)
        assert str(rows[ranks]["line"]).startswith("test_collectives.py:")
    assert rows[2]["exposed_s"] == pytest.approx(small.seconds)
    assert rows[8]["exposed_s"] == pytest.approx(ESTIMATED_ISSUE.forward_s)


def test_the_networks_part_of_the_step(ledger: Ledger) -> None:
    network = network_time(ledger)
    table = by(ledger, "collective")
    assert network is not None
    assert network.busy_s == pytest.approx(table.total("network_s"))
    assert network.exposed_s == pytest.approx(table.total("exposed_s"))
    assert 0 < network.hidden_share < 1


def test_one_gpu_sends_nothing() -> None:
    alone = torchtally.account(
        torchtally.run(lambda: torch.ones(4, device="cuda").add_(1), gpu="H100-SXM")
    )
    assert network_time(alone) is None
    assert by(alone, "collective").rows == ()


def test_nothing_hidden_is_not_less_than_nothing() -> None:
    assert NetworkTime(busy_s=0.3, exposed_s=0.1 + 0.2, waiting_s=0.0).hidden_share == 0


def train(module: nn.Module, rows: int, width: int) -> None:
    optimizer = torch.optim.SGD(module.parameters())
    for _ in range(2):
        module(torch.ones(rows, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers(width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6))).cuda()


def replicated(bucket_cap_mb: float, width: int) -> None:
    dist.init_process_group("nccl")
    train(DistributedDataParallel(layers(width), bucket_cap_mb=bucket_cap_mb), 512, width)


def sharded(rows: int) -> None:
    dist.init_process_group("nccl")
    model = layers(2048)
    for layer in model:
        fully_shard(layer)
    train(fully_shard(model), rows, 2048)


@pytest.mark.parametrize(
    ("script", "gpu", "what_if"),
    [
        (partial(replicated, 100, 2048), "8xH100-SXM", "bucket_cap_mb=48"),
        (partial(replicated, 0.01, 512), "64x8xH100-SXM", "bucket_cap_mb=4"),
        (partial(sharded, 8), "4x8xH100-SXM", "reshard_after_forward=False"),
        (partial(sharded, 1 << 16), "8xH100-SXM", ""),
    ],
)
def test_exposed_collectives_are_evidence(
    script: Callable[[], None], gpu: str, what_if: str
) -> None:
    """Six gradients of 16 MiB in one bucket: half of it. Of 1 MiB each alone among 512 ranks: four
    times. Gathers behind nothing: not twice. Behind large products: nothing to try.
    """
    trace = torchtally.run(script, gpu=gpu)
    ledger = torchtally.account(trace, roofline=Roofline(chip("H100-SXM")))
    note = in_words(by(ledger, "collective").note)
    assert ("--what-if" in note) == bool(what_if)
    assert what_if in note
    assert ("bound by latency" in note) == ("cap_mb=4 " in note)
    assert [each.what_if for each in evidence_of(ledger)] == ([what_if] if what_if else [])
