"""Threads of a script that run operators beside each other: every call, site and tick is its own.

A switch between two threads is brought about where it did harm, by running the other one there.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.traces import traced
from torchtally.trace import Call
from torchtally.tracer import recorder as recorder_module
from torchtally.tracer import sites as sites_module
from torchtally.tracer.calls import Calls

SHORTLY_S = 0.3
"""For a thread that is let in; one that is kept out is waited for in vain."""


def call(name: str) -> Call:
    return Call(name, "", (), ())


@pytest.mark.parametrize("other", ["aten.mm", "aten.add"])
def test_a_call_that_is_described_meanwhile_has_its_own_place(other: str) -> None:
    calls = Calls()

    def describe() -> Call:
        calls.of_kernel((other,), lambda: call(other))
        return call("aten.mm")

    place = calls.of_kernel(("aten.mm",), describe)
    assert calls.calls[place].name == "aten.mm"
    assert len(calls.calls) == len({each.name for each in calls.calls})
    assert calls.of_kernel(("aten.mm",), describe) == place
    assert calls.calls[calls.of_kernel((other,), describe)].name == other


def interrupted(native: Callable[..., Any], other: Callable[[], object]) -> Callable[..., Any]:
    """A function that, when it is first called, lets another thread run."""
    threads: list[threading.Thread] = []

    def function(*args: Any, **options: Any) -> Any:
        if not threads:
            threads.append(threading.Thread(target=other))
            threads[0].start()
            threads[0].join(SHORTLY_S)
        return native(*args, **options)

    return function


@pytest.mark.parametrize("name", ["Op", "Site"])
def test_operators_of_two_threads_have_their_own_ticks_and_sites(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script() -> None:
        x = torch.zeros(8, device="cuda")

        def other() -> None:
            x.mul(2)

        module = {"Op": recorder_module, "Site": sites_module}[name]
        native = getattr(module, name)
        monkeypatch.setattr(module, name, interrupted(native, other))
        x.add(1)
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join(SHORTLY_S)

    trace = traced(script)
    lines = {
        trace.calls[op.call].name: site.text
        for op in trace.ops
        if (site := trace.sites[op.site].line) is not None
    }
    assert [op.clock for op in trace.ops] == list(range(len(trace.ops)))
    assert lines["aten.mul"] == "x.mul(2)"
    assert lines["aten.add"] == "x.add(1)"
