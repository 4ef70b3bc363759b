"""Layout of a tensor's elements in its storage, drawn for a terminal; for programs, as numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from torchtally.report.documents.tensor import tensor_document
from torchtally.report.grid import INDENT, wrap
from torchtally.report.prose import in_words
from torchtally.report.report import Look, Report
from torchtally.report.terminal import table_text
from torchtally.trace.strided import EvaluatedExpression, storage_name
from torchtally.units import format_bytes
from torchtally.views.strided import (
    StoragePicture,
    elements,
    picture,
    sentences_of,
    steps,
    storages,
    tuple_text,
)

UNCUT = 100_000
"""Wider than any expression."""
LONGEST_CELL = 12
"""Characters of a value."""


def evaluation_report(evaluation: EvaluatedExpression) -> Report:
    """The steps of an expression, and the storage of its result."""
    tables = [("steps", steps(evaluation)), ("storages", storages(evaluation))]
    if (table := elements(evaluation)) is not None:
        tables.append(("elements", table))
    return Report(
        title=evaluation.expression,
        facts=tuple(map(in_words, sentences_of(evaluation))),
        tables=tuple(tables),
        text=partial(evaluation_text, evaluation),
        document=partial(tensor_document, evaluation),
    )


def evaluation_text(evaluation: EvaluatedExpression, look: Look | None = None) -> str:
    """Sentences, the steps, and the storage where it is small."""
    look = look or Look()
    lines = [line for fact in sentences_of(evaluation) for line in _fact(in_words(fact), look)]
    parts = ["".join(f"{line}\n" for line in lines), _steps(evaluation, look)]
    if (drawn := picture(evaluation)) is not None:
        name = storage_name(evaluation.tensor.storage)
        parts.append("".join(f"{line}\n" for line in _storage(drawn, name, look.width)))
        parts.append("".join(f"{line}\n" for line in _elements(drawn, look.width)))
    return "\n".join(parts)


def _steps(evaluation: EvaluatedExpression, look: Look) -> str:
    """A table, or two lines a step where it would be wider than the terminal."""
    table = steps(evaluation)
    uncut = table_text(replace(table, note=""), width=UNCUT).splitlines()
    if max(map(len, uncut)) <= look.width:
        return table_text(table, width=look.width, is_coloured=look.is_coloured)
    lines = [in_words(table.title)]
    for step in evaluation.steps:
        tensor = step.tensor
        name = storage_name(tensor.storage)
        layout = (
            f"in {name}, {step.origin}: shape {tuple_text(tensor.shape)}, strides "
            f"{tuple_text(tensor.strides)}, offset {tensor.offset}, "
            f"{'' if tensor.is_contiguous else 'not '}contiguous, {format_bytes(tensor.bytes)}"
        )
        lines += wrap(step.code, look.width)
        lines += [f"{INDENT}{line}" for line in wrap(layout, look.width - len(INDENT))]
    lines += wrap(in_words(table.note), look.width)
    return "".join(f"{line}\n" for line in lines)


def _fact(text: str, look: Look) -> list[str]:
    first, *rest = wrap(text, look.width)
    return [first.removeprefix(INDENT), *rest]


def _storage(drawn: StoragePicture, name: str, width: int) -> Iterator[str]:
    """Places, values and uses, in as many lines as it takes."""
    values = [_value(value) for value in drawn.values]
    uses = ["." if not count else "#" if count == 1 else str(count) for count in drawn.uses]
    most = max(drawn.uses, default=0)
    several = f", {most} are {most} of its elements" if most > 1 else ""
    yield f"Storage {name}: # is an element of the tensor{several}"
    places = list(map(str, range(len(values))))
    rows = {"place": places, "value": values, "used": uses}
    cell = max((len(text) for texts in rows.values() for text in texts), default=1)
    in_line = max((width - len(INDENT) - len("place")) // (cell + 1), 1)
    for start in range(0, len(values), in_line):
        for title, texts in rows.items():
            cells = "".join(f" {text:>{cell}}" for text in texts[start : start + in_line])
            yield f"{INDENT}{title:<5}{cells}"


def _value(value: float | str) -> str:
    text = value if isinstance(value, str) else f"{value:.4g}" if _is_float(value) else str(value)
    return text[:LONGEST_CELL]


def _is_float(value: float | str) -> bool:
    return isinstance(value, float)


def _elements(drawn: StoragePicture, width: int) -> Iterator[str]:
    """The place of each element: a line for each index of all dimensions but the last."""
    index = ", ".join(drawn.letters)
    yield f"Element [{index}] by its place in the storage"
    if not drawn.places:
        yield f"{INDENT}none"
        return
    length = drawn.shape[-1] if drawn.shape else 1
    cell = len(str(max(drawn.places)))
    rows = [drawn.places[start : start + length] for start in range(0, len(drawn.places), length)]
    labels = [_label(number, drawn.shape) for number in range(len(rows))]
    for label, row in zip(labels, rows, strict=True):
        places = " ".join(f"{place:>{cell}}" for place in row)
        first, *rest = wrap(f"{label:<{len(labels[-1])}} {places}", width)
        yield first
        yield from (f"{INDENT}{line}" for line in rest)


def _label(row: int, shape: Sequence[int]) -> str:
    """Label like "[1, 0, :]" of the row with this number."""
    index: list[str] = []
    for size in reversed(shape[:-1]):
        row, place = divmod(row, size)
        index.insert(0, str(place))
    return f"[{', '.join([*index, ':'] if shape else [])}]"
