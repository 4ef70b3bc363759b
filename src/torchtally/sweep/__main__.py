"""`python -m torchtally.sweep LIFELINE ...`: `tally ...`, ended when who started it ends.

LIFELINE is the number of a pipe's end to read from. Its other end closes with the process that
holds it, however that ends; then this process and all it has started are killed, which must be in a
session of their own. What they have saved by then is what a resumed sweep goes on from.
"""

import os
import runpy
import signal
import sys
import threading


def die_with(lifeline: int) -> None:
    """Kill this process's group when the pipe's other end closes."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="tally-lifeline", daemon=True).start()


if __name__ == "__main__":
    die_with(int(sys.argv.pop(1)))
    runpy.run_module("torchtally", run_name="__main__", alter_sys=True)
