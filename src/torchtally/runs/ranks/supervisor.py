"""The process that starts the ranks that are wanted: it has no simulated GPU itself.

It is started before the first rank's GPU is simulated, and ends, with all that it has started, when
the first rank's process does.
"""

import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from torchtally.runs.children import Children, last_lines, sigterm_raises
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import ModuleRequest
from torchtally.runs.ranks.mailbox import Mailbox
from torchtally.runs.server import RANK_OF

ARGUMENTS = "arguments"
LOOK_S = 0.05
NOBODY = -1
"""The number of no rank."""


class RanksRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks run."""

    arguments: tuple[str, ...]
    """Of `tally`."""
    first: int
    asked: tuple[int, ...] | None


@contextmanager
def other_ranks(
    arguments: Sequence[str], rank: int, asked: Collection[int] | None
) -> Iterator[Mailbox]:
    """A context in which ranks that this one wants are started, by the same arguments of `tally`.

    On leaving it they are ended.
    """
    # Not a TemporaryDirectory: the script's end would remove it, by the exit handlers it runs.
    folder = Path(tempfile.mkdtemp(prefix="tally-ranks-"))
    with _supervisor(folder, arguments, rank, asked) as mailbox:
        for other in asked or ():
            mailbox.want(other)
        yield mailbox


@contextmanager
def _supervisor(
    folder: Path, arguments: Sequence[str], rank: int, asked: Collection[int] | None
) -> Iterator[Mailbox]:
    wanted = None if asked is None else tuple(asked)
    request = RanksRequest(arguments=tuple(arguments), first=rank, asked=wanted)
    (folder / ARGUMENTS).write_bytes(msgspec.json.encode(request))
    lifeline, our_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtally.runs.ranks.supervisor", str(folder), str(lifeline)],
        stdin=subprocess.DEVNULL,
        pass_fds=[lifeline],
        start_new_session=True,
    )
    os.close(lifeline)
    try:
        yield Mailbox(folder, rank, first=rank, asked=asked)
    finally:
        os.close(our_end)
        process.wait()


def mailbox_of_this_rank() -> Mailbox | None:
    """Mailbox of a process that the supervisor has started; None elsewhere."""
    value = os.environ.pop(RANK_OF, "")
    if not value:
        return None
    rank, _, folder = value.partition(":")
    request = msgspec.json.decode((Path(folder) / ARGUMENTS).read_bytes(), type=RanksRequest)
    return Mailbox(Path(folder), int(rank), first=request.first, asked=request.asked)


def output_of(mailbox: Mailbox, rank: int) -> str:
    """The last lines of what a rank has printed."""
    return last_lines(mailbox.folder / f"output-{rank}")


def main(name: str, lifeline: int) -> None:
    folder = Path(name)
    request = msgspec.json.decode((folder / ARGUMENTS).read_bytes(), type=RanksRequest)
    mailbox = Mailbox(folder, NOBODY, first=request.first, asked=request.asked)
    started: set[int] = set()
    with sigterm_raises(), Children("ranks", preload=PRELOAD, grace_s=0.0) as children:
        while not select.select([lifeline], [], [], LOOK_S)[0]:
            for rank in set(mailbox.started_ranks()) - started:
                started.add(rank)
                children.start(
                    rank,
                    ModuleRequest(module="torchtally", arguments=request.arguments),
                    environment={**os.environ, RANK_OF: f"{rank}:{folder}"},
                    output=folder / f"output-{rank}",
                )
            for child in children.collect_ended():
                mailbox.end(child.key, child.code)
    shutil.rmtree(folder, ignore_errors=True)  # the first rank may be kept from it by the kernel


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
