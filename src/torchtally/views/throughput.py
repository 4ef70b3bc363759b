"""Tokens and samples per second, where the step's batch shows how many."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from torchtally.ledger import Entry, Ledger, Line, line_of
from torchtally.timing.calibration.features import matrices
from torchtally.trace import FORWARD_PHASES, Call, Phase, Role, TensorSpec
from torchtally.trace.lookup import LOOKUP
from torchtally.views.ranks import data_parallel_ranks
from torchtally.work import Kind


@dataclass(frozen=True, slots=True)
class Batch:
    """How many tokens or samples one step of this rank works on, and the operators that tell."""

    size: int
    op: str
    line: Line | None
    """Of the first of them."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of the reported period, at its predicted time."""

    seconds: float
    steps: int
    data_parallel_ranks: int | None
    """Each with a batch of its own, like this rank's; None where nothing tells how many there are,
    and of a run of one rank."""
    tokens: Batch | None
    """Indices looked up in the embedding that most are looked up in; micro-batches add up."""
    samples: Batch | None
    """The first dimension of these indices, else of what the first convolution or product reads."""

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all ranks."""
        return self._per_s(self.tokens)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all ranks."""
        return self._per_s(self.samples)

    def _per_s(self, batch: "Batch | None") -> float | None:
        ranks = self.data_parallel_ranks or 1
        return None if batch is None else batch.size * ranks / self.seconds


def throughput(ledger: Ledger) -> Throughput | None:
    """None without times, without a whole step, of several models, or where no operator shows the
    batch's size.
    """
    period = ledger.reported_period
    is_of_one = period.step is not None or ledger.course.experiments == 1
    if not ledger.step_s or not period.steps or not is_of_one:
        return None
    tokens, samples = tokens_of(ledger), samples_of(ledger)
    if tokens is None and samples is None:
        return None
    return Throughput(ledger.step_s, period.steps, data_parallel_ranks(ledger), tokens, samples)


def tokens_of(ledger: Ledger) -> Batch | None:
    """Token ids that the step's forward pass looks up. Positions are fewer: those of one sample
    serve all.
    """
    lookups = _lookups(ledger)
    return _batch(lookups, [_indices(lookup).elements for lookup in lookups])


def samples_of(ledger: Ledger) -> Batch | None:
    """Samples of the step, of all its micro-batches."""
    lookups = _micro_batches(ledger, _lookups(ledger))
    if lookups and len(_indices(lookups[0]).shape) > 1:
        return _batch(lookups, [_indices(lookup).shape[0] for lookup in lookups])
    for kind in (Kind.CONVOLUTION, Kind.PRODUCT):
        makers = _makers(ledger)
        first = _micro_batches(ledger, [e for e in _forward(ledger) if e.kind is kind])
        if first:
            shapes = [_input_shape(entry, makers) for entry in first]
            return _batch(first, [shape[0] for shape in shapes if shape])
    return None


def _batch(entries: list[Entry], sizes: list[int]) -> Batch | None:
    if not entries or sum(sizes) <= 0:
        return None
    return Batch(sum(sizes), entries[0].operator, line_of(entries[0]))


def _forward(ledger: Ledger) -> Iterator[Entry]:
    # Tokens that a step generates to train on are not trained yet.
    phases = {Phase.FORWARD} if ledger.course.rollouts else FORWARD_PHASES
    return (entry for entry in ledger.reported if entry.op.phase in phases)


def _lookups(ledger: Ledger) -> list[Entry]:
    """Those in the table that most indices are looked up in, in order."""
    tables: dict[object, list[Entry]] = {}
    for entry in _forward(ledger):
        call = _lookup(entry)
        if call is not None:
            # A table that FSDP gathers is another storage each time, and which one a fused kernel
            # reads is not recorded: a place in the script reads one. A compiler looks up again in
            # each kernel that needs the result: those of one kernel are all.
            number = entry.op.inputs[0] if call is entry.call else -1
            is_own = number >= 0 and ledger.trace.storages[number].role is Role.PARAMETER
            kernel = "" if call is entry.call else entry.call.name
            tables.setdefault(number if is_own else (entry.site, kernel), []).append(entry)
    if not tables:
        return []
    them = (
        _without_repeats(ledger, them) for them in _without_labels(ledger, list(tables.values()))
    )
    return max(them, key=lambda them: sum(_indices(entry).elements for entry in them), default=[])


