"""Data, order and ring together: the batches that a training is fed."""

import errno
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.data.files import write_raw
from torchtally.errors import UsageError
from torchtally.train.data.batches import batch_at, batches
from torchtally.train.data.files import open_tokens, token_files
from torchtally.train.data.order import Order, OrderName, rows_of_rank
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData


@pytest.fixture
def data(tmp_path: Path) -> TokenData:
    """Two files, 100 windows of 4 + 1 tokens; a token's id is its place."""
    paths = [
        write_raw(tmp_path / "a", list(range(241))),
        write_raw(tmp_path / "b", list(range(1000, 1161))),
    ]
    with TokenData([token_file(path, dtype="uint16") for path in paths], sequence=4) as tokens:
        assert tokens.windows == 100
        yield tokens


def fed(data: TokenData, steps: range, part: slice = slice(None)) -> list[torch.Tensor]:
    order = Order(OrderName.SHUFFLED, data.windows, batch=12, seed=4)
    with batches(data, order, steps, part) as ring:
        return [batch.tokens for batch in ring]


@pytest.mark.parametrize("step", [0, 1, 7, 8, 9, 19])
def test_resuming_at_a_step_goes_on_as_if_nothing_had_been(data: TokenData, step: int) -> None:
    """The end of the first epoch is within step 8."""
    uninterrupted = fed(data, range(20))
    resumed = fed(data, range(step, 20))
    assert torch.equal(torch.stack(resumed), torch.stack(uninterrupted[step:]))
    order = Order(OrderName.SHUFFLED, data.windows, batch=12, seed=4)
    assert torch.equal(batch_at(data, order, step), uninterrupted[step])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_any_number_of_ranks_makes_the_same_global_batches(data: TokenData, ranks: int) -> None:
    parts = [
        torch.stack(fed(data, range(9), rows_of_rank(12, rank, ranks))) for rank in range(ranks)
    ]
    assert torch.equal(torch.cat(parts, dim=1), torch.stack(fed(data, range(9))))


def test_an_epoch_has_every_target_once(data: TokenData) -> None:
    """100 windows in 25 steps of four; the first token of each file is nobody's target."""
    order = Order(OrderName.SHUFFLED, data.windows, batch=4, seed=0)
    with batches(data, order, range(25)) as ring:
        targets = torch.cat([batch.tokens[:, 1:].reshape(-1) for batch in ring])
    expected = [*range(1, 241), *range(1001, 1161)]
    assert sorted(targets.tolist()) == expected


def test_many_steps_are_those_of_the_order(data: TokenData) -> None:
    """Across several blocks of the order and chunks of the ring."""
    order = Order(OrderName.RANDOM, data.windows, batch=5000, seed=4)
    with batches(data, order, range(11), slice(2500, 5000)) as ring:
        for batch in ring:
            assert torch.equal(batch.tokens, batch_at(data, order, batch.step, slice(2500, 5000)))


def test_an_order_of_other_data(data: TokenData, tmp_path: Path) -> None:
    other = [token_file(str(tmp_path / "a"), dtype="uint16")]
    with TokenData(other, sequence=4) as small:
        order = Order(OrderName.SHUFFLED, small.windows, batch=4, seed=0)
    with pytest.raises(UsageError, match="the order has 60 windows, the data 100"):
        batches(data, order)


