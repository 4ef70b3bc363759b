"""Rows that are added up where an index says: the gradient of an embedding, `index_add`.

An embedding's gradient (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu) of few
indices is made by one kernel, whose blocks go through all of them; more are sorted, and sums over
runs of one index are made in parts and then added up, by a kernel each.
"""

from torchtally.chips import Chip
from torchtally.timing.constants import (
    ADDED_PER_S,
    CLOCK_HZ,
    EMBEDDING_SORTS_ABOVE,
    INDEX_S,
    SORT_S,
)
from torchtally.timing.roofline.composed import Formula, composed
from torchtally.timing.roofline.launches import indices_of
from torchtally.timing.roofline.strided import finding_s
from torchtally.trace import Call


def embedding_sums_s(call: Call, chip: Chip) -> float:
    """Seconds of an embedding's gradient beside those of its bytes, most of them the zeros that it
    begins with; 0 of other operators.
    """
    clocks = CLOCK_HZ / (chip.boost_clock_hz or CLOCK_HZ)
    if composed(call.plain_name).formula is not Formula.EMBEDDING_BACKWARD:
        return 0.0
    indices = indices_of(call)
    if indices <= EMBEDDING_SORTS_ABOVE:
        return INDEX_S * clocks * indices
    return SORT_S * clocks + 2 * finding_s(call.inputs[0].elements, ADDED_PER_S, chip)
