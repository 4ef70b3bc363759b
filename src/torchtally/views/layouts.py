"""Views and copies of the forward pass, with the shapes and strides that they give."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.ledger import Entry, Ledger, Line, is_copy, is_view
from torchtally.table import Cell, Column, Table
from torchtally.trace import TensorSpec
from torchtally.units import Unit
from torchtally.views.lines import line_texts, root_of
from torchtally.views.strided import tuple_text
from torchtally.views.view import view

COLUMNS = (
    Column("views", "views", Unit.COUNT),
    Column("copies", "copies", Unit.COUNT),
    Column("bytes_moved", "moved", Unit.BYTES),
    Column("operator", "operator", Unit.WORD),
    Column("line", "line", Unit.LINE),
    Column("strides", "strides", Unit.TEXT),
    Column("shape", "shape", Unit.TEXT, rank=1),
    Column("from_strides", "from strides", Unit.TEXT, rank=2),
    Column("from_shape", "from shape", Unit.TEXT, rank=3),
    Column("source", "source", Unit.TEXT, rank=4),
)

SpecLayout = tuple[str, str]
"""Strides and shape, as texts."""
NO_TENSOR: SpecLayout = ("", "")
FUSED: SpecLayout = ("within a fused kernel", "")


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What a line does to a tensor: the same operator from one layout to another."""

    line: Line | None
    operator: str
    before: SpecLayout
    after: SpecLayout


@view("layout", "views and copies of each line, with the strides they give")
def layouts(ledger: Ledger) -> Table:
    """Table by line, operator and layout, what moves most bytes first. A view moves none."""
    changes: dict[LayoutChange, list[Entry]] = defaultdict(list)
    for entry in ledger.reported:
        if is_copy(entry) or is_view(entry):
            changes[_change(entry)].append(entry)
    root = root_of(change.line for change in changes)
    ordered = sorted(changes.items(), key=lambda item: (-_moved_bytes(item[1]), -len(item[1])))
    entries = [entry for group in changes.values() for entry in group]
    return Table(
        "Views and copies of the forward pass",
        COLUMNS,
        tuple((*_numbers(group), *_texts(change, root)) for change, group in ordered),
        totals=(*_numbers(entries), *[None] * (len(COLUMNS) - 3)),
        note="moved: read and written by copies; a view has the memory of its input. Strides are "
        "in elements.",
    )


def _change(entry: Entry) -> LayoutChange:
    """The first argument and the first result stand for all."""
    call, operator = entry.call, entry.operator.partition(".")[2]
    if call.fused is not None:
        return LayoutChange(entry.line, operator, FUSED, FUSED)
    before, after = (
        _layout(specs[0]) if specs else NO_TENSOR for specs in (call.inputs, call.outputs)
    )
    return LayoutChange(entry.line, operator, before, after)


def _layout(spec: TensorSpec) -> SpecLayout:
    return tuple_text(spec.stride), tuple_text(spec.shape)


def _numbers(entries: Sequence[Entry]) -> tuple[int, int, int]:
    copies = sum(map(is_copy, entries))
    return len(entries) - copies, copies, _moved_bytes(entries)


def _moved_bytes(entries: Sequence[Entry]) -> int:
    return sum(entry.cost.bytes for entry in entries if is_copy(entry))


def _texts(change: LayoutChange, root: str) -> tuple[Cell, ...]:
    place, source = line_texts(change.line, root)
    return change.operator, place, *change.after, *change.before, source
