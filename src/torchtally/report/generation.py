"""What a run that generates tokens takes, in sentences."""

from collections.abc import Iterator

from torchtally.units import (
    format_byte_per_s,
    format_bytes,
    format_count,
    format_flop_per_s,
    format_fraction,
    format_rate,
    format_seconds,
)
from torchtally.views.generation import GenerationFigures
from torchtally.views.utilisation import Utilisation

MUCH_IDLE = 0.3
"""Of decoding: beyond it, a report says what would help."""


def generation_verdict(figures: GenerationFigures | None) -> str:
    """One line: how long the first token and the others take. "" without times."""
    if figures is None or figures.token_s is None or figures.first_token_s is None:
        return ""
    each = "tokens" if figures.sequences == 1 else f"x {figures.prefill_tokens:,} tokens"
    given = figures.prefill_tokens if figures.sequences == 1 else figures.sequences
    text = f"prefill {given:,} {each} {format_seconds(figures.first_token_s)}, then "
    if figures.is_trained_on:
        text = f"generates to train on: {text}"
    if figures.drafts:
        return f"{text}{format_seconds(figures.token_s)} per pass of drafts and their check"
    rate = f"{format_rate(figures.tokens_per_s or 0.0)} tokens/s"
    return f"{text}{format_seconds(figures.token_s)} per token ({rate})"


def generation_sentences(figures: GenerationFigures) -> Iterator[str]:
    """What bounds prefill and decoding, and what the KV cache holds."""
    used = [
        f"{name}: {utilisation_text(figure)}"
        for name, figure in (
            ("Prefill", figures.prefill_utilisation),
            ("decode", figures.decode_utilisation),
        )
        if figure is not None and figure.fraction is not None
    ]
    if used:
        yield f"{', '.join(used)}."
    if figures.is_timed:
        yield decoding_text(figures)
    yield cache_text(figures)
    if figures.drafts:
        yield (
            f"{figures.drafts} passes of a smaller model draft; how many of its tokens are "
            "accepted depends on values, so tokens/s are unknown."
        )
    if figures.is_timed and figures.kernel_share < 1 - MUCH_IDLE:
        idle = format_fraction(1 - figures.kernel_share)
        yield (
            f"While decoding, the GPU stands idle {idle} of the time, since the host issues "
            "operators slower than the GPU runs them: torch.compile with a static cache, CUDA "
            "graphs or a larger batch help."
        )


def utilisation_text(figure: Utilisation) -> str:
    """Utilisation of what the chip promises."""
    assert figure.fraction is not None
    assert figure.peak_per_s is not None
    peak = (format_byte_per_s if figure.is_bytes else format_flop_per_s)(figure.peak_per_s)
    name = figure.name.partition(",")[0]
    return f"{name} {format_fraction(figure.fraction)} of {peak}"


def decoding_text(figures: GenerationFigures) -> str:
    """Decoding from the first to the last token, of which kernels take how much."""
    assert figures.first_s is not None
    assert figures.last_s is not None
    kernels = format_fraction(figures.kernel_share)
    return (
        f"{format_count(figures.decoded)} decoding passes, the first "
        f"{format_seconds(figures.first_s)}, the last {format_seconds(figures.last_s)}; kernels "
        f"run for {kernels} of it."
    )


def cache_text(figures: GenerationFigures) -> str:
    if not figures.generation.has_cache:
        return "No KV cache: every pass recomputes all earlier tokens."
    grown = figures.cache_bytes_per_token
    growth = f", {format_bytes(round(grown))} more each pass" if grown > 0 else ", of fixed size"
    return f"KV cache at the end {format_bytes(figures.cache_bytes)}{growth}."
