"""All published figures, in the order of the page."""

from tests.plan.published import (
    deepseek,
    gpt3,
    korthikanti,
    korthikanti_memory,
    laws,
    llama,
    megatron,
    mission,
    palm,
    planners,
    runs,
    torchtitan,
    zero,
)
from tests.plan.published.row import Implied, Row

PARTS = (
    mission,
    gpt3,
    megatron,
    korthikanti,
    korthikanti_memory,
    palm,
    llama,
    deepseek,
    runs,
    laws,
    zero,
    torchtitan,
    planners,
)
ROWS: tuple[Row, ...] = tuple(row for part in PARTS for row in part.rows())
IMPLIED: tuple[Implied, ...] = (*llama.implied(), *deepseek.implied())
