"""A document of every command and question, as it is really printed, by a name for each."""

import contextlib
import gzip
import io
import json
import os
import pickle
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests import calibrations
from tests.cli.run_tally import END, TALLY, environment
from tests.cli.test_plan import QUESTIONS
from tests.fit.test_threshold import searched
from tests.ledger.steps.test_generation import accounted, with_cache
from tests.memory.test_comparison import compared, measurement
from tests.profiles.kineto_files import linear_step
from tests.report.test_text import realistic
from tests.sweep.sweeps import definition, result
from tests.timing.calibration.machines import H100 as MEASURED
from tests.truth.snapshots import FILE as SNAPSHOT
from tests.tune.test_answer import tuned
from tests.views.stopwatch import DATASHEET, NOBODY_KNOWS, stopwatch
from tests.warm import warm
from torchtally.chips import chip
from torchtally.cli import main
from torchtally.fixes.choosing import ChosenFixes, FixGoal, Tried
from torchtally.fixes.fix import fixes
from torchtally.fixes.patch import Patch
from torchtally.fixes.trial import FixTrial
from torchtally.gates.budget import Budget, BudgetFile
from torchtally.gates.check import check
from torchtally.gates.limits import parse_limits
from torchtally.ledger import account
from torchtally.numerics import file_numbers
from torchtally.report.audit import audit_report, runs_document
from torchtally.report.bench import bench_report
from torchtally.report.documents.training import ContinuationDocument
from torchtally.report.fixes import fixes_report
from torchtally.report.formats import render
from torchtally.report.gates import findings_report
from torchtally.report.keys import dumps
from torchtally.report.ledger import ledger_report, view_report
from torchtally.report.report import Look, Report
from torchtally.report.sweep import sweep_report
from torchtally.report.tensor_numbers import real_step_report
from torchtally.report.threshold import threshold_report
from torchtally.report.trace import trace_report
from torchtally.report.tune import tune_report
from torchtally.sweep.rows import document as sweep_document
from torchtally.sweep.rows import results_table
from torchtally.trace import Trace
from torchtally.views import VIEWS, by
from torchtally.views.bench import bench_view
from torchtally.views.tensor_numbers import RealStep

Texts = Iterator[tuple[str, str]]
"""A name, and a document; of `tally watch` each line is one."""

NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.second(self.first(x).relu()).t().contiguous()
"""
SCRIPT = """\
import sys
import torch
from net import Net
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(16, 4), Net(), torch.nn.Dropout(0.5)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = int(sys.argv[1]) if sys.argv[1:] else 8
for _ in range(4):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randint(16, (batch,), device="cuda")).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if loss.item() < 0:
        print("never")
    keep = torch.empty(batch << 20, device="cuda")
open("out.txt", "w").write("written")
"""
REAL = """\
import torch
a, b = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
first, weight = torch.nn.Parameter(a), torch.nn.Parameter(b)
loss = first @ weight
loss.backward(torch.empty_like(loss))
weight.grad.mul_(0.5)
"""
LOG = """\
iter 0: loss 10.98, time 9000.00ms, mfu -100.00%
iter 10: loss 9.00, time 100.00ms, mfu 30.00%
iter 20: loss 8.00, time 100.00ms, mfu 30.00%
iter 30: loss 8.00, time 100.00ms, mfu 30.00%
iter 40: loss 7.00, time 950.00ms, mfu 30.00%
"""
RUNS = {
    "run": ("train.py", "-o", "run.tally", "--assert", "peak < 1MiB", "--assert", "flops < 1T"),
    "run on a cluster": ("train.py", "--gpu", "2x8xH100-SXM", "-o", "cluster.tally"),
    "run without step": ("-c", "import torch; torch.ones(2, device='cuda')", "-o", "bare.tally"),
    "run out of memory": ("train.py", "30000", "-o", "oom.tally"),
    "run, in brief": ("train.py", "--brief", "-o", "brief.tally"),
    "run, in brief, again": ("train.py", "16", "--brief", "-o", "brief.tally"),
    "run with what-if": ("--what-if", "checkpoint=Net", "train.py", "--steps", "all",
                         "-o", "checkpoint.tally"),
}  # fmt: skip
SHOWN = {
    "show": (),
    "show step": ("--step", "1"),
    "show allocator": ("--allocator", "expandable_segments:True"),
    "show chips": ("--gpu", "A100-SXM", "--gpu", "B200"),
    "show chips until": ("--gpu", "A100-SXM", "--until", "24h"),
    "show until": ("--until", "1000"),
}
TIMINGS = {
    "calibrated": stopwatch(calibration=MEASURED),
    "without the time of an operator": stopwatch(mm=NOBODY_KNOWS),
}
CALM = ("--quiet",)


def documents(folder: Path) -> Texts:
    """All of them, made in a folder of their own."""
    here = os.getcwd()
    os.chdir(folder)
    try:
        for name, content in {
            "train.py": SCRIPT,
            "net.py": NET,
            "real.py": REAL,
            "train.log": LOG,
            "text.txt": "to be\n" * 200,
        }.items():
            Path(name).write_text(content)
        yield from of_runs()
        yield from of_views()
        yield from of_real_runs()
        yield from of_plans()
        yield from of_the_rest()
        yield from of_reports()
    finally:
        os.chdir(here)


def tally(*words: str) -> str:
    """What a command prints as a process of its own, whatever its exit code."""
    done = subprocess.run(
        warm(TALLY + END, *words), capture_output=True, text=True,
        env=environment() | {"XDG_CACHE_HOME": os.path.abspath("cache")},
        timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("{"), (words, done.stderr)
    return done.stdout


def here(*words: str) -> str:
    """What a command prints in this process, which needs no simulated GPU."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        main([*words])
    assert stream.getvalue().startswith("{"), words
    return stream.getvalue()


