"""`tally fit` with real scripts in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import END, TALLY, TIMEOUT_S, environment
from tests.cli.test_gates import COMPILED, WITHOUT_TRITON
from tests.warm import cold, warm
from torchtally.cli import main
from torchtally.cli.fit import FitParser
from torchtally.errors import UsageError
from torchtally.fit.argument import parse
from torchtally.fit.chips import parse_margin
from torchtally.gates import GATE_EXIT

pytestmark = pytest.mark.one_case_in(3)

SCRIPT = """\
import argparse, sys, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--per", type=int, default=28)
parser.add_argument("--even", action="store_true")
parser.add_argument("--odd", action="store_true")
parser.add_argument("--hang", action="store_true")
args = parser.parse_args()
if args.even and args.batch % 2:
    raise ValueError(f"{args.batch} is odd")
print("started", flush=True)
if args.hang:
    time.sleep(1000)
weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
optimizer = torch.optim.SGD([weight])
for step in range(5):
    batch = args.batch * (1 + (args.odd and args.batch >= 64))
    x = torch.empty(batch << args.per, device="cuda")  # 2**28 floats are 1 GiB
    weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del x
"""
WAITING = """\
error = torch.randn(1 << 20, device="cuda")
while not error.abs().max() < 1e-3:
    error = error / 2
"""
H100 = ("--gpu", "H100-SXM")
"""79.19 GiB, of which 600 MiB are the context's and 3 % = 2.38 GiB are kept: 76.2 GiB."""


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments: str, python: Callable[..., list[str]] = warm) -> list[str]:
    """A warm one has a warm server."""
    return python(TALLY + END, "fit", *arguments)


