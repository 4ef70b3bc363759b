"""Spawned and forked children, data loaders with workers, a raw fork: one trace all the same."""

import multiprocessing as mp
import os
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from training import take

sys.modules["__main__"].loaded_as = __name__  # type: ignore[attr-defined]


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index**2))


def work(point: Point, results: Any) -> None:
    results.put(Point(point.x + 1))
    print("child", point.x, __name__, flush=True)
    if point.x == 2:
        sys.exit(5)
    os._exit(6)


def children(method: str) -> None:
    context = mp.get_context(method)
    results = context.Queue()
    for x in (1, 2):
        child = context.Process(target=work, args=(Point(x), results))
        child.start()
        child.join()
        print(method, child.exitcode, x == 1 or results.get().x)


def batches(method: str) -> None:
    loader = DataLoader(
        Squares(), batch_size=2, num_workers=1, pin_memory=True, multiprocessing_context=method
    )
    for batch in loader:
        print(method, tuple(batch.shape), batch.is_pinned(), batch.cuda().device)


def terminated() -> None:
    """A forked child dies of SIGTERM as children do: at once and silently."""
    child = mp.get_context("fork").Process(target=__import__("time").sleep, args=(600,))
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
    for method in ("spawn", "fork"):
        children(method)
        batches(method)
    terminated()
    forked()
    take(1)
