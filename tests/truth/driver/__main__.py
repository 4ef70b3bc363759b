"""`python -m tests.truth.driver [--python P] ... [--] script.py args`: on the stand-in."""

import argparse
import os
import sys

from .build import environment


def main() -> None:
    """Replace this process by the script's."""
    parser = argparse.ArgumentParser(prog="python -m tests.truth.driver", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="one with a CUDA build of PyTorch")
    parser.add_argument("--name", help="of the device")
    parser.add_argument("--capability", help="such as 9.0")
    parser.add_argument("--memory", help="in bytes")
    parser.add_argument("--multiprocessors", help="how many")
    parser.add_argument("--l2", help="its size in bytes")
    parser.add_argument(
        "--log", choices=["1", "2"], help="1: what is not implemented; 2: memory too"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="script.py args")
    options = parser.parse_args()
    variables = environment(options.python)
    for name in ("name", "capability", "memory", "multiprocessors", "l2", "log"):
        if (value := getattr(options, name)) is not None:
            variables[f"STANDIN_{name.upper()}"] = value
    sys.stdout.flush()
    command = options.command[options.command[:1] == ["--"] :]
    os.execve(options.python, [options.python, *command], variables)


if __name__ == "__main__":
    main()
