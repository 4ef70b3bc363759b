"""The observer that records a trace: operators with phase and place, lifetimes of storages.

It records facts and computes nothing. What a storage is for (an activation, a temporary) follows
later from the trace; recorded here is only what the script itself determines: parameters, their
gradients, optimizer state.
"""

import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtally import torch_private as private
from torchtally.memory.allocator import Block, OutOfMemoryError
from torchtally.trace import (
    CacheEmptied,
    Coalesced,
    Effect,
    EffectKind,
    Ending,
    FileId,
    Frame,
    FusedKernel,
    HostState,
    Note,
    Op,
    Phase,
    ProcessGroup,
    Refusal,
    Reserved,
    Role,
    Site,
    StreamWait,
    StubFile,
    Trace,
    World,
)
from torchtally.trace.sleep import sleep_call
from torchtally.tracer.by_hand import HandUpdates
from torchtally.tracer.calls import Calls
from torchtally.tracer.captured import Captured, Placed
from torchtally.tracer.checks import passing_answer
from torchtally.tracer.compiled import CompiledRuns, call_of, numbers
from torchtally.tracer.engine import ForwardOrigins, builds_graph_anew, is_nested
from torchtally.tracer.listeners import Bookkeeper, Timekeeper
from torchtally.tracer.loading import LoadingTimes
from torchtally.tracer.modules import OUTSIDE, Modules, Place
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT, PlaceholderReads
from torchtally.tracer.saved_files import identify
from torchtally.tracer.script_work import ScriptWorks
from torchtally.tracer.sites import SiteTable
from torchtally.tracer.source import Stacks, Walk, asking_frame, own_frame
from torchtally.tracer.storage_records import StorageRecords
from torchtally.tracer.tensor_roles import TensorRoles
from torchtally.tracer.tokens import TokenCounter
from torchtally.virtual.compiling.kernels import LoweredGraph
from torchtally.virtual.compiling.origins import Origin
from torchtally.virtual.facts import FALLING
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.storage import VirtualStorage, virtual_of
from torchtally.virtual.streams import CURRENT

ENGINE = private.engine_code()
FIRST_CALLER = 3
"""Frames of ours between a reader of the stack here and the operator's caller."""


