"""Shards of several ranks: whole for any number of ranks, or not there."""

from pathlib import Path

import pytest
import torch

from tests.train.checkpoints.ranked import SHAPES, fail_on_rank, full, read_on_ranks, save_on_ranks
from tests.train.checkpoints.saving import contents, names, whole
from tests.train.ranks.processes import RankDied, on_ranks
from torchtally.checkpoints.folder import Checkpoints

pytestmark = pytest.mark.one_case_in(2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("ranks")
    on_ranks(save_on_ranks, 4, run, 1)
    return run


def test_one_process_reads_the_whole(saved: Path) -> None:
    content = contents(saved, whole(saved, 1))
    for name in SHAPES:
        assert torch.equal(content[name], full(name, 1))
    for rank in range(4):
        assert content[f"random/{rank:05}/torch"].tolist() == [rank + 10] * 5
    assert content["model/plain"].tolist() == [1, 2, 3, 4, 5, 6]


def test_each_shard_is_saved_once(saved: Path) -> None:
    manifest = whole(saved, 1)
    assert manifest.ranks == 4
    assert len(manifest.tensors["model/even"].pieces) == 4
    assert len(manifest.tensors["model/replicated"].pieces) == 1
    assert len(manifest.tensors["model/plain"].pieces) == 1
    assert names(saved) == ["step-00000001"]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_read_their_shards(saved: Path, size: int) -> None:
    kept = [name for name in whole(saved, 1).tensors if not name.startswith("random/")]
    read = on_ranks(read_on_ranks, size, saved, 1)
    assert all(on_rank > len(kept) for on_rank in read)  # its own random states, too


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_cannot_write_fails_all(tmp_path: Path, failing: int) -> None:
    on_ranks(save_on_ranks, 4, tmp_path, 1)
    told = on_ranks(fail_on_rank, 4, tmp_path, 2, failing, "full")
    assert len(set(told)) == 1
    assert f"No space left on rank {failing}, for " in told[0]
    assert names(tmp_path) == ["step-00000001"]
    whole(tmp_path, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_is_killed_leaves_the_former(tmp_path: Path, failing: int) -> None:
    on_ranks(save_on_ranks, 2, tmp_path, 1)
    with pytest.raises((RankDied, RuntimeError)):
        on_ranks(fail_on_rank, 2, tmp_path, 2, failing, "killed")
    assert Checkpoints(tmp_path).steps() == [1]
    whole(tmp_path, 1)
    Checkpoints(tmp_path).clean()
    assert names(tmp_path) == ["step-00000001"]
    on_ranks(save_on_ranks, 2, tmp_path, 2)
    assert Checkpoints(tmp_path).steps() == [2, 1]
