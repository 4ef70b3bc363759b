"""What a supervised child runs: the program that its request names, tied to its parent's life."""

import _thread
import os
import runpy
import signal
import sys
from pathlib import Path

from torchtally.isolation.own_process import own_process
from torchtally.runs.protocol import (
    ANSWER,
    DeviceRequest,
    MeasureRequest,
    ModuleRequest,
    ProbeRequest,
    TraceRequest,
    read_request,
    write,
)


def main(argv: list[str]) -> None:
    """`cold FOLDER LIFELINE`, or `warm SOCKET LIFELINE MODULE...`: a server of children."""
    kind, place, lifeline, *preload = argv
    if kind == "warm":
        from torchtally.runs.serving import serve

        place = serve(int(place), preload).folder
    end_with_parent(int(lifeline))
    own_process()
    perform(Path(place))


def end_with_parent(lifeline: int) -> None:
    """Kill this process's group when the pipe's other end closes."""

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    # A signal to the process may be delivered to any thread, and only in the main thread does it
    # interrupt a system call that a Python handler waits behind: this thread takes none.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Not a threading.Thread: the script's `threading.enumerate()` is its own.
    _thread.start_new_thread(wait, ())
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def perform(folder: Path) -> None:
    """Run the program of the request in a folder. It writes its answer there."""
    request = read_request(folder)
    answer = folder / ANSWER
    if isinstance(request, ModuleRequest):
        sys.argv[1:] = request.arguments
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
    elif isinstance(request, ProbeRequest):
        from torchtally.runs.probe.main import probe

        probe(request, folder, lambda record: write(answer, record))
    elif isinstance(request, TraceRequest):
        from torchtally.runs.tracing import trace

        trace(request, folder, lambda record: write(answer, record))
    elif isinstance(request, MeasureRequest):
        from torchtally.runs.measure.main import measure

        measure(request, folder, lambda record: write(answer, record))
    else:
        assert isinstance(request, DeviceRequest)
        from torchtally.runs.measure.meter import device

        write(answer, device())
