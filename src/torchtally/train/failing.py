"""How ranks fail: all together, quickly, and with the error of the first one.

When a process exits with a code other than 0, `torchrun` sends the others SIGTERM, SIGKILL after 30
seconds, and prints the error file of the first. A rank writes its own error there; one that only
lost its peers says so and waits for torchrun.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from torchtally.checkpoints.ranks import LostRanksError, launched_rank
from torchtally.errors import TallyError

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun reads a rank's error, in the format of
torch.distributed.elastic.multiprocessing.errors.ErrorHandler."""
STEP_BACK_S = 5.0
"""Time for torchrun to notice the rank that failed first, if it is on this machine."""
LOST_SIGNS = (
    "Connection closed by peer",  # gloo: tcp/pair.cc
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",  # the store: TCPStore.cpp
    "remote process exited",  # NCCL: ncclRemoteError
)


@contextmanager
def fail_together() -> Iterator[None]:
    """Context around a command that may be one of several ranks: exceptions end the process.

    It calls os._exit, since interpreter shutdown could wait for collectives that never end. A
    TallyError prints its message and exits with its code, others print a traceback and exit with 1.
    A single process, SystemExit and KeyboardInterrupt are left alone.
    """
    own = launched_rank()
    try:
        yield
    except Exception as error:
        if own.size == 1:
            raise
        if is_loss(error):
            _step_back(own.rank, error)
        _tell(own.rank, error)
        _end(error.exit_code if isinstance(error, TallyError) else 1)


def is_loss(error: BaseException) -> bool:
    """Whether the error only says that another rank is gone."""
    if isinstance(error, LostRanksError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_SIGNS)


def _step_back(rank: int, error: Exception) -> NoReturn:
    """Exit, but after the rank that failed first, which torchrun is to report."""
    sign = next((sign for sign in LOST_SIGNS if sign in str(error)), str(error))
    text = f"rank {rank}: another rank has failed; see its error ({sign})"
    print(text, file=sys.stderr, flush=True)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(STEP_BACK_S)
    _end(1)


def _tell(rank: int, error: Exception) -> None:
    """Report the error once: torchrun prints the error file."""
    is_ours = isinstance(error, TallyError)
    text = str(error) if is_ours else "".join(traceback.format_exception(error))
    text = f"rank {rank}: {text}"
    path = os.environ.get(ERROR_FILE)
    if path is None:
        print(text, file=sys.stderr, flush=True)
        return
    moment = {"py_callstack": text, "timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": text, "extraInfo": moment}}, file)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
