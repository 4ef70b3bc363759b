"""What simulated ranks tell each other, as files of one folder that each of them can see.

A rank is wanted when another one communicates with it in a way that only it can answer: the next
stage of a pipeline. Where the user named ranks, another one helps: it runs for what it sends, and
is not reported. A file is written whole or not at all, and never changed. All is done by the file
system's own functions, outside of the script's isolation.
"""

import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torchtally.errors import UnsupportedError
from torchtally.isolation.natives import OS, TIME

POLL_S = 0.005
SURE_S = 2.0
"""How long all ranks wait for each other until that is assumed to be for ever."""
MOST_HELPERS = 8
"""Ranks started for the objects that they send, by all ranks: each is a process."""
EVERY = -1
"""The number of no rank: whom an announcement is for."""
UNKNOWN, KNOWN = b"0", b"1"


class Mailbox:
    """The folder, as one rank sees it. `first` is the rank that nobody has to start; `asked` are
    those that the user named; None: those that are wanted.
    """

    def __init__(
        self, folder: Path, rank: int, *, first: int, asked: Collection[int] | None = None
    ) -> None:
        self.folder, self.rank, self.first = folder, rank, first
        self.asked = None if asked is None else frozenset(asked)
        self._known: set[int] = set()
        """Ranks that this one has wanted already."""
        self._helpers: set[int] = set()
        self.tell: Callable[[str], None] = lambda text: None
        """Tells the user; set by the command."""
        self.outside: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Within what it returns, this thread sees the file system as it is, not the script's."""

    def simulates(self, rank: int) -> bool:
        """Whether a rank is there, or can be."""
        return self.is_reported(rank) or rank in self._helpers

    def is_reported(self, rank: int) -> bool:
        """Whether the trace of a rank is wanted, should it run."""
        return self.asked is None or rank in self.asked

    def want(self, rank: int) -> None:
        """Have a rank started, if it is not yet, and is reported."""
        if self.is_reported(rank):
            self._start(rank, "want")

    def seek_help(self, rank: int) -> bool:
        """Have a rank started for what it sends, whether or not it is reported. False where so
        many have been that this one is not.
        """
        is_there = rank in (self.rank, self.first) or rank in (self.asked or ())
        if not is_there and rank not in self._helpers:
            if len(list(self._numbers("help-"))) >= MOST_HELPERS:
                return False
            self._helpers.add(rank)
            self.tell(f"simulating rank {rank}, too, for the objects that it sends")
        self._start(rank, "want" if self.is_reported(rank) else "help")
        return True

    def _start(self, rank: int, why: str) -> None:
        if rank not in self._known and rank not in (self.rank, self.first):
            self._known.add(rank)
            self._write(f"{why}-{rank}", b"")

    def wanted_ranks(self) -> list[int]:
        return sorted(self._numbers("want-"))

    def started_ranks(self) -> list[int]:
        """Those that are wanted, and those that help."""
        return sorted({*self._numbers("want-"), *self._numbers("help-")})

    def exit_codes(self) -> dict[int, int]:
        """Exit codes of the ranks that have ended."""
        return {rank: int(self._read(f"ended-{rank}") or b"1") for rank in self._numbers("ended-")}

    def end(self, rank: int, code: int) -> None:
        self._write(f"ended-{rank}", str(code).encode())

    def send(self, to: int, key: str, value: bytes | None) -> None:
        """A message to another rank; None for one whose value is not known."""
        self._write(self._message(self.rank, to, key), UNKNOWN if value is None else KNOWN + value)

    def receive(self, source: int, key: str) -> bytes | None:
        """A message that another rank has sent, or will: it is waited for.

        Raises UnsupportedError where it never comes: the rank has ended, or all ranks wait for each
        other.
        """
        return self._take(source, self._message(source, self.rank, key))

    def announce(self, key: str, value: bytes | None) -> None:
        """A message to whichever rank listens, now or later."""
        self._write(
            self._message(self.rank, EVERY, key), UNKNOWN if value is None else KNOWN + value
        )

    def hear(self, source: int, key: str) -> bytes | None:
        """What another rank has announced, or will; raises as `receive` does."""
        return self._take(source, self._message(source, EVERY, key))

    def _take(self, source: int, name: str) -> bytes | None:
        self.want(source)
        message = self._read(name)
        if message is None:
            message = self._wait(source, name)
        return None if message[:1] == UNKNOWN else message[1:]

    def _wait(self, source: int, name: str) -> bytes:
        waiting = f"waits-{self.rank}"
        self._write(waiting, name.encode())
        since_s, seen = TIME.monotonic(), self._circle()
        try:
            while (message := self._read(name)) is None:
                if source in self._numbers("ended-") and self._read(name) is None:
                    raise UnsupportedError(
                        f"rank {self.rank} receives from rank {source}, which has ended without "
                        "sending it: a real run would hang here."
                    )
                TIME.sleep(POLL_S)
                circle = self._circle()
                if circle is None or circle != seen:
                    since_s, seen = TIME.monotonic(), circle
                elif TIME.monotonic() - since_s > SURE_S:
                    ranks = ", ".join(map(str, sorted(circle)))
                    raise UnsupportedError(
                        f"ranks {ranks} all wait to receive from each other: a real run would "
                        "hang here."
                    )
        finally:
            self._remove(waiting)
        return message

    def _circle(self) -> dict[int, bytes] | None:
        """What each rank that runs waits for, where all of them wait in vain."""
        running = {self.rank, self.first, *self.started_ranks()}
        running -= set(self._numbers("ended-"))
        waits: dict[int, bytes] = {}
        for rank in running:
            name = self._read(f"waits-{rank}")
            if name is None or self._read(name.decode()) is not None:
                return None
            waits[rank] = name
        return waits

    # Files.

    @staticmethod
    def _message(source: int, to: int, key: str) -> str:
        return f"message-{source}-{to}-{key}"

    def _numbers(self, prefix: str) -> list[int]:
        names = OS.listdir(self.folder)
        return [int(name[len(prefix) :]) for name in names if name.startswith(prefix)]

    def _write(self, name: str, content: bytes) -> None:
        with self.outside():
            self._write_whole(name, content)

    def _write_whole(self, name: str, content: bytes) -> None:
        unfinished = self.folder / f"unfinished-{self.rank}-{name}"
        descriptor = OS.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)
        OS.rename(unfinished, self.folder / name)

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = OS.open(self.folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            parts = []
            while part := os.read(descriptor, 1 << 20):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def _remove(self, name: str) -> None:
        with self.outside(), suppress(FileNotFoundError):
            OS.unlink(self.folder / name)
