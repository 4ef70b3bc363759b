"""What a run that recomputes whole blocks may keep instead: the problem, of its trace."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import msgspec

from torchtally.fixes.policy import BytesBetween, Keeping, PolicyProblem
from torchtally.ledger import Ledger
from torchtally.memory import timeline
from torchtally.trace import FORWARD_PHASES, Call, Op, Phase, Storage, Trace

BLOCK = re.compile(r"(?:.*?\.)??(\w+)\.(\d+)(?=\.|$)")
IGNORED = ("aten.detach.default", "prim.device.default")
"""Calls that a selective checkpoint leaves alone (torch/utils/checkpoint.py, SAC_IGNORED_OPS)."""
RANDOM = re.compile(
    r"[._](?:dropout|bernoulli|rand|multinomial|normal_?$|uniform|exponential|poisson|binomial)"
)


@dataclass(frozen=True, slots=True)
class BlockCall:
    """A call of an operator in a block, by its place among those of its name."""

    blocks: str
    """The list that the block is in: "blocks" of "decoder.blocks.3"."""
    number: int
    call: str
    """"aten.mm.default#2": the second of these calls in the block."""


@dataclass(frozen=True, slots=True)
class Again:
    """A call of the forward pass, and the same call when its block is recomputed."""

    forward: Op
    recomputed: Op
    number: int
    """Place of the recomputed one in the trace."""


@dataclass(frozen=True, slots=True)
class PolicyGraph:
    """The problem of a trace, with what its numbers stand for."""

    trace: Trace
    device: str
    problem: PolicyProblem
    calls: tuple[BlockCall, ...]
    """Of `problem.keepings`, in the same order."""
    again: tuple[tuple[Again, ...], ...]
    """Of each of them, every time that it is recomputed."""

    def kept(self, numbers: Iterable[int]) -> dict[str, dict[str, int]]:
        """The first block that keeps each call, by list of blocks."""
        first: dict[str, dict[str, int]] = {}
        for each in (self.calls[number] for number in sorted(numbers)):
            calls = first.setdefault(each.blocks, {})
            calls[each.call] = min(each.number, calls.get(each.call, each.number))
        return first

    def predicted(self, numbers: Iterable[int]) -> Trace:
        """The trace with the storages of a run that keeps these."""
        storages = {storage.number: storage for storage in self.trace.storages}
        births = births_of(self.trace)
        for number in numbers:
            for again in self.again[number]:
                for old, new in outputs_of(again):
                    died = later(storages[old].died, storages[new].died)
                    storages[old] = msgspec.structs.replace(storages[old], died=died)
                for storage in births[again.recomputed.clock]:
                    del storages[storage.number]
        return msgspec.structs.replace(self.trace, storages=tuple(storages.values()))


def policy_graph(ledger: Ledger) -> PolicyGraph:
    """The problem of a run in which each block is recomputed whole."""
    trace = ledger.trace
    found: dict[BlockCall, list[Again]] = defaultdict(list)
    order: dict[BlockCall, int] = {}
    unkeepable: set[BlockCall] = set()
    written = written_later(trace)
    for blocks, number, forward, recomputed in regions(trace):
        for place, (call, again) in enumerate(paired(trace, forward, recomputed)):
            each = BlockCall(blocks, number, call)
            order[each] = place
            found[each].append(again)
            if not is_keepable(trace, again, written):
                unkeepable.add(each)
    calls = sorted(found, key=lambda each: (each.blocks, each.number, order[each]))
    implied = implications(trace, calls, found)
    while more := {each for each, those in implied.items() if unkeepable & those} - unkeepable:
        unkeepable |= more
    reported = {entry.number for entry in ledger.reported}
    seconds = {
        each: sum(
            ledger.times.slots[again.number].kernel_s
            for again in found[each]
            if again.number in reported
        )
        for each in calls
    }
    needed = {other for those in implied.values() for other in those}
    kept = [
        each for each in calls
        if each not in unkeepable and (seconds[each] > 0 or each in needed)
    ]  # fmt: skip
    numbers = {each: number for number, each in enumerate(kept)}
    end, births = trace.end + 1, births_of(trace)
    keepings = tuple(
        Keeping(
            seconds[each],
            tuple(effect for again in found[each] for effect in effects(trace, again, births, end)),
            tuple(sorted(numbers[other] for other in implied[each])),
        )
        for each in kept
    )
    device = ledger.memory.device
    course = timeline(storage for storage in trace.storages if storage.device == device)
    problem = PolicyProblem(
        keepings, (*course.ticks, end), (*course.live_bytes, course.at(end)), sum(seconds.values())
    )
    return PolicyGraph(
        trace, device, problem, tuple(kept), tuple(tuple(found[each]) for each in kept)
    )


Births = Mapping[int, Sequence[Storage]]
"""Storages by the tick of the operator that makes them, its scratch memory with them."""
Numbered = Sequence[tuple[int, Op]]
"""Operators, and their places in the trace."""


def regions(trace: Trace) -> Iterator[tuple[str, int, Numbered, Numbered]]:
    """Each block that is recomputed: its list, its number in it, its operators of the forward pass
    and those that are recomputed.
    """
    groups = [
        (phase, list(group))
        for phase, group in groupby(enumerate(trace.ops), key=lambda pair: pair[1].phase)
    ]
    paths = {
        block_path([trace.sites[op.site].module for _, op in group])
        for phase, group in groups
        if phase is Phase.RECOMPUTE
    }
    path_of = [path_among(site.module, paths) for site in trace.sites]
    forwards: dict[str, list[Numbered]] = defaultdict(list)
    for phase, group in groups:
        if phase in FORWARD_PHASES:
            for path, run in groupby(group, key=lambda pair: path_of[pair[1].site]):
                forwards[path].append(list(run))
        elif phase is Phase.RECOMPUTE:
            path = block_path([trace.sites[op.site].module for _, op in group])
            block = BLOCK.fullmatch(path)
            if block is not None and forwards[path]:
                yield block[1], int(block[2]), forwards[path].pop(), group


def block_path(modules: Sequence[str]) -> str:
    """The module that all of these are in, up to its last number; "" where it has none."""
    parts = []
    for names in zip(*(module.split(".") for module in modules), strict=False):
        if len(set(names)) > 1:
            break
        parts.append(names[0])
    while parts and not parts[-1].isdecimal():
        parts.pop()
    return ".".join(parts)


def path_among(module: str, paths: set[str]) -> str:
    """The one of these modules that a module is in; "" for none."""
    return next((path for path in paths if path and f"{module}.".startswith(f"{path}.")), "")


def paired(trace: Trace, forward: Numbered, recomputed: Numbered) -> Iterator[tuple[str, Again]]:
    """Calls that are recomputed, by name and number, as a selective checkpoint counts them."""
    first = dict(counted(trace, forward))
    for call, (number, op) in counted(trace, recomputed):
        if call in first:
            yield call, Again(first[call][1], op, number)


def counted(trace: Trace, ops: Numbered) -> Iterator[tuple[str, tuple[int, Op]]]:
    counts: Counter[str] = Counter()
    for number, op in ops:
        call = trace.calls[op.call]
        name = f"{call.name}.{call.overload or 'default'}"
        if name not in IGNORED:
            counts[name] += 1
            yield f"{name}#{counts[name]}", (number, op)


def is_keepable(trace: Trace, again: Again, written: frozenset[int]) -> bool:
    """Whether the outputs can stay: made anew by one operator, and never written to."""
    first, second = trace.calls[again.forward.call], trace.calls[again.recomputed.call]
    pairs = outputs_of(again)
    return bool(pairs) and not first.is_mutating and first.fused is None and (
        first.outputs == second.outputs or same_shapes(first, second)
    ) and all(
        min(old, new) >= 0
        and old not in written
        and trace.storages[old].born == again.forward.clock
        and trace.storages[new].born == again.recomputed.clock
        for old, new in pairs
    )  # fmt: skip


def same_shapes(first: Call, second: Call) -> bool:
    def shapes(call: Call) -> list[tuple[object, ...]]:
        return [(spec.shape, spec.dtype, spec.stride) for spec in call.outputs]

    return shapes(first) == shapes(second)


def written_later(trace: Trace) -> frozenset[int]:
    """Storages that an operator writes to after the one that made them."""
    return frozenset(
        number
        for op in trace.ops
        if trace.calls[op.call].is_mutating
        for number in op.outputs
        if number >= 0
    )


def implications(
    trace: Trace, calls: Sequence[BlockCall], found: dict[BlockCall, list[Again]]
) -> dict[BlockCall, set[BlockCall]]:
    """What must be kept where a call is kept: the same of the next block, by which blocks that are
    alike are one choice of how many; and the next random operator of its block, since one that is
    left out does not move the generator, and those behind it would draw other numbers.
    """
    implied: dict[BlockCall, set[BlockCall]] = {each: set() for each in calls}
    random, alike = defaultdict(list), defaultdict(list)
    for each in calls:
        alike[each.blocks, each.call].append(each)
        if is_random(trace.calls[found[each][0].forward.call]):
            random[each.blocks, each.number].append(each)
    for chain in (*random.values(), *alike.values()):
        for each, following in pairwise(chain):
            implied[each].add(following)
    return implied


def is_random(call: Call) -> bool:
    dropped = call.literal("dropout_p", 0)
    return bool(RANDOM.search(call.name)) or (isinstance(dropped, float) and dropped > 0)


def effects(trace: Trace, again: Again, births: Births, end: int) -> Iterator[BytesBetween]:
    """What keeping a call's outputs changes of the live bytes."""
    for old, new in outputs_of(again):
        storage, other = trace.storages[old], trace.storages[new]
        last = later(storage.died, other.died)
        yield BytesBetween(
            end if storage.died is None else storage.died,
            end if last is None else last, storage.bytes,
        )  # fmt: skip
    for storage in births[again.recomputed.clock]:
        yield BytesBetween(
            storage.born, end if storage.died is None else storage.died, -storage.bytes
        )


def outputs_of(again: Again) -> list[tuple[int, int]]:
    """Storages of the outputs and of the same recomputed, each once."""
    return list(dict.fromkeys(zip(again.forward.outputs, again.recomputed.outputs, strict=False)))


def births_of(trace: Trace) -> Births:
    births: dict[int, list[Storage]] = defaultdict(list)
    for storage in trace.storages:
        births[storage.born].append(storage)
    return births


def later(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else max(first, second)
