"""Training micro-batches that repeat earlier ones: forward and backward replayed, no operator runs.

With gradient accumulation a script runs many equal forward and backward passes for one optimizer
step. The call of an outermost module is folded together with its part of the backward pass: its
allocations and frees are replayed in their order, its results hang on one autograd node, and that
node replays the backward's. What the script itself does between and around runs as ever.

A call is folded when the last two like it

- had the same arguments, module attributes, gradients present and settings of torch;
- ran the same operators and took and freed the same memory in the same order, in both passes;
- read no value, touched no host tensor, drew no random number, and wrote to nothing from outside
  but gradients whose values are unknown;
- left nothing behind but their results, which the graph did not hold (and the weights that autocast
  had cast); called no Python from the autograd engine (hooks, checkpointing, custom functions);
- were the only module call that their backward pass went through, from one result, and all other
  nodes of that pass were created after the call, so that the engine evaluates them first.

A folded forward cannot be taken back. Where its backward turns out to be another one than that of
the calls before it (other options, gradients that are gone, references kept longer), the probe is
*misfolded*: it ends at once, and is run again without folding.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.runs.probe.engine import entries_into, is_closed, python_called_by_engine
from torchtally.runs.probe.passes import (
    PATIENCE,
    RECHECK,
    FoldedTensor,
    Stretch,
    argument_key,
    attributes,
    create,
    results_of,
    tensors_among,
)
from torchtally.runs.probe.pending import (
    Backward,
    Lesson,
    MicroBatch,
    MicroBatchKind,
    Replay,
    gradients_of,
    has_value,
    shares_storages,
)
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage, virtual_of

PLAIN_BACKWARD = (False, False, ())
"""Options of `backward()`: retain_graph, create_graph, inputs."""


class FoldedCall(torch.autograd.Function):
    """The autograd node of a folded call."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, folding: "MicroBatches", replay: Replay
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.folding, ctx.replay = folding, replay
        pattern = replay.pattern
        tensors = [leaf for leaf in pattern.leaves if isinstance(leaf, FoldedTensor)]
        created = create(tensors, pattern.sizes, replay.alive)
        for leaf in tensors:
            replay.alive.pop(leaf.storage)
        ctx.mark_non_differentiable(
            *(tensor for tensor, leaf in zip(created, tensors, strict=True)
              if not leaf.requires_grad)
        )  # fmt: skip
        return tuple(created)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None, None]:
        ctx.folding.replay_backward(ctx.replay, gradients)
        return None, None, None


