"""A script's whole training: length and intervals of its loop, a cause for each second."""

import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run_tally import command, environment
from torchtally.ledger import Ledger, account
from torchtally.timing.targets import known_roofline
from torchtally.trace import Trace
from torchtally.trace.loop import TrainingLoop
from torchtally.tracer.loop import training_loop
from torchtally.views.whole_training import whole_training

SCRIPT = """
import torch

max_iters, eval_interval = 600000, 2000
model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.no_grad()
def estimate_loss():
    for _ in range(20):
        model(torch.randn(1024, 1024, device="cuda")).sum()


iter_num = 0
while True:
    if iter_num % eval_interval == 0:
        estimate_loss()
        if iter_num > 0:
            torch.save(model.state_dict(), "ckpt.pt")
    model(torch.randn(1024, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    iter_num += 1
    if iter_num > max_iters:
        break
"""
OTHER = """
import torch

model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
settings, batches = {"epochs": 5}, [None] * 100
for epoch in range(settings["epochs"]):
    for i, batch in enumerate(batches):
        model(torch.randn(64, 64, device="cuda")).sum().backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if (i + 1) % 20 == 0:
            print(i)
    if epoch % 2 == 0:
        torch.save(model.state_dict(), "ckpt.pt")
"""


EPOCHS = """
import torch

model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_epoch():
    for _ in range(2):
        model(torch.randn(64, 64, device="cuda")).sum().backward()
        optimizer.step()


@torch.no_grad()
def evaluate():
    model(torch.randn(64, 64, device="cuda")).sum()


for epoch in range(50):
    train_epoch()
    evaluate()
    if epoch % 10 == 9:
        torch.save(model.state_dict(), "ckpt.pt")
"""


def ledger_of(script: str, folder: Path) -> Ledger:
    (folder / "train.py").write_text(script)
    subprocess.run(command("--quiet", "train.py"), cwd=folder, env=environment(), check=True)
    trace = Trace.load(folder / "run.tally")
    return account(trace, roofline=known_roofline(trace.chip))


def test_every_second_of_nanogpt_s_loop_has_a_cause(tmp_path: Path) -> None:
    """600,001 steps, as its loop is left above 600,000; 301 evaluations; 4 MiB saved at 4 MiB/s."""
    ledger = ledger_of(SCRIPT, tmp_path)
    table = whole_training(ledger, disk_byte_per_s=4 * 2**20)
    causes = {row[0]: row for row in table.rows}
    assert list(causes) == ["training", "evaluation", "saving"]
    assert [row[3] for row in table.rows] == [600_001, 301, 301]
    assert causes["saving"][1] == 301
    assert causes["training"][1] == pytest.approx(600_001 * (ledger.step_s or 0))
    assert table.totals[1] == pytest.approx(sum(float(row[1] or 0) for row in table.rows))


def test_loops_within_loops_and_accumulated_gradients(tmp_path: Path) -> None:
    """5 epochs of 100 batches, four to a step: lines every 5 steps, saves every 50."""
    ledger = ledger_of(OTHER, tmp_path)
    loop = TrainingLoop.of_facts(ledger.trace.facts)
    assert loop is not None
    assert loop.steps == 5 * 100 // 4
    assert [(block.every, block.saves) for block in loop.recurring] == [(5, False), (50, True)]


def test_what_follows_each_epoch_recurs_with_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EPOCHS)
    ran = command("--quiet", "--steps", "4", "train.py")
    subprocess.run(ran, cwd=tmp_path, env=environment(), check=True)
    trace = Trace.load(tmp_path / "run.tally")
    table = whole_training(account(trace, roofline=known_roofline(trace.chip)), None, 2**20)
    assert [row[:1] + row[3:4] for row in table.rows] == [
        ("training", 100), ("evaluation", 50), ("saving", 5),
    ]  # fmt: skip


class Endless:
    """Batches without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))

    def __len__(self) -> int:
        raise ValueError("endless")


def test_a_length_that_fails_is_unknown() -> None:
    batches = Endless()
    for _ in batches:
        loop = training_loop(sys._getframe())
    assert loop is not None
    assert loop.steps is None


class Held:
    """Something that can be watched."""


def test_reading_a_function_keeps_none_of_its_variables() -> None:
    for step in range(3):
        held = Held()
        watched = weakref.ref(held)
        loop = training_loop(sys._getframe())
        del held
        assert watched() is None, step
    assert loop is not None
    assert loop.steps == 3


def test_a_dictionary_of_variables_that_the_script_has_stays() -> None:
    epochs = 7
    settings = locals()
    for _ in range(epochs):
        loop = training_loop(sys._getframe())
    assert settings["epochs"] == epochs
    assert loop is not None
    assert loop.steps == epochs
