"""An optimizer's step within compiled code."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.traces import accounted
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(2)

WIDTH = 64
TENSORS = 4
PARAMETERS = 2 * (WIDTH * WIDTH + WIDTH)
Compiled = Callable[[torch.optim.Optimizer], Callable[[], object]]


def trained(compiled: Compiled) -> Ledger:
    def script() -> None:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        step = compiled(optimizer)
        for _ in range(3):
            model(torch.randn(8, WIDTH, device="cuda")).sum().backward()
            step()
            optimizer.zero_grad()

    return accounted(script)


def in_a_function(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    @torch.compile
    def step() -> None:
        optimizer.step()

    return step


@pytest.mark.parametrize("compiled", [lambda o: torch.compile(o.step), in_a_function])
def test_a_compiled_step_ends_a_training_step(compiled: Compiled) -> None:
    ledger = trained(compiled)
    assert len(ledger.trace.step_ends) == 3
    fused = [entry for entry in ledger.entries if entry.kind is Kind.FUSED]
    assert {entry.op.phase for entry in fused} == {Phase.OPTIMIZER}
    launches = [entry for entry in fused if entry.is_first]
    assert len(launches) == 3 * (len(launches) // 3) > 0
    # Two moments of each parameter, and its counter, which Dynamo puts on the GPU.
    end = ledger.trace.step_ends[-1]
    state = ledger.memory.by_category()[Category.OPTIMIZER_STATE].at(end - 1)
    assert state == 2 * sum(-(-4 * n // 512) * 512 for n in (WIDTH**2, WIDTH) * 2) + TENSORS * 512


@pytest.mark.thorough("test_a_compiled_step_ends_a_training_step")
def test_its_kernels_belong_to_the_line_that_steps() -> None:
    ledger = trained(lambda optimizer: torch.compile(optimizer.step))
    lines = {
        entry.site.line.text
        for entry in ledger.entries
        if entry.kind is Kind.FUSED and entry.site.line is not None
    }
    assert lines == {"step()"}


@pytest.mark.thorough("test_a_compiled_step_ends_a_training_step")
def test_the_compiler_is_not_stopped_by_who_watches() -> None:
    """The break is torch's own, of every optimizer (`_use_grad_for_differentiable`)."""
    texts = [note.text for note in trained(in_a_function).trace.notes]
    breaks = [text for text in texts if "graph break" in text]
    assert breaks
    assert all("graph break at optimizer.py" in text for text in breaks)
    assert "torchtally" not in " ".join(texts)
