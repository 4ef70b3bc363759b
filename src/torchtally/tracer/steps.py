"""Counting training steps, and stopping the script after enough of them.

A training step ends with the optimizer's step; with several optimizers, when each of them has
stepped. One that was constructed but never steps is waited for during `PATIENCE_STEPS` steps, or
until the script is over.
Models that are trained one after the other share no step (`_is_next_model`).
Where no optimizer exists it ends with the last update by hand (`by_hand.py`).
A step that a GradScaler skips, since gradients overflowed, ends one as well, and is not among those
asked for: what an optimizer keeps shows after its first step.
"""

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from torchtally import torch_private as private
from torchtally.trace import HostState, Role
from torchtally.trace.loop import TrainingLoop
from torchtally.tracer.loop import training_loop
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.sweeps import jobs_left_out
from torchtally.virtual.compiling.optimizers import watch_steps
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import virtual_of

PATIENCE_STEPS = 16
"""Steps that optimizers may take while another one of the script takes none."""


class StepsDone(BaseException):
    """Raised in the script after the requested number of steps.

    Not an Exception, so that the script's handlers let it pass.
    """


@dataclass(frozen=True, slots=True)
class StepLimit:
    """When a script has taken enough training steps. Without numbers: never."""

    steps: int | None = None
    """So many in all."""
    steps_of_one_model: int | None = None
    """So many that update the same weights: a script may train several models, one after another.
    """
    tokens: int | None = None
    """Of a run that generates: so many decoding passes."""

    def is_reached(self, steps: int, steps_of_one_model: int) -> bool:
        return (self.steps is not None and steps >= self.steps) or (
            self.steps_of_one_model is not None and steps_of_one_model >= self.steps_of_one_model
        )


@dataclass(frozen=True, slots=True)
class ConsecutiveSteps:
    """Steps of one optimizer, with none of another one between them: the ticks of their ends."""

    optimizer: weakref.ref[Optimizer]
    ticks: list[int]


def ignore() -> None:
    """Nothing is to be done when the steps are done."""


