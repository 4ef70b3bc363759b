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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtally import torch_private as private
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import SPECIAL, VirtualDispatch
from torchtally.virtual.facts import FALLING, Facts
from torchtally.virtual.invocation import META, Invocation
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage, virtual_of

PATIENCE = 2
"""Calls that must be alike before the next one is folded."""
RECHECK = 50

aten = torch.ops.aten
BLIND = frozenset(
    [
        aten.add.Tensor, aten.copy_.default, aten.topk.default, aten.multinomial.default,
        aten.argmax.default, aten.argmin.default, aten.max.dim, aten.min.dim, aten.histc.default,
    ]
)  # fmt: skip
"""Operators with a handler of their own that need no values; the other ones may look."""

PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True, slots=True)
class FoldedTensor:
    """A tensor that a pass returned: the index of its storage among the pass's, and its layout."""

    storage: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    known: tuple[Facts | None, torch.dtype | None, str | None]
    """What is known of the elements of its storage."""
    is_trained: bool
    """They follow from parameters."""


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
    """Folding of one run. `stand_ins` puts it in the way of modules' calls."""

    recorder: AllocationRecorder
    mode: VirtualDispatch
    memory: DeviceMemory
    folded: int = 0
    """Calls that were not run."""
    storages: set[int] = field(default_factory=set)
    """Numbers of the storages of calls that were not run."""
    kinds: dict[Any, CallKind] = field(default_factory=dict)
    _depth: Depth = field(default_factory=Depth)
    _lent: list[VirtualStorage] = field(default_factory=list)
    """Of folded calls: as long as autocast's cache."""
    _unproven: list[tuple[CallKind, list[int]]] = field(default_factory=list)
    """Storages taken to be in autocast's cache: they must be freed when it is cleared."""
    _since_clear: dict[Any, int] = field(default_factory=dict)
    """Calls of a kind since autocast's cache was cleared: the first one fills it."""
    _looks: int = 0
    _operators: int = 0
    _writes_outside: bool = False
    _first: int = 0

    def stand_ins(self) -> list[StandIn]:
        native_call, native_clear = nn.Module.__call__, torch.clear_autocast_cache
        depth, thread = self._depth, threading.main_thread().ident

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if (
                depth.inside
                or module.training
                or torch.is_grad_enabled()
                or threading.get_ident() != thread
            ):
                return native_call(module, *args, **kwargs)
            depth.inside += 1
            try:
                return self.fold_or_run(native_call, module, args, kwargs)
            finally:
                depth.inside -= 1

        def clear() -> None:
            native_clear()
            self.forget_lent()

        return [StandIn(nn.Module, "__call__", call), StandIn(torch, "clear_autocast_cache", clear)]

    def watch_readers(self) -> None:
        """Notice operators that may look at values. Once in a process, before the run."""
        for overload in SPECIAL.keys() - BLIND:
            SPECIAL[overload] = self._noticing(SPECIAL[overload])

    def _noticing(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def run(mode: VirtualDispatch, call: Invocation) -> Any:
            self._looks += 1
            return handler(mode, call)

        return run

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
        leaves, spec = private.tree_flatten((args, kwargs))
        described: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                virtual = virtual_of(leaf)
                if virtual is None or virtual.home is not self.memory:
                    return None
                described.append(
                    (leaf.shape, leaf.stride(), leaf.dtype, leaf.storage_offset(),
                     leaf.requires_grad)
                )  # fmt: skip
            elif isinstance(leaf, PLAIN):
                described.append((type(leaf), leaf))
            else:
                return None
        state = (
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device(),
        )
        key = (id(module), spec, tuple(described), state)
        order = self._since_clear.get(key, 0)
        self._since_clear[key] = order + 1
        return (*key, min(order, 2)) if state[0] else key

    # Learning.

    def learn(
        self,
        kind: CallKind,
        native_call: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
    ) -> Any:
        recorder = self.recorder
        before = attributes(module)
        arguments = [
            leaf for leaf in private.tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)
        ]
        owners = holders(arguments)
        looks, host = self._looks + recorder.values_read, recorder.host_operators
        self._first, self._operators, self._writes_outside = recorder.storage_count, 0, False
        recorder.log = []
        recorder.listeners.append(self.operator_ran)
        try:
            result = native_call(module, *args, **kwargs)
        finally:
            events, recorder.log = recorder.log, None
            recorder.listeners.remove(self.operator_ran)
        this: Pass | None = None
        is_pure = (
            before is not None
            and attributes(module) == before
            and holders(arguments) == owners
            and looks == self._looks + recorder.values_read
            and host == recorder.host_operators
            and not self._writes_outside
        )
        if is_pure:
            this = self.describe(kind, events, result)
        if this is not None and this == kind.last:
            kind.alike += 1
        else:
            kind.surprises += 1
            kind.is_hopeless = kind.surprises > PATIENCE or kind.alike >= PATIENCE
            kind.alike = 1
        kind.last = this
        return result

    def operator_ran(self, call: Invocation, outputs: Sequence[Tensor]) -> None:
        self._operators = hash((self._operators, call.signature))
        if call.operator.is_mutating:
            numbers = [virtual.number for virtual in call.virtuals if virtual is not None]
            # of an in-place operator the first tensor is written; of others it might be any
            for number in numbers[:1] if call.operator.is_inplace else numbers:
                self._writes_outside |= number < self._first

    def describe(self, kind: CallKind, events: list[int], result: Any) -> Pass | None:
        """What the call did; None where it cannot be repeated without running it."""
        first = self._first
        numbers = [abs(event) - 1 - first for event in events]
        if numbers and min(numbers) < 0:
            return None  # something from before died in it
        born = self.recorder.storages_from(first)
        if len(born) != sum(event > 0 for event in events):
            return None
        if any(storage[0] != "cuda:0" or storage[3] for storage in born):
            return None  # on the host's side, or on another stream
        contents: list[Any] = []
        leaves, spec = private.tree_flatten(result)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                virtual = virtual_of(leaf)
                if virtual is None or virtual.number < first:
                    return None
                if virtual.value is not None and virtual.assumption is not FALLING:
                    return None
                contents.append(
                    FoldedTensor(virtual.number - first, leaf.shape, leaf.stride(), leaf.dtype,
                           int(leaf.storage_offset()),
                           (virtual.facts, virtual.facts_dtype, virtual.assumption),
                           virtual.is_trained)
                )  # fmt: skip
            elif isinstance(leaf, PLAIN):
                contents.append(leaf)
            else:
                return None
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
            operators=self._operators,
            events=tuple(event - first if event > 0 else event + first for event in events),
            sizes=tuple(storage[1] for storage in born),
            lent=tuple(lent),
            spec=spec,
            leaves=tuple(contents),
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
        storages: dict[int, torch.UntypedStorage] = {}
        leaves: list[Any] = []
        with private.without_dispatch_modes():
            for leaf in pattern.leaves:
                leaves.append(self.result(leaf, alive, pattern, storages))
        return private.tree_unflatten(leaves, pattern.spec)

    def result(
        self,
        leaf: Any,
        alive: dict[int, VirtualStorage],
        pattern: Pass,
        storages: dict[int, torch.UntypedStorage],
    ) -> Any:
        if not isinstance(leaf, FoldedTensor):
            return leaf
        storage = storages.get(leaf.storage)
        if storage is None:
            storage = torch.UntypedStorage(pattern.sizes[leaf.storage], device=META)
            virtual = alive[leaf.storage]
            virtual.facts, virtual.facts_dtype, virtual.assumption = leaf.known
            virtual.is_trained = leaf.is_trained
            storage.virtual = virtual  # type: ignore[attr-defined]
            storages[leaf.storage] = storage
        tensor = torch.empty(0, dtype=leaf.dtype, device=META)
        tensor.set_(storage, leaf.offset, leaf.shape, leaf.stride)
        if leaf.known[2] is FALLING:
            self.mode.values.losses.give(tensor)
        return tensor


def holders(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """How many references there are to each tensor and to its storage: views hold the latter."""
    return [(sys.getrefcount(tensor), private.storage_owners(tensor)) for tensor in tensors]


def attributes(module: nn.Module) -> list[Any] | None:
    """What all modules have, by identity, and how long their containers are; None with hooks."""
    identities: list[Any] = []
    for each in module.modules():
        state = vars(each)
        if any(state.get(name) for name in private.FORWARD_HOOKS):
            return None
        for value in state.values():
            identities.append(id(value))
            if isinstance(value, dict):
                identities += map(id, value.values())
            elif isinstance(value, (list, set)):
                identities.append(len(value))
    return identities
