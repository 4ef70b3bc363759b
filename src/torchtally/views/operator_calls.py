"""Every operator call of a period with all that is known of it: one row each, in order.

Parts of a kernel that a compiler fused have a row each. Unknown numbers are empty, never 0.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torchtally.ledger import Entry, Ledger
from torchtally.ledger.spans import spans_of
from torchtally.table import Cell, Column, Table
from torchtally.timing.ranks import Span
from torchtally.trace import TensorSpec
from torchtally.units import Unit
from torchtally.views.moments import step_of
from torchtally.views.tracks import stream_name
from torchtally.work import Kind


class OperatorCall(NamedTuple):
    """An entry of a rank's ledger, and when it ran."""

    ledger: Ledger
    entry: Entry
    span: Span
    begins_s: float
    """When the rank's period begins."""
    is_timed: bool
    """False where its kernel's time is unknown: what is told is the device idle before it."""

    @property
    def is_counted(self) -> bool:
        return self.entry.kind is not Kind.UNCOUNTED


Value = Callable[[OperatorCall], Cell]


def if_counted(value: Callable[[Entry], int]) -> Value:
    """Empty for an operator without a rule."""
    return lambda call: value(call.entry) if call.is_counted else None


def if_timed(value: Callable[[OperatorCall], float]) -> Value:
    """Empty in a ledger without times."""
    return lambda call: value(call) if call.ledger.is_timed else None


def kernel_s(call: OperatorCall) -> float | None:
    return call.ledger.slot(call.entry).kernel_s if call.is_timed else None


def shapes(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"[{'x'.join(map(str, spec.shape))}]" for spec in specs)


def dtypes(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.dtype for spec in specs)


def line_number(call: OperatorCall) -> Cell:
    return None if call.entry.line is None else call.entry.line.line


def status(call: OperatorCall) -> str:
    return "free" if call.entry.kind.is_free else "counted" if call.is_counted else "uncounted"


def bound(call: OperatorCall) -> str:
    """What limits it; "" of what takes no time."""
    slot = call.ledger.slot(call.entry)
    return str(slot.bound) if call.is_timed and slot.seconds else ""


COLUMNS: tuple[tuple[Column, Value], ...] = (
    (Column("rank", "rank", Unit.COUNT), lambda call: call.ledger.trace.world.rank),
    (Column("step", "step", Unit.COUNT), lambda call: step_of(call.ledger, call.entry.op.clock)),
    (Column("tick", "tick", Unit.COUNT), lambda call: call.entry.op.clock),
    (Column("part_number", "part", Unit.COUNT), lambda call: call.entry.part),
    (Column("phase", "phase", Unit.NAME), lambda call: str(call.entry.op.phase)),
    (Column("operator", "operator", Unit.PLACE), lambda call: call.entry.operator),
    (Column("overload", "overload", Unit.PLACE), lambda call: call.entry.call.overload),
    (Column("kernel", "kernel", Unit.PLACE), lambda call: call.entry.call.name),
    (Column("kind", "kind", Unit.NAME), lambda call: str(call.entry.kind)),
    (Column("status", "status", Unit.NAME), status),
    (Column("module", "module", Unit.PLACE), lambda call: call.entry.site.module),
    (Column("class", "class", Unit.TEXT), lambda call: call.entry.site.module_class),
    (Column("file", "file", Unit.PLACE),
     lambda call: "" if call.entry.line is None else call.entry.line.file),
    (Column("line", "line", Unit.COUNT), line_number),
    (Column("source", "source", Unit.TEXT),
     lambda call: "" if call.entry.line is None else call.entry.line.text),
    (Column("stream", "stream", Unit.NAME),
     lambda call: stream_name(call.ledger.trace, call.entry.op.stream)),
    (Column("start_s", "start", Unit.SECONDS),
     if_timed(lambda call: call.span.start_s - call.begins_s)),
    (Column("end_s", "end", Unit.SECONDS), if_timed(lambda call: call.span.end_s - call.begins_s)),
    (Column("seconds", "time", Unit.SECONDS),
     if_timed(lambda call: call.ledger.slot(call.entry).seconds)),
    (Column("kernel_s", "kernel", Unit.SECONDS), kernel_s),
    (Column("bound", "bound", Unit.NAME), bound),
    (Column("flops", "FLOPs", Unit.FLOPS), if_counted(lambda entry: entry.cost.flops)),
    (Column("bytes_read", "read", Unit.BYTES), if_counted(lambda entry: entry.cost.bytes_read)),
    (Column("bytes_written", "written", Unit.BYTES),
     if_counted(lambda entry: entry.cost.bytes_written)),
    (Column("payload_bytes", "payload", Unit.BYTES),
     if_counted(lambda entry: entry.cost.network_bytes)),
    (Column("bytes_allocated", "allocated", Unit.BYTES), lambda call: call.entry.bytes_allocated),
    (Column("bytes_saved", "saved", Unit.BYTES), lambda call: call.entry.bytes_saved),
    (Column("input_shapes", "inputs", Unit.TEXT), lambda call: shapes(call.entry.call.inputs)),
    (Column("input_dtypes", "dtypes", Unit.TEXT), lambda call: dtypes(call.entry.call.inputs)),
    (Column("output_shapes", "outputs", Unit.TEXT), lambda call: shapes(call.entry.call.outputs)),
    (Column("output_dtypes", "dtypes", Unit.TEXT), lambda call: dtypes(call.entry.call.outputs)),
)  # fmt: skip
"""Names carry units: `_s` and `seconds` are seconds, `bytes` bytes, `flops` FLOPs."""


def operator_calls(ledger: Ledger) -> Table:
    """Those of the reported period, of every rank that ran.

    `tick` is the operator's moment on the trace's clock, `part` its place in a fused kernel;
    `start_s` and `end_s` are since the period began, `seconds` its part of the step: its kernels,
    and the device idle before them.
    """
    ranks = sorted((ledger, *ledger.others), key=lambda each: each.trace.world.rank)
    return Table(
        title="Operator calls",
        columns=tuple(column for column, _ in COLUMNS),
        rows=tuple(
            tuple(value(call) for _, value in COLUMNS) for rank in ranks for call in _calls(rank)
        ),
    )


def _calls(ledger: Ledger) -> Iterator[OperatorCall]:
    spans = spans_of(ledger) if ledger.is_timed else [NO_SPAN] * len(ledger.trace.ops)
    begins_s = min((spans[entry.number].start_s for entry in ledger.reported), default=0.0)
    for entry in ledger.reported:
        is_timed = ledger.is_timed and ledger.has_time(entry)
        yield OperatorCall(ledger, entry, spans[entry.number], begins_s, is_timed)


NO_SPAN = Span(0.0, 0.0)
