"""Cells among the names of a notebook: what they find, what they leave, what is as it was."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torchtally.ledger import Ledger, account
from torchtally.runs.cell import run_cell
from torchtally.runs.function import EndedRun, target_of
from torchtally.runs.request import RunRequest
from torchtally.timing.prediction import Prediction
from torchtally.trace import Role
from torchtally.tracer.steps import StepLimit
from torchtally.tracer.texts import cell_names, compile_text
from torchtally.virtual.left_behind import LeftBehind
from torchtally.virtual.storage import virtual_of


class Cells:
    """The namespace of a notebook, and its cells one after the other."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"torch": torch, "nn": nn}
        self.count = 0

    def run(self, text: str, *, gpu: str = "H100-SXM", steps: int | None = None) -> EndedRun:
        self.count += 1
        name = f"cell [{self.count}]"
        gpus, by_roofline = target_of(gpu)
        return run_cell(
            compile_text(text, name),
            self.names,
            RunRequest(script=name, gpus=gpus, limit=StepLimit(steps)),
            prediction=Prediction(by_roofline),
            on_start=lambda recording: None,
            on_step=lambda step: None,
        )

    def ledger(self, text: str, **options: Any) -> Ledger:
        """Of a cell that must go well; its sums hold."""
        done = self.run(text, **options)
        assert done.error is None, done.error
        ledger = account(done.trace)
        ledger.check()
        return ledger


@pytest.fixture
def cells() -> Cells:
    return Cells()


def role_bytes(ledger: Ledger) -> dict[Role | None, int]:
    """Requested bytes by role."""
    totals: dict[Role | None, int] = {}
    for storage in ledger.trace.storages:
        totals[storage.role] = totals.get(storage.role, 0) + storage.requested_bytes
    return totals


# What earlier cells have left ------------------------------------------------------------------


def test_a_cell_uses_what_the_one_before_has_made(cells: Cells) -> None:
    cells.ledger("w = torch.ones(4, 8, device='cuda')")
    ledger = cells.ledger("y = torch.ones(2, 4, device='cuda') @ w")
    assert ledger.total.flops == 2 * 2 * 4 * 8
    assert ledger.trace.chip == "H100-SXM"


def test_what_a_cell_does_not_use_takes_no_memory(cells: Cells) -> None:
    text = "w = torch.ones(1024, 1024, device='cuda')"
    first, again = cells.ledger(text), cells.ledger(text)
    assert first.memory.peak_bytes == again.memory.peak_bytes == 4 * 1024 * 1024


@pytest.mark.thorough
def test_what_a_cell_uses_takes_its_memory(cells: Cells) -> None:
    cells.ledger("w = torch.ones(1024, 1024, device='cuda')\nunused = torch.ones_like(w)")
    assert cells.ledger("v = w.view(-1)[:3] + 1").memory.peak_bytes == 4 * 1024 * 1024 + 512


@pytest.mark.thorough
def test_parameters_gradients_and_state_keep_their_roles(cells: Cells) -> None:
    cells.ledger(
        "model = nn.Linear(64, 64, bias=False, device='cuda')\n"
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)\n"
        "model(torch.ones(2, 64, device='cuda')).sum().backward()\n"
        "optimizer.step()"
    )
    by_role = role_bytes(cells.ledger("optimizer.step()"))
    weight_bytes = 4 * 64 * 64
    assert by_role[Role.PARAMETER] == by_role[Role.GRADIENT] == weight_bytes
    assert by_role[Role.OPTIMIZER_STATE] == 2 * weight_bytes + 4  # its count of steps


@pytest.mark.thorough
def test_a_smaller_chip_has_no_room_for_it(cells: Cells) -> None:
    cells.ledger("big = torch.ones(8, 1024, 1024, 1024, device='cuda')")
    done = cells.run("big + 1", gpu="RTX-4090")
    assert isinstance(done.error, torch.OutOfMemoryError)


@pytest.mark.thorough
def test_what_was_left_is_freed_without_a_session(cells: Cells) -> None:
    cells.ledger("w = torch.ones(8, device='cuda')")
    cells.ledger("x = torch.ones(8, device='cuda')")
    assert type(virtual_of(cells.names["w"])) is LeftBehind
    del cells.names["w"]
    gc.collect()
    cells.ledger("del x")


