"""SIGKILL at any time of a save: what was whole stays, and what is found is whole."""

import os
from pathlib import Path

import pytest

from tests.train.checkpoints.killing import killed_at_every_call, killed_at_random
from tests.train.checkpoints.saving import names, save
from torchtally.checkpoints.folder import Checkpoints

pytestmark = pytest.mark.one_case_in(2)

KILLS = int(os.environ.get("TALLY_KILLS", "8"))
"""Of the random ones; a change of how checkpoints are written deserves 200 and more."""
PHASES = {"directory made", "some tensors", "all tensors", "manifest", "renamed"}


@pytest.mark.parametrize(
    ("kind", "kills"), [("tmp_path", KILLS // 8), ("in_memory", KILLS - KILLS // 8)]
)
def test_random_kills_corrupt_nothing_and_lose_nothing(
    kind: str, kills: int, request: pytest.FixtureRequest
) -> None:
    report = killed_at_random("torchtally", request.getfixturevalue(kind), kills)
    print(report)
    assert (report.kills, report.corrupt, report.lost) == (kills, 0, 0)
    assert report.during_a_save > kills / 2
    if kind == "in_memory":  # few kills on a disk need not meet every phase of a save
        assert len(report.phases) >= 4
        assert sum(n for name, n in report.phases.items() if name in PHASES) > kills / 8


@pytest.mark.thorough
def test_a_kill_before_each_call_of_a_save(in_memory: Path) -> None:
    save(in_memory, 1)
    save(in_memory, 2)
    report = killed_at_every_call("torchtally", in_memory)
    assert report.kills > 30
    assert (report.corrupt, report.lost) == (0, 0)
    assert {*PHASES, "nothing begun", "removing the oldest"} == set(report.phases)
    Checkpoints(in_memory).clean()
    assert len(names(in_memory)) == 2


@pytest.mark.parametrize("way", ["overwriting", "deleting first"])
def test_the_same_kills_find_what_does_not_endure(tmp_path: Path, way: str) -> None:
    losses = 0
    for seed in range(20):
        report = killed_at_random(way, tmp_path, 10, seed)
        losses += report.corrupt + report.lost
        if losses:
            break
    assert losses


def test_the_same_calls_find_what_is_deleted_first(tmp_path: Path) -> None:
    report = killed_at_every_call("deleting first", tmp_path)
    assert report.lost + report.corrupt
