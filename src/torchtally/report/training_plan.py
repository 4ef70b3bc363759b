"""The plan of a training as text: memory by category and the time of a step, before it runs."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.plan.memory import States
from torchtally.progress import WIDTH, printable
from torchtally.units import FORMATS, Unit, format_fraction

GAP = "  "
INDENT = "  "
SHARDED_NOTE = """\
  For a rank with whole weights: with fsdp it holds 1/{ranks} of parameters,
  gradients and optimizer state, and one whole block. Communication between ranks
  is left out.
"""
REPLICATED_NOTE = "  Communication between ranks is left out.\n"
NO_TIME_NOTE = "  Time unknown: `tally bench` measures this machine in minutes.\n"
LEAST_TIME_NOTE = """\
  A step takes at least the time of its products at the best rate, measured just
  now; `tally bench` measures the rest in minutes.
"""
AT_LEAST = "step, at least"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One quantity of a plan: memory of a category, or the time of a step."""

    name: str
    predicted: float | int | None
    unit: Unit
    measured: float | int | None = None
    is_total: bool = False
    """Printed below a rule."""


def plan_table(title: str, rows: Sequence[PlanRow], *, width: int = WIDTH) -> str:
    """The rows with their predictions, and with measurements where any row has one.

    The last column is how far the measurement is above the prediction.
    """
    is_measured = any(row.measured is not None for row in rows)
    headers = ["predicted", "measured", "difference"] if is_measured else ["predicted"]
    cells = [_cells(row)[: len(headers)] for row in rows]
    columns = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    names = max((len(printable(row.name)) for row in rows), default=0)
    names = min(names, width - len(INDENT) - sum(len(GAP) + column for column in columns))

    def line(name: str, texts: Sequence[str]) -> str:
        right = (text.rjust(room) for text, room in zip(texts, columns, strict=True))
        return f"{INDENT}{GAP.join([printable(name)[:names].ljust(names), *right])}".rstrip()

    lines = [printable(title)[:width], line("", headers)]
    for row, texts in zip(rows, cells, strict=True):
        if row.is_total:
            lines.append(line("", ["-" * column for column in columns]))
        lines.append(line(row.name, texts))
    return "".join(f"{line}\n" for line in lines)


def _cells(row: PlanRow) -> list[str]:
    """Predicted, measured, difference."""
    write = FORMATS[row.unit]
    texts = ["" if value is None else write(value) for value in (row.predicted, row.measured)]
    if row.measured is None or not row.predicted:
        return [*texts, ""]
    difference = row.measured / row.predicted - 1
    return [*texts, f"{'+' if difference >= 0 else ''}{format_fraction(difference)}"]


def traced_rows(ledger: Ledger) -> list[PlanRow]:
    """Memory by category at the peak, and the time of a step, of two rehearsed steps."""
    sizes: Counter[str] = Counter()
    for storage, category in ledger.memory.alive_at_peak:
        sizes[str(category).replace("_", " ")] += storage.requested_bytes
    # The allocator rounds blocks up; tensors are measured by what they requested.
    peak_bytes = ledger.memory.peak_bytes
    sizes["rounded up by the allocator"] = peak_bytes - sizes.total()
    rows = [PlanRow(name, size, Unit.BYTES) for name, size in sizes.most_common() if size]
    peak = PlanRow("peak", peak_bytes, Unit.BYTES, is_total=True)
    return [*rows, peak, PlanRow("step", ledger.step_s, Unit.SECONDS)]


def closed_form_rows(states: States, least_step_s: float | None = None) -> list[PlanRow]:
    """Memory that is held from step to step, where no device can be rehearsed on, and the least
    time of a step if known.
    """
    time = [] if least_step_s is None else [PlanRow(AT_LEAST, least_step_s, Unit.SECONDS)]
    return [
        PlanRow("parameters", states.parameters.value, Unit.BYTES),
        PlanRow("gradients", states.gradients.value, Unit.BYTES),
        PlanRow("master weights", states.master.value, Unit.BYTES),
        PlanRow("optimizer state", states.optimizer.value, Unit.BYTES),
        PlanRow("held from step to step", states.total.value, Unit.BYTES, is_total=True),
        *time,
    ]


def plan_text(
    title: str,
    rows: Sequence[PlanRow],
    *,
    remark: str,
    ranks: int = 1,
    is_sharded: bool = False,
    is_timed: bool = True,
) -> str:
    """The plan's table with its notes; `remark` is a sentence about the precision."""
    text = plan_table(title if ranks == 1 else f"{title}, each of {ranks} ranks", rows)
    if ranks > 1:
        text += SHARDED_NOTE.format(ranks=ranks) if is_sharded else REPLICATED_NOTE
    text += textwrap.fill(remark, 78, initial_indent=INDENT, subsequent_indent=INDENT) + "\n"
    if is_timed:
        return text
    return text + (LEAST_TIME_NOTE if rows[-1].name == AT_LEAST else NO_TIME_NOTE)
