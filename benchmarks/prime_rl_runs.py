r"""Runs of prime-rl's own trainer on simulated GPUs, held to its published baselines of one GPU.

prime-rl is not a package: give a checkout of it, on the path of a Python in which torchtally, its
pinned torchtitan and torchao 0.17 are installed, and a module `dion` (its Muon; not used here):

    PYTHONPATH=prime-rl/src:prime-rl/packages/prime-rl-configs/src \
        python -m benchmarks.prime_rl_runs --write
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from torchtally.plan.architecture.known import known_row

FOLDER = Path(__file__).parent / "trainings"
PUBLISHED, RUNS, STEP = (
    FOLDER / name for name in ("prime_rl.csv", "prime_rl_runs.csv", "prime_rl_step.py")
)
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Figures:
    published_peak_gib: float
    """Reserved, as prime-rl logs it. A plan's table has it of fewer rows: of none that offloads."""
    peak_gib: float
    step_s: float


def published() -> dict[str, dict[str, str]]:
    """Rows of one GPU, by the name of their file."""
    with PUBLISHED.open(encoding="utf-8") as file:
        return {row["line"]: row for row in csv.DictReader(file) if row["gpus"] == "1"}


def runs() -> dict[str, Figures]:
    with RUNS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row.pop("line"): Figures(**{key: float(row[key]) for key in row}) for row in rows}


def run(line: str, row: dict[str, str]) -> tuple[float, float]:
    """Peak in GiB and step in seconds of one row. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        config = known_row(row["model"]).config or {}
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        words = ["--model", folder, "--sequence", row["sequence"]]
        words += row["options"].split() if row["options"].startswith("--lora") else []
        words += ["--attention", "flash_attention_" + row["knobs"][-1]]
        words += ["--offload"] * ("-Offload-" in line) + ["--sft"] * ("-sft-" in line)
        file = Path(folder, "answer.json")
        command = [sys.executable, "-m", "torchtally", "run", "--gpu", row["chip"], "--json", file]
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
        subprocess.run([*command, STEP, *words], check=True, env=environment)
        answer = json.loads(file.read_text(encoding="utf-8"))
    peak = answer["memory"]["peak_reserved_bytes"] / GIB
    return round(peak, 2), float(f"{answer['time']['step_s']:.4g}")


def title(line: str, row: dict[str, str]) -> str:
    kind = "SFT" if "-sft-" in line else "RL"
    how = "LoRA 16, " * ("-rl-16-" in line) + ("offload" if "-Offload-" in line else "recompute")
    return f"{row['model']}, {kind}, {how}, {row['sequence']} tokens, {row['chip']}"


def table() -> str:
    """Table of docs/trainings.md: each row's peak and step, run and published."""
    return "\n".join(lines()) + "\n"


def lines() -> Iterator[str]:
    yield "| run | peak: run, GiB | published | error | step: run, s | published | error |"
    yield "| :-- | --: | --: | --: | --: | --: | --: |"
    rows, errors = published(), []
    for line, ours in runs().items():
        peak_gib, step_s = ours.published_peak_gib, float(rows[line]["step_s"])
        errors.append((ours.peak_gib / peak_gib - 1, ours.step_s / step_s - 1))
        yield (
            f"| {title(line, rows[line])} | {ours.peak_gib:.2f} | {peak_gib:.2f} "
            f"| {errors[-1][0]:+.1%} | {ours.step_s:.4g} | {step_s:.4g} | {errors[-1][1]:+.1%} |"
        )
    peak, step = (median(map(abs, each)) for each in zip(*errors, strict=True))
    yield f"| median of {len(errors)} | | | {peak:.1%} | | | {step:.1%} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="run all, and keep the figures")
    if parser.parse_args().write:
        rows = published()
        figures = [
            (line, old.published_peak_gib, *run(line, rows[line])) for line, old in runs().items()
        ]
        with RUNS.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("line", "published_peak_gib", "peak_gib", "step_s"))
            writer.writerows(figures)
    print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