def test_names_of_functions_and_numbers_come_back(cells: Cells) -> None:
    cells.ledger("def double(x):\n    return 2 * x\nnumber = double(21)")
    assert cells.names["double"](cells.names["number"]) == 84


# What existed before ---------------------------------------------------------------------------


def test_a_model_that_was_moved_has_its_weights_again(cells: Cells) -> None:
    model = cells.names["model"] = nn.BatchNorm1d(4)
    weight, values = model.weight, model.weight.detach().clone()
    cells.ledger("model.cuda()(torch.ones(2, 4, device='cuda')).sum().backward()")
    assert model.weight is weight
    assert weight.device.type == "cpu"
    assert torch.equal(weight, values)
    assert weight.grad is None
    assert model.running_mean.device.type == "cpu"  # type: ignore[union-attr]
    model(torch.ones(2, 4)).sum().backward()


def test_an_optimizer_of_before_keeps_no_state_of_the_cell(cells: Cells) -> None:
    model = cells.names["model"] = nn.Linear(4, 4)
    optimizer = cells.names["optimizer"] = torch.optim.AdamW(model.parameters())
    cells.ledger("model.cuda()(torch.ones(2, 4, device='cuda')).sum().backward()\noptimizer.step()")
    assert dict(optimizer.state) == {}
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_a_name_of_data_keeps_its_values(cells: Cells) -> None:
    cells.names["data"] = torch.arange(4.0)
    cells.names["batch"] = {"ids": torch.arange(3)}
    cells.ledger("data = data.cuda()\nbatch = {'ids': batch['ids'].cuda()}")
    assert cells.names["data"].sum() == 6
    assert cells.names["batch"]["ids"].tolist() == [0, 1, 2]


def test_it_is_as_it_was_after_an_error_too(cells: Cells) -> None:
    model = cells.names["model"] = nn.Linear(4, 4)
    done = cells.run("model.cuda()\n1 / 0")
    assert isinstance(done.error, ZeroDivisionError)
    assert done.trace.ending.kind == "exception"
    assert model.weight.device.type == "cpu"
    assert not torch.cuda.is_available()


def test_files_stay(cells: Cells, tmp_path: Path) -> None:
    file = tmp_path / "kept.txt"
    file.write_text("before")
    cells.ledger(f"open({str(file)!r}, 'w').write('after')")
    assert file.read_text() == "before"


def test_a_run_within_a_cell_is_refused(cells: Cells) -> None:
    cells.names["other"] = Cells()
    done = cells.run("other.run('x = 1')\n")
    assert str(done.error).startswith("a virtual GPU is active already")


# How it ends -----------------------------------------------------------------------------------


STEPS = """
weight = nn.Parameter(torch.ones(4, 4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in range(9):
    weight.sum().backward()
    optimizer.step()
"""


def test_a_cell_is_stopped_after_its_steps(cells: Cells) -> None:
    done = cells.run(STEPS, steps=3)
    assert done.error is None
    assert done.trace.ending.kind == "steps"
    assert len(done.trace.step_ends) == 3
    assert cells.names["number"] == 2


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("raise KeyboardInterrupt", "interrupted", "SIGINT"),
        ("import sys; sys.exit(3)", "exit", "sys.exit(3)"),
        ("raise ValueError('no')", "exception", "ValueError: no"),
    ],
)
def test_other_ends_are_told(cells: Cells, text: str, kind: str, message: str) -> None:
    ending = cells.run(text).trace.ending
    assert (ending.kind, ending.message) == (kind, message)


def test_frames_of_cells_have_their_names(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    file = "/tmp/ipykernel_1/2.py"
    monkeypatch.setattr(
        "torchtally.tracer.texts.cell_names", [*cell_names, lambda: {file: "cell [7]"}]
    )
    exec(compile_text("def make():\n    return torch.ones(4, device='cuda')\n", file), cells.names)
    ledger = cells.ledger("x = make()")
    line = ledger.trace.sites[0].line
    assert line is not None
    assert (Path(line.file).name, line.line) == ("cell [7]", 2)
