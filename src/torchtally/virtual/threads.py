"""The script's threads: dispatch modes and included keys are thread-local, so each sets both."""

import _thread
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

from torchtally import torch_private as private
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

POOL_CALLS = ("apply_async", "_map_async", "imap", "imap_unordered")
"""The calls of a `ThreadPool` with a function as the first argument; its others go through them."""


class Threads:
    """Has every thread of the script take part in the simulation.

    Threads that ran before it began do so while they work for a pool.
    """

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as part of the simulation, whichever thread calls it, while there is one."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.mode.is_active or self.mode.is_here:
                return function(*args, **kwargs)
            with private.include_autocast_key(), self.mode:
                return function(*args, **kwargs)

        return call

    def stand_ins(self) -> list[StandIn]:
        native_start, native_submit = threading.Thread.start, ThreadPoolExecutor.submit
        native_new = _thread.start_new_thread

        def start(thread: threading.Thread) -> None:
            own, name = vars(thread), "run"
            before = own.get(name)
            run = self.inside(thread.run)  # also one that a subclass defines: `threading.Timer`

            def run_inside() -> None:
                own.pop(name)
                if before is not None:
                    own[name] = before
                run()

            own[name] = run_inside
            native_start(thread)

        def submit(pool: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            return native_submit(pool, self.inside(fn), *args, **kwargs)

        def start_new_thread(function: Callable[..., Any], *args: Any) -> int:
            return native_new(self.inside(function), *args)

        return [
            StandIn(threading.Thread, "start", start),
            StandIn(ThreadPoolExecutor, "submit", submit),
            StandIn(_thread, "start_new_thread", start_new_thread),
            *(StandIn(ThreadPool, name, self.pool_call(name)) for name in POOL_CALLS),
        ]

    def pool_call(self, name: str) -> Callable[..., Any]:
        native = getattr(ThreadPool, name)

        def call(pool: ThreadPool, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return native(pool, self.inside(func), *args, **kwargs)

        return call
