"""Steps that differ in operators and agree in figures; and what is said of those that do not."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from tests.traces import accounted
from torchtally.ledger import Ledger
from torchtally.views.steps import unlike

D = 16


def train(shapes: Sequence[tuple[int, ...]]) -> Ledger:
    """A step for each shape of a batch."""

    def script() -> None:
        model = nn.Linear(D, D).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for shape in shapes:
            model(torch.ones(*shape, D, device="cuda")).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return accounted(script)


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [(((8, 64), (64, 8)), [1, 1]), (((512,), (513,)), [1, 1]), (((512,), (8,), (512,)), [1, 2, 1])],
)
def test_steps_of_the_same_work_are_alike(
    shapes: Sequence[tuple[int, ...]], expected: list[int]
) -> None:
    """Of 512 rows in another shape; of 0.2 % more rows; of less work."""
    ledger = train(shapes)
    assert [step.like for step in ledger.course.steps] == expected
    if len(set(expected)) == 1:
        assert ledger.period == f"steady-state step {len(shapes)}"
        assert unlike(ledger) == ""


def test_figures_are_said_of_steps_that_differ() -> None:
    """Twice the rows: twice the passes' FLOPs, and bytes but for the weights'."""
    sentence = unlike(train([(4096,), (2048,)]))
    assert sentence.startswith("Step 2 is unlike 1: step 1 has 100 % more FLOPs, ")
    assert "100 % more bytes moved (forward with other shapes, " in sentence


def test_a_history_that_grows_is_the_optimizers_alone() -> None:
    """LBFGS works on up to 100 directions of its past, 20 of them from each step."""

    def script() -> None:
        model, x = nn.Linear(D, D).cuda(), torch.ones(4, D, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)

    ledger = accounted(script)
    assert [step.like for step in ledger.course.steps] == [1, 2, 3]
    assert unlike(ledger).startswith("Step 3 is unlike 1 to 2 in the optimizer alone: step 2 has ")
