"""The steps of an expression, and which elements of a storage its result has."""

from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.table import Cell, Column, Number, Prose, Table, sentences
from torchtally.trace.strided import EvaluatedExpression, ExpressionStep, storage_name
from torchtally.units import Unit

MOST_DRAWN = 128
"""Elements of a storage, or of a tensor, that are drawn one by one."""
MOST_DIMENSIONS = 6
"""Of a tensor whose elements are drawn."""

STEPS = (
    Column("storage", "in", Unit.WORD),
    Column("origin", "is", Unit.WORD),
    Column("shape", "shape", Unit.WORD),
    Column("strides", "strides", Unit.WORD),
    Column("offset", "offset", Unit.COUNT),
    Column("is_contiguous", "contiguous", Unit.WORD),
    Column("bytes", "bytes", Unit.BYTES),
    Column("code", "step", Unit.TEXT),
)


def steps(evaluation: EvaluatedExpression) -> Table:
    """Each step with its layout, the result last."""
    return Table(
        "Steps",
        STEPS,
        tuple(map(_step, evaluation.steps)),
        note="in: the storage that holds it. bytes: of the tensor's elements; a view takes none "
        "of its own. Strides and offsets are in elements.",
    )


def _step(step: ExpressionStep) -> tuple[Cell, ...]:
    tensor = step.tensor
    return (
        storage_name(tensor.storage),
        step.origin.value,
        tuple_text(tensor.shape),
        tuple_text(tensor.strides),
        tensor.offset,
        "yes" if tensor.is_contiguous else "no",
        tensor.bytes,
        step.code,
    )


def tuple_text(numbers: Sequence[int]) -> str:
    """Tuple as torch and Python write it, without the comma behind a single number."""
    return f"({', '.join(map(str, numbers))})"


def storages(evaluation: EvaluatedExpression) -> Table:
    """The storages of all steps: how large, and what they were made by."""
    first: dict[int, ExpressionStep] = {}
    for step in evaluation.steps:
        first.setdefault(step.tensor.storage, step)
    rows = tuple(
        (
            storage_name(number),
            step.tensor.storage_bytes,
            sum(other.tensor.storage == number for other in evaluation.steps),
            step.expression,
        )
        for number, step in first.items()
    )
    columns = (
        Column("storage", "storage", Unit.NAME),
        Column("bytes", "bytes", Unit.BYTES),
        Column("tensors", "tensors", Unit.COUNT),
        Column("made_by", "made by", Unit.TEXT),
    )
    return Table("Storages", columns, rows)


@dataclass(frozen=True, slots=True)
class StoragePicture:
    """Elements of a storage, and of the tensor that is a window on it, few enough to be drawn."""

    letters: tuple[str, ...]
    shape: tuple[int, ...]
    values: tuple[float | str, ...]
    """Of the storage."""
    places: tuple[int, ...]
    """Of the tensor's elements in the storage, in their order."""

    @property
    def uses(self) -> tuple[int, ...]:
        """How many elements of the tensor each element of the storage is."""
        counts = [0] * len(self.values)
        for place in self.places:
            counts[place] += 1
        return tuple(counts)


def picture(evaluation: EvaluatedExpression) -> StoragePicture | None:
    """The result's storage, element by element. None where it is too large to be drawn."""
    tensor, values = evaluation.tensor, evaluation.values
    if values is None or max(len(values), tensor.elements) > MOST_DRAWN:
        return None
    if len(tensor.shape) > MOST_DIMENSIONS:
        return None
    places = tuple(map(tensor.place, tensor.indices()))
    return StoragePicture(tensor.letters, tensor.shape, values, places)


ELEMENTS = (
    Column("place", "place", Unit.COUNT),
    Column("value", "value", Unit.WORD),
    Column("uses", "used", Unit.COUNT),
    Column("element_indices", "elements of the tensor", Unit.TEXT),
)


def elements(evaluation: EvaluatedExpression) -> Table | None:
    """Each element of the result's storage with its indices in the tensor."""
    drawn = picture(evaluation)
    if drawn is None:
        return None
    tensor = evaluation.tensor
    indices: list[list[str]] = [[] for _ in drawn.values]
    for index in tensor.indices():
        indices[tensor.place(index)].append(f"[{', '.join(map(str, index))}]")
    rows = tuple(
        (place, str(value), len(own), " ".join(own))
        for place, (value, own) in enumerate(zip(drawn.values, indices, strict=True))
    )
    return Table(f"Storage {storage_name(tensor.storage)}, by place", ELEMENTS, rows)


def sentences_of(evaluation: EvaluatedExpression) -> tuple[Prose, ...]:
    """What the result is: its layout, the formula of its elements' places, whose memory it has."""
    tensor = evaluation.tensor
    storage = storage_name(tensor.storage)
    index = f"[{', '.join(tensor.letters)}]"
    dense = tuple_text(tensor.contiguous_strides)
    contiguity = "contiguous" if tensor.is_contiguous else f"not contiguous ({dense} would be)"
    return (
        f"Shape {tuple_text(tensor.shape)} of {tensor.dtype}, strides "
        f"{tuple_text(tensor.strides)}, offset {tensor.offset}: {contiguity}.",
        f"Element {index} is at place {tensor.formula} of storage {storage}.",
        _memory(evaluation),
        *([_repeats(evaluation)] if tensor.repeats else []),
    )


def _memory(evaluation: EvaluatedExpression) -> Prose:
    tensor = evaluation.tensor
    storage = storage_name(tensor.storage)
    sharing = [step for step in evaluation.sharing() if step.expression != evaluation.expression]
    elements = f" element{'s' * (tensor.elements != 1)}, "
    own = ("It has ", Number(tensor.elements, Unit.COUNT), elements, _bytes(tensor.bytes))
    if not sharing:
        return (*own, "; nothing else in the expression has its storage.")
    names = ", ".join(dict.fromkeys(step.expression for step in sharing))
    used = tensor.storage_elements_used
    shared = (*own, f"; storage {storage} is shared with {names}: writing to one writes to all.")
    if used is None or used == tensor.storage_elements:
        return shared
    held, whole = _bytes(used * tensor.element_bytes), _bytes(tensor.storage_bytes)
    return sentences(shared, ("For ", held, " of the storage it keeps all ", whole, " alive."))


def _bytes(count: int) -> Number:
    return Number(count, Unit.BYTES)


def _repeats(evaluation: EvaluatedExpression) -> Prose:
    used = evaluation.tensor.storage_elements_used
    if used is None:
        return "A stride of 0 gives the same element for every index of its dimension."
    return (
        "A stride of 0 gives the same element for every index of its dimension: there are ",
        Number(used, Unit.COUNT),
        " different ones.",
    )
