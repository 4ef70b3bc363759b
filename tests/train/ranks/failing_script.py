"""Ranks that count together until rank 1 fails in the way that the command line says."""

import os
import signal
import sys
import time

from torchtally.checkpoints.ranks import Ranks, join_ranks
from torchtally.errors import TallyError
from torchtally.train.failing import fail_together


def fail(how: str) -> None:
    if how == "tally":
        raise TallyError("the disk of rank 1 is full")
    os.kill(os.getpid(), signal.SIGKILL)


def count(own: Ranks, how: str) -> None:
    for turn in range(1000):
        if turn == 3 and own.rank == 1:
            fail(how)
        own.gather([turn])
        time.sleep(0.01)


if __name__ == "__main__":
    with fail_together(), join_ranks("cpu") as own:
        count(own, sys.argv[1])
