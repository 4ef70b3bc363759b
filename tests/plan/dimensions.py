"""Units of formulas: what a formula's result is in, worked out from the units of its terms.

A formula is parsed, not run. Counts, FLOPs, parameters and tokens are plain numbers here; seconds,
bytes, dollars and joules are not, and may not be added to anything else.
"""

import ast
from collections import Counter
from fractions import Fraction

from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

Dimensions = dict[str, Fraction]
"""Powers of base units; none of zero."""

ONE = Fraction(1)
DIMENSIONS: dict[Unit, Dimensions] = {
    Unit.BYTES: {"byte": ONE},
    Unit.BYTES_PER_PARAMETER: {"byte": ONE},
    Unit.BYTES_EACH: {"byte": ONE},
    Unit.BYTES_PER_TOKEN: {"byte": ONE},
    Unit.BYTE_PER_S: {"byte": ONE, "s": -ONE},
    Unit.FLOP_PER_S: {"s": -ONE},
    Unit.TOKEN_PER_S: {"s": -ONE},
    Unit.SECONDS: {"s": ONE},
    Unit.HOURS: {"s": ONE},
    Unit.JOULES: {"J": ONE},
    Unit.WATTS: {"J": ONE, "s": -ONE},
    Unit.USD: {"USD": ONE},
    Unit.USD_PER_HOUR: {"USD": ONE, "s": -ONE},
}
SAME = ("ceil", "floor", "max", "min")
"""Functions that give what they are given; of several arguments all must be alike."""


class MixedUnitsError(AssertionError):
    """A formula that adds, or compares, what is not of one unit."""


def check_units(quantity: Quantity) -> None:
    """Raise MixedUnitsError where the formula of any step does not give its unit."""
    for step in quantity.working():
        if not step.is_given:
            units = dimensions_of(step)
            if units is not None and units != DIMENSIONS.get(step.unit, {}):
                raise MixedUnitsError(
                    f"{step.name} = {step.formula} is in {units}, not {step.unit}"
                )


def dimensions_of(step: Quantity) -> Dimensions | None:
    """Of the formula's result; None of a constant, which may be of any unit."""
    terms = {word: DIMENSIONS.get(term.unit, {}) for word, term in step.terms}
    return _of(ast.parse(step.formula, mode="eval").body, terms, step)


def _of(node: ast.expr, terms: dict[str, Dimensions], step: Quantity) -> Dimensions | None:
    match node:
        case ast.Constant():
            return None
        case ast.Name(id=word):
            return terms[word]
        case ast.UnaryOp(operand=operand):
            return _of(operand, terms, step)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = _of(left, terms, step), _of(right, terms, step)
            if not base and not power:
                return {}
            if power or not base or not isinstance(right, ast.Constant):
                raise MixedUnitsError(f"{step.name} = {step.formula}: a power of {base}")
            return {name: n * Fraction(right.value) for name, n in base.items()}
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(_of(left, terms, step), op, _of(right, terms, step), step)
        case ast.Call(func=ast.Name(id=name), args=args):
            kinds = [of for of in (_of(arg, terms, step) for arg in args) if of is not None]
            if any(kind != kinds[0] for kind in kinds) or (name not in SAME and any(kinds)):
                raise MixedUnitsError(f"{step.name} = {step.formula}: {name} of {kinds}")
            return kinds[0] if kinds else None
        case ast.IfExp(body=body, orelse=orelse):
            return _combined(_of(body, terms, step), ast.Add(), _of(orelse, terms, step), step)
    raise MixedUnitsError(f"{step.name} = {step.formula}: what is {ast.dump(node)}?")


def _combined(
    left: Dimensions | None, op: ast.operator, right: Dimensions | None, step: Quantity
) -> Dimensions | None:
    if isinstance(op, ast.Add | ast.Sub):
        # A constant beside a plain number is one; beside anything else it must be zero.
        if left is not None and right is not None and left != right:
            raise MixedUnitsError(f"{step.name} = {step.formula} adds {left} and {right}")
        return right if left is None else left
    sign = 1 if isinstance(op, ast.Mult) else -1
    powers = Counter(left or {})
    for name, power in (right or {}).items():
        powers[name] += sign * power
    product = {name: power for name, power in powers.items() if power}
    return None if left is None and right is None else product
