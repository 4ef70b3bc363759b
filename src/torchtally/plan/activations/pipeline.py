"""Activations of a pipeline's first stage, which holds most of them."""

from torchtally.plan.closed_form import Bytes, Chips, Count, Number, closed_form
from torchtally.plan.quantity import Amount, Quantity
from torchtally.units import Unit

KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, section 4.2.3"


def first_stage_activation_bytes(
    layer_bytes: Amount, layers: Amount, stages: Amount, *, chunks: Amount = 1
) -> Quantity:
    """Bytes of all layers that the first stage keeps under 1F1B, whatever the number of stages.

    It has a p-th of the layers, for p micro-batches at once. Interleaved, with so many chunks of
    layers on each stage, it starts more of them. Korthikanti et al. 2022, arXiv 2205.05198,
    section 4.2.3.
    """
    return _first_stage_bytes(layers, layer_bytes, _interleaving(stages, chunks))


@closed_form("first stage's activations", Unit.BYTES, KORTHIKANTI)
def _first_stage_bytes(layers: Count, layer_bytes: Bytes, factor: Number) -> str:
    return "layers * layer_bytes * factor"


@closed_form("factor of interleaving", Unit.NUMBER)
def _interleaving(stages: Chips, chunks: Count) -> str:
    return "1 + (stages - 1) / (stages * chunks) if chunks > 1 else 1"
