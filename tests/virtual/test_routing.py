"""Choices of experts by unknown scores: even, or with an imbalance that the user declares."""

import pytest
import torch
import torch.distributed as dist

from torchtally.errors import UsageError
from torchtally.trace import Ending, Trace, World
from torchtally.tracer.session import recording
from torchtally.tracer.what_if import stand_ins
from torchtally.virtual.facts import routing


@pytest.mark.parametrize(
    ("busiest", "loads"),
    [
        (1.5, [1.5, 1.25, 1.0, 0.75, 0.5]),
        (2, [2, 1.5, 1, 0.5, 0]),
        (2.5, [2.5, 5 / 3, 5 / 6, 0, 0]),
        (5, [5, 0, 0, 0, 0]),
    ],
)
def test_loads_fall_in_equal_steps(busiest: float, loads: list[float]) -> None:
    """Over five candidates; beyond twice the mean the last ones get nothing."""
    expected = torch.tensor(loads, dtype=torch.float64)
    assert torch.allclose(routing.shares(5, busiest, 1), expected / 5)


def test_choices_of_a_token_differ_and_are_as_frequent_as_declared() -> None:
    chosen = routing.chosen_indices((4096, 4), 64, -1, 1.5)
    assert chosen.shape == (4096, 4)
    assert all(len(set(row)) == 4 for row in chosen[:256].tolist())
    counts = chosen.flatten().bincount(minlength=64).double()
    mean = 4096 * 4 / 64
    assert counts.sum() == 4096 * 4
    assert (counts[0] / mean).item() == pytest.approx(1.5, rel=0.02)
    assert (counts[-1] / mean).item() == pytest.approx(0.5, rel=0.05)


def test_nobody_chooses_an_expert_twice() -> None:
    """Two of three: no expert can get more than 1.5 times the mean, whatever is declared."""
    chosen = routing.chosen_indices((3000, 2), 3, -1, 40.0)
    assert (chosen[:, 0] != chosen[:, 1]).all()
    counts = chosen.flatten().bincount(minlength=3)
    assert counts[0] == 3000


def experts() -> None:
    """65,536 tokens, each for one of 8 experts, two of them on each of 4 ranks."""
    dist.init_process_group("nccl")
    scores = torch.randn(2**16, 8, device="cuda")
    counts = scores.topk(1, -1).indices.flatten().bincount(minlength=8)
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    sizes = [each.view(4, 2).sum(1).tolist() for each in (received, counts)]
    tokens = torch.empty(sum(sizes[0]), 16, device="cuda")
    dist.all_to_all_single(tokens, torch.ones(2**16, 16, device="cuda"), *sizes)


def received_rows(trace: Trace) -> int:
    *_, last = [op for op in trace.ops if trace.calls[op.call].name == "c10d.alltoall_base_"]
    return trace.calls[last.call].tensor("output").shape[0]


def test_a_rank_gets_the_tokens_of_its_experts() -> None:
    """Evenly as many as it sends; at twice the mean experts get 2, 12/7, 10/7, ... times 2**13, and
    this rank has the first two of each of 4 ranks' tokens.
    """

    def run(*what_ifs: str) -> Trace:
        world = World(size=4, rank=0, gpus_per_node=4)
        with recording("H100-SXM", script="", what_ifs=what_ifs, world=world) as recorder:
            experts()
        return recorder.trace(Ending("exit"))

    assert received_rows(run()) == 2**16
    uneven = run("imbalance=2")
    assert received_rows(uneven) == pytest.approx(4 * (2 + 12 / 7) * 2**13, rel=1e-3)
    assert {each.given for each in uneven.placeholders} == {
        "declared: the busiest expert gets 2 times the mean"
    }


@pytest.mark.parametrize("value", ["1", "0.5", "much", "inf"])
def test_an_imbalance_is_a_number_above_one(value: str) -> None:
    with pytest.raises(UsageError, match="above 1"):
        stand_ins((f"imbalance={value}",))
