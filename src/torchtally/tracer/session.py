"""Tracing: a virtual GPU, its recorder, and the count of training steps."""

import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from torchtally.chips import Chip, Cluster, chip
from torchtally.errors import UsageError
from torchtally.isolation import guard
from torchtally.isolation.environment import environment
from torchtally.isolation.network import limited_network
from torchtally.options.simulation import Network
from torchtally.torch_private import releases
from torchtally.trace import (
    Call,
    Effect,
    EffectKind,
    Ending,
    FileId,
    ProcessGroup,
    StubFile,
    Trace,
    World,
)
from torchtally.trace.loop import LOOP
from torchtally.tracer.clock import script_clock
from torchtally.tracer.launchers import Launch
from torchtally.tracer.listeners import Timekeeper
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.sleeps import recorded_sleeps
from torchtally.tracer.steps import StepLimit, Steps, StepsDone, ignore
from torchtally.tracer.what_if import stand_ins, unused_changes
from torchtally.virtual.dispatch import no_time
from torchtally.virtual.distributed import rendezvous
from torchtally.virtual.distributed.exchange import Exchange, Messages
from torchtally.virtual.kernels import Dispatch
from torchtally.virtual.script_time import SCRIPT_TIME, without_garbage
from torchtally.virtual.session import VirtualGPU, virtual_gpu
from torchtally.virtual.stand_ins import apply


class Predictor(Timekeeper, Protocol):
    """The schedule of a run so far."""

    @property
    def host_s(self) -> float: ...
    def join(self, world: World, groups: Sequence[ProcessGroup]) -> None: ...
    def between(self, first_tick: int, end_tick: int) -> float: ...
    def kernel_s(self, call: Call) -> float: ...


def said_at_start() -> str:
    """What this PyTorch does otherwise than the one in the documents; "" where nothing."""
    return releases.different(str(torch.__version__))


Written = Callable[[Mapping[FileId, StubFile]], Iterable[Effect]]
"""What the script has written, removed and started, given the files with virtual tensors."""


def saved_for_real(saved: Mapping[FileId, StubFile]) -> Iterator[Effect]:
    """Files that have placeholders in them, of a run that is not isolated."""
    for path, placeholder_bytes in saved.values():
        size = os.path.getsize(path) if os.path.exists(path) else 0
        yield Effect(
            EffectKind.WRITTEN,
            path,
            bytes=size + placeholder_bytes,
            placeholder_bytes=placeholder_bytes,
        )


@dataclass(frozen=True, slots=True)
class LiveSchedule:
    """What the script's clocks and events answer from: the run's schedule up to now."""

    prediction: Predictor
    recorder: Recorder
    lock: threading.RLock = field(default_factory=threading.RLock)

    def host_s(self) -> float:
        with SCRIPT_TIME.stopped(), self.lock:
            self.recorder.advance(self.prediction)
            return self.prediction.host_s

    def between(self, first_tick: int, end_tick: int) -> float:
        """Predicted seconds of the device between two ticks."""
        with SCRIPT_TIME.stopped(), self.lock:
            self.recorder.advance(self.prediction)
            return self.prediction.between(first_tick, end_tick)


@dataclass(frozen=True, slots=True)
class Recording:
    """A run that is being traced: `trace()` returns everything so far."""

    gpu: VirtualGPU
    recorder: Recorder
    steps: Steps
    script: str
    what_ifs: tuple[str, ...] = ()
    written: Written | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def trace(self, ending: Ending) -> Trace:
        """The whole, at the end of the run."""
        with suppress(StepsDone):
            self.recorder.by_hand.finish()
        self.steps.finish(has_exited=ending.kind == "exit")
        for what_if, reason in unused_changes(self.what_ifs).items():
            self.recorder.note(f"{what_if} changed nothing: {reason}")
        facts = {
            "python": platform.python_version(),
            "platform": sys.platform,
            "date": time.strftime("%Y-%m-%d"),
            **self.facts,
        }
        if self.steps.loop is not None:
            facts[LOOP] = self.steps.loop.text_of_facts()
        return self.recorder.trace(
            script=self.script,
            chip=self.gpu.chip.name,
            ending=ending,
            facts=facts,
            allocator_settings=self.gpu.mode.gpus[0].allocator.settings.text,
            world=self.gpu.mode.groups.world,
            groups=self.gpu.mode.groups.groups,
            effects=(self.written or saved_for_real)(self.recorder.saved),
        )


def ignore_step(step: int) -> None:
    pass


