"""What ranks tell each other."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.ranks.processes import on_ranks
from torchtally.checkpoints.ranks import ALONE, LostRanksError, Ranks, join_ranks, launched_rank
from torchtally.errors import UsageError
from torchtally.train.failing import is_loss

TOLD = {"steps": [10, 20], "text": "ä", "none": None, "nested": {"x": 0.1}}


def talk() -> dict[str, Any]:
    with join_ranks("cpu") as own:
        answers = {
            "gathered": own.gather((own.rank + 0.1, math.inf)),
            "on device": own.gather_on_device(torch.tensor([own.rank, 7])),
            "most": own.max(own.rank, -own.rank, 2**52 + own.rank),
            "added": own.sum((0.1 * 10**own.rank,)),
            "told": own.gather_values(TOLD if own.is_first else None)[0],
            "done": own.run_on_first(lambda: own.rank + 1, "count"),
            "saving": replace(own, group=own.saving_group).gather([own.rank]),
        }
        own.wait()
        return answers


def work_that_fails() -> str:
    def work() -> None:
        raise UsageError("no text there")

    with join_ranks("cpu") as own:
        try:
            own.run_on_first(work, "prepare the text")
        except Exception as error:
            return f"{type(error).__name__}: {error}, {is_loss(error)}"
    return "nothing"


def peer_that_goes() -> bool:
    """Whether a collective without rank 1 says that it is lost."""
    with join_ranks("cpu") as own:
        if own.rank == 1:
            return False  # and the process ends
        try:
            while True:
                own.gather([1.0])
        except RuntimeError as error:
            return is_loss(error)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_know_the_same(size: int) -> None:
    by_rank = on_ranks(talk, size)
    one = by_rank[0]
    assert one["gathered"] == [[rank + 0.1, math.inf] for rank in range(size)]
    assert one["on device"].tolist() == [[rank, 7] for rank in range(size)]
    assert one["most"] == (size - 1, 0, 2**52 + size - 1)
    assert one["told"] == TOLD
    assert one["done"] == 1
    assert one["saving"] == [[rank] for rank in range(size)]
    for other in by_rank[1:]:
        assert torch.equal(other.pop("on device"), one["on device"])
        assert other == {key: value for key, value in one.items() if key != "on device"}


def test_where_the_first_rank_fails_all_do() -> None:
    assert on_ranks(work_that_fails, 3) == [
        "UsageError: no text there, False",
        *["LostRanksError: rank 0 has failed to prepare the text, True"] * 2,
    ]


def test_a_peer_that_has_ended_is_told_from_a_failure() -> None:
    assert on_ranks(peer_that_goes, 3) == [True, False, True]


@given(st.lists(st.floats(allow_nan=False), max_size=4), st.integers(0, 2**62))
def test_alone_nothing_is_asked_of_anybody(numbers: list[float], seed: int) -> None:
    assert not torch.distributed.is_initialized()
    assert ALONE.gather(numbers) == [numbers]
    assert ALONE.sum(numbers) == numbers
    assert ALONE.gather_values((1, "x")) == [(1, "x")]
    assert ALONE.run_on_first(lambda: numbers, "wait") is numbers
    assert ALONE.seed(seed) == seed
    ALONE.wait()


def test_each_rank_draws_its_own_numbers() -> None:
    seeds = [Ranks(rank, 64).seed(7) for rank in range(64)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert Ranks(1, 2).seed(7) == Ranks(1, 64).seed(7) != Ranks(1, 2).seed(8)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ALONE),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, ALONE),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Ranks(5, 8, 1)),
    ],
)
def test_the_environment_says_which_rank(
    variables: dict[str, str], expected: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched_rank() == expected


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0"},
        {"RANK": "x", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {"RANK": "2", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
    ],
)
def test_half_an_environment_is_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="torchrun"):
        launched_rank()


def test_a_lost_peer_is_known_by_its_error() -> None:
    assert is_loss(LostRanksError("rank 0 has failed"))
    assert is_loss(RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:5432"))
    assert not is_loss(RuntimeError("shape '[2]' is invalid for input of size 3"))
    assert not is_loss(ValueError("Connection closed by peer"))
