"""Memory snapshots that PyTorch's CUDA build wrote on the stand-in for the driver.

    python -m tests.truth.snapshots --python CUDA/bin/python --write

Kept as JSON, so that no pickle is in the repository, with file names cut to what every machine has.
"""

import argparse
import gzip
import json
import pickle
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.truth.driver.build import environment

FILE = Path(__file__).with_name("snapshot.json.gz")
CASE = Path(__file__).with_name("snapshot_case.py")
KEPT_FRAMES = 12


def main() -> None:
    """Record, and print or keep."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.snapshots", description=__doc__)
    parser.add_argument("--python", required=True, help="one with a CUDA build of PyTorch")
    parser.add_argument("--write", action="store_true", help=f"to {FILE.name}")
    options = parser.parse_args()
    document = recorded(options.python)
    print(json.dumps(document["said"]))
    if options.write:
        FILE.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def recorded(python: str) -> dict[str, Any]:
    """What torch.cuda said, and the snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        done = subprocess.run(
            [python, str(CASE), str(path)],
            env=environment(python), capture_output=True, text=True, check=True,
        )  # fmt: skip
        snapshot = pickle.loads(path.read_bytes())
    kept = {name: snapshot[name] for name in ("segments", "device_traces", "allocator_settings")}
    return {"said": json.loads(done.stdout.splitlines()[-1]), "snapshot": portable(kept)}


def portable(value: Any) -> Any:
    """File names from the package or the script on; a few frames of each stack."""
    if isinstance(value, dict):
        return {
            name: place_of(inner) if name == "filename" else portable(inner)
            for name, inner in value.items()
            if name != "time_us"
        }
    if isinstance(value, list | tuple):
        rows = list(value)
        if rows and isinstance(rows[0], dict) and "filename" in rows[0]:
            rows = [row for row in rows if row["filename"].endswith(".py")][:KEPT_FRAMES]
        return [portable(row) for row in rows]
    return value


def place_of(path: str) -> str:
    _, separator, rest = path.partition("/site-packages/")
    return f"/env/lib/python3/site-packages/{rest}" if separator else f"/home/{Path(path).name}"


if __name__ == "__main__":
    main()