def of_runs() -> Texts:
    for name, words in RUNS.items():
        gpu = () if "--gpu" in words else ("--gpu", "H100-SXM")
        yield name, tally("run", *CALM, *gpu, "--json", "-", *words)
    yield "summary", tally("summary", "net.py:Net", "--input", "2x4", "--json")
    yield "fit", tally("fit", "train.py", "--vary", "{}", "--gpu", "H100-SXM", "--to", "4",
                       "--json", "-")  # fmt: skip
    yield "fit, two chips", tally("fit", "train.py", "--vary", "{}", "--gpu", "T4", "--gpu", "A100",
                                  "--to", "4", "--json", "-")  # fmt: skip


def of_views() -> Texts:
    for file in ("run", "cluster", "bare", "checkpoint", "oom"):
        for name, words in SHOWN.items():
            if not (file == "bare" and name == "show step"):
                yield f"{name}, {file}", here("show", f"{file}.tally", *words, "--json")
        trace = Trace.load(f"{file}.tally")
        for timing in (DATASHEET, None):
            ledger = account(trace, roofline=timing)
            for name in VIEWS:
                yield f"show --by {name}, {file}", shown(view_report(by(ledger, name), ledger))
            yield f"show, {file}, timed: {timing is not None}", shown(ledger_report(ledger))
    yield "diff", here("diff", "run.tally", "checkpoint.tally", "--json")
    for name in ("line", "module", "op", "phase", "category"):
        yield f"diff --by {name}", here("diff", "run.tally", "cluster.tally", "--by", name,
                                        "--json")  # fmt: skip
    yield "fix", shown(fixes_report(fixed(), "H100-SXM", 1 << 30, "--- a/train.py\n"))
    generated = accounted(with_cache)
    yield "show, generated tokens", shown(ledger_report(generated))
    yield "show --by token", shown(view_report(by(generated, "token"), generated))
    for name, timing in TIMINGS.items():
        yield f"show, {name}", shown(ledger_report(account(realistic(), roofline=timing)))


def fixed() -> ChosenFixes:
    """One change that was kept, and one that failed."""
    kept, failed = fixes()[:2]
    run = FixTrial(account(realistic()))
    tried = [Tried(Patch((kept,), {}), run, 0.5), Tried(Patch((failed,), {}), FixTrial(None), 0.0)]
    return ChosenFixes(run, FixGoal.FASTER, alone=tried, kept=tried[0])


