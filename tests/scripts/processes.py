"""Spawned and forked children, data loaders with workers, a raw fork: one trace all the same."""

import multiprocessing as mp
import os
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from training import take


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index**2))


def work(point: Point, results: Any) -> None:
    print("child", point.x, __name__, flush=True)
    if point.x == 6:
        os._exit(6)
    results.put(Point(point.x + 1))
    sys.exit(point.x)


def children(method: str, *codes: int) -> None:
    context = mp.get_context(method)
    results = context.Queue()
    for x in codes:
        child = context.Process(target=work, args=(Point(x), results))
        child.start()
        child.join()
        print(method, "ended", child.exitcode)
    print(method, "gave", results.get().x)


def batches(method: str) -> None:
    loader = DataLoader(
        Squares(), batch_size=2, num_workers=1, pin_memory=True, multiprocessing_context=method
    )
    for batch in loader:
        print(method, "loaded", tuple(batch.shape), batch.is_pinned(), batch.cuda().device)


def terminated() -> None:
    """A forked child dies of SIGTERM as children do: at once and silently."""
    child = mp.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    print("terminated", child.exitcode)


def forked() -> None:
    """A copy of this process that goes on to the end of the script."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.exit(9)
    print("forked", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    mp.set_start_method("spawn")
    children("spawn", 5)
    batches("spawn")
    children("fork", 5, 6)
    batches("fork")
    terminated()
    forked()
    take(1)