def tally_fit(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return tally_fit_of(folder, "train.py", *arguments)


def tally_fit_of(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The same of another script."""
    return subprocess.run(
        command(*arguments), cwd=folder, env=environment(), capture_output=True,
        text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_largest_that_fits(tmp_path: Path) -> None:
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--json", "fit.json")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "largest --batch that fits H100-SXM: 76"
    assert "77 would leave less than the margin." in " ".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert "tally: --batch 76: fits" in done.stderr
    document: dict[str, Any] = json.loads((tmp_path / "fit.json").read_text())
    (chip,) = document["chips"]
    assert (chip["largest"], chip["too_large"]) == (76, 77)
    by_value = {record["value"]: record for record in chip["tried"]}
    assert by_value[76]["fits"]
    assert not by_value[77]["fits"]
    assert by_value[76]["peak_reserved_bytes"] == (76 << 30) + (2 << 20)
    assert len(document["runs"]) == 4, "two to guess by, two to see"
    assert sorted(os.listdir(tmp_path)) == ["fit.json", "train.py"]


def test_margin_range_and_multiples(tmp_path: Path) -> None:
    """79.19 GiB less 600 MiB less 10 GiB hold 68 of them: 64 is the multiple of 8 below."""
    done = tally_fit(tmp_path, "--vary", "--batch {}", *H100, "--margin", "10GiB",
                     "--multiple-of", "8", "--from", "9", "--", "--batch=3")  # fmt: skip
    assert done.stdout.splitlines()[0] == "largest --batch that fits H100-SXM: 64"
    assert "tally: --batch {} takes the place of --batch=3" in done.stderr
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--to", "20", "--json", "-")
    (chip,) = json.loads(done.stdout)["chips"]
    assert (chip["largest"], chip["too_large"]) == (20, None)


def test_nothing_fits(tmp_path: Path) -> None:
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--per", "36")
    assert done.returncode == 1
    assert done.stdout.startswith("no --batch fits H100-SXM: 1 is too large\n  It would reserve")
    assert "179.77 GiB more" in done.stdout  # 256 GiB less 76.23 GiB


@pytest.mark.thorough
def test_a_script_that_fails_at_odd_values(tmp_path: Path) -> None:
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--even", "--to", "80")
    assert done.returncode == 0
    assert done.stdout.startswith("largest --batch that fits H100-SXM: 76\n")
    assert "78 would leave less than the margin" in done.stdout
    assert "failed at 77, not for lack of memory: ValueError: 77 is odd" in (
        " ".join(done.stdout.split())
    )


def test_a_script_that_always_fails(tmp_path: Path) -> None:
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--nonsense")
    assert done.returncode == 1
    assert done.stdout.startswith("the script fails at every --batch that was tried\n")
    assert "unrecognized arguments: --nonsense" in done.stdout


@pytest.mark.thorough(cases=("words1-0",))
@pytest.mark.parametrize(("words", "code"), [((), GATE_EXIT), (("--compile", "eager"), 0)])
def test_the_answer_of_code_that_could_not_be_compiled_is_none(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """Eager code is not what the script asked for: the answer begins with that, and ends in 3."""
    (tmp_path / "train.py").write_text(f"import sys\nbatch = int(sys.argv[1])\n{COMPILED}")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\n{WITHOUT_TRITON}")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command(*words, "--vary", "{}", *H100, "--to", "2", "--json", "fit.json", "train.py",
                python=cold),
        cwd=tmp_path, env=environment() | {"PYTHONPATH": path}, capture_output=True, text=True,
        timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    caveats = json.loads((tmp_path / "fit.json").read_text())["caveats"]
    assert (len(caveats) == 1) is (code == GATE_EXIT)
    said = " ".join(done.stdout.split())
    assert said.startswith("".join(f"{caveat} " for caveat in caveats) + "largest ")
    assert ("torch.compile ran eagerly: inductor needs triton" in said) is bool(caveats)


def test_all_chips(tmp_path: Path) -> None:
    """A GiB each: the memory less 500 MiB less 3 %, in GiB. Three runs tell of all chips."""
    done = tally_fit(tmp_path, "--vary", "--batch={}", "--gpu", "A100-SXM-40GB", "--gpu",
                     "A100-SXM", "--gpu", "T4", "--json", "fit.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "largest --batch that fits, by chip"
    assert [line.split()[-1] for line in lines[2:5]] == ["T4", "A100-SXM-40GB", "A100-SXM"]
    loaded = json.loads((tmp_path / "fit.json").read_text())
    largest = {chip["chip"]: chip["largest"] for chip in loaded["chips"]}
    for each in loaded["chips"]:
        kept_bytes = 500 * 2**20 + int(0.03 * each["total_memory_bytes"])
        room_bytes = each["total_memory_bytes"] - kept_bytes - 2 * 2**20  # 2 MiB of small ones
        assert largest[each["chip"]] == room_bytes // 2**30
    assert [(run["simulated"], run["value"]) for run in loaded["runs"]][2:] == [("A100-SXM", 77)]
    assert {run["value"] for run in loaded["runs"]} == {4, 16, 77}
    assert loaded["computations"] == [
        {"simulated": "A100-SXM", "simulated_at": [4, 16], "checked_at": 77, "asked": []}
    ]
    told = " ".join(done.stdout.split())
    assert "3 chips: computed from runs at 4, 16 and 77 on A100-SXM" in told
    assert lines[4].split()[2] == "77*"


@pytest.mark.parametrize("options", [("--verify",), ("--odd",)], ids=["--verify", "not linear"])
def test_chips_by_runs(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Asked for, or because a batch of 64 and more takes twice as much as smaller ones tell."""
    done = tally_fit(tmp_path, "--vary", "--batch={}", "--gpu", "A100-SXM-40GB", "--gpu",
                     "A100-SXM", *options, "--json", "fit.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = json.loads((tmp_path / "fit.json").read_text())
    assert loaded["computations"] == []
    for each in loaded["chips"]:
        tried = {record["value"]: record["fits"] for record in each["tried"]}
        assert tried[each["largest"]]
        assert not tried[each["too_large"]]
    told = " ".join(done.stdout.split())
    assert ("by runs only, since a run at 77 allocates other" in told) == ("--odd" in options)


@pytest.mark.thorough
def test_a_script_that_asks_for_the_chip(tmp_path: Path) -> None:
    """Chips of another compute capability have runs of their own, and the report says so."""
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("weight =", "torch.cuda.get_device_capability()\nweight =")
    )
    done = tally_fit(tmp_path, "--vary", "--batch={}", "--gpu", "T4", "--gpu", "A100-SXM",
                     "--json", "fit.json")  # fmt: skip
    loaded = json.loads((tmp_path / "fit.json").read_text())
    assert [computation["simulated"] for computation in loaded["computations"]] == [
        "A100-SXM",
        "T4",
    ]
    assert "The script calls torch.cuda.get_device_capability" in " ".join(done.stdout.split())


@pytest.mark.thorough
def test_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        command("-m", "train", "--vary", "--batch={}", *H100, "--to", "8"), cwd=tmp_path,
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.stdout.startswith("largest --batch that fits H100-SXM: 8\n"), done.stderr


@pytest.mark.parametrize("words", [
    ["--gpu", "H100-SXM", "--", "torchrun", "--nproc-per-node=2", "train.py"],
    ["--gpu", "2xH100-SXM", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"],
])  # fmt: skip
def test_a_launcher_is_asked_as_by_run(tmp_path: Path, words: list[str]) -> None:
    """76 of two ranks' together: 38 each, a GiB per rank and value."""
    text = SCRIPT.replace("args.batch *", "args.batch * int(os.environ['WORLD_SIZE']) *")
    (tmp_path / "train.py").write_text(f"import os\n{text}")
    done = tally_fit_of(tmp_path, "--vary", "--batch={}", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "largest --batch that fits H100-SXM: 38"
    assert "Run as rank 0 of 2." in done.stdout


def test_nobody_reads_the_answer(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("train.py", "--vary", "--batch={}", *H100, "--to", "2"), cwd=tmp_path,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(TIMEOUT_S) in (0, 141), said
    assert "Error" not in said


def test_help_is_80_columns_wide() -> None:
    done = subprocess.run(
        command("--help"), env=environment() | {"COLUMNS": "80"}, capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= 80


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    processes = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdigit() and os.readlink(each / "cwd") == str(folder):
                processes.append((each / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return processes


@pytest.mark.one_case_in(3)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ids=["SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_is_left_behind(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        command("train.py", "--vary", "--batch={}", *H100, "--hang", python=cold), cwd=tmp_path,
        env=environment() | {"TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while "started" not in "".join(
            path.read_text() for path in tmp_path.glob("tally-fit-*/*/output")
        ):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.send_signal(number)
        stdout, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, stdout) == (code, "")
    while left := processes_of(tmp_path):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)
    if number != signal.SIGKILL:
        assert os.listdir(tmp_path) == ["train.py"]


@pytest.mark.thorough
def test_a_run_that_takes_too_long(tmp_path: Path) -> None:
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--hang", "--max-seconds", "0.5",
                     "--to", "2")  # fmt: skip
    assert done.returncode == 1
    assert "stopped after 0.5 s" in done.stdout


@pytest.mark.thorough
def test_a_run_that_waits_for_a_value(tmp_path: Path, script: Path) -> None:
    script.write_text(f"import torch\n{WAITING}{SCRIPT}")
    done = tally_fit(tmp_path, "--vary", "--batch={}", *H100, "--placeholder-limit", "50",
                     "--to", "2")  # fmt: skip
    assert done.returncode == 1
    shown = " ".join(done.stdout.split())
    assert "EndlessLoopError" in shown
    assert "asked 50 times" in shown


# Arguments ----------------------------------------------------------------------------------------


def test_the_argument_takes_the_place_of_the_scripts_own() -> None:
    varied = parse("--batch={}")
    assert varied.among(("a", "--batch", "3", "b"), 7) == ("a", "--batch=7", "b")
    assert varied.among(("--batch=3", "--batches=1"), 7) == ("--batch=7", "--batches=1")
    assert varied.among(("a",), 7) == ("a", "--batch=7")
    assert parse("--batch {}").among(("--batch=3",), 7) == ("--batch", "7")
    assert parse("train.batch={}").among(("train.batch=2", "x"), 7) == ("train.batch=7", "x")
    assert parse("{}").among(("a",), 7) == ("a", "7")


@pytest.mark.parametrize("text", ["--batch", "", "--a={} --b={} c", "{}{}", "a b {}"])
def test_an_argument_without_one_hole(text: str) -> None:
    with pytest.raises(UsageError, match="expected one argument of the script"):
        parse(text)


def test_margins() -> None:
    assert parse_margin("3%").share == parse_margin("0.03").share == 0.03
    assert parse_margin("1GiB").bytes == 1 << 30
    for text in ("150%", "2", "-1", "much"):
        with pytest.raises(UsageError):
            parse_margin(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--vary", "--batch={}", *H100],
        ["train.py", "--vary", "--batch", *H100],
        ["train.py", "--vary", "--batch={}", "--gpu", "no such"],
        ["train.py", "--vary", "--batch={}", "--gpu", "M4-Max"],
        ["train.py", "--vary", "--batch={}", *H100, "--margin", "100%"],
        ["train.py", "--vary", "--batch={}", *H100, "--from", "5", "--to", "4"],
        ["missing.py", "--vary", "--batch={}", *H100],
    ],
)
def test_wrong_command_lines(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *arguments]) == 2


def test_what_is_varied_may_look_like_an_option() -> None:
    ours, theirs = FitParser.split(_parser(), ["a.py", "--vary", "--batch={}", "--x"])
    assert (ours, theirs) == (["--vary=--batch={}"], ["a.py", "--x"])


def _parser() -> FitParser:
    from torchtally.cli import parser

    actions: Any = parser(["fit"])._subparsers
    fit: FitParser = actions._group_actions[0].choices["fit"]
    return fit


SHARDED = """\
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
layers = [torch.nn.Linear(32768, 32768, bias=False, device="meta") for _ in range(int(sys.argv[1]))]
model = torch.nn.Sequential(*layers)
for layer in layers:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for step in range(2):
    model(torch.ones(1, 32768, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough("the searches beside it")
def test_a_search_on_a_cluster(script: Path) -> None:
    """A layer is 4 GiB. A rank of eight has an eighth of its parameters and gradients, 1 GiB, and
    a few layers whole: far more of them fit than on one GPU.
    """
    script.write_text(SHARDED)
    options = (
        "--vary",
        "{}",
        "--margin",
        "10%",
        "--multiple-of",
        "16",
        "--from",
        "32",
        "--to",
        "64",
        "--format",
        "json",
    )
    run = tally_fit(script.parent, *options, "--gpu", "8xH100-SXM")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["chips"][0]["largest"] == 48


def test_clusters_of_different_sizes(script: Path) -> None:
    run = tally_fit(script.parent, "--vary", "--batch={}", "--gpu", "8xH100-SXM", "--gpu", "H200")
    assert run.returncode == 2
    assert "clusters of different sizes" in run.stderr
