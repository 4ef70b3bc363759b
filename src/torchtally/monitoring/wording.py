"""A comparison in sentences."""

from torch import nn

from torchtally.monitoring.causes import NEXT, likely_causes
from torchtally.monitoring.comparison import Compared, Parting
from torchtally.report.watched import parted_text
from torchtally.units import format_bytes, format_fraction, format_seconds

WORDS = {
    Parting.SLOWER: "steps take longer than predicted",
    Parting.FASTER: "steps take less time than predicted",
    Parting.MORE_MEMORY: "more memory is allocated than predicted",
    Parting.LESS_MEMORY: "less memory is allocated than predicted",
}


def beside(compared: Compared) -> str:
    """Step 61.2 ms, predicted 54.0 ms (+13.3 %); MFU 33.8 %, predicted 38.3 %; peak memory ..."""
    expected = compared.expected
    parts = []
    if compared.step_s is not None:
        text = f"step {format_seconds(compared.step_s)}"
        if expected.step_s is not None:
            text += f", predicted {format_seconds(expected.step_s)}"
        if compared.time_parted is not None:
            text += f" ({parted_text(compared.time_parted)})"
        parts.append(text)
    if expected.mfu is not None and compared.mfu is not None:
        parts.append(
            f"MFU {format_fraction(compared.mfu)}, predicted {format_fraction(expected.mfu)}"
        )
    parts.append(_memory(compared))
    return "; ".join(parts)


def _memory(compared: Compared) -> str:
    measured, predicted = compared.memory.peak_bytes, compared.expected.peak_bytes
    text = "not measured" if measured is None else format_bytes(measured)
    if predicted is not None:
        text += f", predicted {format_bytes(predicted)}"
    if compared.memory_parted is not None:
        text += f" ({parted_text(compared.memory_parted)})"
    return f"peak memory {text}"


def warning(kind: Parting, compared: Compared, model: nn.Module | None) -> str:
    """What parted, beyond which error, what may be the reason and what finds out."""
    _, error = compared.of(kind)
    assert error is not None
    causes = "; ".join(likely_causes(kind, model))
    text = (
        f"warning: {WORDS[kind]}, by more than {format_fraction(error)}: {beside(compared)}.\n"
        f"  Likely causes: {causes}."
    )
    return f"{text}\n  {NEXT[kind]}" if NEXT[kind] else text
