"""Which changes are worth a run, and how what they showed is put."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.traces import accounted
from torchtally.fit.changes import (
    Change,
    candidates,
    changes_of_ranks,
    classes_worth_checkpointing,
    combine,
    smaller_batches,
)
from torchtally.fit.results import ChangeResult, results_table

WIDTH = 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train() -> None:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(1 << 16, WIDTH, device="cuda")).sum().backward()
    optimizer.step()


def test_the_repeated_module_that_holds_activations_is_worth_checkpointing():
    """`Linear` holds some as well, but `Block` holds all that its layers do; `Net` is one alone."""
    assert classes_worth_checkpointing(accounted(train))[0] == "Block"
    assert "Net" not in classes_worth_checkpointing(accounted(train))


def replicated() -> None:
    dist.init_process_group("nccl")
    layers = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))).cuda()
    model = DistributedDataParallel(layers)
    model(torch.ones(8, 2048, device="cuda")).sum().backward()


def sharded() -> None:
    dist.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4))).cuda()
    for layer in model:
        fully_shard(layer, reshard_after_forward=False)
    fully_shard(model)
    model(torch.ones(8, 2048, device="cuda")).sum().backward()


@pytest.mark.parametrize(
    ("script", "worth_it"),
    [
        (replicated, {"gradient_as_bucket_view=True"}),
        (sharded, {"reshard_after_forward=True"}),
        (train, set()),
    ],
)
def test_what_ranks_hold_to_share_it(script, worth_it):
    changes = changes_of_ranks(accounted(script, "8xH100-SXM"))
    assert {text for change in changes for text in change.what_ifs} == worth_it


def test_candidates_are_the_smallest_change_first():
    tried_sizes = candidates(accounted(train), ("--batch_size", "16"))
    assert [candidate.rank for candidate in tried_sizes] == sorted(
        candidate.rank for candidate in tried_sizes
    )
    what_ifs = [text for candidate in tried_sizes for text in candidate.what_ifs]
    assert {"optimizer=fused", "autocast=bfloat16", "checkpoint=Block"} <= set(what_ifs)
    assert ("--batch_size", "8") in [candidate.arguments for candidate in tried_sizes]


@pytest.mark.parametrize(
    ("given", "halved"),
    [
        (("--batch_size=12", "x"), ("--batch_size=6", "x")),
        (("--per_device_train_batch_size", "3"), ("--per_device_train_batch_size", "1")),
        (("a", "-bs=2"), ("a", "-bs=1")),
    ],
)
def test_half_the_batch(given: tuple[str, ...], halved: tuple[str, ...]):
    (change,) = smaller_batches(given)
    assert change.arguments == halved


@pytest.mark.parametrize("given", [("--batch_size=1",), ("--batch", "many"), ("--lr", "4"), ()])
def test_no_batch_to_halve(given: tuple[str, ...]):
    assert smaller_batches(given) == []


def test_several_changes_as_one():
    one = Change("a", 1, what_ifs=("optimizer=fused",))
    two = Change("b", 5, what_ifs=("checkpoint=Block",), settings="expandable_segments:True")
    both = combine((one, two), "max_split_size_mb:64")
    assert both.what_ifs == ("optimizer=fused", "checkpoint=Block")
    assert both.settings == "max_split_size_mb:64,expandable_segments:True"
    assert (both.rank, both.text) == (5, "a + b")


def test_what_makes_it_fit_stands_first_and_what_saves_nothing_is_not_shown():
    results = [
        ChangeResult(Change("saves nothing", 0), 100, 0, fits=False),
        ChangeResult(Change("large change", 5), 40, 60, fits=True),
        ChangeResult(Change("small change", 1), 80, 20, fits=True),
        ChangeResult(Change("not enough", 2), 95, 5, fits=False),
    ]
    table = results_table(results, needed_bytes=100)
    assert table.column("change") == ("small change", "large change", "not enough")
    assert table.column("saved_bytes") == (20, 60, 5)
