"""The table of rules: what an operator's result is known to be, from facts of its arguments.

A rule takes a call and gives `Facts` of its result; for several results a tuple, with None for
those that nothing is known of. Results of a call whose arguments all have values have values, too,
and no rule is asked. An operator that works element by element needs no rule for constants.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from torchtally.virtual.facts.facts import ANY, Facts, constant
from torchtally.virtual.facts.tensors import facts_of, facts_or_range
from torchtally.virtual.invocation import Invocation

Derived = Facts | Sequence[Facts | None] | None
Rule = Callable[[Invocation], Derived]

RULES: dict[str, Rule] = {}
"""By name, without the underscore of those that write in place."""
UNINFORMED: set[str] = set()
"""Operators of whose results something is known even if nothing is known of their arguments."""


def rule(*names: str, needs_facts: bool = True) -> Callable[[Rule], Rule]:
    """Register a rule; one that needs facts runs only if something is known of an argument."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[f"aten.{name}"] = function
            if not needs_facts:
                UNINFORMED.add(f"aten.{name}")
        return function

    return register


def argument(call: Invocation, name: str, default: Any = None) -> Any:
    """An argument by name; the default where it was not given or the overload has none."""
    if name not in call.operator.arguments:
        return default
    given = call.argument(name)
    return default if given is None else given


def name_of(call: Invocation) -> str:
    """The operator's, whether it writes in place or not."""
    return call.operator.name.removeprefix("aten.").removesuffix("_")


def known_facts(arg: Any) -> Facts | None:
    """Facts of a tensor or a number."""
    if isinstance(arg, Tensor):
        return facts_of(arg)
    return constant(arg) if isinstance(arg, (int, float)) else None


def bounds(arg: Any) -> Facts:
    return facts_or_range(arg) if isinstance(arg, Tensor) else known_facts(arg) or ANY


def rule_of(name: str) -> Rule | None:
    """The rule of an operator, whether it writes in place or not."""
    return RULES.get(name) or RULES.get(name.removesuffix("_"))


def is_uninformed(name: str) -> bool:
    return name in UNINFORMED or name.removesuffix("_") in UNINFORMED
