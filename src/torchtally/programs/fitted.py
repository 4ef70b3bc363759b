"""A program out of recordings of one run at several sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import add, mul

from msgspec.structs import replace

from torchtally.errors import ProgramError
from torchtally.programs.checked import differences
from torchtally.programs.parts import is_scratch
from torchtally.programs.plain import plain
from torchtally.programs.program import RunProgram, structure, whole_numbers
from torchtally.programs.sizes import RANKS, Point, Size, Symbols, added, size_of, times
from torchtally.programs.written import write
from torchtally.trace import Call, Storage, Trace


@dataclass(frozen=True, slots=True)
class LabelledRun:
    """A run of a model at sizes that bear labels."""

    point: Point
    modules: int
    """In its list of layers."""
    trace: Trace


ITEMSIZES = (1, 2, 4)
"""Of elements, and of their bytes."""


class Expressions:
    """The distinct expressions that numbers of the recordings are found to be."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self.sizes: dict[Size, int] = {}
        self._places: dict[tuple[int, ...], int] = {}
        self._sums: dict[tuple[int, ...], Size] = {}

    def place(self, numbers: tuple[int, ...], where: str) -> int:
        """The number of the expression. Raises ProgramError where there is none."""
        place = self._places.get(numbers)
        if place is None:
            size = self.size(numbers, where)
            place = self._places[numbers] = self.sizes.setdefault(size, len(self.sizes))
        return place

    def size(self, numbers: tuple[int, ...], where: str) -> Size:
        """The expression. Raises ProgramError where there is none."""
        size = self._sums.get(numbers)
        if size is None:
            size = size_of(numbers, self.points)
        if size is None:
            raise ProgramError(f"{where}: {numbers} follow from no product of the sizes.")
        return size

    def learn_sums(self, calls: Sequence[Call]) -> None:
        """Learn the elements of tensors that lie one behind the other, given a call on a list of
        them in each recording: where each begins, and all together, of one rank and of all.
        """
        lists: dict[str, list[tuple[int, ...]]] = {}
        for specs in zip(*(call.inputs for call in calls), strict=True):
            numbers = tuple(prod(spec.shape) for spec in specs)
            lists.setdefault(specs[0].argument, []).append(numbers)
        ranks = [point.values[RANKS] for point in self.points]
        for tensors in lists.values():
            total = (0,) * len(calls)
            terms: Size = ()
            for numbers in tensors if len(tensors) > 1 else ():
                size = size_of(numbers, self.points)
                if size is None:
                    break
                total = tuple(map(add, total, numbers))
                terms = added(terms, size)
                for itemsize in ITEMSIZES:
                    own = tuple(itemsize * n for n in total)
                    self._sums[own] = times(terms, itemsize)
                    self._sums[tuple(map(mul, own, ranks))] = times(terms, itemsize, ((RANKS, 1),))

    def of_call(self, calls: Sequence[Call], script: str) -> tuple[int, ...]:
        """Numbers of the expressions of a call's whole numbers, given the call in each recording.

        Raises ProgramError where its arguments differ otherwise.
        """
        call = calls[0]
        where = f"{script}: {call.name} of {[spec.shape for spec in call.inputs]}"
        if call.fused is not None and call.fused.kind != "pointwise":
            raise ProgramError(f"{where}: a compiled kernel fits one shape.\nRecord eagerly.")
        if len({structure(each) for each in calls}) > 1:
            raise ProgramError(f"{where}: other arguments at other sizes.")
        vectors = [whole_numbers(each) for each in calls]
        return tuple(self.place(numbers, where) for numbers in zip(*vectors, strict=True))


