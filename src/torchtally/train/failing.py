"""How ranks fail: all of them, soon, and with the error of the one that began.

`torchrun` watches its processes. When one ends with an exit code other than 0, it sends the others
SIGTERM, after 30 seconds SIGKILL, and prints what the first one wrote into its error file. That
file is where a rank's error goes; a rank that merely finds its peers gone says so and steps back.
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

from torchtally.errors import TallyError
from torchtally.train.ranks import LostRanksError, launched_rank

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun looks for a rank's error; the form is that of
torch.distributed.elastic.multiprocessing.errors.ErrorHandler."""
STEP_BACK_S = 5.0
"""Time for torchrun to see the rank that failed first. On another machine there is none to see."""
LOST_SIGNS = (
    "Connection closed by peer",  # gloo: tcp/pair.cc
    "Connection reset by peer",
    "Broken pipe",
    "Connection was likely closed",  # the store: TCPStore.cpp
    "remote process exited",  # NCCL: ncclRemoteError
)


@contextmanager
def fail_together() -> Iterator[None]:
    """Around a command that may be one rank of several: its exceptions end the process.

    Not by unwinding the interpreter, which could wait for collectives that never end. A TallyError
    is told by its message and exits with its code, any other with its traceback and 1. Alone, and
    for what is no error (SystemExit, KeyboardInterrupt), nothing is done.
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
    """Whether this is no failure of this rank: a collective's other side has gone."""
    if isinstance(error, LostRanksError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_SIGNS)


def _step_back(rank: int, error: Exception) -> NoReturn:
    """Ends, but after the rank that began it, which torchrun is to find first."""
    sign = next((sign for sign in LOST_SIGNS if sign in str(error)), str(error))
    text = f"rank {rank}: another rank has ended; its own error says why ({sign})"
    print(text, file=sys.stderr, flush=True)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(STEP_BACK_S)
    _end(1)


def _tell(rank: int, error: Exception) -> None:
    """Once: torchrun prints what is in the file."""
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
