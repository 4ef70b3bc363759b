"""Signals that ask a training to stop or to save.

    SIGTERM, SIGINT, SIGHUP   save and exit with 143, 130 or 129; a second one, a second or more
                              later, ends the process immediately
    SIGUSR1                   save and continue

A thread reads signal numbers from signal.set_wakeup_fd, which CPython's C-level handler writes
immediately. Python-level handlers run only once the main thread returns from its current C call,
which may be a collective waiting for a rank that is gone.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EXIT_CODE = 128
"""Plus the signal number: the exit code after a signal, by the shells' convention."""
SAME_S = 1.0
"""Signals within this time count as one: a terminal that closes sends SIGHUP and SIGTERM, SLURM and
torchrun each send a rank its own, and Ctrl-C is often pressed twice."""

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SAVING = signal.SIGUSR1
_END = b"\0"


@dataclass(slots=True)
class Signals:
    """Pending requests. Written by a thread, read by the training."""

    say: Callable[[str], None]
    is_training: bool = False
    """Before the first step and after the last there is nothing to save, and the first signal ends
    the process."""
    stop: int = 0
    """The signal that asked to stop; 0: none."""
    _saves: int = 0
    _stopped_s: float = field(default=0.0)

    def take_save_request(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        asked_saves, self._saves = self._saves, 0
        return asked_saves > 0

    def hear(self, number: int) -> None:
        """Handle one signal."""
        if number == _SAVING:
            self._saves += 1
            return
        now_s = time.monotonic()
        name = signal.Signals(number).name
        if not self.is_training:
            self._end_at_once(number, f"{name}: nothing to save")
        elif not self.stop:
            self.stop, self._stopped_s = number, now_s
            self.say(
                f"{name}: saving after this step; another signal after {SAME_S:g} s ends it at once"
            )
        elif now_s - self._stopped_s >= SAME_S:
            self._end_at_once(number, f"{name} again: ended without saving")

    def _end_at_once(self, number: int, text: str) -> None:
        os.write(2, f"tally: {text}\n".encode())
        os._exit(EXIT_CODE + number)


@contextmanager
def listen(say: Callable[[str], None]) -> Iterator[Signals]:
    """Handle signals within the block; restore the previous handlers afterwards.

    A SIGHUP that is ignored, as under nohup, stays ignored. Main thread only. `say` prints a
    message, and is called from another thread.
    """
    signals = Signals(say)
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    thread = threading.Thread(target=_listen, args=(reading, signals), daemon=True)
    thread.start()
    former_fd = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    handled = {*_STOPPING, _SAVING}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        handled.remove(signal.SIGHUP)
    former = {signum: signal.signal(signum, _ignore) for signum in sorted(handled)}
    try:
        yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        writing.setblocking(True)
        writing.sendall(_END)
        thread.join()
        reading.close()
        writing.close()


def _ignore(number: int, frame: object) -> None:
    """The thread handles it."""


def _listen(reading: socket.socket, signals: Signals) -> None:
    while numbers := reading.recv(64):
        for number in numbers:
            if number == _END[0]:
                return
            if number in (*_STOPPING, _SAVING):
                signals.hear(number)
