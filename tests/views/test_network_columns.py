"""What each line and module costs on the network: a part of what the summary says."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torchtally
from tests.views.test_groups import train as train_fsdp_and_tp
from tests.views.test_tracks import H100, train_ddp, train_fsdp
from torchtally.ledger import Ledger, account
from torchtally.table import Table
from torchtally.views import by
from torchtally.views.collectives import network_time

pytestmark = pytest.mark.one_case_in(3)

WIDTH = 1024
LAYER_BYTES = WIDTH * WIDTH * 4
COLUMNS = {"exposed_s", "network_s", "payload_bytes"}


def ledger_of(train: Callable[[], None], gpu: str) -> Ledger:
    ledger = account(torchtally.run(train, gpu=gpu), roofline=H100)
    ledger.check()
    return ledger


def sum_of(table: Table, name: str) -> float:
    return sum(cell for cell in table.column(name) if isinstance(cell, int | float))


@pytest.mark.parametrize("view", ["line", "own-line", "library-line", "module"])
@pytest.mark.parametrize(
    ("train", "gpu"),
    [(train_ddp, "8xH100-SXM"), (train_fsdp, "2x8xH100-SXM"), (train_fsdp_and_tp, "4x8xH100-SXM")],
    ids=["DDP", "FSDP2", "FSDP2 and TP"],
)
def test_rows_sum_to_the_summary(train: Callable[[], None], gpu: str, view: str) -> None:
    ledger = ledger_of(train, gpu)
    table, network = by(ledger, view), network_time(ledger)
    assert network is not None
    assert network.exposed_s > 0
    figures = {
        "exposed_s": network.exposed_s,
        "network_s": network.busy_s,
        "payload_bytes": by(ledger, "group").total("payload_bytes"),
    }
    for name, figure in figures.items():
        assert sum_of(table, name) == pytest.approx(figure)
        assert table.total(name) == pytest.approx(figure)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        return self.second(y)  # type: ignore[no-any-return]


def train_pair() -> None:
    dist.init_process_group("nccl")
    model = Pair().cuda()
    fully_shard(model.first)
    fully_shard(model.second)
    fully_shard(model)
    model(torch.ones(WIDTH, WIDTH, device="cuda")).square().mean().backward()


def test_a_layers_collectives_are_on_the_line_that_calls_it() -> None:
    """Each is gathered twice and its gradient is reduced once: three times its bytes."""
    table = by(ledger_of(train_pair, "8xH100-SXM"), "line")
    names = [column.name for column in table.columns]
    bytes_by_source = {
        row[names.index("source")]: row[names.index("payload_bytes")] for row in table.rows
    }
    assert bytes_by_source["y: torch.Tensor = self.first(x)"] == 3 * LAYER_BYTES
    second = "return self.second(y)  # type: ignore[no-any-return]"
    assert bytes_by_source[second] == 3 * LAYER_BYTES
    assert table.total("payload_bytes") == 6 * LAYER_BYTES


def test_one_gpu_has_no_such_columns() -> None:
    def train() -> None:
        nn.Linear(8, 8).cuda()(torch.ones(8, 8, device="cuda")).sum().backward()

    for view in ("line", "module"):
        columns = by(ledger_of(train, "H100-SXM"), view).columns
        assert not COLUMNS & {column.name for column in columns}


def test_without_times_bytes_are_known() -> None:
    table = by(account(torchtally.run(train_ddp, gpu="8xH100-SXM")), "line")
    assert COLUMNS & {column.name for column in table.columns} == {"payload_bytes"}
