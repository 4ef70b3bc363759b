"""What is known of tensors whose values are not kept: bounds, counts, shares, and how they follow.

`facts.py` is the type, `tensors.py` keeps facts with storages, `rules.py` has the table of rules by
operator, which the modules named below fill.
"""

from torchtally.virtual.facts import (
    arithmetic,
    elements,
    logic,
    products,
    reductions,
    routing,
    sources,
)
from torchtally.virtual.facts.facts import Facts, constant
from torchtally.virtual.facts.losses import (
    FallingLosses,
    is_any_trained,
    is_loss,
    mark_trained,
    turns,
)
from torchtally.virtual.facts.rules import Derived, is_uninformed, rule_of
from torchtally.virtual.facts.tensors import (
    FALLING,
    assumption_of,
    facts_of,
    facts_or_range,
    is_any_informed,
    is_informed,
    is_whole,
    keep_facts,
    readable,
    settle,
    spread_of,
    substitute,
)

assert all((arithmetic, elements, logic, products, reductions, sources)), (
    "imported for the rules they add"
)
