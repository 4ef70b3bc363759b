"""`tally serve`: a server in the background that runs of scripts are forked from."""

from dataclasses import dataclass

from torchtally.cli.arguments import SECONDS
from torchtally.cli.streams import say
from torchtally.errors import TallyError, UsageError
from torchtally.options import OptionRecord, own

SUMMARY = "keep torch loaded, so that each `tally run` answers sooner"

EPILOG = """\
examples:
  tally serve                   for this environment, in the background
  tally run train.py            is served by it
  tally serve --stop
  export TALLY_SERVE=1          the first `tally run` starts one by itself
  TALLY_SERVE=0 tally run ...   is not served

A run is served only where it would start exactly as the server did: the same
environment variables, limits and rights, the same files. It runs by itself
otherwise, and its results are the same in both cases. docs/serve.md has the
rules. Linux only.
"""
START_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ServeOptions(OptionRecord):
    """Load torch once, in the background, and have each `tally run` of this environment forked
    from there. It ends when idle, and when a file that it loaded has changed.
    """

    idle: float = own("--idle", "end after so long without a run (default 15m)", SECONDS,
                      default=900.0)  # fmt: skip
    stop: bool = own("--stop", "end the server of this environment, and the runs it serves")


def command(options: ServeOptions) -> int:
    """Start or end the server. Raises UsageError where there can be none."""
    import sys

    if sys.platform != "linux":
        raise UsageError("tally serve needs Linux: elsewhere a process with torch cannot fork.")
    try:
        return end() if options.stop else begin(options.idle)
    except OSError as error:
        raise TallyError(f"no server can be reached here: {error}.") from error


def begin(idle_s: float) -> int:
    """Start one where none serves, and wait until it does."""
    import time

    from torchtally.runs.children import POLL_S
    from torchtally.runs.warm.client import connect, peer, start
    from torchtally.runs.warm.identity import identity

    digest = identity()
    connection = connect(digest)
    if connection is None:
        start(digest, idle_s)
        deadline_s = time.monotonic() + START_S
        while connection is None and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            connection = connect(digest)
    if connection is None:
        raise TallyError(
            f"the server did not start within {START_S:.0f} s. Files that it loads may have "
            "changed meanwhile, or three servers of other environments run: try again."
        )
    say(f"tally: process {peer(connection)[0]} serves `tally run` in this environment")
    return 0


def end() -> int:
    """End the one that serves, and its runs."""
    import os
    import signal
    import time

    from torchtally.runs.children import POLL_S
    from torchtally.runs.warm.client import connect, peer
    from torchtally.runs.warm.identity import identity, socket_place

    digest = identity()
    connection = connect(digest)
    if connection is None:
        say("tally: no server for this environment")
        return 0
    pid, _ = peer(connection)
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + START_S
    while os.path.exists(socket_place(digest)) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    say(f"tally: process {pid} was ended")
    return 0
