"""What the script did outside of its GPU: files, processes, uploads, requests, clocks."""

from enum import StrEnum
from typing import NamedTuple

from torchtally.trace.op import Frame
from torchtally.trace.record import Count, Record


class EffectKind(StrEnum):
    WRITTEN = "written"
    """A file; where the run was isolated, below its folder and not at its own path."""
    REMOVED = "removed"
    """What existed before, in the eyes of the isolated script alone."""
    RENAMED = "renamed"
    """As above; the name is "old -> new"."""
    PROCESS = "process"
    """A program that the script started; who kept its files is a fact of the run."""
    REFUSED_WRITE = "refused-write"
    """A change that would have bypassed the run's own files; the name is that of the file."""
    WITHHELD = "withheld"
    """A call that would have published something, and was not made."""
    SENT = "sent"
    """Requests or connections that may have sent something; the name is the host's."""
    REFUSED = "refused"
    """A connection that the run was not allowed to open (`--network off`)."""
    CLOCK = "clock"
    """A clock that was read, and answered predicted time."""


class Effect(Record, frozen=True):
    """One file, program or call."""

    kind: EffectKind
    name: str
    """An absolute path, or what was called."""
    frame: Frame | None = None
    """The user's line, where it is known."""
    count: Count = 1
    bytes: Count = 0
    """Of a written file, as a real run would write it."""
    placeholder_bytes: Count = 0
    """Of these, what the simulated run has no values for, and the file no bytes."""


FileId = tuple[int, int]
"""A file's device and inode: renaming it changes neither."""


class StubFile(NamedTuple):
    """A file that virtual tensors were saved in."""

    path: str
    placeholder_bytes: int
