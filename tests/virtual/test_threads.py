"""Every thread of a script takes part in the simulation, however it was started."""

import _thread
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from queue import Queue
from typing import Any

import pytest
import torch

import torchtally
from tests.traces import ops, traced
from torchtally.errors import UnsupportedError

WAIT_S = 60


def multiply(*args: object) -> torch.device:
    """One mm on the GPU."""
    return (torch.ones(2, 3, device="cuda") @ torch.ones(3, 4, device="cuda")).device


def products(script: Any) -> int:
    """How many products a run of the script has recorded."""
    return len(ops(traced(script), "aten.mm"))


class Multiplier(threading.Thread):
    """Overrides `run`, as samplers and prefetchers do."""

    def run(self) -> None:
        multiply()


def in_a_subclass() -> None:
    thread = Multiplier()
    thread.start()
    thread.join(WAIT_S)


def in_a_timer() -> None:
    timer = threading.Timer(0.001, multiply)
    timer.start()
    timer.join(WAIT_S)


def in_a_bare_thread() -> None:
    done = threading.Event()
    _thread.start_new_thread(lambda word: (multiply(), word.set()), (done,))
    assert done.wait(WAIT_S)


def in_an_executor() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(multiply).result(WAIT_S)


def in_a_pool() -> None:
    with ThreadPool(1) as pool:
        pool.map(multiply, [1])


@pytest.mark.parametrize(
    "script", [in_a_subclass, in_a_timer, in_a_bare_thread, in_an_executor, in_a_pool]
)
def test_operators_of_a_thread_are_counted(script: Any):
    assert products(script) == 1


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(WAIT_S)  # its thread runs from now on
        yield pool


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    with ThreadPool(1) as pool:
        yield pool


def test_an_executor_made_before_takes_part(executor: ThreadPoolExecutor):
    assert products(lambda: executor.submit(multiply).result(WAIT_S)) == 1
    assert executor.submit(lambda: torch.ones(2).sum().item()).result(WAIT_S) == 2


def test_a_pool_made_before_takes_part(pool: ThreadPool):
    def script() -> None:
        pool.map(multiply, [1, 2])
        pool.starmap(multiply, [(3,)])
        pool.apply(multiply, (4,))
        list(pool.imap(multiply, [5]))
        list(pool.imap_unordered(multiply, [6]))

    assert products(script) == 6


def test_a_thread_made_before_refuses_the_gpu_rather_than_count_nothing():
    work: Queue[Any] = Queue()
    answers: Queue[Any] = Queue()

    def serve() -> None:
        while (task := work.get()) is not None:
            try:
                answers.put(task())
            except UnsupportedError as error:
                answers.put(str(error))

    thread = threading.Thread(target=serve, name="prefetcher")
    thread.start()
    try:
        with torchtally.virtual_gpu("H100-SXM"):
            for task in (multiply, torch.ones(2).cuda):
                work.put(task)
                assert "thread 'prefetcher' was started before" in answers.get(timeout=WAIT_S)
            work.put(lambda: torch.ones(2).sum().item())
            assert answers.get(timeout=WAIT_S) == 2
    finally:
        work.put(None)
        thread.join(WAIT_S)


def test_a_thread_keeps_a_run_of_its_own():
    ran: list[str] = []
    with torchtally.virtual_gpu("H100-SXM"):
        thread = threading.Thread()
        thread.run = lambda: ran.append(str(multiply()))  # type: ignore[method-assign]
        own = thread.run
        thread.start()
        thread.join(WAIT_S)
    assert ran == ["cuda:0"]
    assert thread.run is own
