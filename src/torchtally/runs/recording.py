"""Record the trace that `tally explain` reads best, of a training loop of the user's own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchtally.errors import UsageError


@contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    wait: int = 1,
    warmup: int = 2,
    active: int = 2,
    stacks: bool = True,
) -> Iterator[Callable[[], None]]:
    """Record `active` steps of a loop to `path` (`.json` or `.json.gz`), with all that an account
    needs: shapes, stacks, modules, memory.

        with torchtally.record("trace.json.gz") as step_done:
            for batch in loader:
                ...
                step_done()

    Args:
        path: where the trace is written, once `active` steps were recorded.
        wait: steps before the profiler starts.
        warmup: steps that it runs and drops, since its own start is in them.
        active: steps recorded.
        stacks: which code called what; slows the host 2 to 5 times, so the device waits more than
            without.

    Raises UsageError for a loop that ends before the steps were recorded, and for counts below one.
    """
    if active < 1 or wait < 0 or warmup < 0:
        raise UsageError("record: expected at least one active step, and no negative numbers.")
    needed = wait + warmup + active
    counted = 0
    written = False
    name = os.fspath(path)

    def write(profiler: Any) -> None:
        nonlocal written
        profiler.export_chrome_trace(name)
        written = True

    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=write,
        record_shapes=True,
        profile_memory=True,
        with_stack=stacks,
        with_modules=stacks,
    ) as profiler:

        def step_done() -> None:
            nonlocal counted
            counted += 1
            profiler.step()

        yield step_done
    if counted < needed or not written:
        raise UsageError(
            f"record: the loop reported {counted} steps, but {needed} are needed ({wait} to "
            f"wait, {warmup} to warm up, {active} recorded).\n"
            "Call the function that `with` returns after each step, or ask for fewer steps."
        )
