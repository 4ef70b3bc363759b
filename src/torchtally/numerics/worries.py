"""Warnings of numbers that are lost where it begins to matter to a training, and remedies."""

from collections.abc import Iterator, Sequence

from torchtally.numerics.layers import LayerNumbers, all_layers
from torchtally.units import format_fraction

UNDERFLOW = 0.05
"""Share of gradients that are zero in fp16. About as many were, where a speech model whose weights
were updated in fp16 lost 80 % of its accuracy (arXiv 1710.03740, section 3.1)."""
LOST = 0.5
"""Share of updates that bf16 weights lose: most of the training's steps do nothing."""
HEADROOM = 2.0
"""A loss scale that is doubled once more overflows."""


def worries(
    layers: Sequence[LayerNumbers],
    *,
    loss_scale: float | None,
    has_fp16: bool,
    has_bf16_weights: bool,
) -> Iterator[tuple[str, str]]:
    """(kind, sentences) of what matters to a training as it is: fp16 with its loss scale, weights
    that are updated in bf16. None of what another precision would lose.
    """
    total = all_layers(layers)
    scale = 1.0 if loss_scale is None else loss_scale
    if (has_fp16 or loss_scale is not None) and total.fp16_underflow_share > UNDERFLOW:
        worst = max(layers, key=lambda each: each.fp16_underflow_share)
        yield (
            "underflow",
            (
                f"{format_fraction(total.fp16_underflow_share)} of the gradients are zero in fp16 "
                f"at a loss scale of {scale:g}, most in {worst.name} "
                f"({format_fraction(worst.fp16_underflow_share)}). Raise the scale, or use bf16."
            ),
        )
    headroom = None if loss_scale is None else total.headroom(loss_scale)
    if headroom is not None and headroom < HEADROOM:
        worst = max(layers, key=lambda each: each.largest)
        yield (
            "headroom",
            (
                f"the largest gradient, {worst.largest:.3g} in {worst.name}, times the loss scale "
                f"{scale:g} is within a factor of {headroom:.2g} of fp16's largest number. "
                "Clip gradients, or let GradScaler lower the scale."
            ),
        )
    share = total.lost_update_share
    if has_bf16_weights and share is not None and share > LOST:
        worst = max(layers, key=_lost)
        yield (
            "lost",
            (
                f"{format_fraction(share)} of the updates are lost: bf16 weights do not change, "
                f"most in {worst.name} ({format_fraction(_lost(worst))}). Keep weights in float32 "
                "(autocast), or round stochastically."
            ),
        )


def _lost(layer: LayerNumbers) -> float:
    return layer.lost_update_share or 0.0
