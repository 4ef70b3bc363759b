"""Being told from outside to stop, or to save.

    SIGTERM, SIGINT   save, and end with 143 or 130; a second one ends the process at once
    SIGUSR1           save, and go on

A thread reads the signals' numbers from signal.set_wakeup_fd, which the interpreter's own handler
writes to at once. Python's handlers wait until the main thread is back from its current call, and
a call may be a collective that waits for a rank that is gone.
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
"""A process that a signal ended has it, plus the signal's number: the shells' convention."""
SAME_S = 1.0
"""A rank gets one stop twice where all processes are told, as by SLURM, and torchrun passes it on:
within so much it is one."""

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_SAVING = signal.SIGUSR1
_END = b"\0"


@dataclass(slots=True)
class Signals:
    """What was asked for so far. Written by a thread, read by the training."""

    say: Callable[[str], None]
    is_launched: bool = False
    """By torchrun."""
    is_training: bool = False
    """Before the first step there is nothing to save, and the first signal ends the process."""
    stop: int = 0
    """The signal that asked for it; 0: none did."""
    _saves: int = 0
    _stopped_s: float = field(default=0.0)

    def take_save_request(self) -> bool:
        """Whether somebody asked for a checkpoint since the last time."""
        asked_saves, self._saves = self._saves, 0
        return asked_saves > 0

    def hear(self, number: int) -> None:
        """One signal came."""
        if number == _SAVING:
            self._saves += 1
            return
        now_s = time.monotonic()
        name = signal.Signals(number).name
        if not self.is_training:
            self._end_at_once(number, f"{name}: nothing to save yet")
        elif not self.stop:
            self.stop, self._stopped_s = number, now_s
            self.say(f"{name}: saving after this step; a second one ends it at once")
        elif not (self.is_launched and now_s - self._stopped_s < SAME_S):
            self._end_at_once(number, f"{name} again: ended at once, and nothing saved since")

    def _end_at_once(self, number: int, text: str) -> None:
        os.write(2, f"tally: {text}\n".encode())
        os._exit(EXIT_CODE + number)


@contextmanager
def listen(say: Callable[[str], None], *, is_launched: bool = False) -> Iterator[Signals]:
    """Signals are heard within, and mean again what they meant before afterwards.

    For the main thread alone. `say` tells a user, and is called by another thread.
    """
    signals = Signals(say, is_launched)
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    thread = threading.Thread(target=_listen, args=(reading, signals), daemon=True)
    thread.start()
    former_fd = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    former = {signum: signal.signal(signum, _ignore) for signum in (*_STOPPING, _SAVING)}
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
    """The thread hears of it."""


def _listen(reading: socket.socket, signals: Signals) -> None:
    while numbers := reading.recv(64):
        for number in numbers:
            if number == _END[0]:
                return
            if number in (*_STOPPING, _SAVING):
                signals.hear(number)
