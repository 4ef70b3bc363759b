"""Run a case under `tally run`, and say what is wrong with its report."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.corpus.case import Case, Counted, Figures

HERE = Path(__file__).parent
COUNTED = HERE / "counted.json"
GPU = "H100-SXM"
TIMEOUT_S = 600

Python = Callable[..., list[str]]
"""A command that runs a program with arguments, as `python -c` does."""

TALLY = "import sys; from torchtally.cli import main; sys.exit(main())"


def cold(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    faults: tuple[str, ...] = ()
    left_out: str = ""
    """Why it was not run."""

    @property
    def is_right(self) -> bool:
        return not self.faults and not self.left_out


def place(case: Case, folder: Path, checkouts: Path | None) -> Path | None:
    """The folder to run in, with the script and its data. None: there is no such checkout."""
    if case.repository is None:
        shutil.copytree(HERE / "scripts", folder, dirs_exist_ok=True)
        work = folder
    else:
        name = case.repository.rpartition("/")[2]
        if checkouts is None or not (checkouts / name / case.folder).is_dir():
            return None
        work = folder / name / case.folder
        # Next to the folder itself, its README at most is read.
        shutil.copytree(checkouts / name / case.folder, work, symlinks=True)
    if case.data is not None:
        case.data(work)
    return work


def environment(work: Path, home: Path) -> dict[str, str]:
    own = {"COLUMNS", "NO_COLOR", "PYTHONUNBUFFERED", "PYTHONSAFEPATH"}
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | offline | {"HOME": str(home), "PYTHONPATH": str(work)}


def run(
    case: Case, folder: Path, checkouts: Path | None = None, *, python: Python = cold
) -> Outcome:
    """In `folder`, which is empty."""
    if case.missing:
        return Outcome(case, left_out=f"needs {', '.join(case.missing)}")
    work = place(case, folder / "work", checkouts)
    if work is None:
        return Outcome(case, left_out=f"needs a checkout of {case.repository}")
    expected = expected_of(case)
    if expected is None:
        return Outcome(case, left_out="was not counted on the CPU")
    report = folder / "report.json"
    gpu = GPU if case.ranks == 1 else f"{case.ranks}x{GPU}"
    command = (
        "run",
        "--gpu",
        gpu,
        "-o",
        str(folder / "run.tally"),
        "--json",
        str(report),
        *case.command,
    )
    try:
        done = subprocess.run(
            python(TALLY, *command), cwd=work, env=environment(work, folder),
            input=case.stdin or "", capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome(case, (f"did not end within {TIMEOUT_S} s",))
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    if done.returncode or not report.exists():
        tail = done.stderr.strip().splitlines()[-3:]
        return Outcome(case, (f"ended with exit code {done.returncode}: {' / '.join(tail)}",))
    faults = wrong(case, expected, json.loads(report.read_text()), done.stdout, done.stderr)
    return Outcome(case, tuple(faults))


def wrong(
    case: Case, expected: Figures, report: dict[str, Any], stdout: str, stderr: str
) -> list[str]:
    """What a report says that it should not, and what it does not say."""
    trained = expected.parameters if expected.trained is None else expected.trained
    rows = report["coverage"]["uncounted"]
    uncounted = [row["operator"] for row in rows if row["operator"] not in case.uncounted]
    compared = {
        "parameters": (report["parameters"] or 0, expected.parameters),
        # Without a step nothing says which of them would be trained.
        "trained parameters": (
            report["trained_parameters"] or 0 if case.steps else trained,
            trained,
        ),
        "FLOPs": (report["totals"]["flops_matmul"], expected.flops),
        "steps": (report["steps"], case.steps),
        "period": (report["per"].partition(" (")[0], case.period.partition(" (")[0]),
        "ending": (report["ending"]["kind"], case.ending),
        "uncounted operators": (uncounted, []),
    }
    faults = [
        f"{name}: {given:,}, expected {wanted:,}"
        if isinstance(given, int)
        else f"{name}: {given}, expected {wanted}"
        for name, (given, wanted) in compared.items()
        if given != wanted
    ]
    faults += [f"MFU {fraction:.1%}" for fraction in fractions(report) if not 0 <= fraction <= 1]
    faults += [f"does not print {text}" for text in case.prints if not re.search(text, stdout)]
    faults += [f"tally does not say {text}" for text in case.notes if not re.search(text, stderr)]
    return faults + (case.check(report, stdout) if case.check is not None else [])


def fractions(report: dict[str, Any]) -> list[float]:
    return [each["peak_share"] for each in report["utilisation"] if each["peak_share"] is not None]


# What is expected --------------------------------------------------------------------------------


def expected_of(case: Case) -> Figures | None:
    if isinstance(case.figures, Figures):
        return case.figures
    row = json.loads(COUNTED.read_text()).get(case.name)
    if row is None:
        return None
    return Figures(
        parameters=row["trained"] + case.figures.frozen,
        trained=row["trained"],
        flops=row["flops"] + case.figures.attention,
    )


def count(case: Case, folder: Path, checkouts: Path | None) -> dict[str, int] | str:
    """The figures of a `Counted` case, by running it on the CPU; or why there are none."""
    assert isinstance(case.figures, Counted)
    if case.missing:
        return f"needs {', '.join(case.missing)}"
    work = place(case, folder / "work", checkouts)
    if work is None:
        return f"needs a checkout of {case.repository}"
    steps, each = case.figures.after + 1, case.figures.steps_of_optimizers
    command = case.figures.arguments or script_of(case)
    done = subprocess.run(
        [sys.executable, str(HERE / "on_host.py"), str(steps * each), *command],
        cwd=work, env=environment(work, folder), capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("counted:")), None)
    if done.returncode or line is None:
        return done.stderr[-1500:]
    result = json.loads(line.partition(": ")[2])
    return {"trained": result["parameters"], "flops": sum(result["steps"][-each:])}


def script_of(case: Case) -> tuple[str, ...]:
    """The command from the script on: options of tally stand before it."""
    at = next(at for at, word in enumerate(case.command) if word.endswith(".py"))
    return case.command[at:]
