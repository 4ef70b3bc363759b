"""FLOPs and bytes of a call: exact, by published formula, one file per family of operators."""

from torchtally.work import (  # each import registers its family's rules
    attention,
    bitsandbytes,
    communication,
    convolution,
    copies,
    elementwise,
    fbgemm,
    fft,
    indexing,
    interpolation,
    libraries,
    linear_algebra,
    losses,
    metadata,
    normalization,
    optimizers,
    products,
    quanto,
    randomness,
    recurrent,
    reductions,
    sorting,
)
from torchtally.work.cost import Cost
from torchtally.work.rule import (
    RULES,
    Kind,
    cost_of,
    cost_of_part,
    heart_of,
    known_cost,
    reason_uncounted,
)
