"""torch's profilers on the virtual GPU: the host's events only, and a note in the report."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import profiler

from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

HOST_ONLY = "torch.profiler saw the host only: no kernel ran on a device"


class Profiling:
    """Lets scripts that profile a device run, with a note in the report."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def stand_ins(self) -> list[StandIn]:
        runtime = SimpleNamespace(cudaProfilerStart=do_nothing, cudaProfilerStop=do_nothing)
        return [
            StandIn(profiler.profile, "__init__", self.init()),
            StandIn(profiler, "emit_nvtx", lambda *args, **kwargs: nullcontext()),
            StandIn(torch.cuda, "cudart", lambda: runtime),
            StandIn(torch.cuda.profiler, "start", do_nothing),
            StandIn(torch.cuda.profiler, "stop", do_nothing),
        ]

    def init(self) -> Callable[..., None]:
        native: Any = profiler.profile.__init__
        mode = self.mode

        def init(
            profile: Any,
            *args: Any,
            use_cuda: bool = False,
            use_device: Any = None,
            use_cpu: bool = True,
            **options: Any,
        ) -> None:
            """Begins without the device, whose events this build of torch cannot record."""
            if use_cuda or use_device == "cuda":
                mode.observer.note(HOST_ONLY)
                use_device, use_cpu = None, True
            load_what_ranges_import()
            native(profile, *args, use_device=use_device, use_cpu=use_cpu, **options)

        return init


def load_what_ranges_import() -> None:
    """Begins and ends a range, before any is recorded.

    The first one imports a module of torch's. Imported within a profile with stacks, its code is
    freed before the events are read, which still point to its names: UnicodeDecodeError in
    `key_averages`, now and then (torch/csrc/autograd/profiler_python.cpp, CodeLocation).
    """
    with profiler.record_function(""):
        pass


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Replaces calls that only have an effect on a real device."""
