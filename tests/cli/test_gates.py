"""`tally run --assert`, `--budget` and `tally plan --assert`: exit codes and messages."""

import json
from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run
from torchtally.cli import main
from torchtally.gates import GATE_EXIT
from torchtally.gates.budget import BudgetFile

SCRIPT = """\
import sys
import torch
weight = torch.nn.Parameter(torch.empty(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight])
for _ in range(2):
    (weight @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
OPTIONS = ("--quiet", "--no-advice", "--steps", "all")


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)


def test_limits_that_hold_change_nothing(tmp_path: Path) -> None:
    done = tally_run("--no-advice", "train.py", "--assert", "peak < 1GiB", cwd=tmp_path)
    assert done.code == 0
    assert "\npeak < 1GiB: holds, " in done.stderr


def test_a_limit_that_does_not_hold_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    words = ("--assert", "peak < 1MiB", "--assert", "flops < 1T", "--json", "report.json")
    done = tally_run(*OPTIONS, *words, "train.py", cwd=tmp_path)
    assert done.code == GATE_EXIT
    assert done.stderr.startswith("peak < 1MiB: DOES NOT HOLD, peak is ")
    assert "  parameters" in done.stderr
    assert "  train.py:3  weight = torch.nn" in done.stderr
    assert "flops < 1T" not in done.stderr  # a quiet run shows what does not hold
    limits = json.loads((tmp_path / "report.json").read_text())["limits"]
    assert [(limit["quantity"], limit["holds"]) for limit in limits] == [
        ("peak", False),
        ("flops", True),
    ]


def test_the_scripts_own_exit_code_comes_first(tmp_path: Path) -> None:
    done = tally_run(*OPTIONS, "--assert", "peak < 1MiB", "train.py", "7", cwd=tmp_path)
    assert done.code == 7
    assert "peak < 1MiB: DOES NOT HOLD" in done.stderr


def test_a_mistake_is_noticed_before_the_script_runs(tmp_path: Path) -> None:
    done = tally_run("--assert", "peak < 1", "train.py", cwd=tmp_path)
    assert done.code == 2
    assert "tally: error: 'peak < 1': '1' has no unit." in done.stderr
    assert not done.file.exists()


def test_a_budget_is_written_and_kept(tmp_path: Path) -> None:
    budget = ("--budget", "budgets.toml")
    assert tally_run(*OPTIONS, *budget, "--update", "train.py", cwd=tmp_path).code == 0
    assert tally_run(*OPTIONS, *budget, "train.py", cwd=tmp_path).code == 0
    file = tmp_path / "budgets.toml"
    (kept,) = BudgetFile.load(str(file)).budgets
    assert (kept.run, kept.gpu) == ("train.py", "H100-SXM")
    assert kept.figures["flops"] >= 3 * 2 * 1024**3
    text = file.read_text()
    file.write_text(
        "\n".join("flops = 1" if line.startswith("flops") else line for line in text.splitlines())
    )
    done = tally_run(*OPTIONS, *budget, "train.py", cwd=tmp_path)
    assert done.code == GATE_EXIT
    assert "flops <= 1 FLOPs + 2% of the budget: DOES NOT HOLD" in done.stderr


PLAN = ("plan", "llama-3-8b", "--gpus", "8xH100-SXM", "--micro-batch", "1")


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        ("memory < 10TB", 0, "memory < 10TB: holds, "),
        ("tokens/s > 1M", GATE_EXIT, "tokens/s > 1M: DOES NOT HOLD, tokens/s is "),
        ("MFU > 1%", 0, "mfu > 1%: holds, "),
        ("memroy < 80GB", 2, "unknown quantity 'memroy'. Did you mean memory"),
        ("memory < 80", 2, "'80' has no unit"),
        ("memory", 2, "'memory' is not a limit"),
    ],
)
def test_a_plan_is_checked(
    limit: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, "--assert", limit]) == code
    out, err = capsys.readouterr()
    assert message in err
    assert bool(out) == (code != 2)


CAUGHT = """\
import sys, torch
model = torch.nn.Linear(20, 20, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    CASE
    model(x).sum().backward()
    optimizer.step()
except RuntimeError as error:
    print("failed:", type(error).__name__)
"""
CASES = {
    "a shape": 'x = torch.randn(4, 21, device="cuda")',
    "no memory": 'x = torch.empty(1 << 40, 20, device="cuda")',
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_script_that_caught_its_exception_and_trained_nothing_passes_no_gate(
    tmp_path: Path, case: str
) -> None:
    (tmp_path / "train.py").write_text(CAUGHT.replace("CASE", case))
    run = tally_run("train.py", "--assert", "peak < 10GiB", "--assert", "flops > 1", cwd=tmp_path)
    assert run.stdout.startswith("failed: ")
    assert run.code == 3
    assert "peak < 10GiB: cannot be decided" in run.stderr
    assert "no training step was completed" in run.stderr
    assert "Move them to the GPU" not in run.stderr
    assert ("Out of memory once, and the script went on" in run.stderr) is ("40" in case)


def test_a_script_that_ended_in_its_parser_is_not_told_to_use_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.exit(2)\n")
    run = tally_run("train.py", cwd=tmp_path)
    assert run.code == 2
    assert "The script did not get that far." in run.stderr


WITHOUT_TRITON = """
from importlib.machinery import PathFinder
class Finder:
    find_distributions = PathFinder.find_distributions
    invalidate_caches = PathFinder.invalidate_caches
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] == "triton" else PathFinder.find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
for name in [name for name in sys.modules if name.split(".")[0] == "triton"]:
    del sys.modules[name]  # of a warm process
"""
COMPILED = """\
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda()
optimizer = torch.optim.SGD(model.parameters())
x = torch.randn(64, 256, device="cuda")
torch.export.export(model, (x,)).module()(x)
compiled = torch.compile(model)
@torch.compile
def loss_of(y):
    return y.square().mean()
for _ in range(2):
    loss_of(compiled(x)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_could_not_be_compiled_decides_nothing(tmp_path: Path) -> None:
    """Eager code is not what the script asked for: every form of the report begins with that."""
    (tmp_path / "train.py").write_text(COMPILED)
    files = ("--json", "report.json", "--html", "page.html")
    words = ("--assert", "peak < 1GiB", "--assert", "mfu < 90%", *files, "--no-advice")
    done = tally_run(*words, "train.py", cwd=tmp_path, setup=WITHOUT_TRITON)
    said = "torch.compile ran eagerly: inductor needs triton, which is not installed: pip install"
    assert done.code == GATE_EXIT
    lines = [line for line in done.stderr.splitlines() if not line.startswith("tally: ")]
    assert " ".join(" ".join(lines).split()).startswith(said)
    assert done.stderr.count("cannot be decided") == 2
    document = json.loads((tmp_path / "report.json").read_text())
    [caveat] = document["caveats"]
    assert caveat.startswith(said)
    assert said in (tmp_path / "page.html").read_text()
    meant = tally_run("--compile", "eager", *words[:4], "train.py", cwd=tmp_path)
    assert (meant.code, "ran eagerly" in meant.stderr) == (0, False)
