"""`%%tally` and `%tally` in a real kernel: what cells show, keep, restore and raise."""

from pathlib import Path

import pytest

from tests.integrations.notebook.kernel import Cell, executed
from torchtally.trace import Trace

CELLS = {
    "setup": """\
%load_ext torchtally
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(1024, 4096, bias=False)

    def forward(self, x):
        return self.up(x)

host = nn.Linear(64, 64, bias=False)
weight, values = host.weight, host.weight.detach().clone()
data = torch.arange(6.0)""",
    "train": """\
%%tally --gpu H100-SXM --name ledger -o step.tally
open("scratch.txt", "w").write("of the run")
model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.randn(256, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("never reached")""",
    "ledger": """\
import os
print(ledger.total.flops_matmul, len(ledger.trace.step_ends), step, os.path.exists("scratch.txt"))
ledger.check()""",
    "left over": """\
%%tally --gpu H100-SXM --name forward
loss = model(torch.ones(8, 1024, device="cuda")).sum()""",
    "memory": """\
tensors = [storage for storage in forward.trace.storages if storage.role == "parameter"]
print([storage.requested_bytes for storage in tensors], forward.total.flops_matmul)""",
    "host model": """\
%%tally --gpu H100-SXM
data = data.cuda()
host.cuda()(torch.ones(2, 64, device="cuda")).sum().backward()
print(host.weight.device, data.device)""",
    "as it was": """\
print(host.weight is weight, weight.device, torch.equal(weight, values), weight.grad, data.sum())
print(host(torch.ones(1, 64)).shape, loss.device)""",
    "user's error": """\
%%tally --gpu H100-SXM
x = torch.ones(3, 5, device="cuda")
model(x)""",
    "syntax error": "%%tally --gpu H100-SXM\nx = (1,",
    "out of memory": """\
%%tally --gpu RTX-4090
x = torch.zeros(1024, 1024, 1024, device="cuda")
y = torch.zeros(32, 1024, 1024, 1024, device="cuda")""",
    "unknown chip": "%%tally --gpu H100-XYZ\nx = 1",
    "unknown option": "%%tally --chip H100\nx = 1",
    "no end": "%tally plan '",
    "no folder": "%%tally --gpu H100-SXM -o nowhere/step.tally\nx = 1",
    "limit": """\
%%tally --gpu H100-SXM --assert "peak < 1MiB"
z = torch.zeros(1024, 1024, device="cuda")""",
    "magic line": "%%tally --gpu H100-SXM\n!ls\nz = torch.zeros(4, device='cuda')",
    "plan": "%tally plan llama-3-8b --gpus 8xH100-SXM --micro-batch 1",
    "show": "%tally show step.tally --by line",
    "no command": "%tally shew step.tally",
    "run": "%tally run -c 'print(6 * 7)' --gpu H100-SXM --quiet",
    "failed run": "%tally run -c 'import sys; sys.exit(5)' --gpu H100-SXM --quiet",
    "help": "%%tally --help\n1",
    "collector": "import gc\nprint(gc.isenabled(), torch.cuda.is_available())",
    "shell": "%%tally --gpu H100-SXM\nx = !echo {1 + 1}\ntorch.ones(1, device='cuda')",
    "shell's output": "print(x.n)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def cells(folder: Path) -> dict[str, Cell]:
    """All of them in one kernel: starting it takes longer than running them."""
    return dict(zip(CELLS, executed(list(CELLS.values()), folder), strict=True))


def test_a_cell_is_run_for_two_steps_and_its_ledger_is_shown(cells: dict[str, Cell]) -> None:
    cell = cells["train"]
    *_, result = cell.shown()
    assert result.startswith("fits H100-SXM\n  peak memory ")
    assert "cell [2]:6" in result
    assert "model(torch.randn(256, 1024" in cell.shown("text/html")[-1]
    assert "never reached" not in cell.printed
    assert cell.shown()[0].startswith("tally: step 2, ")


def test_lines_of_other_cells_have_their_names(cells: dict[str, Cell]) -> None:
    assert "cell [1]:11" in cells["train"].shown()[-1]


def test_the_ledger_has_its_name_and_files_are_isolated(cells: dict[str, Cell]) -> None:
    flops = 2 * 2 * 256 * 1024 * 4096  # forward, and the weight's gradient
    assert cells["ledger"].printed == f"{flops} 2 1 False\n"


def test_what_a_cell_made_is_on_the_gpu_of_the_next_one(cells: dict[str, Cell]) -> None:
    assert cells["memory"].printed == f"[{4 * 1024 * 4096}] {2 * 8 * 1024 * 4096}\n"


def test_a_cell_keeps_what_a_command_prints(cells: dict[str, Cell]) -> None:
    assert cells["shell's output"].printed == "2\n"


def test_what_existed_before_is_as_it_was(cells: dict[str, Cell]) -> None:
    assert cells["host model"].printed == "cuda:0 cuda:0\n"
    assert cells["as it was"].printed == (
        "True cpu True None tensor(15.)\ntorch.Size([1, 64]) meta\n"
    )


def test_an_error_of_the_cell_is_shown_as_the_users(cells: dict[str, Cell]) -> None:
    error = cells["user's error"].error
    assert "RuntimeError" in error
    assert "cell [8]" in error
    assert "----> 3 model(x)" in error
    assert "return self.up(x)" in error
    assert "torchtally" not in error
    assert "run_cell_magic" not in error


def test_what_ran_before_an_error_is_shown(cells: dict[str, Cell]) -> None:
    assert "The script failed" in cells["user's error"].shown()[-1]
    assert "does not fit RTX-4090" in cells["out of memory"].shown()[-1]
    assert "cell [10]:2" in cells["out of memory"].shown()[-1]
    assert "CUDA out of memory" in cells["out of memory"].error


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("syntax error", 'File "cell [9]", line 2\n    x = (1,\n        ^\nSyntaxError:'),
        ("unknown chip", "tally: error: No chip is called 'H100-XYZ'. Did you mean H100-SXM?"),
        ("unknown option", "tally: error: unknown option --chip."),
        ("no end", "tally: error: plan ': No closing quotation."),
        ("no folder", "tally: error: nowhere/step.tally: cannot be written, there is no directory"),
        ("limit", "tally: error: peak < 1MiB: DOES NOT HOLD"),
        ("no command", "tally: error: tally has no command 'shew'. Did you mean show"),
        ("failed run", "ended with exit code 5."),
    ],
)
def test_an_error_is_one_message(cells: dict[str, Cell], name: str, error: str) -> None:
    assert error in cells[name].error
    assert "Traceback" not in cells[name].error


