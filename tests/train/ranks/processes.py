"""Ranks as processes of this machine.

They meet by gloo, at a store in the test's own process. Whatever happens, they end: with the test's
process, with the time limit, and all of them when one has failed.
"""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch.distributed

from tests.train.forked import forked

TIME_LIMIT_S = 180.0
"""Against hangs alone."""
HOST = "127.0.0.1"


class RankDied(Exception):  # noqa: N818
    """A rank ended without an answer: killed, or by `os._exit`."""

    def __init__(self, rank: int, exit_code: int | None) -> None:
        super().__init__(f"rank {rank} ended with exit code {exit_code} and no answer")
        self.rank, self.exit_code = rank, exit_code


class RankFailed(Exception):  # noqa: N818
    """What a rank raised, where it cannot be sent."""


def on_ranks(
    function: Callable[..., Any], size: int, *args: Any, time_limit_s: float = TIME_LIMIT_S
) -> list[Any]:
    """`function(*args)` in `size` processes with torchrun's environment; their results by rank.

    `function` is one of a module, arguments and results are what pickle takes. torch has one
    thread in each rank. What the first rank to fail raised is raised here, with its traceback as
    a note; TimeoutError when the limit is over. No process is left.
    """
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    ranks: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(size):
            ranks.append(_started(rank, size, store.port, pickle.dumps((function, args))))
        return _answers(ranks, time.monotonic() + time_limit_s)
    finally:
        for process, answer in ranks:
            process.kill()
            process.join()
            answer.close()


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells a worker of one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _started(rank: int, size: int, port: int, work: bytes) -> tuple[BaseProcess, Connection]:
    answer, to_answer = multiprocessing.Pipe(duplex=False)
    process = forked().Process(
        target=_rank, args=(environment(rank, size, port), work, to_answer), daemon=True
    )
    process.start()
    to_answer.close()
    return process, answer


def _rank(variables: dict[str, str], work: bytes, to_answer: Connection) -> None:
    """The process of one rank."""
    os.environ |= variables
    torch.set_num_threads(1)
    # One that hangs says where, before its time is over and it is killed.
    faulthandler.dump_traceback_later(TIME_LIMIT_S - 20, file=sys.__stderr__)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        function, args = pickle.loads(work)
        # What the server loaded is no garbage, and reading it copies its pages: 0.3 s a collection.
        gc.freeze()
        answer = pickle.dumps((True, function(*args)))
    except BaseException as error:
        answer = _failure(error)
    to_answer.send_bytes(answer)
    # What a failed collective left behind could wait for its peers.
    os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _failure(error: BaseException) -> bytes:
    error.add_note(f"On rank {os.environ['RANK']}:\n{traceback.format_exc()}")
    try:
        sent = pickle.dumps((False, error))
        pickle.loads(sent)
    except Exception:
        return pickle.dumps((False, RankFailed(traceback.format_exc())))
    return sent


def _answers(ranks: list[tuple[BaseProcess, Connection]], deadline_s: float) -> list[Any]:
    answers: dict[int, Any] = {}
    waiting = {answer: rank for rank, (_, answer) in enumerate(ranks)}
    while waiting:
        ready = wait(list(waiting), timeout=max(deadline_s - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} are not done")
        for answer in ready:
            assert isinstance(answer, Connection)
            rank = waiting.pop(answer)
            answers[rank] = _received(rank, *ranks[rank])
    return [answers[rank] for rank in range(len(ranks))]


def _received(rank: int, process: BaseProcess, answer: Connection) -> Any:
    try:
        is_result, value = pickle.loads(answer.recv_bytes())
    except EOFError:
        process.join()
        raise RankDied(rank, process.exitcode) from None
    if not is_result:
        raise value
    return value
