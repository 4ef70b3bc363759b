"""Sizes that the compiler leaves open (dynamic shapes), as numbers: without asking it for them.

To compare or convert a symbolic size would fix it: the graph would be compiled for that size alone.
"""

from collections.abc import Mapping
from typing import Any

import torch

Values = Mapping[str, int]
"""Of the symbols of a graph, by their names."""


def number(size: Any, values: Values) -> int:
    """The size with these values; where they do not say, what it was when it was compiled."""
    if isinstance(size, int):
        return size
    expression = size.node.expr
    known = {each: values[each.name] for each in expression.free_symbols if each.name in values}
    settled = expression.subs(known)
    return int(settled) if settled.is_number else int(size.node.hint or 1)


def plain(value: Any, values: Values) -> Any:
    """An argument or result of a traced operator, with numbers for its open sizes."""
    if isinstance(value, torch.Tensor):
        if all(isinstance(size, int) for size in (*value.shape, *value.stride())):
            return value
        shape, stride = (
            [number(each, values) for each in sizes] for sizes in (value.shape, value.stride())
        )
        return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return number(value, values) if isinstance(value, torch.SymInt) else 1.0
    if isinstance(value, (list, tuple)):
        return type(value)([plain(each, values) for each in value])
    return value