class Steps:
    """Watches optimizers: marks their tensors, ends steps, and stops the script."""

    def __init__(
        self,
        recorder: Recorder,
        limit: StepLimit,
        on_step: Callable[[int], None],
        on_done: Callable[[], None] = ignore,
    ) -> None:
        self.recorder = recorder
        self.limit = limit
        self.on_step = on_step
        """Called with the number of each completed step."""
        self.on_done = on_done
        """Called before `StepsDone` is raised, each time."""
        self.loop: TrainingLoop | None = None
        """As the first step's frames have it."""
        self._process = os.getpid()
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._excused: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """No longer waited for, until they step."""
        self._looked_at: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        """Whether they step parameters on the host."""
        self._steps_taken: list[tuple[Optimizer, int]] = []
        """Steps of optimizers since the last training step ended: who, and the tick of its end."""
        self._has_shared_step = False
        """The last training step was one of several optimizers."""
        self._runs: list[ConsecutiveSteps] = []
        """The last two optimizers that stepped, each again and again."""
        self._steps_of_one_model = 0
        self._weights: dict[int, weakref.ref[Tensor]] = {}
        """Those that this model's steps have updated, by id."""
        self._updated: dict[int, weakref.ref[Tensor]] = {}
        """Those updated since the last training step ended."""
        self._calls = 0
        """Of optimizers' `step`."""
        self._is_skipping = False
        """A GradScaler has left out the step of an optimizer."""
        self._skipped = 0
        """Training steps so left out."""
        self._alive = 0
        """Optimizers that exist: while there is one, updates by hand end no step."""
        recorder.by_hand.end_step = self._end_by_hand

    def stand_ins(self) -> list[StandIn]:
        native_init = Optimizer.__init__
        optimizers = self._optimizers

        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            native_init(optimizer, *args, **kwargs)
            optimizers.add(optimizer)
            self._alive += 1
            self.recorder.by_hand.finish()
            self.recorder.by_hand.is_active = False
            weakref.finalize(optimizer, self._optimizer_died).atexit = False

        return [StandIn(Optimizer, "__init__", init), self._scaler_stand_in()]

    def _scaler_stand_in(self) -> StandIn:
        native = torch.amp.GradScaler.step

        def step(scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._calls
            result = native(scaler, optimizer, *args, **kwargs)
            if self._calls == before and os.getpid() == self._process:
                self._step_skipped(optimizer)
            return result

        return StandIn(torch.amp.GradScaler, "step", step)

    def _step_skipped(self, optimizer: Optimizer) -> None:
        is_torchs = isinstance(optimizer, Optimizer)  # else its own step was taken, unseen
        if is_torchs:
            self._updated |= {id(each): weakref.ref(each) for each in parameters(optimizer)}
        self._is_skipping = is_torchs and self._skipped < PATIENCE_STEPS
        try:
            self._step_taken(optimizer)
        finally:
            self._is_skipping = False

    def _optimizer_died(self) -> None:
        self._alive -= 1
        self.recorder.by_hand.is_active = not self._alive

    @contextmanager
    def watch(self) -> Iterator[None]:
        self.recorder.step_replayed = self._step_taken
        with watch_steps(self._before_step, self._after_step):
            yield

    def _before_step(self, optimizer: Optimizer) -> None:
        if os.getpid() != self._process:
            return  # a forked process, which inherits torch's global hooks
        self._calls += 1
        with SCRIPT_TIME.stopped():
            self._mark_trained(optimizer, sys._getframe(1))

    def _mark_trained(self, optimizer: Optimizer, caller: FrameType) -> None:
        recorder = self.recorder
        if not recorder.is_optimizing:
            recorder.script_works.before_optimizer(recorder.clock, caller)
        recorder.is_optimizing += 1
        for parameter in parameters(optimizer):
            self._updated[id(parameter)] = weakref.ref(parameter)
            if parameter.requires_grad:
                self.recorder.tensors.mark_trained(parameter)
            self.recorder.tensors.mark(parameter, Role.PARAMETER)
            if parameter.grad is not None:
                self.recorder.tensors.mark(parameter.grad, Role.GRADIENT)

    def _after_step(self, optimizer: Optimizer) -> None:
        if os.getpid() == self._process:
            with SCRIPT_TIME.stopped():
                self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        self.recorder.is_optimizing -= 1
        for state in optimizer.state.values():
            for leaf in private.tree_leaves(state):
                if isinstance(leaf, Tensor):
                    self.recorder.tensors.mark(leaf, Role.OPTIMIZER_STATE)
        if self.recorder.host_state is None and optimizer not in self._looked_at:
            self._looked_at.add(optimizer)
            self.recorder.host_state = host_state_of(optimizer)
        if torch.cuda.is_current_stream_capturing():
            self.recorder.step_captured(optimizer)
        else:
            self._step_taken(optimizer)

    def _step_taken(self, optimizer: Optimizer) -> None:
        self._excused.discard(optimizer)
        self._steps_taken.append((optimizer, self.recorder.clock))
        self._note_run(optimizer)
        if self._is_next_model():
            self._end(self._ends_of_two_models(optimizer))
            return
        ends = self._ends()
        if ends:
            self._count_model(len(ends))
            self._end(ends)

    def _end(self, ends: list[int]) -> None:
        self.recorder.step_ends += ends
        completed = len(self.recorder.step_ends)
        if completed == len(ends):
            self.loop = training_loop(sys._getframe(1))
        self._skipped += len(ends) if self._is_skipping else 0
        self.on_step(completed)
        if self.limit.is_reached(completed - self._skipped, self._steps_of_one_model):
            if jobs := jobs_left_out(sys._getframe()):
                self.recorder.note(jobs)
            self.on_done()
            raise StepsDone

    def finish(self, *, has_exited: bool) -> None:
        """End the steps of a script that is over before patience with an idle optimizer was: of one
        that failed those of an optimizer that has stepped again, since the other's turn may have
        been next.
        """
        stepped = {id(optimizer) for optimizer, _ in self._steps_taken}
        if not self.recorder.step_ends and (has_exited or len(stepped) < len(self._steps_taken)):
            self._excused.update(self._optimizers)
            self.recorder.step_ends += self._ends()

    def _end_by_hand(self, tick: int) -> None:
        self._steps_of_one_model += 1
        self._end([tick])

    def _count_model(self, steps: int) -> None:
        """A step that updates none of the weights of those before is the first of another model."""
        updated, self._updated = self._updated, {}
        is_same = any(
            (known := self._weights.get(number)) is not None and known() is weight()
            for number, weight in updated.items()
            if weight() is not None
        )
        if not is_same:
            self._weights, self._steps_of_one_model = {}, 0
        self._weights |= updated
        self._steps_of_one_model += 0 if self._is_skipping else steps

    def _note_run(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped: again, or after another one."""
        if not self._runs or self._runs[-1].optimizer() is not optimizer:
            self._runs = [*self._runs[-1:], ConsecutiveSteps(weakref.ref(optimizer), [])]
        self._runs[-1].ticks.append(self.recorder.clock)

    def _is_next_model(self) -> bool:
        """One optimizer has stepped twice or more, and now another one has stepped twice, for which
        nothing that the first one trains was read: the script trains one model after the other.

        A GAN's optimizers may step several times each, too; what one trains, the other reads.
        """
        if len(self._runs) < 2 or len(self._runs[0].ticks) < 2 or len(self._runs[1].ticks) != 2:
            return False
        earlier, later = self._runs
        if (optimizer := earlier.optimizer()) is None:
            return False
        read = self.recorder.storages_read(later.ticks[0])
        virtuals = map(virtual_of, parameters(optimizer))
        return bool(read) and read.isdisjoint(v.number for v in virtuals if v is not None)

    def _ends_of_two_models(self, optimizer: Optimizer) -> list[int]:
        """Each step of either was a training step. Only the later optimizer is waited for."""
        earlier, later = self._runs
        ends = self.recorder.step_ends
        if ends and ends[-1] == later.ticks[0] and self._has_shared_step:
            ends.pop()
        last = ends[-1] if ends else 0
        self._excused.update(each for each in self._optimizers if each is not optimizer)
        self._steps_taken = []
        self._updated = {id(each): weakref.ref(each) for each in parameters(optimizer)}
        self._weights = {}
        self._count_model(len(later.ticks))
        return [tick for tick in (*earlier.ticks, *later.ticks) if tick > last]

    def _ends(self) -> list[int]:
        """Ticks at which training steps ended; called when an optimizer has stepped.

        After waiting in vain for one, the steps of the others are cut where each has stepped.
        """
        stepped = {id(optimizer) for optimizer, _ in self._steps_taken}
        missing = [
            optimizer
            for optimizer in self._optimizers
            if id(optimizer) not in stepped and optimizer not in self._excused
        ]
        if missing and len(self._steps_taken) <= PATIENCE_STEPS:
            return []
        self._excused.update(missing)
        self._has_shared_step = len(stepped) > 1
        ends, shared, rest = [], set(), list[tuple[Optimizer, int]]()
        for optimizer, tick in self._steps_taken:
            shared.add(id(optimizer))
            rest.append((optimizer, tick))
            if shared == stepped:
                ends.append(tick)
                shared.clear()
                rest.clear()
        self._steps_taken = rest
        return ends


def parameters(optimizer: Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def host_state_of(optimizer: Optimizer) -> HostState | None:
    """State of an optimizer that has stepped parameters on the host; None where it has none
    there.
    """
    on_host = [
        parameter
        for parameter in parameters(optimizer)
        if parameter.grad is not None and all(map(is_on_host, private.tensors_inside(parameter)))
    ]
    if not on_host:
        return None
    parts = [plain for parameter in on_host for plain in private.tensors_inside(parameter)]
    elements = sum(plain.numel() for plain in parts)
    leaves = (leaf for each in on_host for leaf in private.tree_leaves(optimizer.state.get(each)))
    return HostState(
        elements,
        sum(private.whole_elements(parameter) or parameter.numel() for parameter in on_host),
        sum(map(host_bytes, parts)),
        sum(host_bytes(parameter.grad) for parameter in on_host if parameter.grad is not None),
        sum(host_bytes(leaf) for leaf in leaves if isinstance(leaf, Tensor)),
    )


def is_on_host(tensor: Tensor) -> bool:
    """Whether it is in memory that is not accounted."""
    virtual = virtual_of(tensor)
    is_accounted = virtual is not None and virtual.number >= 0
    return tensor.device.type == "cpu" and not is_accounted


def host_bytes(tensor: Tensor) -> int:
    """Bytes of what is on the host of a tensor, or of a wrapper subclass."""
    parts = filter(is_on_host, private.tensors_inside(tensor))
    return sum(plain.numel() * plain.itemsize for plain in parts)
