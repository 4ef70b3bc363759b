"""Processes that a script starts: their ends are known, and `spawn` of one process is this one.

A child has no simulated GPU. What it does is not recorded, and a script may hide how it ended.
"""

import multiprocessing.process
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch.multiprocessing

from torchtally.errors import UnsupportedError
from torchtally.trace import World
from torchtally.virtual.stand_ins import StandIn

SPAWNING = import_module("torch.multiprocessing.spawn")
"""By its name: the attribute of the package is the function."""


@dataclass(frozen=True, slots=True)
class Started:
    """A process that the script started, and how to ask for its exit code."""

    name: str
    exit_code: Callable[[], int | None]


class Finished:
    """What `spawn` returns with `join=False`: the work is done already."""

    processes: tuple[Any, ...] = ()

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


class ScriptProcesses:
    """The children of a session."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.workers: list[Started] = []
        """Of multiprocessing, which run a part of the script."""
        self.programs: list[Started] = []

    def stand_ins(self) -> list[StandIn]:
        native_start = multiprocessing.process.BaseProcess.start
        native_init: Any = subprocess.Popen.__init__
        native_spawn = SPAWNING.start_processes

        def start(process: multiprocessing.process.BaseProcess) -> None:
            native_start(process)
            self.workers.append(Started(process.name, lambda: exit_code_of(process)))

        def init(process: Any, args: Any, *rest: Any, **options: Any) -> None:
            native_init(process, args, *rest, **options)
            name = args if isinstance(args, (str, bytes)) else args[0]
            self.programs.append(Started(str(name), process.poll))

        def start_processes(
            fn: Any,
            args: Any = (),
            nprocs: int = 1,
            join: bool = True,
            daemon: bool = False,
            start_method: str = "spawn",
        ) -> Any:
            if start_method == "fork":  # CUDA does not work in them
                return native_spawn(fn, args, nprocs, join, daemon, start_method)
            return self.spawn(fn, args, nprocs, join)

        return [
            StandIn(multiprocessing.process.BaseProcess, "start", start),
            StandIn(subprocess.Popen, "__init__", init),
            *(
                StandIn(owner, name, function)
                for owner in (torch.multiprocessing, SPAWNING)
                for name, function in (("spawn", self.spawn), ("start_processes", start_processes))
            ),
        ]

    def spawn(
        self, fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True,
        *rest: Any, **options: Any,
    ) -> Finished | None:  # fmt: skip
        """One process for each GPU of a node: the traced rank's is this one; more are refused."""
        if nprocs > self.world.gpus_per_node:
            raise UnsupportedError(
                f"torch.multiprocessing.spawn of {nprocs} processes: a run has one process for "
                f"each GPU, and there are {self.world.gpus_per_node} "
                "(torch.cuda.device_count()).\n"
                f"Give it as many: --gpu {nprocs}xNAME runs the script as one rank of {nprocs}."
            )
        fn(self.world.local_rank if self.world.local_rank < nprocs else 0, *args)
        return None if join else Finished()


def failures(children: list[Started]) -> Iterator[tuple[str, int]]:
    """(name, exit code) of those that ended by an error of their own."""
    for child in children:
        code = child.exit_code()
        if code is not None and code > 0:
            yield child.name, code


def exit_code_of(process: multiprocessing.process.BaseProcess) -> int | None:
    """None for a process that runs, or whose object the script has closed."""
    try:
        return process.exitcode
    except ValueError:
        return None
