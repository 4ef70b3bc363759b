"""Public logs of an agent that edits a training script, replayed: memory and crashes of each idea.

autoresearch (github.com/karpathy/autoresearch) keeps a row for every experiment: commit, loss, peak
memory, whether it was kept, discarded or crashed. Replayed are those whose source is there or whose
description says the edit: of pull request 299 (a GTX 1050 Ti), of the branch exp/H100/mar8, and the
notes on memory of pull request 332 (an RTX 3090).

AUTORESEARCH names a clone of it into which `exp/H100/mar8`, `refs/pull/299/head` and
`refs/pull/332/head` were fetched, the latter two as refs of these names. Its data are replaced by
random tokens. A row of a compiled step takes more than a minute of CPU.

    AUTORESEARCH=DIR python -m benchmarks.agent_log [--only 299] [--json FILE]
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import parser, show, write

PREPARE = """\
import torch
MAX_SEQ_LEN, TIME_BUDGET, EVAL_TOKENS = 2048, 300, 40 * 524288

class Tokenizer:
    @classmethod
    def from_directory(cls):
        return cls()
    def get_vocab_size(self):
        return 8192

def make_dataloader(tokenizer, B, T, split):
    cpu = torch.empty(2 * B * T, dtype=torch.long, pin_memory=True)
    gpu = torch.empty(2 * B * T, dtype=torch.long, device="cuda")
    while True:
        gpu.copy_(cpu.random_(8192), non_blocking=True)
        yield gpu[: B * T].view(B, T), gpu[B * T :].view(B, T), 1

def evaluate_bpb(model, tokenizer, batch_size, *rest):
    return 1.0
"""
"""In place of the log's prepare.py: the same buffers, random tokens."""

PASCAL = ("if VRAM_GB < 6:", "if True:")
"""Takes the branch of 4 GB on a chip of that generation with 11: the 1050 Ti is not one of ours."""
SDPA = ("fa3 = get_kernel(repo).flash_attn_interface", "raise ModuleNotFoundError")
"""Its machine had no wheel of FlashAttention 3."""
CAST = ("return F.rms_norm(x, (x.size(-1),))", "return F.rms_norm(x, (x.size(-1),)).to(x.dtype)")
"""The logs are of PyTorch 2.9, whose autocast leaves rms_norm in its dtype."""
ROUNDING_GIB = 0.05
"""Of a log's memory, which is given to 0.1."""
COLUMNS = ("log", "idea", "commit", "memory_gib", "predicted_gib", "off", "outcome",
           "predicted_outcome")  # fmt: skip
FITS, OOM, CRASH = "fits", "out of memory", "crash"


@dataclass(frozen=True, slots=True)
class Experiment:
    """A row of a log."""

    log: str
    gpu: str
    commit: str
    """Of the source: its own, or that of the row that it edits."""
    idea: str
    edits: tuple[tuple[str, str], ...]
    memory_gib: float | None
    """As logged, to 0.1; None where it crashed or is not told."""
    outcome: str = FITS


def pascal(commit: str, idea: str, memory_gib: float | None, *edits: tuple[str, str],
           outcome: str = FITS) -> Experiment:  # fmt: skip
    """A row of pull request 299."""
    return Experiment(
        "299", "GTX-1080-Ti", commit, idea, (PASCAL, SDPA, CAST, *edits), memory_gib, outcome
    )


def hopper(commit: str, idea: str, memory_gib: float, *edits: tuple[str, str]) -> Experiment:
    """A row of exp/H100/mar8."""
    return Experiment("mar8", "H100-SXM", commit, idea, (CAST, *edits), memory_gib)


def ampere(idea: str, outcome: str, *edits: tuple[str, str]) -> Experiment:
    """A note of pull request 332."""
    commit = "refs/pull/332/head"
    return Experiment("332", "RTX-3090", commit, idea, (CAST, *edits), None, outcome)