def test_lines_of_ipython_are_left_out_aloud(cells: dict[str, Cell]) -> None:
    assert "cell [16], line 2 was left out" in cells["magic line"].printed
    assert not cells["magic line"].error


def test_commands_show_their_reports(cells: dict[str, Cell], folder: Path) -> None:
    assert "Llama 3 8B" in cells["plan"].shown()[-1]
    assert "<table>" in cells["plan"].shown("text/html")[-1]
    assert "cell [2]:6" in cells["show"].shown()[-1]
    assert cells["show"].printed == ""
    assert len(Trace.load(str(folder / "step.tally")).step_ends) == 2


def test_a_command_that_runs_a_script_is_a_process_of_its_own(cells: dict[str, Cell]) -> None:
    assert cells["run"].printed == "42\n"


def test_help_is_printed(cells: dict[str, Cell]) -> None:
    assert "usage: %%tally" in cells["help"].printed


def test_the_kernel_is_as_it_was(cells: dict[str, Cell]) -> None:
    assert cells["collector"].printed == "True False\n"


@pytest.mark.parametrize("name", list(CELLS))
def test_what_a_cell_shows_is_small_and_without_scripts(cells: dict[str, Cell], name: str) -> None:
    for html in cells[name].shown("text/html"):
        assert len(html) < 50_000
        assert "<script" not in html
