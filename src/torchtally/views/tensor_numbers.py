"""The numbers of tensors: what formats would lose of them, which tensors lose most, exponents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from torchtally.number_formats import NumberFormat
from torchtally.number_formats.losses import (
    FormatLoss,
    TensorStatistics,
    together,
    usual_scale,
    ways,
)
from torchtally.table import Cell, Column, Table
from torchtally.table.shown import Shown
from torchtally.units import Unit

USUAL_FORMATS = ("fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "nvfp4")
"""What numbers of trainings and of inference are converted to."""
MOST_BINS = 16
"""Rows of the table of exponents."""
BAR = 24
"""Letters of the longest bar."""


@dataclass(frozen=True, slots=True)
class TensorNumbers(Shown):
    """Tensors, and what formats would lose of their numbers."""

    source: str
    formats: tuple[NumberFormat, ...]
    tensors: tuple[TensorStatistics, ...]
    """In the order in which they were read."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Tensors that hold no floating-point numbers, or packed ones, by dtype."""

    def __repr__(self) -> str:
        return f"<TensorNumbers: {len(self.tensors)} tensors of {self.source}>"

    def __getitem__(self, name: str) -> TensorStatistics:
        """The first tensor of this name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    @property
    def total(self) -> TensorStatistics:
        """All tensors as one."""
        return together("all", self.tensors, self.formats)

    def worst(self) -> list[TensorStatistics]:
        """The tensors, the largest share lost first, by what loses most of them."""
        return sorted(
            self.tensors, key=lambda each: each.lost(each.worst(self.formats)), reverse=True
        )


@dataclass(frozen=True, slots=True)
class RealStep:
    """A script's first step with real values: what its layers put out, and its gradients."""

    script: str
    ending: str
    """How the script ended, where that was before its backward pass; else ""."""
    shrunk: tuple[str, ...]
    """Batches that were cut, in words."""
    outputs: TensorNumbers
    gradients: TensorNumbers


SHARES = (
    Column("underflow_share", "to zero", Unit.FRACTION),
    Column("overflow_share", "too large", Unit.FRACTION),
    Column("subnormal_share", "subnormal", Unit.FRACTION),
    Column("rounded_share", "rounded", Unit.FRACTION),
)
WAY = (Column("format", "format", Unit.NAME), Column("scale_of", "scale of", Unit.WORD))
TENSOR = (
    Column("tensor_name", "tensor", Unit.TEXT),
    Column("largest_magnitude", "largest", Unit.TIMES),
    Column("smallest_magnitude", "smallest", Unit.TIMES),
)
EXPONENTS = (
    Column("exponents_from", "from", Unit.WORD),
    Column("number_share", "share", Unit.FRACTION),
    Column("bar", "", Unit.BAR),
)


def shares(statistics: TensorStatistics, loss: FormatLoss) -> tuple[float, float, float, float]:
    """Underflow, overflow, subnormal and rounded, as shares of the numbers."""
    counts = (loss.underflows, loss.overflows, loss.subnormals, loss.rounded)
    numbers = statistics.numbers or 1
    under, over, subnormal, rounded = (count / numbers for count in counts)
    return under, over, subnormal, rounded


def by_format(numbers: TensorNumbers) -> Table:
    """What each format loses of all tensors, without and with a scale."""
    total = numbers.total
    rows = tuple(
        (loss.format, str(loss.scale), *shares(total, loss))
        for loss in (total.loss(row.name, scale) for row, scale in ways(numbers.formats))
    )
    return Table(
        "What formats lose",
        WAY + SHARES,
        rows,
        note="Shares of the numbers that are finite and not zero. scale: of a tensor, the largest "
        "power of two that leaves its largest number in the format; of a block, the format's "
        "own. too large: becomes inf, NaN or the format's largest number. subnormal: held with "
        "fewer digits. rounded: becomes another number than it was.",
    )


def worst_tensors(numbers: TensorNumbers) -> Table:
    """Each tensor with the format that loses most of it."""
    rows = tuple(
        (tensor.name, tensor.largest, tensor.smallest, loss.format, str(loss.scale),
         *shares(tensor, loss))
        for tensor in numbers.worst() for loss in [tensor.worst(numbers.formats)]
    )  # fmt: skip
    narrow = (*SHARES[:2], *(replace(column, on_request=True) for column in SHARES[2:]))
    of_format = (Column("format", "format", Unit.WORD), WAY[1])
    return Table(
        "Tensors, by the share that becomes zero or is too large",
        TENSOR + of_format + narrow,
        rows,
        note="Each in the format that loses most of it, as formats are used: of 16 bits without "
        "a scale, of fewer with one. --of fp16 looks at one format.",
    )


def layers(title: str, numbers: TensorNumbers) -> Table:
    """The tensors in their order: how large they are, and the share that each format loses."""
    by_format = tuple(
        Column(f"{row.name}_lost_share", short_name(row), Unit.FRACTION) for row in numbers.formats
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            tensor.name,
            tensor.standard_deviation,
            tensor.largest,
            *(tensor.lost(tensor.loss(row.name, usual_scale(row))) for row in numbers.formats),
        )
        for tensor in numbers.tensors
    )
    deviation = Column("standard_deviation", "deviation", Unit.TIMES)
    return Table(
        title,
        (*TENSOR[:1], deviation, TENSOR[1], *by_format),
        rows,
        note="Shares that become zero or are too large in a format, as it is used: of 16 bits "
        "without a scale, of fewer with one.",
    )


def short_name(format: NumberFormat) -> str:
    """Name for the head of a narrow column: e4m3, mxfp8."""
    return format.name.removeprefix("fp8_").partition("_")[0]


def exponents(numbers: TensorNumbers) -> Table:
    """The share of the numbers by magnitude, from small to large."""
    total = numbers.total
    bins = bin_exponents(total.exponents)
    largest = max((count for _, _, count in bins), default=1)
    rows = tuple(
        (f"2**{first}", count / total.numbers, "#" * round(BAR * count / largest))
        for first, _, count in bins
    )
    return Table("Magnitudes", EXPONENTS, rows, note="from: up to the next row's.")


def bin_exponents(counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """(first, last + 1, numbers) of at most MOST_BINS bins, each of as many exponents."""
    if not counts:
        return []
    low, high = min(counts), max(counts)
    size = ceil((high + 1 - low) / MOST_BINS)
    return [
        (first, first + size, sum(counts.get(each, 0) for each in range(first, first + size)))
        for first in range(low, high + 1, size)
    ]


def left_out_text(numbers: TensorNumbers) -> str:
    """What was not read, and why; "" where there is nothing."""
    if not numbers.left_out:
        return ""
    dtypes = ", ".join(f"{count} of {dtype}" for dtype, count in sorted(numbers.left_out.items()))
    return f"Left out, since they are not floating-point numbers or are packed: {dtypes}."


def chosen(formats: Sequence[str]) -> tuple[str, ...]:
    """The formats asked for, or the usual ones."""
    return tuple(formats) or USUAL_FORMATS