def world_of(gpus: Cluster, rank: int = 0, launch: Launch | None = None) -> World:
    """The world of one rank for each of these GPUs, or of those that a launcher would start.

    A single GPU in front of a launcher is the kind of GPU: there are as many as it needs. Raises
    UsageError for a rank that is not there, and for a launcher that needs more GPUs than there are.
    """
    gpus_per_node = 1 if gpus.count == 1 else min(gpus.node_size, gpus.count)
    size = gpus.count
    if launch is not None:
        per_node = launch.ranks_per_node or gpus_per_node
        size = launch.nodes * per_node
        if gpus.count == 1:
            gpus_per_node = per_node
        elif per_node > gpus_per_node or launch.nodes > gpus.nodes:
            raise UsageError(
                f"the launcher starts {launch.nodes} x {per_node} ranks, and --gpu gives "
                f"{gpus.nodes} x {gpus_per_node} GPUs: give as many."
            )
    if not 0 <= rank < size:
        raise UsageError(f"--rank {rank}: {size} GPUs have the ranks 0 to {size - 1}")
    return World(size, gpus_per_node, rank)


def variables_of(world: World) -> Mapping[str, str]:
    """What torchrun sets for a rank of several."""
    return rendezvous.environment(world) if world.size > 1 else {}


@contextmanager
def recording(
    gpu: str | Chip,
    *,
    script: str,
    limit: StepLimit = StepLimit(),  # noqa: B008 (frozen)
    on_step: Callable[[int], None] = ignore_step,
    on_done: Callable[[], None] = ignore,
    nonzero_fraction: float = 1.0,
    memory_is_limited: bool = True,
    placeholder_limit: int = PLACEHOLDER_LIMIT,
    what_ifs: tuple[str, ...] = (),
    dispatch: Dispatch = "cuda",
    prediction: Predictor | None = None,
    host_clock: bool = False,
    written: Written | None = None,
    facts: Mapping[str, str] | None = None,
    world: World = World(),  # noqa: B008 (frozen)
    variables: Mapping[str, str] | None = None,
    exchange: Exchange | None = None,
    network: Network = "downloads",
    is_own_process: bool = False,
) -> Iterator[Recording]:
    """A virtual GPU that records. `on_step` is called with the number of each completed step, and
    `on_done` when the limit is reached.

    A condition that reads more than `placeholder_limit` placeholders between two steps ends the
    run by EndlessLoopError.
    `what_ifs` are changes to try, as `what_if.py` spells them. `prediction` is what
    the script's clocks and `torch.cuda.Event`s answer from; without it those raise, and clocks are
    the host's, as with `host_clock`. `written` lists
    the script's effects on files; `facts` are more of the run's. `exchange` is with other ranks
    that are simulated at the same time. `network` says what of it the script may use, in a process
    of tally's own for good.
    """
    target = gpu if isinstance(gpu, Chip) else chip(gpu)
    recorder = Recorder(placeholder_limit=placeholder_limit)
    recorder.tensors.is_one_of_many = world.size > 1
    schedule = None if prediction is None else LiveSchedule(prediction, recorder)
    clock: AbstractContextManager[Any] = (
        nullcontext() if schedule is None or host_clock else script_clock(schedule, recorder.effect)
    )
    for what_if in what_ifs:
        recorder.note(f"the script was run as if changed: {what_if}")

    def tokens_done() -> None:
        on_done()
        raise StepsDone

    recorder.tokens.limit, recorder.tokens.on_done = limit.tokens, tokens_done
    steps = Steps(recorder, limit, on_step, on_done)
    with (
        virtual_gpu(
            target,
            observer=recorder,
            nonzero_fraction=nonzero_fraction,
            memory_is_limited=memory_is_limited,
            dispatch=dispatch,
            stopwatch=None if schedule is None else schedule.between,
            kernel_s=no_time if prediction is None else prediction.kernel_s,
            world=world,
        ) as device,
        environment({**variables_of(world), **(variables or {})}),
        apply(stand_ins(what_ifs)),
        watch(steps),
        recorded_sleeps(recorder),
        without_garbage(),
        clock,
        limited_network(network, recorder.effect, is_own_process=is_own_process) as network_of_run,
    ):
        if exchange is not None:
            device.mode.groups.messages = Messages(exchange)
        if prediction is not None:
            prediction.join(world, device.mode.groups.groups)
        guard.report_to(recorder.effect)
        facts = {"cwd": os.getcwd(), "network": network_of_run, **(facts or {})}
        yield Recording(device, recorder, steps, script, what_ifs, written, facts)


@contextmanager
def watch(steps: Steps) -> Iterator[None]:
    """Have the recorder see calls of modules, batches, and optimizers constructed and stepped."""
    recorder = steps.recorder
    replaced = [*recorder.modules.stand_ins(), *recorder.loading.stand_ins(), *steps.stand_ins()]
    with apply(replaced), steps.watch():
        yield
