"""Record the corpus on a CUDA build, or compare this torch's virtual GPU with it.

    python -m tests.truth.compiled --python PYTHON --write     record, with PyTorch's CUDA build
    python -m tests.truth.compiled                             predict, and say what differs
    python -m tests.truth.compiled --list                      the cases

Recording needs gcc, Python's headers and, in PYTHON's environment, transformers; no GPU. It runs
each case twice, in processes of their own: warm and cold (tests/truth/compiled/__init__.py says how
they differ). `--only NAME` records or compares one case, and keeps what the file has of the others.
Predicting takes about ten seconds for each.
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
from tests.truth.compiled.cases import CASES, case_of
from tests.truth.compiled.compare import differences, failures, signatures
from torchtally.chips import chip

RECORD = ["-m", "tests.truth.compiled.record"]
SHOWN = 5
"""Differences of a case."""
VERSIONS = """
import json, platform, torch, transformers, triton
print(json.dumps({
    "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda,
    "cudnn": torch.backends.cudnn.version(), "transformers": transformers.__version__,
    "python": platform.python_version(),
}))
"""


def versions(python: str) -> dict[str, Any]:
    done = subprocess.run([python, "-c", VERSIONS], capture_output=True, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def recorded(python: str, name: str) -> dict[str, Any]:
    """One case on the CUDA build of that interpreter: its warm run, the memory of its cold one."""
    warm, cold = (on_stand_in(python, name, side) for side in ("real", "cold"))
    if signatures(warm) != signatures(cold):
        raise RuntimeError(f"{name}: a cold run launches other kernels than a warm one")
    device = device_of(name)
    return {**warm, "device": device, "cold": {"marks": cold["marks"], "pools": cold["pools"]}}


def device_of(name: str) -> dict[str, Any]:
    """What the stand-in says of the device."""
    target = chip(case_of(name).chip)
    assert target.compute_capability is not None
    major, minor = target.compute_capability
    return {
        "name": target.device_name, "capability": f"{major}.{minor}",
        "memory": target.total_memory_bytes, "multiprocessors": target.multiprocessors,
        "l2": target.l2_cache_bytes,
    }  # fmt: skip


def on_stand_in(python: str, name: str, side: str) -> dict[str, Any]:
    device = [part for key, value in device_of(name).items() for part in (f"--{key}", str(value))]
    driver = [sys.executable, "-m", "tests.truth.driver", "--python", python, *device, "--"]
    return run([*driver, *RECORD], name, side)


def predicted(name: str) -> dict[str, Any]:
    return run([sys.executable, *RECORD], name, "virtual")


def run(command: Sequence[str], name: str, side: str) -> dict[str, Any]:
    """In a process with caches of its own: inductor keeps decisions in them, asked or not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "facts.json"
        own = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
        }
        done = subprocess.run(
            [*command, name, str(out), side], env={**os.environ, **own},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or not out.exists():
            raise RuntimeError(f"{name} ({side}) failed:\n{done.stderr[-3000:]}")
        facts: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return facts


def record(python: str, names: Sequence[str], *, writes: bool) -> int:
    """The file is whole after every case. Returns how many failed."""
    about = versions(python)
    release = str(about["torch"]).partition("+")[0]
    path = corpus.path_of(release)
    whole = corpus.read(release) if path.exists() else {"cases": {}}
    failed = 0
    for name in names:
        try:
            facts = recorded(python, name)
        except RuntimeError as error:
            print(error, flush=True)
            failed += 1
            continue
        del facts["torch"]
        print(
            f"{name}: {len(facts['graphs'])} graphs, {len(facts['launches'])} launches", flush=True
        )
        whole = {
            "format": corpus.FORMAT, "torch": release, "about": about,
            "assumptions": corpus.ASSUMPTIONS, "date": datetime.date.today().isoformat(),
            "cases": {**whole["cases"], name: facts},
        }  # fmt: skip
        if writes:
            corpus.write(whole)
    return failed


def compare(names: Sequence[str]) -> int:
    """Print what differs; how many cases fail."""
    import torch

    known = corpus.read(torch.__version__.partition("+")[0])["cases"]
    failed = 0
    for name in names:
        if name not in known:
            print(f"{name}: not recorded on this release", flush=True)
            failed += 1
            continue
        try:
            facts = predicted(name)
        except RuntimeError as error:
            print(error, flush=True)
            failed += 1
            continue
        mistakes = list(differences(known[name], facts))
        missed = list(failures(known[name], facts))
        failed += bool(missed)
        said = "equal" if not mistakes else f"{len(mistakes)} differences, {len(missed)} too large"
        print(f"{name}: {said}", flush=True)
        for difference in (missed or mistakes)[:SHOWN]:
            print(f"  {difference}")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.truth.compiled",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", help="one with a CUDA build of PyTorch: record with it")
    parser.add_argument("--write", action="store_true", help="write what was recorded")
    parser.add_argument("--only", action="append", default=[], help="a case by its name")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    options = parser.parse_args()
    names = options.only or list(CASES)
    if options.list:
        print("\n".join(names))
    elif options.python:
        sys.exit(record(options.python, names, writes=options.write))
    else:
        sys.exit(compare(names))


if __name__ == "__main__":
    main()