def program_of(
    recordings: Sequence[LabelledRun],
    check: LabelledRun,
    units: Symbols,
    fixed: Symbols,
    period: int = 1,
    lead: int = 1,
) -> RunProgram:
    """The program that repeats these recordings, each of `LAYERS` layers at other sizes.

    A layer is `period` modules of its list, the first one `lead`, and the last one has what is left
    of them. `check` takes no part in the expressions: what is written at its sizes, and with its
    number of layers, must be its trace. Raises ProgramError where it is not, where the recordings
    ran different operators, or where a number follows from no sizes.
    """
    traces = [without_scratch(plain(each.trace)) for each in recordings]
    first = traces[0]
    check_alike(traces)
    expressions = Expressions([recording.point for recording in recordings])
    templates: dict[tuple[Call, ...], int] = {}
    numbers = []
    for ops in zip(*(trace.ops for trace in traces), strict=True):
        calls = tuple(trace.calls[op.call] for trace, op in zip(traces, ops, strict=True))
        numbers.append(templates.setdefault(calls, len(templates)))
    for calls in templates if RANKS in units else ():
        if calls[0].name in ("fsdp.all_gather_copy_in", "fsdp.chunk_cat"):
            expressions.learn_sums(calls)
    call_sizes = tuple(expressions.of_call(calls, first.script) for calls in templates)
    storage_sizes = tuple(
        expressions.place(tuple(each.requested_bytes for each in same), f"bytes of {same[0]}")
        for same in zip(*(trace.storages for trace in traces), strict=True)
    )
    wholes = {
        same[0].number: expressions.size(tuple(each.whole_elements for each in same), f"{same[0]}")
        for same in zip(*(trace.storages for trace in traces), strict=True)
        if same[0].whole_elements
    }
    modules = recordings[0].modules
    further = (check.modules - modules) // period
    host_ops = per_layer(check.trace.host_ops - first.host_ops, further, "operators on the host")
    reads = tuple(
        per_layer(other.count - own.count, further, f"values read by {own.op}")
        for own, other in zip(first.placeholders, check.trace.placeholders, strict=False)
    )
    program = RunProgram(
        trace=replace(
            first,
            calls=tuple(calls[0] for calls in templates),
            ops=tuple(
                replace(op, call=number) for op, number in zip(first.ops, numbers, strict=True)
            ),
            storages=tuple(replace(each, whole_elements=0) for each in first.storages),
            reserved=(),
            script_work=(),
            facts={},
        ),
        units=dict(units),
        fixed=dict(fixed),
        sizes=tuple(expressions.sizes),
        call_sizes=call_sizes,
        storage_sizes=storage_sizes,
        whole_sizes=wholes,
        host_ops_per_layer=host_ops,
        reads_per_layer=reads,
        modules=modules,
        period=period,
        lead=lead,
    )
    written = write(program, check.point.values, check.modules, check.trace.world)
    wrong = next(differences(written, plain(check.trace)), None)
    if wrong is not None:
        raise ProgramError(
            f"{first.script}: written out with {check.modules} layers, at the sizes asked for, it "
            f"is another run: {shortened(wrong)}.\nOther sizes may do: --micro-batch 2, a shorter "
            "--sequence. Without -o the plan is in closed form."
        )
    return program


def shortened(difference: str, most: int = 160) -> str:
    """A difference as a message has it."""
    return difference if len(difference) <= most else f"{difference[:most]} ..."


def per_layer(more: int, layers: int, what: str) -> int:
    """So many more in so many layers. Raises ProgramError where layers do not have as many each."""
    each, rest = divmod(more, layers)
    if rest:
        raise ProgramError(f"{what} are not as many in each layer.")
    return each


def without_scratch(trace: Trace) -> Trace:
    """The trace without the temporaries of operators, which appear at some shapes and not at
    others: `memory.workspace` derives them from the calls.
    """
    kept = [each for each in trace.storages if not is_scratch(each.role, each.name)]
    numbers = {storage.number: number for number, storage in enumerate(kept)} | {-1: -1}
    return replace(
        trace,
        storages=tuple(replace(each, number=numbers[each.number]) for each in kept),
        ops=tuple(
            replace(
                op,
                inputs=tuple(numbers[number] for number in op.inputs),
                outputs=tuple(numbers[number] for number in op.outputs),
            )
            for op in trace.ops
        ),
    )


def check_alike(traces: Sequence[Trace]) -> None:
    """Raises ProgramError unless all traces are of one run but for its sizes."""
    first = traces[0]
    for other in traces[1:]:
        for position in range(min(len(first.ops), len(other.ops))):
            mine, its = identity(first, position), identity(other, position)
            if mine != its:
                raise ProgramError(
                    f"{first.script}: operator {position} is {mine[0]} in {mine[1]!r}, at other "
                    f"sizes {its[0]} in {its[1]!r}: a size of these chooses another way."
                )
        if len(first.ops) != len(other.ops) or len(first.storages) != len(other.storages):
            raise ProgramError(
                f"{first.script}: {len(first.ops)} operators and {len(first.storages)} storages, "
                f"at other sizes {len(other.ops)} and {len(other.storages)}."
            )
        for one, same in zip(first.storages, other.storages, strict=True):
            if sizeless(one) != sizeless(same):
                raise ProgramError(f"{first.script}: {one} is {same} at other sizes.")


def identity(trace: Trace, position: int) -> tuple[object, ...]:
    """What an operator is at all sizes; its name and its module first."""
    op = trace.ops[position]
    call, site = trace.calls[op.call], trace.sites[op.site]
    return call.name, site.module, call.overload, op.phase, op.inputs, op.outputs, op.stream


def sizeless(storage: Storage) -> Storage:
    return replace(storage, requested_bytes=0, spare_bytes=0, whole_elements=0)
