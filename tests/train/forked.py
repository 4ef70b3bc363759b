"""Processes of tests that start in tens of milliseconds, from a server that has torch loaded.

There is one server for each process that runs tests, and what it preloads is settled when it
starts: hence one list for all tests.
"""

import multiprocessing
from functools import cache
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "pytest",
    "tests.conftest",  # annotations are checked in these processes, too
    "numpy.random",
    "torch._dynamo",  # what DDP and FSDP2 import when they are used first
    "torch.distributed.fsdp",
    "torch.distributed.optim",  # half a second each
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torchtally.train.loop",
    "tests.train.training",
]


@cache
def forked() -> ForkServerContext:
    """What to make such processes with: `forked().Process(target=..., args=...)`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