@dataclass(slots=True)
class MicroBatches:
    """Of one run."""

    recorder: AllocationRecorder
    mode: VirtualDispatch
    memory: DeviceMemory
    lend: Callable[[list[VirtualStorage]], None]
    """Keep storages until autocast's cache is cleared."""
    misfolded: Callable[[str], NoReturn]
    storages: set[int]
    """Gets the numbers of the storages of calls that were not run."""
    folded: int = 0
    """Calls that were not run."""
    kinds: dict[Any, MicroBatchKind] = field(default_factory=dict)
    _seen_since_clear: set[Any] = field(default_factory=set)
    _clears: int = 0
    _lesson: Lesson | None = None
    _replay: weakref.ref[Replay] = field(default_factory=lambda: NO_REPLAY)
    _anchor: Tensor | None = None

    def stand_ins(self) -> list[StandIn]:
        native = private.run_engine

        def run(roots: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            return self.run_backward(native, roots, args, kwargs)

        return [StandIn(torch.autograd, private.RUN_ENGINE, run)]

    def fold_or_run(
        self, native_call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Fold the call, or run it and learn from it."""
        self.drop_lesson()
        replay = self._replay()
        is_alone = replay is None or replay.is_done
        key = self.key(module, args, kwargs) if is_alone else None
        if key is None:
            return native_call(module, *args, **kwargs)
        kind = self.kinds.setdefault(key, MicroBatchKind())
        kind.calls += 1
        if kind.is_hopeless:
            return native_call(module, *args, **kwargs)
        if kind.last is not None and kind.alike >= PATIENCE and kind.calls % RECHECK:
            return self.fold(kind, kind.last, module, args, kwargs)
        return self.learn(kind, native_call, module, args, kwargs)

    def key(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Equal for calls in which nothing differs that is known to matter."""
        arguments = argument_key(self.memory, (args, kwargs))
        state = attributes(module)
        if arguments is None or state is None or private.has_saved_tensor_hooks():
            return None
        if sys.getprofile() is not None:
            return None  # `python_called_by_engine` would take its place
        tensors = tensors_among((args, kwargs))
        if any(tensor.requires_grad for tensor in tensors) or shares_storages(tensors):
            return None
        key = (
            id(module), arguments, tuple(state), self.memory.library_handles, self.memory.stream,
            tuple((p.requires_grad, p.grad is None) for p in module.parameters()),
            private.kernel_settings(),
        )  # fmt: skip
        if not torch.is_autocast_enabled("cuda"):
            return key
        # What the cache holds follows from the calls since it was cleared.
        seen = frozenset(self._seen_since_clear)
        self._seen_since_clear.add(hash(key))
        return key, seen

    def cache_cleared(self, before: int) -> None:
        """Autocast's cache was cleared; the log had `before` entries until then."""
        self._clears += 1
        self._seen_since_clear.clear()
        if self._lesson is not None:
            self._lesson.cleared.append((before, len(self._lesson.stretch.log)))

    @property
    def log_length(self) -> int:
        return 0 if self._lesson is None else len(self._lesson.stretch.log)

    # Learning.

    def learn(
        self,
        kind: MicroBatchKind,
        native_call: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
    ) -> Any:
        state, arguments = attributes(module), tensors_among((args, kwargs))
        stretch = Stretch(self.recorder, self.mode)
        lesson = Lesson(kind, module, arguments, stretch)
        sequence = private.next_sequence_number()
        stretch.resume()
        try:
            result = native_call(module, *args, **kwargs)
        except BaseException:
            stretch.pause()
            stretch.close()
            raise
        stretch.pause()
        outputs = tensors_among(result)
        lesson.call_returned(outputs, sequence, self._clears)
        lesson.forward_end, lesson.forward_storages = (
            len(stretch.log), self.recorder.storage_count - stretch.first
        )  # fmt: skip
        lesson.results = results_of(result, stretch.first)
        is_pure = (
            attributes(module) == state
            and stretch.is_open
            and stretch.is_quiet
            and not stretch.written
            and lesson.results is not None
            and not shares_storages(outputs)
            and is_closed(outputs, lesson.sequence)
        )
        self._lesson = lesson
        if not is_pure:
            self.drop_lesson()
        return result

    def drop_lesson(self) -> None:
        """The call's backward did not come, or something speaks against folding it."""
        if self._lesson is not None:
            self.conclude(self._lesson, None)

    def conclude(self, lesson: Lesson, this: MicroBatch | None) -> None:
        """Compare with the call before it."""
        self._lesson, lesson.is_done = None, True
        lesson.stretch.close()
        kind = lesson.kind
        if this is not None and this == kind.last:
            kind.alike += 1
            return
        if kind.folded:
            self.misfolded("a call that was run differs from those that were folded")
        kind.surprises += 1
        kind.is_hopeless = kind.surprises > PATIENCE
        kind.last, kind.alike = this, 1

    def run_backward(
        self, native: Callable[..., Any], roots: Sequence[Any], args: Any, kwargs: Any
    ) -> Any:
        """The engine's run, watched or checked where it goes through a pending call."""
        replay = self._replay()
        pending = self._lesson or (replay if replay is not None and not replay.is_done else None)
        if pending is None or private.current_autograd_node() is not None:
            return native(roots, *args, **kwargs)
        is_plain = (
            tuple(args[1:4]) == PLAIN_BACKWARD
            and kwargs.get("accumulate_grad") is True
            and all(isinstance(root, Tensor) for root in roots)
            and threading.get_ident() == threading.main_thread().ident
        )
        entries = entries_into(roots, pending.sequence) if is_plain else None
        if entries == []:
            self.drop_lesson()
            return native(roots, *args, **kwargs)
        entry = None
        if entries is not None and len(entries) == 1 and not pending.has_hooks():
            node, number = entries[0]
            edge = private.sequence_number(node), number
            del node
            entry = pending.edges.index(edge) if edge in pending.edges else None
        if entry is None:
            if isinstance(pending, Replay):
                self.misfolded("a backward pass is unlike those before it")
            self.drop_lesson()
            return native(roots, *args, **kwargs)
        how = pending.meeting(entry, self._clears)
        if isinstance(pending, Lesson):
            assert entries is not None
            return self.watch_backward(native, pending, entries[0][0], how, roots, args, kwargs)
        assert isinstance(pending, Replay)
        if how != pending.pattern.how or any(map(has_value, gradients_of(pending))):
            self.misfolded("a backward pass finds gradients or references unlike those before it")
        del entries  # its nodes are the graph
        result = native(roots, *args, **kwargs)
        if not pending.is_done or pending.survivors != pending.pattern.survivors:
            self.misfolded("a backward pass left other tensors alive")
        return result

    def watch_backward(
        self,
        native: Callable[..., Any],
        lesson: Lesson,
        node: Any,
        how: Backward,
        roots: Sequence[Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        stretch, recorder = lesson.stretch, self.recorder
        stretch.operators = hash((stretch.operators, "backward"))

        def begin(gradients: tuple[Tensor | None, ...]) -> None:
            given = [gradient for gradient in gradients if gradient is not None]
            virtual = virtual_of(given[0]) if len(given) == 1 else None
            if virtual is not None:
                lesson.gradient_number = virtual.number
                owners = private.storage_owners(given[0])
                lesson.backward_start = len(stretch.log), recorder.storage_count, owners
                stretch.resume()

        handle = node.register_prehook(begin)
        del node
        try:
            with python_called_by_engine() as codes:
                result = native(roots, *args, **kwargs)
        except BaseException:
            if lesson.backward_start is not None:
                stretch.pause()
            self.drop_lesson()
            raise
        finally:
            handle.remove()
        if lesson.backward_start is not None:
            stretch.pause()
        if codes or self._lesson is not lesson:
            self.drop_lesson()
        else:
            self.conclude(lesson, self.describe(lesson, how))
        return result

    def describe(self, lesson: Lesson, how: Backward) -> MicroBatch | None:
        """What call and backward did; None where they cannot be done again without running."""
        stretch, log = lesson.stretch, lesson.stretch.log
        if lesson.backward_start is None or lesson.results is None or not stretch.is_open:
            return None
        gradients = list(gradients_of(lesson))
        numbers = {virtual.number for gradient in gradients if (virtual := virtual_of(gradient))}
        if not stretch.is_quiet or stretch.written - numbers or any(map(has_value, gradients)):
            return None
        start, second, gradient_owners = lesson.backward_start
        forward_numbers = range(stretch.first, stretch.first + lesson.forward_storages)
        born = self.recorder.storages_from(stretch.first)
        own = [*forward_numbers, *range(second, stretch.first + len(born))]
        facts = [born[number - stretch.first] for number in own]
        if any(storage[0] != "cuda:0" or storage[3] for storage in facts):
            return None  # on the host's side, or on another stream
        index = {number: place for place, number in enumerate(own)}
        arguments = lesson.argument_numbers
        outside = [*arguments, lesson.gradient_number]
        index |= {number: len(own) + n for n, number in enumerate(outside) if number not in index}
        spec, leaves = lesson.results
        tensors = [leaf for leaf in leaves if isinstance(leaf, FoldedTensor)]
        outputs = {leaf.storage for leaf in tensors}
        lent = deaths_between(log, lesson.forward_end, start, index, len(own)) - outputs
        at_clears = set[int]()
        for first, end in lesson.cleared:
            if first >= lesson.forward_end:
                at_clears |= deaths_between(log, first, end, index, len(own))
        survivors = {n for n, storage in enumerate(facts) if storage[5] is None}
        if lent - at_clears or survivors - outputs:
            return None
        forward = renumber(log[: lesson.forward_end], index, len(forward_numbers))
        backward = renumber(log[start:], index, len(own) + len(outside))
        if forward is None or backward is None or outputs & {-event - 1 for event in backward}:
            return None
        return MicroBatch(
            operators=stretch.operators,
            sizes=tuple(storage[1] for storage in facts),
            forward=forward,
            spec=spec,
            leaves=leaves,
            survivors=tuple(
                not self.recorder.are_dead([number])
                for number in (*arguments, *(leaf.storage + stretch.first for leaf in tensors))
            ),
            held=tuple(n for n, number in enumerate(arguments) if -number - 1 not in log[:start]),
            lent=tuple(sorted(lent)),
            how=how,
            backward=backward,
            gradient_owners=gradient_owners,
        )

    # Folding.

    def fold(
        self, kind: MicroBatchKind, pattern: MicroBatch, module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """The call's births and deaths and its results, on one autograd node."""
        self.folded += 1
        kind.folded += 1
        alive: dict[int, VirtualStorage] = {}
        self.replay(pattern.forward, pattern, alive)
        self.lend([alive.pop(n) for n in pattern.lent])
        replay = Replay(kind, module, tensors_among((args, kwargs)), pattern, alive, self.misfolded)
        self._replay = weakref.ref(replay)
        if self._anchor is None:
            with private.without_dispatch_modes():
                self._anchor = torch.empty(0, requires_grad=True)
        sequence = private.next_sequence_number()
        tensors = FoldedCall.apply(self._anchor, self, replay)  # type: ignore[no-untyped-call]
        replay.call_returned(list(tensors), sequence, self._clears)
        remaining = iter(tensors)
        leaves = [
            next(remaining) if isinstance(leaf, FoldedTensor) else leaf for leaf in pattern.leaves
        ]
        return private.tree_unflatten(leaves, pattern.spec)

    def replay_backward(self, replay: Replay, gradients: Sequence[Tensor | None]) -> None:
        """The backward's births and deaths."""
        given = [gradient for gradient in gradients if gradient is not None]
        if len(given) != 1 or private.storage_owners(given[0]) != replay.pattern.gradient_owners:
            self.misfolded("the gradient that comes in is held elsewhere")
        replay.is_done = True
        self.replay(replay.pattern.backward, replay.pattern, replay.alive, replay.holds, given[0])
        replay.holds.clear()

    def replay(
        self,
        events: Sequence[int],
        pattern: MicroBatch,
        alive: dict[int, VirtualStorage],
        holds: list[Any] | None = None,
        gradient: Tensor | None = None,
    ) -> None:
        recorder, memory, sizes = self.recorder, self.memory, pattern.sizes
        for event in events:
            recorder.clock += 1
            if event > 0:
                self.storages.add(recorder.storage_count)
                alive[event - 1] = VirtualStorage(memory, sizes[event - 1])
            elif -event <= len(sizes):
                del alive[-event - 1]
            elif holds is not None and -event - 1 - len(sizes) < len(holds):
                holds[-event - 1 - len(sizes)] = None
            elif gradient is not None and (virtual := virtual_of(gradient)) is not None:
                # The engine drops it after the node that took it; here the one node is still on.
                virtual.home.free(virtual)


NO_REPLAY: Any = lambda: None  # noqa: E731


def deaths_between(
    log: Sequence[int], start: int, end: int, index: dict[int, int], count: int
) -> set[int]:
    """Indices of the own storages, of which there are `count`, that died in a part of the log."""
    deaths = {index.get(-event - 1, count) for event in log[start:end] if event < 0}
    return {place for place in deaths if place < count}


def renumber(log: Sequence[int], index: dict[int, int], count: int) -> tuple[int, ...] | None:
    """Events by index; None where a storage is none of the first `count`."""
    events: list[int] = []
    for event in log:
        place = index.get(abs(event) - 1, count)
        if place >= count:
            return None
        events.append(place + 1 if event > 0 else -(place + 1))
    return tuple(events)