def of_real_runs() -> Texts:
    linear_step().write(Path("trace.json.gz"))
    snapshot = json.loads(gzip.decompress(SNAPSHOT.read_bytes()))["snapshot"]
    Path("snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    yield "explain", tally("explain", "trace.json.gz", "-o", "real.tally", "--json")
    trace = Trace.load("real.tally")
    ledger = account(trace, roofline=DATASHEET)
    for name in VIEWS:
        yield f"explain --by {name}", shown(view_report(by(ledger, name), ledger))
    yield "explain --script", tally("explain", "trace.json.gz", "--script", "real.py", "--json")
    yield "explain snapshot", tally("explain", "snapshot.pickle", "-o", "held.tally", "--json")
    yield (
        "explain snapshot --against",
        tally("explain", "snapshot.pickle", "--against", "run.tally", "--json"),
    )
    for words in (("train.log",), ("train.log", "--against", "run.tally"), (".",)):
        lines = here("watch", *words, "--once", "--json").splitlines()
        yield from ((f"watch {words}, line {n}", line) for n, line in enumerate(lines))


def of_plans() -> Texts:
    for name, words in QUESTIONS.items():
        yield f"plan {name}", here("plan", *words, "--json")
    compared = (*QUESTIONS["training-time"], "--compare", "A100-SXM,B200", "--price", "1")
    yield "plan --compare", here("plan", *compared, "--json")
    yield "plan --models", here("plan", "--models", "--json")


def of_the_rest() -> Texts:
    yield "gpus", here("gpus", "--json")
    yield "gpus H100", here("gpus", "H100-SXM", "--json")
    yield "dtypes", here("dtypes", "--json")
    yield "tune", shown(tune_report(tuned(), {}, "0"))
    yield "threshold", shown(threshold_report(searched(3), "--batch", "H100-SXM"))
    np.save("numbers.npy", np.array([1.0, 1e-9, 70000.0, 0.0, np.nan]))
    yield "dtypes of a file", here("dtypes", "numbers.npy", "--json")
    numbers = file_numbers("numbers.npy")
    step = RealStep("train.py", "sys.exit('done')", ("GPT: (4, 8) to (2, 8)",), numbers, numbers)
    yield "run with real values", render(real_step_report(step), "json", Look())
    yield "dtypes of values", here("dtypes", "0.1", "1e9", "-inf", "nan", "--json")
    yield "tensor", tally("tensor", "x.T.contiguous()", "--let", "x=4x6:bfloat16", "--json")
    yield "tensor, large", tally("tensor", "x[1:] + 1", "--let", "x=4000x6000", "--json")
    overlapping = "torch.as_strided(x, (3, 3), (2, 3))"
    large = "torch.arange(3) + 2**60"  # beyond what a float64 tells apart
    yield "tensor, large numbers", tally("tensor", large, "--json")
    yield "tensor, truth", tally("tensor", "torch.arange(3) > 1", "--json")
    yield "tensor, overlapping", tally("tensor", overlapping, "--let", "x=4x6", "--json")
    with contextlib.redirect_stdout(io.StringIO()):
        main(["data", "prepare", "text.txt", "--out", "tokens"])
    yield "data show", here("data", "show", "tokens", "--json")
    yield "budget", budget()


def budget() -> str:
    """Of a file with a history of two commits."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *name, *words], check=True, capture_output=True)

    git("init", "-q", ".")
    for figures in ({"peak": 10, "step": 0.5}, {"peak": 20, "flops": 7, "tokens/s": 5.5}):
        BudgetFile("budgets.toml", (Budget("train.py", "H100-SXM", figures),)).save()
        git("add", "budgets.toml")
        git("commit", "-qm", "change")
    return here("budget", "budgets.toml", "--json")


def of_reports() -> Texts:
    """Of commands that need a GPU, minutes or a trained model, from what their parts return."""
    for device in (calibrations.gpu(), calibrations.cpu()):
        yield f"bench {device.device}", shown(bench_report(bench_view(device)))
    pair = compared(measurement(), replace(measurement(), lines=()))
    yield "audit", shown(audit_report(pair, chip("H100-SXM")))
    yield "audit -o", runs_document(pair.measured, pair.predicted)
    swept = definition("compile=true,false")
    losses = (2.0, float("nan"))
    results = [
        result(point, ((1, 3.0), (2, loss)))
        for point, loss in zip(swept.points, losses, strict=False)
    ]
    table = results_table(swept, results, {})
    report = sweep_report(table, None, (), sweep_document(swept, results), "folder")
    yield "sweep", shown(report)
    yield "sample", dumps(CONTINUATION)
    findings = check(account(realistic()), parse_limits(["peak < 1GiB", "step < 1s"]))
    yield "limits", shown(findings_report(findings))
    yield "a trace by itself", shown(trace_report(realistic()))


CONTINUATION = ContinuationDocument(
    source="runs/byte_gpt", step=None, seed=1, prompt_tokens=1, tokens=[116, 111], text="to"
)


def shown(report: Report) -> str:
    return render(report, "json", Look())
