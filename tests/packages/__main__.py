"""Install each package into an environment of its own, and try it: see the package's docstring.

What an environment lacks comes from that of this Python, torch among it: no other torch is
installed. Wheels alone are.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.packages.names import Package, packages
from tests.packages.trial import difference, run_both

RESULTS = Path(__file__).with_name("results.json")
TOGETHER = 8
"""Packages that one script imports, as long as all goes well."""
INSTALL_S = 900
NEVER = "; sys_platform == 'never'\n"
OF_TORCH = ("torch", "torchvision", "torchaudio", "triton", "torchtext")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.packages", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="modules (default: all)")
    parser.add_argument("--write", action="store_true", help="keep what it gave, in results.json")
    parser.add_argument("--uv", default=shutil.which("uv"), metavar="FILE", help="uv's executable")
    arguments = parser.parse_args()
    if arguments.uv is None:
        parser.error("needs uv, which installs an environment in a second: pip install uv")
    chosen = [each for each in packages() if not arguments.names or each.module in arguments.names]
    results: dict[str, Any] = {}
    if arguments.names and RESULTS.exists():  # the others' stay
        results = json.loads(RESULTS.read_text())["packages"]
    for group in batched(chosen, TOGETHER):
        for name, result in trials(group, arguments.uv):
            results[name] = result
            print(f"{result['outcome']:8} {name:28} {result['version']:12} {result['why']}",
                  flush=True)  # fmt: skip
        if arguments.write:
            write(results)
    return int(any(result["outcome"] == "differs" for result in results.values()))


def batched(items: Sequence[Package], size: int) -> Iterator[Sequence[Package]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def trials(group: Sequence[Package], uv: str) -> Iterator[tuple[str, dict[str, str]]]:
    """What came of each: all together where one script can import them, else one by one."""
    together = trial(group, uv)
    for package in group:
        alone = len(group) > 1 and any(each["outcome"] != "same" for each in together.values())
        yield package.module, (trial([package], uv) if alone else together)[package.module]


def trial(group: Sequence[Package], uv: str) -> dict[str, dict[str, str]]:
    """What came of a script that imports them: "same", "differs" or "skipped", with the reason."""
    with tempfile.TemporaryDirectory(prefix="tally-package-") as name:
        folder = Path(name)
        python, why = installed(group, folder / "environment", uv)
        outcome, versions = "skipped", [""] * len(group)
        if not why:
            asked = [python, "-c", VERSIONS, *(package.distribution for package in group)]
            versions = subprocess.run(asked, capture_output=True, text=True).stdout.split()
            work = folder / "work"
            work.mkdir()
            alone, tally = run_both([package.module for package in group], work, python)
            if alone.code:
                why = f"fails alone: {alone.last_line[:120]}"
            else:
                why = difference(alone, tally)
                outcome = "differs" if why else "same"
        return {
            package.module: {"outcome": outcome, "version": version_, "why": why}
            for package, version_ in zip(group, versions, strict=True)
        }


VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"


def installed(group: Sequence[Package], place: Path, uv: str) -> tuple[Path, str]:
    """The Python of a new environment with the packages, or why there is none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    python = place / "bin" / "python"
    own = sysconfig.get_path("purelib")
    site = next((place / "lib").glob("python*")) / "site-packages"
    site.joinpath("below.pth").write_text(f"import site; site.addsitedir({own!r})\n")
    without = place / "without.txt"
    without.write_text("".join(f"{name} {NEVER}" for name in OF_TORCH))
    command = [uv, "pip", "install", "-q", "--python", python, "--only-binary", ":all:"]
    command += ["--overrides", without, *(package.requirement for package in group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    if not done.returncode:
        return python, ""
    reasons = " ".join(done.stderr.replace("╰─▶", "").replace("×", "").split())
    return python, f"not installed: {reasons[:160]}"


def write(results: dict[str, Any]) -> None:
    document = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": version("torch"),
        "packages": results,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
