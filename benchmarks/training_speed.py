"""How fast `tally train` trains on this machine's GPU: the rows of docs/training.md, measured.

Each row is a training of its own, a few steps long, on bytes of Python's standard library: what
tokens mean does not change how long a step takes. The speed is that of the median step after the
first ones, in which kernels are compiled. The file is whole after every row.

    python -m benchmarks.training_speed [--only WORD,...] [--output FILE]

`benchmarks/training_speed.json` has what an H100 took.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

REPOSITORY = Path(__file__).parents[1]
SKIPPED_STEPS = 3
"""The first compiles; the next two settle the allocator and the clocks."""
TIMEOUT_S = 240
TOKENS = 2**24


@dataclass(frozen=True)
class Row:
    name: str
    config: str
    steps: int
    flags: tuple[str, ...] = ()

    def arguments(self, tokens: str, folder: str, steps: int) -> list[str]:
        """Of `tally train`."""
        return [
            self.config,
            "--steps", str(steps),
            "--data.train", json.dumps([tokens]),
            "--data.validation", "[]",
            "--data.dtype", "uint16",
            "--learning_rate.warmup_steps", "1",
            "--checkpoint.at_end", "false",
            "--checkpoint.every_minutes", "1000",
            "--log.every", "1",
            "--log.folder", folder,
            *self.flags,
        ]  # fmt: skip


GPT2, LLAMA = "examples/gpt2_124m.toml", "examples/llama_1b.toml"
FEWER_ROWS = ("--batch", "16")
"""Of 4096 tokens, instead of 64: the same micro-batches, a quarter as many."""

ROWS = (
    Row("GPT-2 124M", GPT2, 20),
    Row("GPT-2 124M eager", GPT2, 10, ("--no-compile",)),
    Row("Llama 1.2B", LLAMA, 12, FEWER_ROWS),
    Row("Llama 1.2B fp8", LLAMA, 12, (*FEWER_ROWS, "--precision", "fp8")),
    Row(
        "GPT-2 1.5B", GPT2, 10,
        ("--model.preset", "gpt2-1.5b", "--micro_batch", "16", "--batch", "64"),
    ),
    Row("Llama 1.2B eager", LLAMA, 8, (*FEWER_ROWS, "--no-compile")),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    name: str
    command: tuple[str, ...]
    step_s: tuple[float, ...]
    """Of every step."""
    tokens_per_step: int
    mfu: float | None
    """Of the median step; model FLOPs over the data sheet's peak, attention counted in full."""
    peak_allocated_bytes: int | None
    wall_s: float
    """Of the command: imports, compilation, steps."""
    losses: tuple[float, ...]

    @property
    def median_step_s(self) -> float:
        return median(self.step_s[SKIPPED_STEPS:])

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.median_step_s


def write_tokens(path: Path, tokens: int = TOKENS) -> None:
    """Bytes of Python's standard library, each a token of 16 bits."""
    content = bytearray()
    for source in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        content += source.read_bytes()
        if len(content) >= tokens:
            break
    np.frombuffer(bytes(content[:tokens]), np.uint8).astype(np.uint16).tofile(path)


def measure(row: Row, tokens: Path, folder: Path) -> Measured:
    """Raises RuntimeError with what the training said where it failed."""
    arguments = row.arguments(str(tokens), str(folder), row.steps)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "torchtally", "train", *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    wall_s = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{row.name}: {done.stdout[-500:]}\n{done.stderr[-3000:]}")
    records = list(steps_of(folder))
    step_s = tuple(record["train/step_s"] for record in records)
    middle_s = median(step_s[SKIPPED_STEPS:])
    nearest = min(records, key=lambda record: abs(record["train/step_s"] - middle_s))
    mfu = nearest.get("train/mfu")
    return Measured(
        row.name,
        tuple(arguments),
        step_s,
        round(nearest["train/tokens_per_second"] * nearest["train/step_s"]),
        None if mfu is None else mfu / 100,
        records[-1].get("memory/peak_allocated_bytes"),
        wall_s,
        tuple(record["train/loss"] for record in records),
    )


def steps_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The log's records of steps."""
    for line in (folder / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "train/step_s" in record:
            yield record


def about() -> dict[str, Any]:
    from tests.truth.measure import about

    return about("cuda") | {"date": datetime.now(UTC).strftime("%Y-%m-%d")}


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, details = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training_speed", description=summary, epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default="", metavar="WORD,...", help="rows with one in the name")
    parser.add_argument("--output", type=Path, default=Path("training_speed.json"), metavar="FILE")
    given = parser.parse_args(arguments)
    rows = [row for row in ROWS if any(word in row.name for word in given.only.split(","))]
    document: dict[str, Any] = {"about": about(), "rows": []}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        tokens = Path(scratch) / "tokens.bin"
        write_tokens(tokens)
        for number, row in enumerate(rows):
            try:
                measured = measure(row, tokens, Path(scratch) / str(number))
            except (RuntimeError, subprocess.TimeoutExpired) as problem:
                print(f"FAILED: {problem}", flush=True)
                failed = True
                continue
            document["rows"].append(asdict(measured))
            given.output.write_text(json.dumps(document, indent=1) + "\n")
            mfu = "unknown" if measured.mfu is None else f"{measured.mfu:.1%}"
            print(
                f"{row.name:20} {measured.median_step_s:8.3f} s  "
                f"{measured.tokens_per_s:10,.0f} tokens/s  MFU {mfu}  "
                f"peak {(measured.peak_allocated_bytes or 0) / 2**30:.1f} GiB  "
                f"({measured.wall_s:.0f} s)",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
