"""A prediction in a forked child, while the training goes on.

The simulated GPU replaces functions of torch and of Python for all threads of a process, among them
those that load data and write logs. So it is entered in a child, which is forked as DataLoader's
workers are: before the first backward pass, since autograd's threads do not outlive a fork
(torch/csrc/autograd/engine.cpp, in_bad_autograd_fork). The child computes nothing on the GPU, and
frees none of its memory.
"""

import gc
import os
import pickle
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch

from torchtally.errors import TallyError

NICE = 10
"""Of the child: the training has what it needs first."""
MOST_ANSWER_BYTES = 65536
MOST_TEXT = 1000
"""Of what failed: a pipe takes so much at once."""


class ForkedCall:
    """A function that runs in a child; `answer` has what it returned, or why it did not."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12: "multi-threaded, use of fork() may lead to deadlocks in the child".
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        self._parent = os.getpid()
        if self._pid == 0:
            os.close(self._reader)
            _answer(function, writer)
        os.close(writer)

    def answer(self, wait_s: float = 0.0) -> Any:
        """What the function returned; None until then. Raises TallyError where it failed."""
        poll = select.poll()  # select() knows no file beyond the 1024th
        poll.register(self._reader, select.POLLIN)
        if not poll.poll(1000 * wait_s):
            return None
        content = os.read(self._reader, MOST_ANSWER_BYTES)
        code = self._end_in_words()
        if not content:
            raise TallyError(f"the predicting process ended with {code} and returned no result.")
        failure, result = pickle.loads(content)
        if failure:
            raise TallyError(failure)
        return result

    def cancel(self) -> None:
        """End the child, answered or not. In a process that the script forked it is not ours."""
        if self._pid and os.getpid() == self._parent:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._end_in_words()

    def _end_in_words(self) -> str:
        """How the child ended; it has no answer, or has given it."""
        pid, self._pid = self._pid, 0
        os.close(self._reader)
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:  # the script waits for all children itself
            return "an unknown exit code"
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def can_fork() -> bool:
    """macOS's frameworks do not survive a fork, and Windows has none."""
    return sys.platform not in ("darwin", "win32") and hasattr(os, "fork")


def _answer(function: Callable[[], Any], writer: int) -> NoReturn:
    """Answers in the child, and ends without what the parent would do at its own end."""
    try:
        gc.disable()  # nothing of the parent's is freed here: its memory is on the GPU
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        silence = os.open(os.devnull, os.O_RDWR)
        for place in (0, 1, 2):
            os.dup2(silence, place)
        os.nice(NICE)
        torch.set_num_threads(1)  # OpenMP's threads are the parent's alone
        os.write(writer, pickle.dumps(_outcome(function)))
    finally:
        os._exit(0)


def _outcome(function: Callable[[], Any]) -> tuple[str, Any]:
    """(why it failed, what it returned)"""
    try:
        return "", function()
    except TallyError as error:
        return str(error)[:MOST_TEXT], None
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return text[:MOST_TEXT], None
