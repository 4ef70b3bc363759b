"""The parameters of a model: which are trained, which are frozen, and what a token costs in them.

The rule of six: a trained parameter costs a token two FLOPs in the forward pass, two for the
gradient of its input and two for its own. A frozen one has no gradient of its own: four. Where no
gradient goes further back than it (below the first trained layer) the forward pass is all: two.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.ledger import Entry, Ledger
from torchtally.memory import is_alive
from torchtally.trace import FORWARD_PHASES, Phase, Role, Storage, Trace
from torchtally.trace.peers import neighbours
from torchtally.views.ranks import data_parallel_ranks

TRAINED_FLOPS = 6
FROZEN_FLOPS = 4
FORWARD_FLOPS = 2
"""A frozen parameter that no backward operator reads: no gradient goes through it."""


@dataclass(frozen=True, slots=True)
class WeightStorage:
    """A storage of parameters."""

    number: int
    elements: int
    """Of the whole parameter, also where this rank has a shard of it."""
    own_elements: int
    """On this rank, with what fills a shard up."""
    computed_elements: int
    """That this rank computes with: a shard, or what is gathered from all ranks' shards."""
    is_trained: bool
    flops_per_token: int
    """Of each of its elements, by the rule of six."""


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Those of one model."""

    parameters: tuple[WeightStorage, ...]
    is_rank_share: bool = False
    """They may be a part of the model's: other ranks' are not known."""

    @property
    def elements(self) -> int:
        return sum(parameter.elements for parameter in self.parameters)

    @property
    def trained(self) -> int:
        return sum(p.elements for p in self.parameters if p.is_trained)

    @property
    def frozen(self) -> int:
        return self.elements - self.trained

    @property
    def own_elements(self) -> int:
        """Those that this rank holds."""
        return sum(p.own_elements for p in self.parameters)

    @property
    def flops_per_token(self) -> int:
        """FLOPs per token of one rank."""
        return sum(p.computed_elements * p.flops_per_token for p in self.parameters)

    def without(self, numbers: set[int]) -> "ModelParameters":
        kept = tuple(p for p in self.parameters if p.number not in numbers)
        return ModelParameters(kept, self.is_rank_share)


def parameters_of(ledger: Ledger) -> ModelParameters | None:
    """Those held when the reported period's last backward pass ended (its last operator, where it
    has none): a script that replaces its weights has those of two steps for a moment after it.

    None for a period of several models, and where a parameter's dtype was never seen.
    """
    if ledger.reported_period.step is None and ledger.course.experiments > 1:
        return None
    held = {storage.number: storage for storage in _storages_held(ledger)}
    itemsize_bytes = _itemsizes(ledger, held)
    if len(itemsize_bytes) < len(held):
        return None
    passed = _parameters_passed(ledger, held)

    def flops(storage: Storage) -> int:
        if storage.is_trained:
            return TRAINED_FLOPS
        return FROZEN_FLOPS if storage.number in passed else FORWARD_FLOPS

    def weights(number: int, storage: Storage) -> WeightStorage:
        own = storage.requested_bytes // itemsize_bytes[number]
        whole = storage.whole_elements or own
        group = ledger.memory.communication.gather_groups.get(number)
        ranks = 1 if group is None else len(ledger.trace.groups[group].ranks)
        computed = min(whole, own * ranks)
        return WeightStorage(number, whole, own, computed, storage.is_trained, flops(storage))

    on_device = (weights(*item) for item in held.items())
    parameters = (*on_device, *_on_host(ledger.trace))
    return ModelParameters(parameters, is_rank_share(ledger, parameters))


def is_rank_share(ledger: Ledger, parameters: Iterable[WeightStorage]) -> bool:
    """Whether other ranks may have parameters that are told by nothing on this one: stages of a
    pipeline and layers that a script cuts by hand look like a whole model's.

    They do not where all ranks add up the gradients of the same ones, or hold shards of them, and
    where torch has cut them (DTensor).
    """
    size = ledger.trace.world.size
    if size == 1:
        return False
    if neighbours(ledger.trace):
        return True
    is_cut_by_torch = any(p.computed_elements < p.elements for p in parameters)
    return not is_cut_by_torch and data_parallel_ranks(ledger) != size


ON_HOST = -1
"""The number of no storage."""


def _on_host(trace: Trace) -> Iterator[WeightStorage]:
    """All that optimizers step on the host: every rank computes with all of it."""
    state = trace.host_state
    if state is not None:
        whole = state.whole_elements
        yield WeightStorage(ON_HOST, whole, state.elements, whole, True, TRAINED_FLOPS)


def _storages_held(ledger: Ledger) -> Iterator[Storage]:
    if not ledger.reported:
        return
    backward = Phase.BACKWARD
    ticks = (entry.op.clock for entry in reversed(ledger.reported) if entry.op.phase is backward)
    tick = next(ticks, ledger.reported[-1].op.clock)
    for storage in ledger.trace.storages:
        if storage.role is Role.PARAMETER and is_alive(storage, tick):
            yield storage


def _itemsizes(ledger: Ledger, held: dict[int, Storage]) -> dict[int, int]:
    """Bytes of an element, by storage, as some operator saw it."""
    itemsize_bytes: dict[int, int] = {}
    for op in ledger.trace.ops:
        if len(itemsize_bytes) == len(held):
            break
        call = ledger.trace.calls[op.call]
        specs = chain(call.inputs, call.outputs)
        for spec, number in zip(specs, chain(op.inputs, op.outputs), strict=True):
            is_new = number in held and number not in itemsize_bytes
            if is_new and spec.dtype in DTYPE_BYTES:
                itemsize_bytes[number] = spec.itemsize_bytes
    return itemsize_bytes


def _parameters_passed(ledger: Ledger, held: dict[int, Storage]) -> set[int]:
    """The parameters through which gradients pass: a backward operator reads them, or a copy of
    them alone, as autocast makes it.
    """
    copied: dict[int, int] = {}
    passed: set[int] = set()
    forward, backward = FORWARD_PHASES | {Phase.RECOMPUTE}, Phase.BACKWARD
    for entry in ledger.reported:
        if entry.op.phase is backward:
            passed.update(copied.get(number, number) for number in _read(entry))
        elif entry.op.phase in forward and not entry.kind.is_free:
            numbers = set(entry.op.inputs) - {-1}
            if len(numbers) == 1 and (source := numbers.pop()) in held:
                copied.update(dict.fromkeys(entry.op.outputs, source))
    return passed


def _read(entry: Entry) -> tuple[int, ...]:
    return () if entry.kind.is_free else entry.op.inputs
