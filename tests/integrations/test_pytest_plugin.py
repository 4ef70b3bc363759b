"""The plugin for pytest, in processes of their own, one after the other and by xdist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import commands

CONFIGURATION = "[pytest]\ntally_gpu = A100-SXM\n"
TESTS = """\
import unittest

import pytest
import torch
from torch import nn


def train(width=1024):
    weight = nn.Parameter(torch.empty(width, width, device="cuda"))
    optimizer = torch.optim.SGD([weight])
    for _ in range(2):
        (weight @ weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.memory_budget("1GiB")
@pytest.mark.flops_budget("10G")
def test_within():
    assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
    train()


@pytest.mark.memory_budget("1MiB")
def test_too_much_memory():
    train()


@pytest.mark.time_budget("1ms", gpu="H100-SXM")
def test_too_slow():
    train(8192)


@pytest.mark.flops_budget("10G")
def test_by_the_fixture(tally):
    assert tally.run(train).total.flops > 6 * 1024**3
    assert not torch.cuda.is_available()


@pytest.mark.flops_budget("1G")
def test_a_model(tally):
    tally.summary(nn.Linear(1024, 1024), "1024x1024")


@pytest.mark.flops_budget("1G")
def test_of_nothing(tally):
    pass


def test_checked(tally):
    model = tally.summary(nn.Linear(8, 8, bias=False), "4x8", optimizer=None, gpu="H100-SXM")
    tally.check(model, "forward <= 512", "peak < 1GiB")
    tally.check(model, "forward < 512")


@pytest.mark.memory_budget("24")
def test_a_mistake():
    raise AssertionError("not to be run")


@pytest.mark.memory_budget("1GiB")
def test_its_own_failure():
    assert 1 == 2


@pytest.mark.memory_budget("1GiB")
class TestMethods:
    def test_method(self):
        train()


class TestCase(unittest.TestCase):
    @pytest.mark.memory_budget("1GiB")
    def test_case(self):
        pass


def test_without():
    assert not torch.cuda.is_available()
"""
PASSED = ("test_within", "test_by_the_fixture", "test_method", "test_without")
FAILED = {
    "test_too_much_memory": "peak <= 1MiB: DOES NOT HOLD, peak is ",
    "test_too_slow": "step <= 1ms: DOES NOT HOLD, step is ",
    "test_a_model": "flops <= 1G: DOES NOT HOLD, flops is ",
    "test_of_nothing": "the budget limits nothing",
    "test_checked": "forward < 512: DOES NOT HOLD, forward is 512 FLOPs",
    "test_a_mistake": "'24' has no unit",
    "test_its_own_failure": "assert 1 == 2",
    "test_case": "not to methods of unittest.TestCase",
}


def run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """By a warm Python."""
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(CONFIGURATION)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TALLY_GPU": "T4"}
    environment.pop("PYTEST_ADDOPTS", None)
    environment.pop("PYTEST_XDIST_WORKER", None)
    return subprocess.run(
        [str(commands() / "python"), "-m", "pytest", "-p", "torchtally.integrations.pytest_plugin",
         "-p", "no:cacheprovider", "-rA", "--strict-markers", *options],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def outcomes(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    pairs_printed = re.findall(r"^(PASSED|FAILED|ERROR) (?:\S+::)?(\w+)", done.stdout, re.M)
    return {name: outcome for outcome, name in pairs_printed}


def test_budgets(tmp_path: Path) -> None:
    done = run(tmp_path, "--junitxml=report.xml")
    results = outcomes(done)
    assert {name for name, outcome in results.items() if outcome == "PASSED"} == set(PASSED)
    assert {name for name, outcome in results.items() if outcome != "PASSED"} == set(FAILED)
    for message in FAILED.values():
        assert message in done.stdout, (message, done.stdout)
    assert "weight = nn.Parameter(" in done.stdout  # the line that holds the memory
    assert "test_it.py::test_within: A100-SXM: peak <= 1GiB: holds, " in done.stdout
    assert "test_it.py::test_too_slow: H100-SXM: step <= 1ms: DOES NOT" in done.stdout
    report = (tmp_path / "report.xml").read_text()
    assert 'name="tally: peak" value="A100-SXM: peak &lt;= 1GiB: holds' in report


@pytest.mark.thorough
def test_workers_of_xdist(tmp_path: Path) -> None:
    """Two processes with a simulated GPU each; what they model is summed up by a third."""
    names = "test_within or test_too_much_memory or test_by_the_fixture"
    done = run(tmp_path, "-p", "xdist", "-n", "2", "-k", names)
    assert outcomes(done) == {
        "test_within": "PASSED", "test_too_much_memory": "FAILED", "test_by_the_fixture": "PASSED",
    }  # fmt: skip
    for line in ("test_within: A100-SXM: peak <= 1GiB: holds", "test_too_much_memory: A100-SXM: "):
        assert f"test_it.py::{line}" in done.stdout


def test_the_command_line_names_the_gpu(tmp_path: Path) -> None:
    done = run(tmp_path, "--tally-gpu", "RTX-4090", "-k", "test_method")
    assert "test_method: RTX-4090: peak <= 1GiB: holds" in done.stdout


def test_nothing_is_loaded_without_a_marker() -> None:
    code = (
        "import sys, torchtally.integrations.pytest_plugin\n"
        "assert not {'torch', 'torchtally.ledger', 'msgspec', 'rich'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