BATCH = "DEVICE_BATCH_SIZE = 128"
DEPTH, ASPECT = "DEPTH = 9 ", "ASPECT_RATIO = 57"
WIDE = ("4 * config.n_embd", "int({} * config.n_embd)")
EXPERIMENTS = (
    pascal("beffca5", "baseline", 0.2),
    pascal("beffca5", "depth 6", 0.4, ("    DEPTH = 4 ", "    DEPTH = 6 ")),
    pascal("488bb6c", "batch 2", 0.2),
    pascal("cbf0477", "batch 4", 0.3),
    pascal("57a782f", "batch 8", 0.6),
    pascal("dcd8e21", "batch 16", 1.0),
    pascal("d1a4f1c", "batch 32", 1.8),
    pascal("e49bf5d", "matrix LR 0.05", 1.8),
    pascal(
        "e49bf5d",
        "sequence 384",
        None,
        ("min(MAX_SEQ_LEN, 256)", "min(MAX_SEQ_LEN, 384)"),
        outcome=CRASH,
    ),
    pascal("682811e", "warmup 0.1", 1.8),
    pascal("682811e", "depth 5", 2.5, ("    DEPTH = 4", "    DEPTH = 5")),
    pascal(
        "682811e", "total batch 32K", 1.8, ("TOTAL_BATCH_SIZE = 2**14", "TOTAL_BATCH_SIZE = 2**15")
    ),
    pascal("b9492b9", "windows SSSL", 1.8),
    hopper("500114a", "baseline", 44.0),
    hopper("bea057b", "total batch 262K", 43.9),
    hopper("7f2a65c", "depth 9, width 512 to 640", 60.2),
    hopper(
        "772dada",
        "depth 10, aspect 51",
        53.7,
        (DEPTH, "DEPTH = 10 "),
        (ASPECT, "ASPECT_RATIO = 51"),
    ),
    hopper("7f63c17", "depth 11", 72.6, (DEPTH, "DEPTH = 11 "), (ASPECT, "ASPECT_RATIO = 58")),
    hopper(
        "264a05b",
        "depth 10, width 640",
        66.2,
        (DEPTH, "DEPTH = 10 "),
        (ASPECT, "ASPECT_RATIO = 64"),
    ),
    hopper(
        "264a05b", "depth 8, width 640", 53.9, (DEPTH, "DEPTH = 8 "), (ASPECT, "ASPECT_RATIO = 80")
    ),
    hopper("264a05b", "MLP 3.5 times", 57.4, (WIDE[0], WIDE[1].format(3.5))),
    hopper("f5979a7", "MLP 4.5 times", 63.1, (WIDE[0], WIDE[1].format(4.5))),
    hopper("438a26e", "warmdown 0.75", 60.2),
    ampere("batch 128", OOM),
    ampere("batch 16", FITS, (BATCH, "DEVICE_BATCH_SIZE = 16")),
    ampere(
        "depth 18, batch 8", OOM, (BATCH, "DEVICE_BATCH_SIZE = 8"), ("DEPTH = 8 ", "DEPTH = 18 ")
    ),
    ampere(
        "depth 5, width 512, batch 32, total 65K",
        FITS,
        (BATCH, "DEVICE_BATCH_SIZE = 32"),
        ("DEPTH = 8 ", "DEPTH = 5 "),
        ("ASPECT_RATIO = 64", "ASPECT_RATIO = 102"),
        ("TOTAL_BATCH_SIZE = 2**19", "TOTAL_BATCH_SIZE = 2**16"),
    ),
)


def source(clone: str, experiment: Experiment) -> str:
    """The script of an experiment."""
    command = ("git", "-C", clone, "show", f"{experiment.commit}:train.py")
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for before, after in experiment.edits:
        if before not in text:
            raise SystemExit(f"{experiment.log} {experiment.idea}: {before!r} is not in its source")
        text = text.replace(before, after)
    return text


def replay(clone: str, experiment: Experiment) -> dict[str, Any]:
    """What a run says of an experiment, beside what its log says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "prepare.py").write_text(PREPARE)
        (folder / "train.py").write_text(source(clone, experiment))
        report = folder / "report.json"
        command = [sys.executable, "-m", "torchtally", "run", "--gpu", experiment.gpu, "--quiet",
                   "--no-advice", f"--json={report}", "train.py"]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if not report.is_file():
            raise SystemExit(done.stderr)
        document = json.loads(report.read_text())
    memory, ending = document["memory"], document["ending"]
    predicted_bytes = memory["peak_allocated_bytes"]
    is_short = memory["claim"] == "does not fit"
    outcome = OOM if is_short else CRASH if ending["kind"] == "exception" else FITS
    logged_gib = experiment.memory_gib if outcome == FITS else None
    gib = predicted_bytes / 2**30
    return {
        "log": experiment.log,
        "gpu": experiment.gpu,
        "commit": experiment.commit,
        "idea": experiment.idea,
        "memory_gib": experiment.memory_gib,
        "predicted_gib": None if logged_gib is None else round(gib, 4),
        "off": None if logged_gib is None else round(off(gib, logged_gib), 4),
        "outcome": experiment.outcome,
        "predicted_outcome": outcome,
        "message": ending["message"],
    }


def off(predicted_gib: float, logged_gib: float) -> float:
    """What a prediction is off, beyond the log's rounding to 0.1."""
    beyond = max(abs(predicted_gib - logged_gib) - ROUNDING_GIB, 0.0)
    return beyond / logged_gib


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", default="", help="rows of this log: 299, mar8, 332")
    arguments = options.parse_args()
    clone = os.environ.get("AUTORESEARCH")
    if not clone:
        raise SystemExit("AUTORESEARCH names a clone of github.com/karpathy/autoresearch.")
    rows = []
    for experiment in EXPERIMENTS:
        if arguments.only in ("", experiment.log):
            rows.append(replay(clone, experiment))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    largest = max((row["off"] for row in rows if row["off"] is not None), default=None)
    told = sum(row["outcome"] == row["predicted_outcome"] for row in rows)
    title = f"{told} of {len(rows)} outcomes as logged; memory at most {largest} off"
    show(title, COLUMNS, [[str(row[name]) for name in COLUMNS] for row in rows])
    write(arguments.json, {"rows": rows})


if __name__ == "__main__":
    main()