class Recorder:
    """The facts of one run; `trace()` returns those so far."""

    def __init__(self, *, placeholder_limit: int = PLACEHOLDER_LIMIT) -> None:
        self.clock = 0
        self.host_operators = 0
        self.is_optimizing = 0
        """How many optimizers' `step` this thread is inside of."""
        self.step_ends: list[int] = []
        self._thread = threading.get_ident()
        """The one that ran the last operator."""
        self.is_stopped = False
        """The trace has been taken: nothing is recorded any more."""
        self._calls = Calls()
        self._stacks = Stacks()
        self.modules = Modules(self._stacks, self._root_called)
        self.loading = LoadingTimes(partial(own_frame, self._stacks))
        self.script_works = ScriptWorks(self._stacks)
        self.tokens = TokenCounter(self._calls.calls, placeholder_limit)
        self._sites = SiteTable(self._stacks)
        self._origins = ForwardOrigins()
        self._ops: list[Op] = []
        self._adding = threading.RLock()
        self.storages = StorageRecords()
        self._reserved: list[Reserved] = []
        self._emptied: list[CacheEmptied] = []
        self._refusals: list[Refusal] = []
        self._waits: list[int] = []
        self._stream_waits: list[StreamWait] = []
        self._coalesced: list[Coalesced] = []
        self.tensors = TensorRoles(self.storages)
        self.placeholders = PlaceholderReads(self._stacks, placeholder_limit)
        self._notes: dict[str, int] = {}
        self.host_state: HostState | None = None
        self._effects: dict[tuple[EffectKind, str, Frame | None], int] = {}
        self.saved: dict[FileId, StubFile] = {}
        self.by_hand = HandUpdates(
            self.storages.roles,
            self.tensors.trained,
            lambda number: self.storages.births[number][2],
        )
        """Finds updates of weights, as long as there is no torch optimizer, whose steps count."""
        self._served = private.ServedModules()
        self._compiled = CompiledRuns(self.modules)
        self._last_captured: Captured | None = None
        self._is_capturing = False
        self.step_replayed: Callable[[Optimizer], None] = ignore_step
        """Called when a CUDA graph has run an optimizer's step."""

    # Storages.

    def storage_born(self, storage: VirtualStorage) -> None:
        if not self.is_stopped:
            self.storages.born(storage, self.clock)

    def storage_died(self, storage: VirtualStorage) -> None:
        if self.is_stopped:
            return
        self.storages.deaths[storage.number] = self.clock
        self.by_hand.storage_died(storage.number)

    def workspace_taken(self, device: torch.device, block: Block, name: str) -> None:
        if not self.is_stopped:
            self.storages.workspace_kept(device, block, name, self.clock)

    def workspace_dropped(self, block: Block) -> None:
        if not self.is_stopped:
            self.storages.workspace_dropped(block, self.clock)

    def workspace_used(self, device: torch.device, block: Block, name: str) -> None:
        if not self.is_stopped:
            number = self.storages.workspace_born(device, block, name, self.clock)
            self.storages.deaths[number] = self.clock + 1

    def reserved_changed(self, device: torch.device, reserved_bytes: int) -> None:
        if not self.is_stopped:
            self._reserved.append(Reserved(str(device), self.clock, reserved_bytes))

    def cache_emptied(self, device: torch.device) -> None:
        if not self.is_stopped:
            self._emptied.append(CacheEmptied(str(device), self.clock))

    def host_waited(self) -> None:
        if not self.is_stopped and (not self._waits or self._waits[-1] < self.clock):
            self._waits.append(self.clock)

    def stream_waited(self, stream: int, other: int, until: int) -> None:
        if not self.is_stopped and stream != other and until > 0:
            self._stream_waits.append(StreamWait(self.clock, stream, other, until))

    def collectives_coalesced(self, first_tick: int) -> None:
        if not self.is_stopped and self.clock - first_tick > 1:
            self._coalesced.append(Coalesced(first_tick, self.clock))

    def memory_refused(
        self, device: torch.device, requested_bytes: int, error: OutOfMemoryError
    ) -> None:
        if self.is_stopped:
            return
        key, walk = self._stacks.read(sys._getframe(1), self.modules.outer)
        site = self._sites.number(self.modules.place, key)
        if walk.engine is not None and not walk.is_called_by_engine:
            site = self._backward_site(private.current_autograd_node(), walk)
        self._refusals.append(
            Refusal(
                device=str(device),
                tick=self.clock,
                requested_bytes=requested_bytes,
                allocated_bytes=error.allocated_bytes,
                reserved_bytes=error.reserved_bytes,
                free_bytes=error.free_bytes,
                site=site,
                message=str(error),
                builds_graph=torch.is_grad_enabled(),
            )
        )
        self.clock += 1  # frees during unwinding come after this moment

    def _root_called(self, module: nn.Module) -> None:
        """An outermost module runs: mark its parameters and buffers, by name."""
        with SCRIPT_TIME.stopped():
            self.tokens.root_called()
            self.tensors.mark_tensors_of(module, len(self.step_ends))

    # Operators.

    def storages_read(self, first: int) -> set[int]:
        """Numbers of what operators outside of optimizers have been called with, from a tick on."""
        numbers: set[int] = set()
        for op in self._ops[bisect_left(self._ops, first, key=attrgetter("clock")) :]:
            if op.phase is not Phase.OPTIMIZER:
                numbers.update(op.inputs)
        return numbers

    def operator_ran(self, invocation: Invocation, outputs: Sequence[Tensor]) -> None:
        if self.is_stopped:
            return
        call, came_in, went_out = self._calls.of(invocation, outputs)
        self.tokens.ran(call, came_in)
        phase, site = self._place(invocation, outputs, went_out)
        self.script_works.before_operator(
            self.clock, self._sites.sites[site], is_optimizing=bool(self.is_optimizing)
        )
        if self.tensors.is_one_of_many:
            site = self._site_served(sys._getframe(2), site)
        stream = invocation.stream
        if stream is None:
            stream = CURRENT.stream.stream_id
        self._thread = threading.get_ident()
        self._add(call, site, phase, came_in, went_out, stream)

    def _add(
        self, call: int, site: int, phase: Phase, came_in: tuple[int, ...],
        went_out: tuple[int, ...], stream: int = 0, parts: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Append an operator. Threads that run operators share the clock."""
        with self._adding:
            self._ops.append(Op(self.clock, call, site, phase, came_in, went_out, stream, parts))
            self.clock += 1

    def slept(self, seconds: float, begun: int, caller: FrameType) -> None:
        """The script has slept since a tick: an operator that takes the host's time alone.

        A thread that sleeps beside one that trains, as one that waits for it, holds nothing up.
        """
        is_beside = self._thread != threading.get_ident() or self.clock != begun
        if self.is_stopped or is_beside or seconds <= 0:
            return
        key, walk = self._stacks.read(caller, self.modules.outer)
        phase = Phase.FORWARD if walk.engine is None else Phase.BACKWARD
        if self.is_optimizing:
            phase = Phase.OPTIMIZER
        call = self._calls.of_call(sleep_call(seconds))
        self._add(call, self._sites.number(self.modules.place, key), phase, (), ())

    def compiled(self, graph: LoweredGraph | None, node: int) -> None:
        self.script_works.compiled(runs=graph is not None)
        self._origins.differentiated.update(self._compiled.begin(graph, node, self.clock))

    def _phase_compiled(self) -> Phase:
        if self.is_optimizing:
            return Phase.OPTIMIZER
        phase = self._compiled.phase(self.clock)
        if phase is Phase.FORWARD and private.current_autograd_node() is not None:
            # Compiled code that Python calls below the engine: a custom backward, or a
            # recomputation.
            _, walk = self._stacks.read(sys._getframe(FIRST_CALLER), self.modules.outer)
            if walk.engine is not None:
                recomputes = walk.is_recompute or builds_graph_anew(walk.engine)
                return Phase.RECOMPUTE if recomputes else Phase.BACKWARD
        return phase

    def _site_of_origin(self, origin: Origin | None) -> int:
        """Site of what no line of a script has made (an optimizer's step, a random seed): that of
        the call of the compiled code.
        """
        frames = () if origin is None else origin.frames
        place = self.modules.place if origin is None else self._compiled.place(origin)
        identity: Any = (place.path, place.class_name, frames)
        number = self._sites.numbers.get(identity)
        if number is not None:
            return number
        known = () if origin is None else self._compiled.frames(origin)
        if not any(frame.is_own for frame in known):
            caller, walk = self._stacks.read(sys._getframe(FIRST_CALLER), self.modules.outer)
            is_own = any(frame.is_own for frame in self._stacks.frames(caller))
            if walk.engine is not None and not is_own:
                caller = self._stacks.read(walk.engine.f_back)[0]
            known += self._stacks.frames(caller)
            identity = (place.path, place.class_name, frames, caller)
            number = self._sites.numbers.get(identity)
        if number is None:
            number = self._sites.add(identity, Site(place.path, place.class_name, known))
        return number

    def kernel_launched(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, Tensor]]
    ) -> None:
        if self.is_stopped or not self._compiled.is_running:
            return
        record = self._kernel(name, fused, operands)
        self.tokens.ran(record.call, record.inputs)
        placed = record.compiled
        assert placed is not None
        self._add(
            record.call, placed.site, record.phase, record.inputs, record.outputs,
            CURRENT.stream.stream_id, placed.parts,
        )  # fmt: skip

    def kernel_captured(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, Tensor]]
    ) -> Captured:
        self._last_captured = self._kernel(name, fused, operands)
        self.clock += 1  # for the births and deaths of storages during the capture
        return self._last_captured

    def _kernel(
        self, name: str, fused: FusedKernel | None, operands: Sequence[tuple[str, Tensor]]
    ) -> Captured:
        node = self._compiled.node
        key = (
            name, id(node), id(fused.parts) if fused is not None else 0,
            tuple((tensor.shape, tensor.stride(), tensor.dtype) for _, tensor in operands),
        )  # fmt: skip
        call = self._calls.of_kernel(key, lambda: call_of(name, fused, operands))
        phase, site = self._phase_compiled(), self._site_of_origin(node.main)
        origins = node.origins if fused is not None else ()
        parts = tuple(map(self._site_of_origin, origins))
        came_in, went_out = (numbers(operands, results=results) for results in (False, True))
        return Captured(call, phase, came_in, went_out, Placed(self._compiled.graph, site, parts))

    def operator_captured(self, invocation: Invocation, outputs: Sequence[Tensor]) -> Captured:
        """What a CUDA graph will run at each replay, with the phase of its capture."""
        call, came_in, went_out = self._calls.of(invocation, outputs)
        self._is_capturing = True
        phase, site = self._place(invocation, outputs, went_out)
        self._is_capturing = False
        placed = Placed(self._compiled.graph, site) if self._compiled.is_running else None
        self._last_captured = Captured(call, phase, came_in, went_out, placed)
        self.clock += 1  # for the births and deaths of storages during the capture
        return self._last_captured

    def step_captured(self, optimizer: Optimizer) -> None:
        """An optimizer has stepped within a capture: it will at each replay."""
        if self._last_captured is not None:
            self._last_captured.steps.append(optimizer)

    def graph_replayed(self, records: list[Captured]) -> None:
        """All operators of a graph run at the line that replays it, or compiled ones where they
        belong.

        The host issues the first of them, and the rest with it.
        """
        if self.is_stopped or not records:
            return
        first = records[0].compiled
        if first is not None and first.graph is not None:
            ran = self._compiled.begin_replay(first.graph, self.clock, len(records))
            self._origins.differentiated.update(ran)
        key, walk = self._stacks.read(sys._getframe(1), self.modules.outer)
        site, node = self._sites.number(self.modules.place, key), private.current_autograd_node()
        if walk.engine is not None and not walk.is_called_by_engine:
            site = self._backward_site(node, walk)
        elif walk.engine is None:
            self._remember(site)
        here = Placed(None, site)
        for record in records:
            is_first = record is records[0]
            call = record.call if is_first else self._calls.in_graph(record.call)
            self.tokens.ran(call, record.inputs)
            phase, placed = record.phase, record.compiled
            if placed is None:
                phase = phase if walk.engine is None else Phase.BACKWARD
                placed = here
            self._add(call, placed.site, phase, record.inputs, record.outputs, parts=placed.parts)
            for optimizer in record.steps:
                self.step_replayed(optimizer)

    def _place(
        self, invocation: Invocation, outputs: Sequence[Tensor], went_out: Sequence[int]
    ) -> tuple[Phase, int]:
        """The phase an operator ran in, and the number of its site.

        A backward operator has the site of the forward operator that made its autograd node; one
        called by Python code below the engine (a hook, a custom backward, a recomputation) has the
        site of that code.
        """
        if self._compiled.is_running:
            phase = self._phase_compiled()
            if phase is not Phase.FORWARD:
                self.by_hand.backward_ran(went_out, self.clock)
            return phase, self._site_of_origin(self._compiled.node.main)
        key, walk = self._stacks.read(sys._getframe(FIRST_CALLER), self.modules.outer)
        if walk.engine is None:
            site = self._sites.number(self.modules.place, key)
            self._remember(site)
            return self._phase_outside_backward(walk, invocation, went_out), site
        self.by_hand.backward_ran(went_out, self.clock)
        node = private.current_autograd_node()
        # Python below the engine: hooks, `autograd.Function.backward`, and checkpointing, of which
        # torch's is known by its code, and any other by building a graph without `create_graph`.
        if walk.is_called_by_engine:
            recomputes = walk.is_recompute or builds_graph_anew(walk.engine)
            site = self._sites.number(self.modules.place, key)
            self._remember(site)
            if node is not None:
                self._origins.site(node)
            # An optimizer that steps inside a hook (`register_post_accumulate_grad_hook`).
            if self.is_optimizing and not torch.is_grad_enabled():
                return Phase.OPTIMIZER, site
            return (Phase.RECOMPUTE if recomputes else Phase.BACKWARD), site
        # AccumulateGrad has no forward operator: it belongs to the module of its leaf.
        if node is not None and private.sequence_number(node) == private.ACCUMULATE_GRAD_SEQUENCE:
            return Phase.BACKWARD, self._accumulation(node, walk, invocation, outputs)
        site = self._backward_site(node, walk)
        # `create_graph`: the nodes made now belong where the first backward's do.
        if torch.is_grad_enabled():
            self._remember(site)
        return Phase.BACKWARD, site

    def _phase_outside_backward(
        self, walk: Walk, invocation: Invocation, went_out: Sequence[int]
    ) -> Phase:
        if walk.is_gradients:
            return Phase.OPTIMIZER
        if walk.is_backward:
            return Phase.BACKWARD
        if self.is_optimizing:
            return Phase.FORWARD if self._is_of_model(invocation) else Phase.OPTIMIZER
        if not torch.is_grad_enabled() and self.tensors.is_update(invocation):
            phase = Phase.OPTIMIZER
        else:
            phase = Phase.FORWARD
        is_in_module = self.modules.outer is not None
        by_hand = self.by_hand.phase(invocation, went_out, self.clock, is_in_module=is_in_module)
        return by_hand if phase is Phase.FORWARD else phase

    def _is_of_model(self, invocation: Invocation) -> bool:
        """Whether a closure within an optimizer's step runs the model again, and builds a graph."""
        if not torch.is_grad_enabled():
            return False
        return self.modules.outer is not None or any(
            tensor.requires_grad for tensor in invocation.inputs
        )

    def _remember(self, site: int) -> None:
        # What a CUDA graph captures runs at other moments than this.
        self._origins.remember(site, None if self._is_capturing else self.clock)

    def _backward_site(self, node: Any, walk: Walk) -> int:
        site = None if node is None else self._origins.site(node)
        return self._caller_of_backward(OUTSIDE, walk) if site is None else site

    def _caller_of_backward(self, place: Place, walk: Walk) -> int:
        """The site of the call of backward."""
        frame = walk.engine.f_back if walk.engine is not None else None
        return self._sites.number(place, self._stacks.read(frame)[0])

    def _accumulation(
        self, node: Any, walk: Walk, invocation: Invocation, outputs: Sequence[Tensor]
    ) -> int:
        """The site of a gradient's accumulation: its leaf's module. Marks leaf and gradient."""
        # Any other leaf may be an input that requires grad (checkpointing wants one) and is a
        # parameter only where it is updated. Re-entrant checkpointing runs a backward whose leaves
        # are detached activations: their gradients are activations, too.
        is_parameter = isinstance(node.variable, nn.Parameter)
        if is_parameter and not self.tensors.is_gathered(node.variable):
            self.tensors.mark_trained(node.variable)
        if is_parameter or not is_nested(walk.engine):
            gradient = node.variable.grad
            tensors = [*invocation.inputs[:1], *outputs]
            if gradient is not None:  # hooks run here, too: DDP's fills buckets and reduces them
                tensors = [gradient]
            for tensor in tensors:
                self.tensors.mark(tensor, Role.GRADIENT)
        virtual = virtual_of(node.variable)
        name = self.storages.names.get(virtual.number, "") if virtual is not None else ""
        place = self.modules.at(name.rpartition(".")[0]) if name else OUTSIDE
        return self._caller_of_backward(place, walk)

    def _site_served(self, frame: FrameType, site: int) -> int:
        """The line that called the module which FSDP gathers or reduces for, if this is its code.

        It works for one module while another one runs: it gathers ahead, and reduces behind.
        """
        ends = frozenset(map(id, (self.modules.call_code, ENGINE)))
        module = self._served.module_served(frame, ends)
        place = None if module is None else self.modules.place_of(module)
        if place is None or place.outer is None:
            return site
        return self._sites.number(place, (place.outer,))

    def host_operator_ran(self) -> None:
        self.host_operators += 1

    # Differences from a real device.

    def placeholder_given(self, operator: str, value: str) -> None:
        frame = sys._getframe(1)
        self.watch_loop(frame, value)
        self.placeholders.count(frame, operator, value)
        self.placeholders.watch(frame, operator)

    def assumption_read(self, operator: str, assumption: str) -> None:
        frame = sys._getframe(1)
        if assumption is FALLING:
            self.watch_loop(frame, "the next of numbers that fall")
        self.placeholders.count(frame, operator, assumption)
        self.placeholders.watch(frame, operator)

    def passing_answer(self, given: Any) -> Any:
        """See `checks.py`."""
        return passing_answer(asking_frame(sys._getframe(1)), given)

    def watch_loop(self, frame: FrameType, value: str) -> None:
        self.placeholders.watch_loop(frame, value, len(self.step_ends))

    def note(self, text: str) -> None:
        self._notes[text] = self._notes.get(text, 0) + 1

    def file_saved(self, file: Any, placeholder_bytes: int) -> None:
        """A path, or an open file; a buffer in memory is neither."""
        identity, path = identify(file)
        if identity is not None:
            self.saved[identity] = StubFile(path, placeholder_bytes)

    def effect(self, kind: EffectKind, name: str, caller: FrameType | None) -> None:
        """Something that the script did outside of its GPU, from a frame of its stack."""
        if not self.is_stopped:
            key = (kind, name, own_frame(self._stacks, caller))
            self._effects[key] = self._effects.get(key, 0) + 1

    # The whole.

    def advance(self, schedule: Timekeeper) -> None:
        """Tell a schedule of all that has run so far."""
        schedule.advance(self._calls.calls, self._ops, self._waits, self.clock, self._stream_waits)

    def tell(self, bookkeeper: Bookkeeper) -> None:
        """Tell of all that has run so far; from another thread, too: these lists only grow, and an
        operator is in its list after its call and its site are in theirs.
        """
        bookkeeper.take(
            self._calls.calls, self._sites.sites, self._ops, self.placeholders.counts.copy()
        )

    def trace(
        self,
        *,
        script: str,
        chip: str,
        ending: Ending,
        facts: dict[str, str],
        allocator_settings: str = "",
        effects: Iterable[Effect] = (),
        world: World = World(),  # noqa: B008 (frozen)
        groups: Sequence[ProcessGroup] = (),
    ) -> Trace:
        """Everything so far as a `Trace`."""
        return Trace(
            script=script,
            chip=chip,
            torch_version=str(torch.__version__),
            calls=tuple(self._calls.calls),
            sites=tuple(self._sites.sites),
            ops=tuple(self._ops),
            # A frozen reference model often requires grad, and runs under no_grad.
            storages=self.storages.facts(self.tensors.trained or self.tensors.trainable),
            step_ends=tuple(self.step_ends),
            ending=ending,
            differentiated=tuple(sorted(self._origins.differentiated)),
            placeholders=self.placeholders.facts(),
            reserved=tuple(self._reserved),
            emptied=tuple(self._emptied),
            refusals=tuple(self._refusals),
            waits=tuple(self._waits),
            allocator_settings=allocator_settings,
            notes=tuple(Note(text, count) for text, count in self._notes.items()),
            host_ops=self.host_operators,
            host_state=self.host_state,
            loading=self.loading.facts(),
            script_work=self.script_works.facts(),
            world=world,
            groups=tuple(groups),
            stream_waits=tuple(self._stream_waits),
            coalesced=tuple(self._coalesced),
            facts=facts,
            effects=(
                *effects,
                *(
                    Effect(kind, name, frame, count)
                    for (kind, name, frame), count in self._effects.items()
                ),
            ),
        )


def ignore_step(optimizer: Optimizer) -> None:
    """Ignores a step: of a recorder that is not asked to count any."""