def _without_repeats(ledger: Ledger, lookups: list[Entry]) -> list[Entry]:
    """Entries without those that look up the same ids again in one forward pass, as where a table
    has several values for each (modded-nanogpt's value embeddings): more than the ids' storage
    holds. Micro-batches are parts of it, or have a backward pass between them.
    """
    candidates, passed = {id(entry) for entry in lookups}, 0
    groups: dict[tuple[int, int], list[Entry]] = {}
    for entry in ledger.reported:
        passed += entry.op.phase is Phase.BACKWARD
        if id(entry) in candidates:
            is_known = _lookup(entry) is entry.call and entry.op.inputs[1] >= 0
            key = (entry.op.inputs[1], passed) if is_known else (-1, id(entry))
            groups.setdefault(key, []).append(entry)
    kept = []
    for (number, _), them in groups.items():
        held = ledger.trace.storages[number].requested_bytes if number >= 0 else 0
        read = sum(_indices(entry).elements * _indices(entry).itemsize_bytes for entry in them)
        kept += them[:: -(-read // held) if held else 1]
    return kept


def _without_labels(ledger: Ledger, tables: list[list[Entry]]) -> list[list[Entry]]:
    """Entries without those where an index is looked up for a whole sample: its class, its time of
    noise.

    Most products, or any convolution, then work on several positions for each index: on 16 images
    of 64 patches for 16 labels. Ids of packed sequences are positions themselves.
    """
    all_flops, flops_of = 0, Counter[int]()
    is_seen = set[int]()
    makers = _makers(ledger)
    for entry in _forward(ledger):
        if entry.kind in (Kind.CONVOLUTION, Kind.PRODUCT):
            all_flops += entry.cost.flops
            shape = _input_shape(entry, makers)
            positions = prod(shape[2:] if entry.kind is Kind.CONVOLUTION else shape[1:-1])
            if positions > 1:
                flops_of[shape[0]] += entry.cost.flops
                if entry.kind is Kind.CONVOLUTION:
                    is_seen.add(shape[0])

    def are_labels(lookups: list[Entry]) -> bool:
        indices = [_indices(lookup) for lookup in lookups]
        counts = {spec.elements for spec in indices}
        return all(spec.elements == (*spec.shape, 1)[0] for spec in indices) and (
            counts <= is_seen or 2 * sum(flops_of[count] for count in counts) > all_flops
        )

    return [lookups for lookups in tables if not are_labels(lookups)]


def _lookup(entry: Entry) -> Call | None:
    """The call that looks up: the operator's own, or one that was fused into a kernel."""
    fused = entry.call.fused
    calls: Iterable[Call] = (entry.call,)
    if fused is not None and fused.parts:
        calls = fused.parts[entry.part].calls if entry.operator == LOOKUP else ()
    return next((call for call in calls if call.name == LOOKUP and len(call.inputs) == 2), None)


def _indices(entry: Entry) -> TensorSpec:
    call = _lookup(entry)
    assert call is not None, entry
    return call.inputs[1]


def _micro_batches(ledger: Ledger, entries: list[Entry]) -> list[Entry]:
    """Those of the first one's site, and those that are its like at another place of the script: a
    backward pass later, of the same weight, and on other data.

    A GAN's discriminator sees what its generator has computed: no data, and no micro-batch.
    """
    if not entries:
        return []
    makers, is_candidate = _makers(ledger), {id(entry) for entry in entries}
    weight = _weight(ledger, entries[0], makers)
    micro_batches: list[Entry] = []
    data: set[int] = set()
    computed: set[int] = set()
    """Storages that depend on weights."""
    is_later = False
    for entry in ledger.reported:
        op = entry.op
        is_later = is_later or op.phase is Phase.BACKWARD
        if id(entry) in is_candidate:
            batch = _batch_read(entry)
            is_like = batch not in data and batch not in computed and weight is not None
            if entry.site is entries[0].site or (
                is_later and is_like and _weight(ledger, entry, makers) == weight
            ):
                micro_batches.append(entry)
                data.add(batch)
                is_later = False
        if any(number in computed or _is_weight(ledger, number) for number in op.inputs):
            computed.update(op.outputs)
    # A pipeline's second stretch of micro-batches begins before its first backward pass.
    sites = {id(entry.site) for entry in micro_batches}
    return [
        entry
        for entry in entries
        if entry.site is entries[0].site
        or (id(entry.site) in sites and _weight(ledger, entry, makers) == weight)
    ]


def _weight(ledger: Ledger, entry: Entry, makers: dict[int, Entry]) -> int | None:
    """The parameter that an operator reads, or that was cast for it."""
    for number in entry.op.inputs:
        if _is_weight(ledger, number):
            return number
        sources = makers[number].op.inputs if number in makers else ()
        if len(sources) == 1 and _is_weight(ledger, sources[0]):
            return sources[0]
    return None


def _is_weight(ledger: Ledger, number: int) -> bool:
    return number >= 0 and ledger.trace.storages[number].role is Role.PARAMETER


def _batch_read(entry: Entry) -> int:
    """The storage of the indices that are looked up, or of the input of a layer."""
    call, inputs = entry.call, entry.op.inputs
    if _lookup(entry) is call:
        return inputs[1]
    operands = None if entry.kind is Kind.CONVOLUTION else matrices(call)
    if operands is None:
        return inputs[0] if inputs else -1
    return inputs[next(n for n, spec in enumerate(call.inputs) if spec is operands[0])]


def _makers(ledger: Ledger) -> dict[int, Entry]:
    """Operators by the number of a storage that each made."""
    return {
        output: entry
        for entry in reversed(ledger.entries)
        for output in entry.op.outputs
        if output >= 0
    }


def _input_shape(entry: Entry, makers: dict[int, Entry]) -> tuple[int, ...]:
    """Shape of the input of a convolution, or of the left operand of a product as it was made: a
    layer flattens (B, T, D) to (B * T, D) before it multiplies. Empty where the operator does not
    tell. A vector is one sample.
    """
    call = entry.call
    if entry.kind is Kind.CONVOLUTION:
        return call.inputs[0].shape
    operands = matrices(call)
    if operands is None:
        return ()
    left = operands[0]
    number = _batch_read(entry)
    maker = makers.get(number)
    spec = None if maker is None else maker.call.outputs[maker.op.outputs.index(number)]
    is_whole = spec is not None and spec.elements == left.elements and len(spec.shape) > 1
    return spec.shape if spec is not None and is_whole else left.shape
