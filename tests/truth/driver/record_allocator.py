"""`python -m tests.truth.driver.record_allocator --python P`: writes allocator.json.gz."""

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .build import environment
from .sequences import Case, cases

PLAYER = Path(__file__).with_name("play.py")
RECORD = Path(__file__).parent.parent / "allocator.json.gz"
ABOUT = (
    "What the caching allocator of PyTorch {torch} answered, recorded on a stand-in for the CUDA"
    " driver (tests/truth/driver) that hands out rising addresses and enforces the capacity in"
    " pages of 2 MiB. An allocation's answer is [which of the driver's ranges by order of their"
    " making, offset in it] or the message of running out of memory; ranges"
    " include those of reserved addresses, which is what expandable segments are. A free of what"
    " was not had is 'not held'. Events of streams are always complete. Rows of stats start with"
    " the index of the event after which they were read; blocks are [size, requested size, state]."
)


def play(case: Case, python: str, variables: dict[str, str]) -> dict[str, Any]:
    """One case, in a process of its own: settings are read once."""
    variables = {
        **variables,
        "PYTORCH_CUDA_ALLOC_CONF": case.settings,
        "STANDIN_MEMORY": str(case.capacity_bytes),
    }
    done = subprocess.run(
        [python, str(PLAYER)],
        input=json.dumps(case.events),
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    """Play every case and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="one with a CUDA build of PyTorch")
    parser.add_argument("--output", default=RECORD, type=Path)
    options = parser.parse_args()
    variables = environment(options.python)
    variables.pop("PYTORCH_ALLOC_CONF", None)
    record: dict[str, Any] = {}
    for case in cases():
        said = play(case, options.python, variables)
        version, names = said.pop("torch"), said.pop("names")
        if not record:
            record = {
                "torch": version,
                "about": ABOUT.format(torch=version),
                "stats": ["event", *names],
                "cases": [],
            }
        record["cases"].append({**case._asdict(), **said})
        failures = sum(isinstance(answer, dict) for answer in said["answers"])
        print(f"{case.name}: {len(case.events)} events, {failures} out of memory", flush=True)
    text = json.dumps(record, separators=(",", ":"))
    options.output.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
