"""Results whose elements are those of the arguments."""

from dataclasses import replace

import torch

from torchtally.virtual import values
from torchtally.virtual.facts.facts import MAYBE_INFINITE, UNIT, Facts, constant
from torchtally.virtual.facts.rules import Derived, argument, known_facts, name_of, rule
from torchtally.virtual.facts.spans import spans_of_triangle
from torchtally.virtual.facts.tensors import facts_of, facts_of_values
from torchtally.virtual.invocation import Invocation


@rule("_to_copy", needs_facts=False)
def convert(call: Invocation) -> Derived:
    """Truths of which nothing is known are zeros and ones in another dtype."""
    facts = copy(call)
    return UNIT if facts is None and call.inputs[-1].dtype is torch.bool else facts


@rule("clone", "contiguous", "copy", "roll", "flip")
def copy(call: Invocation) -> Derived:
    """All elements of the last tensor. Integers that come from the host are looked at."""
    source = call.inputs[-1]
    is_integer = not values.is_approximate(source.dtype)
    if call.virtuals[-1] is None and is_integer and source.element_size() > 1:
        facts = facts_of_values(source, limit=source.numel())
    else:
        facts = facts_of(source)
    if facts is None:
        return None
    if facts.ramp is not None and (name_of(call) in MOVING or not source.is_contiguous()):
        facts = replace(facts, ramp=None)
    is_repeated = source.numel() != call.args[0].numel()  # `copy_` broadcasts
    return facts.of_part if is_repeated else facts


MOVING = ("copy", "roll", "flip")
"""What may give elements other places."""


@rule(
    "index", "index_select", "gather", "take", "take_along_dim", "repeat", "masked_select",
    "upsample_nearest1d", "upsample_nearest2d",
    "select_copy", "slice_copy", "expand_copy", "view_copy", "permute_copy",
    "max_pool2d_with_indices",
)  # fmt: skip
def part(call: Invocation) -> Derived:
    facts = facts_of(call.args[0])
    if facts is None:
        return None
    return (facts.of_part, None) if "pool" in name_of(call) else facts.of_part


@rule("embedding")
def embedding(call: Invocation) -> Derived:
    return part(call)


@rule("cat", "stack")
def cat(call: Invocation) -> Derived:
    each = [facts_of(tensor) for tensor in call.inputs if tensor.numel()]
    if not each or None in each:
        return None
    joined = each[0].of_part  # type: ignore[union-attr]
    for facts in each[1:]:
        joined |= facts  # type: ignore[operator]
    return joined


def either(one: Facts | None, other: Facts | None) -> Derived:
    """Elements of two kinds; unknown ones are finite."""
    if one is not None and other is not None:
        return one | other
    given = one or other
    return None if given is None or given.is_finite else MAYBE_INFINITE


@rule("tril", "triu")
def triangle(call: Invocation) -> Derived:
    tensor, facts = call.inputs[0], facts_of(call.args[0])
    if facts is not None and facts.is_all(1) and tensor.dim() == 2:
        rows, columns = tensor.shape
        diagonal = argument(call, "diagonal", 0)
        spans = spans_of_triangle(name_of(call), rows, columns, diagonal)
        return Facts(0, 1, spans=spans)
    return either(facts_of(call.args[0]), constant(0))


@rule("constant_pad_nd")
def pad(call: Invocation) -> Derived:
    return either(facts_of(call.args[0]), constant(argument(call, "value", 0)))


@rule("where", needs_facts=False)
def where(call: Invocation) -> Derived:
    one, other = known_facts(call.args[1]), known_facts(call.args[2])
    if one is None and other is None:
        return None
    condition = known_facts(call.args[0])
    if condition is not None and condition.is_constant:
        chosen = one if condition.lower else other
        return None if chosen is None else chosen.of_part
    return either(one, other)


@rule("masked_fill", needs_facts=False)
def masked_fill(call: Invocation) -> Derived:
    mask, value = known_facts(call.args[1]), known_facts(call.args[2])
    tensor = known_facts(call.args[0])
    if mask is not None and mask.is_constant:
        chosen = value if mask.lower else tensor
        return None if chosen is None else chosen.of_part
    return either(tensor, value)


@rule("scatter", "index_fill", "index_put", "masked_scatter", "slice_scatter", "select_scatter",
      "index_copy", needs_facts=False)  # fmt: skip
def overwrite(call: Invocation) -> Derived:
    """Some elements are replaced. Ones at evenly chosen places of zeros: a one-hot matrix."""
    if argument(call, "accumulate") or argument(call, "reduce"):
        return None
    target = facts_of(call.args[0])
    names = ("value", "src", "values", "source")
    value = known_facts(
        next(call.argument(name) for name in names if name in call.operator.arguments)
    )
    joined = either(target, value)
    if name_of(call).startswith("scatter") and isinstance(joined, Facts):
        index = facts_of(call.argument("index"))
        if (target is not None and target.is_all(0) and value is not None and value.is_all(1)) and (
            index is not None and index.is_even
        ):
            share = call.argument("index").numel() / call.args[0].numel()
            return replace(joined, share=share)
    return joined
