"""Activations of a pipeline's first stage, which holds most of them."""

from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit


def first_stage_activation_bytes(
    layer_bytes: Amount, layers: Amount, stages: Amount, *, chunks: Amount = 1
) -> Quantity:
    """Of all layers that the first stage keeps under 1F1B, whatever the number of stages.

    It has a p-th of the layers, for p micro-batches at once. Interleaved, with so many chunks of
    layers on each stage, it starts more of them. Korthikanti et al. 2022, arXiv 2205.05198,
    section 4.2.3.
    """
    factor = derive(
        "factor of interleaving",
        Unit.NUMBER,
        "1 + (stages - 1) / (stages * chunks) if chunks > 1 else 1",
        stages=of(stages, Unit.CHIPS),
        chunks=of(chunks, Unit.COUNT),
    )
    return derive(
        "first stage's activations",
        Unit.BYTES,
        "layers * layer_bytes * factor",
        "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3",
        layers=of(layers, Unit.COUNT),
        layer_bytes=of(layer_bytes, Unit.BYTES),
        factor=factor,
    )
