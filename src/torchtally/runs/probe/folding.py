"""Evaluation passes that repeat earlier ones: their allocations are replayed, no operator runs.

Scripts evaluate their model on hundreds of batches before the first training step. Every such pass
takes and frees the same memory. A call of an outermost module is *folded* (its allocations and
frees replayed in their order, its results created, its code not run) when that makes no observable
difference:

- gradients are off, the module is in evaluation mode, and no module in it has a hook;
- arguments agree in shapes, strides, dtypes and plain values with those of earlier calls;
- the last two such calls ran the same operators and took and freed the same memory in the same
  order, read no tensor's value, touched no host tensor, wrote to no tensor from outside, left the
  attributes of all modules as they were, and nothing of theirs lived on but their results (and the
  weights that autocast has cast, which live on until it ends, here as there).

Every RECHECK-th call runs anyway; if it differs, calls of its kind are folded no more. Known
limitation: side effects outside modules and torch (a counter in a global) are not detected, so the
script may take another path than it would; `tally fit --no-folding` avoids that.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.runs.probe.micro_batches import MicroBatches
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
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage


@dataclass(frozen=True, slots=True)
class Pass:
    """What one call did, as far as memory and torch can tell. Equal for calls that are alike."""

    operators: int
    """A hash of their signatures in order."""
    events: tuple[int, ...]
    """The n-th storage was born: n + 1; it died: -(n + 1)."""
    sizes: tuple[int, ...]
    """Requested bytes of the n-th storage."""
    lent: tuple[int, ...]
    """Storages that autocast keeps until it ends."""
    spec: private.TreeSpec
    leaves: tuple[Any, ...]
    """Results and plain values."""


@dataclass(slots=True)
class CallKind:
    """Calls with the same arguments."""

    last: Pass | None = None
    alike: int = 0
    surprises: int = 0
    """Calls unlike the one before them. The first call of a run takes workspaces that stay."""
    calls: int = 0
    is_hopeless: bool = False


class Depth(threading.local):
    inside = 0


@dataclass(slots=True)
class Folding:
    """Of one run. `stand_ins` puts it in the way of modules' calls."""

    recorder: AllocationRecorder
    mode: VirtualDispatch
    memory: DeviceMemory
    misfolded: Callable[[str], NoReturn]
    """End the run: its folded calls should have been run."""
    folded: int = 0
    """Evaluation passes that were not run."""
    storages: set[int] = field(default_factory=set)
    """Numbers of the storages of calls that were not run."""
    micro_batches: MicroBatches = field(init=False)
    kinds: dict[Any, CallKind] = field(default_factory=dict)
    _depth: Depth = field(default_factory=Depth)
    _lent: list[VirtualStorage] = field(default_factory=list)
    """Of folded calls: as long as autocast's cache."""
    _unproven: list[tuple[CallKind, list[int]]] = field(default_factory=list)
    """Storages taken to be in autocast's cache: they must be freed when it is cleared."""
    _since_clear: dict[Any, int] = field(default_factory=dict)
    """Calls of a kind since autocast's cache was cleared: the first one fills it."""

    def __post_init__(self) -> None:
        self.micro_batches = MicroBatches(
            self.recorder, self.mode, self.memory, self._lent.extend, self.misfolded, self.storages
        )

    def stand_ins(self) -> list[StandIn]:
        native_call, native_clear = nn.Module.__call__, torch.clear_autocast_cache
        depth, thread = self._depth, threading.main_thread().ident

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            has_graph = torch.is_grad_enabled()
            if (
                depth.inside
                or (module.training and not has_graph)
                or threading.get_ident() != thread
            ):
                return native_call(module, *args, **kwargs)
            depth.inside += 1
            fold_or_run = self.micro_batches.fold_or_run if has_graph else self.fold_or_run
            try:
                return fold_or_run(native_call, module, args, kwargs)
            finally:
                depth.inside -= 1

        def clear() -> None:
            before = self.micro_batches.log_length
            native_clear()
            self.forget_lent()
            self.micro_batches.cache_cleared(before)

        return [
            StandIn(nn.Module, "__call__", call),
            StandIn(torch, "clear_autocast_cache", clear),
            *self.micro_batches.stand_ins(),
        ]

    def fold_or_run(
        self, native_call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Fold the call, or run it and learn from it."""
        key = self.key(module, args, kwargs)
        if key is None:
            return native_call(module, *args, **kwargs)
        kind = self.kinds.setdefault(key, CallKind())
        kind.calls += 1
        if kind.is_hopeless:
            return native_call(module, *args, **kwargs)
        if kind.last is not None and kind.alike >= PATIENCE and kind.calls % RECHECK:
            self.folded += 1
            return self.fold(kind.last)
        return self.learn(kind, native_call, module, args, kwargs)

    def key(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Equal for calls whose arguments agree; None where they are not plain."""
        arguments = argument_key(self.memory, (args, kwargs))
        if arguments is None:
            return None
        key = (id(module), *arguments)
        order = self._since_clear.get(key, 0)
        self._since_clear[key] = order + 1
        return (*key, min(order, 2)) if torch.is_autocast_enabled("cuda") else key

    # Learning.

    def learn(
        self,
        kind: CallKind,
        native_call: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
    ) -> Any:
        before = attributes(module)
        arguments = tensors_among((args, kwargs))
        owners = holders(arguments)
        stretch = Stretch(self.recorder, self.mode)
        stretch.resume()
        try:
            result = native_call(module, *args, **kwargs)
        finally:
            stretch.pause()
            stretch.close()
        this: Pass | None = None
        is_pure = (
            before is not None
            and attributes(module) == before
            and holders(arguments) == owners
            and stretch.is_quiet
            and not stretch.written
        )
        if is_pure:
            this = self.describe(kind, stretch, result)
        if this is not None and this == kind.last:
            kind.alike += 1
        else:
            kind.surprises += 1
            kind.is_hopeless = kind.surprises > PATIENCE or kind.alike >= PATIENCE
            kind.alike = 1
        kind.last = this
        return result

    def describe(self, kind: CallKind, stretch: Stretch, result: Any) -> Pass | None:
        """What the call did; None where it cannot be done again without running it."""
        first, events = stretch.first, stretch.log
        numbers = [abs(event) - 1 - first for event in events]
        if numbers and min(numbers) < 0:
            return None  # something from before died in it
        born = self.recorder.storages_from(first)
        if len(born) != sum(event > 0 for event in events):
            return None
        if any(storage[0] != "cuda:0" or storage[3] for storage in born):
            return None  # on the host's side, or on another stream
        results = results_of(result, first)
        if results is None:
            return None
        spec, contents = results
        alive = {n for n, storage in enumerate(born) if storage[5] is None}
        lent = sorted(
            alive
            - {argument.storage for argument in contents if isinstance(argument, FoldedTensor)}
        )
        if lent and not torch.is_autocast_enabled("cuda"):
            return None
        if lent:
            self._unproven.append((kind, [n + first for n in lent]))
        return Pass(
            operators=stretch.operators,
            events=tuple(event - first if event > 0 else event + first for event in events),
            sizes=tuple(storage[1] for storage in born),
            lent=tuple(lent),
            spec=spec,
            leaves=contents,
        )

    def forget_lent(self) -> None:
        """Autocast's cache is empty: what it kept has died, or was not its own."""
        self._lent.clear()
        self._since_clear.clear()
        for kind, numbers in self._unproven:
            if not self.recorder.are_dead(numbers):
                kind.is_hopeless = True
        self._unproven.clear()

    # Folding.

    def fold(self, pattern: Pass) -> Any:
        """The same births and deaths, and the same results."""
        recorder, memory = self.recorder, self.memory
        alive: dict[int, VirtualStorage] = {}
        first = recorder.storage_count
        self.storages.update(range(first, first + len(pattern.sizes)))
        for event in pattern.events:
            recorder.clock += 1
            if event > 0:
                alive[event - 1] = VirtualStorage(memory, pattern.sizes[event - 1])
            else:
                del alive[-event - 1]
        self._lent += [alive[n] for n in pattern.lent]
        leaves = create(pattern.leaves, pattern.sizes, alive)
        return private.tree_unflatten(leaves, pattern.spec)


def holders(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """How many references there are to each tensor and to its storage: views hold the latter."""
    return [(sys.getrefcount(tensor), private.storage_owners(tensor)) for tensor in tensors]
