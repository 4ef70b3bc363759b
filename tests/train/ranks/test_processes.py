"""Ranks of tests: their results come in order, their failures at once, and none is left."""

import multiprocessing
import os
import signal
import time

import pytest

from tests.train.ranks.processes import RankDied, RankFailed, on_ranks
from torchtally.errors import UsageError


def square(plus: int) -> tuple[int, int]:
    rank = int(os.environ["RANK"])
    return rank, rank**2 + plus


def fails_on_one(how: str) -> None:
    if os.environ["RANK"] != "1":
        time.sleep(600)
    if how == "usage":
        raise UsageError("nothing there")
    if how == "unknown":
        raise type("Local", (Exception,), {})("no module has this class")
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_are_in_the_order_of_ranks() -> None:
    assert on_ranks(square, 3, 10) == [(0, 10), (1, 11), (2, 14)]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("usage", UsageError, "nothing there"),
        ("unknown", RankFailed, "no module has this class"),
        ("kill", RankDied, "rank 1 ended with exit code -9"),
    ],
)
def test_one_failure_ends_all(how: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        on_ranks(fails_on_one, 3, how)
    assert not multiprocessing.active_children()


def test_a_limit_of_time() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0\]"):
        on_ranks(time.sleep, 1, 600, time_limit_s=0.5)
    assert not multiprocessing.active_children()
