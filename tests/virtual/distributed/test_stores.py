"""Stores and timeouts of a rank whose peers are not there: nothing waits."""

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import torchtally
from torchtally.trace import Trace

RANKS = 8


def run(script: Callable[[], None], rank: int = 2) -> Trace:
    return torchtally.run(script, gpu=f"{RANKS}xH100-SXM", rank=rank)


def keys_of_all(store: dist.Store) -> None:
    rank = int(os.environ["RANK"])
    store.set(f"address{rank}", "here")
    store.wait([f"address{other}" for other in range(RANKS)])
    assert store.get("address7") == b"here"
    assert store.check(["address5"])
    assert not store.check(["nothing"])


@pytest.mark.parametrize("kind", ["TCPStore", "FileStore"])
def test_keys_of_other_ranks_are_there(kind: str) -> None:
    def script() -> None:
        store = (
            dist.TCPStore("localhost", 29511, RANKS, is_master=False)
            if kind == "TCPStore"
            else dist.FileStore("/tmp/store", RANKS)
        )
        keys_of_all(store)
        keys_of_all(dist.PrefixStore("prefix", store))
        dist.init_process_group("nccl", store=store, rank=2, world_size=RANKS)
        dist.all_reduce(torch.ones(4, device="cuda"))

    notes = run(script).notes
    assert any("'address7', which another rank would set" in note.text for note in notes)


def test_counters_have_been_raised_by_all_ranks() -> None:
    """A barrier as scripts write it, twice: by adding, and by reading what was added."""

    def script() -> None:
        store = dist.TCPStore("localhost", 29511, RANKS, is_master=True)
        assert store.add("arrived", 1) == RANKS
        assert int(store.get("arrived")) == RANKS
        assert store.add("arrived", 0) == RANKS
        assert store.compare_set("arrived", b"8", b"9") == b"9"
        assert store.multi_get(["arrived"]) == [b"9"]
        assert store.delete_key("arrived")
        assert store.num_keys() == 0

    run(script)


def test_timeouts_and_abort_end_no_run() -> None:
    def script() -> None:
        dist.init_process_group("nccl", timeout=timedelta(seconds=60))
        group = dist.group.WORLD
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=30), group)
        work = dist.all_reduce(torch.ones(4, device="cuda"), async_op=True)
        assert work is not None
        assert work.wait(timedelta(seconds=3))
        dist.distributed_c10d._abort_process_group(group)
        assert not dist.is_initialized()

    run(script)
