"""A small training that imports packages: alone, and under `tally run`."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 300
OPTIONS = ("--gpu", "T4", "--steps", "all", "--quiet")
TRAINING = """\
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8, device=device)).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
print("trained", len(torch.load("model.pt")))
"""


def script(modules: Sequence[str]) -> str:
    return "".join(f"import {module}\n" for module in modules) + TRAINING


@dataclass(frozen=True)
class Ran:
    """How a script ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        return next((line for line in reversed(self.stderr.splitlines()) if line.strip()), "")


def run(command: Sequence[str | Path], folder: Path) -> Ran:
    """To its end, or for `TIMEOUT_S`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ran(124, "", f"took more than {TIMEOUT_S} s")
    return Ran(done.returncode, done.stdout, done.stderr)


def run_both(modules: Sequence[str], folder: Path, python: Path | None = None) -> tuple[Ran, Ran]:
    """Alone and under `tally run`, in an empty folder."""
    executable = python or Path(sys.executable)
    (folder / "train.py").write_text(script(modules))
    alone = run([executable, "train.py"], folder)
    for left in folder.glob("model.pt"):
        left.unlink()
    return alone, run([executable, "-m", "torchtally", "run", *OPTIONS, "train.py"], folder)


def difference(alone: Ran, tally: Ran) -> str:
    """What is otherwise under `tally run`; "" where nothing is."""
    if alone.code != tally.code:
        return f"exit code {tally.code} instead of {alone.code}: {tally.last_line}"
    if alone.stdout != tally.stdout:
        return f"prints {tally.stdout[-200:]!r} instead of {alone.stdout[-200:]!r}"
    return ""
