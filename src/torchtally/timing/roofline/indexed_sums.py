"""Rows that are added up where an index says: the gradient of an embedding, `index_add`.

An embedding's gradient (aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu) of few
indices is made by one kernel, whose blocks go through all of them; more are sorted, and sums over
runs of one index are made in parts and then added up, by a kernel each.
"""

from torchtally.chips import Chip
from torchtally.timing.roofline.launches import EMBEDDING_SORTS_ABOVE, indices_of
from torchtally.timing.roofline.strided import CLOCK_HZ, finding_s
from torchtally.trace import Call

EMBEDDING_BACKWARD = frozenset(("embedding_dense_backward", "embedding_backward"))

INDEX_S = 26e-9
"""Of one index where all blocks go through them. 128, 256, 1024 indices take an H100 4.6, 8.2 to
13.6, and 27 to 31 us, whether rows have 128 numbers or 1600 (tests/truth/corpus)."""

ADDED_PER_S = 0.9e9
"""Elements that a multiprocessor adds up in a second, of sorted rows, in each of the two kernels,
and of `index_add`, which adds one by one (indexFuncLargeIndex in Indexing.cu): a fit. An H100 takes
25 to 30 us for 3.1 M in each, 55 to 61 for 6.3, 102 to 106 for 13.1 and 205 to 210 for 26.2 M, in
float32 as in bfloat16; in `index_add`, which had no part in it, 49 for 6.3 M and 109 for 12.6
(tests/truth/corpus)."""

SORT_S = 50e-6
"""What the passes of the sort (8 of 6.3 to 7.2 us) and the fills between them take beside their
launches, which `launches` counts: 8192 and 16384 indices on an H100 (tests/truth/corpus)."""


def embedding_sums_s(call: Call, chip: Chip) -> float:
    """Seconds of an embedding's gradient beside those of its bytes, most of them the zeros that it
    begins with; 0 of other operators.
    """
    clocks = CLOCK_HZ / (chip.boost_clock_hz or CLOCK_HZ)
    if call.plain_name not in EMBEDDING_BACKWARD:
        return 0.0
    indices = indices_of(call)
    if indices <= EMBEDDING_SORTS_ABOVE:
        return INDEX_S * clocks * indices
    return SORT_S * clocks + 2 * finding_s(call.inputs[0].elements, ADDED_PER_S, chip)