def test_a_disk_that_fails_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps before it are fed; then the error names file and byte, and the thread ends."""
    path = write_raw(tmp_path / "a", list(range(200)))
    native, reads = os.preadv, 0

    def preadv(*arguments: object) -> int:
        nonlocal reads
        reads += 1
        if reads > 9:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return native(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("torchtally.train.data.batches.CHUNK_TOKENS", 1)
    with TokenData([token_file(path, dtype="uint16")], sequence=9, read=Read.COPY) as data:
        order = Order(OrderName.SEQUENTIAL, data.windows, batch=4, seed=0)
        with batches(data, order) as ring:
            assert [next(ring).step for _ in range(2)] == [0, 1]
            with pytest.raises(UsageError, match=r"a: byte 162: cannot be read .Input/output"):
                next(ring)


def test_a_file_that_shrinks_under_the_thread(tmp_path: Path) -> None:
    """Truncated while the thread reads: with reads of our own that is an error like any other."""
    path = write_raw(tmp_path / "a", list(range(60_000)))
    with TokenData([token_file(path, dtype="uint16")], sequence=1023, read=Read.COPY) as data:
        order = Order(OrderName.SEQUENTIAL, data.windows, batch=1, seed=0)
        with batches(data, order) as ring:
            next(ring)
            os.truncate(path, 8192)
            with pytest.raises(UsageError, match="a: byte 8192: truncated here"):
                list(islice(ring, 10_000))


def test_paths_of_files(tmp_path: Path) -> None:
    paths = [write_raw(tmp_path / name, [1, 2]) for name in ("b", "a")]
    assert [file.path for file in token_files(paths, dtype="uint16")] == paths
    with pytest.raises(UsageError, match=r"a folder without tokens\.json"):
        token_files([str(tmp_path)])


def test_a_folder_of_shards(tmp_path: Path) -> None:
    """As llm.c writes them: "val" is in the names of validation data."""
    names = ("web_train_000002.bin", "web_train_000001.bin", "web_val_000000.bin", "notes.txt")
    for name in names:
        write_raw(tmp_path / name, [1, 2])

    def files_of(split: str | None) -> list[str]:
        files = token_files([str(tmp_path)], split=split, dtype="uint16")
        return [Path(file.path).name for file in files]

    assert files_of("train") == ["web_train_000001.bin", "web_train_000002.bin"]
    assert files_of("validation") == ["web_val_000000.bin"]
    assert files_of(None) == sorted(names[:3])


def test_ids_below_zero_are_masked_targets(tmp_path: Path) -> None:
    """~7 = -8 is the token 7, which is no target."""
    ids = [5, ~7, 6, ~0, 9]
    path = write_raw(tmp_path / "a", ids, dtype="int32")
    options: Any = {"sequence": 4, "vocabulary_size": 10, "seed": 0}
    with open_tokens([path], dtype="int32", is_masked=True, **options) as data:
        tokens = np.empty((1, 5), np.int64)
        data.read(np.array([0]), tokens)
        assert tokens.tolist() == [ids]
    with pytest.raises(UsageError, match="token 1 is -8, outside"):
        open_tokens([path], dtype="int32", **options)
    wrong = write_raw(tmp_path / "b", [5, ~10, 6, 0, 9], dtype="int32")
    with pytest.raises(UsageError, match="token 1 is 10, outside of a vocabulary of 10"):
        open_tokens([wrong], dtype="int32", is_masked=True, **options)
    unsigned = write_raw(tmp_path / "c", [5, 7, 6, 0, 9])
    with pytest.raises(UsageError, match=r"uint16 cannot be below zero.*int32"):
        open_tokens([unsigned], dtype="uint16", is_masked=True, **options)


def test_everything_is_checked_before_the_first_step(tmp_path: Path) -> None:
    paths = [write_raw(tmp_path / "a", [1] * 50), write_raw(tmp_path / "b", [1] * 49 + [300])]

    def opened(vocabulary_size: int, sequence: int = 8) -> TokenData:
        return open_tokens(paths, dtype="uint16", sequence=sequence, stride=1, seed=0,
                           vocabulary_size=vocabulary_size)  # fmt: skip

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match="b: byte 98: token 49 is 300"):
        opened(300)
    with pytest.raises(UsageError, match="a sequence of 50 needs 51"):
        opened(301, sequence=50)
    assert len(os.listdir("/proc/self/fd")) == before
    with opened(301) as data:
        assert data.windows == 2 * (50 - 8)


def test_a_batch_stays_what_it_was(data: TokenData) -> None:
    """Whoever keeps batches, for whatever reason, keeps their tokens."""
    order = Order(OrderName.SHUFFLED, data.windows, batch=12, seed=4)
    with batches(data, order, range(40), depth=1) as ring:
        kept = list(ring)
    for batch in kept:
        assert torch.equal(batch.tokens, batch_at(data, order, batch.step))
    assert np.array_equal(kept[0].tokens.numpy(), batch_at(data, order, 0).numpy())
