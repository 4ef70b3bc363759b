"""Groups of ranks: the collectives by their communicator."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torchtally
from torchtally.chips import chip
from torchtally.ledger import Ledger
from torchtally.timing.roofline import Roofline
from torchtally.views import by
from torchtally.views.groups import ranks_text


def train() -> None:
    mesh = init_device_mesh("cuda", (4, 8), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    trace = torchtally.run(train, gpu="4x8xH100-SXM")
    return torchtally.account(trace, roofline=Roofline(chip("H100-SXM")))


def test_a_row_for_each_dimension_of_the_mesh(ledger: Ledger) -> None:
    table = by(ledger, "group")
    names = [column.name for column in table.columns]
    rows = {
        str(row[names.index("group")]): dict(zip(names, row, strict=True)) for row in table.rows
    }
    assert set(rows) == {"mesh_dp", "mesh_tp"}
    assert (rows["mesh_tp"]["ranks"], rows["mesh_tp"]["nodes"]) == (8, 1)
    assert (rows["mesh_dp"]["ranks"], rows["mesh_dp"]["nodes"]) == (4, 4)
    assert rows["mesh_tp"]["members"] == "0-7"
    assert rows["mesh_dp"]["members"] == "0-24 by 8"
    assert "reduce_scatter" in str(rows["mesh_dp"]["collectives"])
    assert "all_reduce" in str(rows["mesh_tp"]["collectives"])


@pytest.mark.parametrize("figure", ["exposed_s", "network_s", "count"])
def test_groups_add_up_to_the_collectives(ledger: Ledger, figure: str) -> None:
    total = by(ledger, "group").total(figure)
    assert isinstance(total, int | float)
    assert total > 0
    assert total == pytest.approx(by(ledger, "collective").total(figure))


def test_bytes_are_those_of_all_calls(ledger: Ledger) -> None:
    table = by(ledger, "collective")
    names = [column.name for column in table.columns]
    count, each = names.index("count"), names.index("payload_bytes")
    assert by(ledger, "group").total("payload_bytes") == sum(
        int(row[count] or 0) * int(row[each] or 0) for row in table.rows
    )


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((0, 1, 2, 3), "0-3"),
        ((1, 9, 17), "1-17 by 8"),
        ((0, 1), "0, 1"),
        ((0, 1, 3), "0, 1, 3"),
        ((3, 2, 1), "3, 2, 1"),
        ((5,), "5"),
    ],
)
def test_ranks_are_spelled(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
