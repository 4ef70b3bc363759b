"""Record the corpus on a CUDA build, or compare this torch's virtual GPU with it.

    python -m tests.truth.compiled --python PYTHON --write     record, with PyTorch's CUDA build
    python -m tests.truth.compiled                             predict, and say what differs

Predicting takes a process for each case, about ten seconds.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.truth.compiled import corpus
from tests.truth.compiled.cases import CASES
from tests.truth.compiled.compare import differences
from torchtally.chips import chip

RECORD = ["-m", "tests.truth.compiled.record"]
SHOWN = 5
"""Differences of a case."""


def real(python: str, name: str) -> dict[str, Any]:
    """One case on the CUDA build of that interpreter."""
    target = chip(CASES[name].chip)
    major, minor = target.compute_capability or (9, 0)
    driver = [
        sys.executable, "-m", "tests.truth.driver", "--python", python,
        "--name", target.device_name, "--capability", f"{major}.{minor}",
        "--memory", str(target.total_memory_bytes),
        "--multiprocessors", str(target.multiprocessors), "--",
    ]  # fmt: skip
    variables = {"STANDIN_L2": str(target.l2_cache_bytes)}
    return run([*driver, *RECORD], name, "real", variables)


def predicted(name: str) -> dict[str, Any]:
    return run([sys.executable, *RECORD], name, "virtual", {})


def run(command: Sequence[str], name: str, side: str, variables: dict[str, str]) -> dict[str, Any]:
    """In a process with caches of its own: inductor keeps decisions in them, asked or not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "facts.json"
        own = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        done = subprocess.run(
            [*command, name, str(out), side], env={**os.environ, **own, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not out.exists():
            raise RuntimeError(f"{name} ({side}) failed:\n{done.stderr[-3000:]}")
        facts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return facts


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tests.truth.compiled", None, __doc__, formatter_class=raw)
    parser.add_argument("--python", help="one with a CUDA build of PyTorch: record with it")
    parser.add_argument("--write", action="store_true", help="write what was recorded")
    parser.add_argument("--only", action="append", default=[], help="a case by its name")
    options = parser.parse_args()
    names = options.only or list(CASES)
    if options.python:
        cases = {}
        for name in names:
            cases[name] = real(options.python, name)
            print(f"{name}: {len(cases[name]['launches'])} launches", flush=True)
        release = next(iter(cases.values()))["torch"]
        if options.write:
            known = corpus.read(release)["cases"] if corpus.path_of(release).exists() else {}
            print(corpus.write(
                {
                    "about": "What torch.compile did on PyTorch's CUDA build over the stand-in for "
                    "the driver (tests/truth/driver): no kernel ran, no benchmark decided.",
                    "torch": release, "date": datetime.date.today().isoformat(),
                    "cases": {**known, **cases},
                }
            ))  # fmt: skip
        return
    sys.exit(compare(names))


def compare(names: Sequence[str]) -> int:
    """Print what differs; how many cases do."""
    import torch

    recorded = corpus.read(torch.__version__)["cases"]
    failed = 0
    for name in names:
        try:
            found = list(differences(recorded[name], predicted(name)))
        except RuntimeError as error:
            print(error)
            found = []
            failed += 1
            continue
        failed += bool(found)
        print(f"{name}: {'equal' if not found else f'{len(found)} differences'}", flush=True)
        for difference in found[:SHOWN]:
            print(f"  {difference}")
    return failed


if __name__ == "__main__":
    main()
