"""Which answer a check waits for: what a script asserts of unknown values is taken to hold.

Told from the source of the line that reads, as `reads.py` tells what a value is for: the assertion,
or the branch that raises, which the value goes into, through names, and out of functions that
return it.
"""

import ast
import math
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torchtally.tracer.reads import SyntaxTree, expression_at

Number = int | float

PASSED_ON = frozenset(["bool", "all", "any", "int"])
"""Functions whose answer is that of what they are given."""
EXITS = frozenset(["exit", "_exit"])
MOST_NAMES = 20
MOST_CALLERS = 5
"""Functions that return the value, from one read on."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The value is returned, or its opposite: its caller knows what for."""

    is_negated: bool


Wanted = bool | Returned | None
"""Of an expression, the truth that a check waits for; None where none does."""


def passing_answer(frame: FrameType | None, given: Any) -> Any:
    """What to give in place of `given` to code that reads an unknown value, for a check to pass;
    None where no check waits for it, or `given` passes.
    """
    if frame is None or (found := expression_at(frame)) is None:
        return None
    source, node = found
    if isinstance(given, bool):
        wanted = truth_wanted(frame, source, node)
        return None if wanted is given else wanted
    if isinstance(given, (int, float)):
        return passing_number(frame, source, node, given)
    return None


def truth_wanted(frame: FrameType, source: SyntaxTree, node: ast.expr) -> bool | None:
    """Truth that is wanted of an expression, by what becomes of it there and in those that call for
    it.
    """
    is_negated = False
    caller: FrameType | None = frame
    for _ in range(MOST_CALLERS):
        wanted = Checks(source).of(node)
        if not isinstance(wanted, Returned):
            return None if wanted is None else wanted is not is_negated
        is_negated ^= wanted.is_negated
        caller = caller.f_back if caller is not None else None
        if caller is None or (found := expression_at(caller)) is None:
            return None
        source, node = found
    return None


class Checks:
    """Follows a value through the expressions and names of one function."""

    def __init__(self, source: SyntaxTree) -> None:
        self.source = source
        self._names: set[tuple[ast.AST, str]] = set()

    def of(self, node: ast.AST) -> Wanted:
        child, is_negated = node, False
        while (parent := self.source.parents.get(child)) is not None:
            match parent:
                case ast.UnaryOp(op=ast.Not()):
                    is_negated = not is_negated
                case ast.Return() | ast.Lambda():
                    return Returned(is_negated)
                case ast.Assert(test=test) if child is test:
                    return not is_negated
                case ast.If(test=test) if child is test:
                    of_test = self.of_arms(parent)
                    return None if of_test is None else of_test is not is_negated
                case ast.While(test=test) if child is test and not is_negated:
                    return False  # no loop goes on because of what is not known
                case ast.Compare(ops=[op], comparators=[ast.Constant(value=bool() as other)]):
                    is_negated ^= other is isinstance(op, (ast.NotEq, ast.IsNot))
                case ast.Call(func=function) if child is not function:
                    name = called_name(parent)
                    if name.startswith(("assert", "_assert", "_check")):
                        return ("False" in name or "Not" in name) is is_negated
                    if name not in PASSED_ON:
                        return None
                case ast.Assign(targets=[ast.Name() as name]) | ast.NamedExpr(target=name):
                    wanted = self.of_name(name)
                    if isinstance(parent, ast.Assign) or wanted is not None:
                        return negate(wanted) if is_negated else wanted
                case ast.stmt() | ast.IfExp() | ast.Compare() | ast.BinOp():
                    return None
            child = parent
        return None

    def of_arms(self, statement: ast.If) -> bool | None:
        """The truth of a condition for which its statement does not fail."""
        if fails(statement.body):
            return False
        if fails(statement.orelse):
            return True
        rest = self.source.after(statement)
        is_left = isinstance(statement.body[-1], (ast.Return, ast.Continue, ast.Break))
        return True if is_left and not statement.orelse and fails(rest) else None

    def of_name(self, name: ast.Name) -> Wanted:
        """Truth wanted of a name by the first use that is checked, in its function."""
        scope = self.source.scope(name)
        if (scope, name.id) in self._names or len(self._names) == MOST_NAMES:
            return None
        self._names.add((scope, name.id))
        for node in ast.walk(scope):
            is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            if is_read and node.id == name.id and (wanted := self.of(node)) is not None:  # type: ignore[attr-defined]
                return wanted
        return None


def negate(wanted: Wanted) -> Wanted:
    if isinstance(wanted, Returned):
        return Returned(not wanted.is_negated)
    return None if wanted is None else not wanted


def fails(statements: list[ast.stmt]) -> bool:
    """A block raises, fails a test or ends the script with an error."""
    if not statements:
        return False
    for statement in statements:
        if isinstance(statement, ast.Raise):
            return True
    last = statements[-1]
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return False
    name = called_name(last.value)
    if name in EXITS:
        return any(
            not (isinstance(each, ast.Constant) and not each.value) for each in last.value.args
        )
    return name.endswith("fail")


def called_name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


# Numbers that are compared -----------------------------------------------------------------------

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}
RELATIONS: dict[str, type[ast.cmpop]] = {
    "less": ast.Lt, "lessequal": ast.LtE, "greater": ast.Gt, "greaterequal": ast.GtE,
    "array_less": ast.Lt, "notequal": ast.NotEq, "notalmostequal": ast.NotEq,
    **dict.fromkeys(
        ["is", "equal", "equals", "almostequal", "almost_equal", "approx_equal", "array_equal",
         "array_almost_equal", "close", "allclose", "isclose"], ast.Eq),
}  # fmt: skip
"""What functions of unittest, NumPy, torch and math ask of two numbers, by their names without
`assert`.
"""


def passing_number(
    frame: FrameType, source: SyntaxTree, node: ast.expr, given: Number
) -> Number | None:
    """A number that a check compares, in the same line or by a name, with one that is known: itself
    or, as of those that are right of all, a quotient.
    """
    whole, divisor = quotient_of(frame, source, node)
    for compared in [whole, *reads_of_name(source, whole), *reads_of_name(source, node)]:
        part, by = quotient_of(frame, source, compared)
        comparison = comparison_of(source, part)
        other = None if comparison is None else number_in(frame, source, comparison[1])
        if comparison is None or other is None:
            continue
        number = satisfying(comparison[0], other * divisor * by, given)
        return None if number == given else number
    return None


def quotient_of(frame: FrameType, source: SyntaxTree, node: ast.expr) -> tuple[ast.expr, Number]:
    """The expression that divides this one by a known number above zero, and the number; else the
    expression itself, and 1.
    """
    match source.parents.get(node):
        case ast.BinOp(op=ast.Div(), left=left, right=right) as whole if left is node:
            number = number_in(frame, source, right)
            if number is not None and number > 0:
                return whole, number
    return node, 1


def comparison_of(
    source: SyntaxTree, compared: ast.expr
) -> tuple[type[ast.cmpop], ast.expr] | None:
    """How a check compares a number, and with what."""
    match source.parents.get(compared):
        case ast.Compare(left=left, ops=[op], comparators=[right]) as whole:
            operator: type[ast.cmpop] | None = type(op)
        case ast.Call(args=[left, right, *_]) as whole:
            operator = RELATIONS.get(called_name(whole).removeprefix("assert").strip("_").lower())
        case _:
            return None
    is_asserted = isinstance(whole, ast.Call) and called_name(whole).startswith("assert")
    wanted = True if is_asserted else Checks(source).of(whole)
    if operator is None or not isinstance(wanted, bool) or compared not in (left, right):
        return None
    if compared is right:
        operator = MIRRORED.get(operator, operator)
    other = right if compared is left else left
    return operator if wanted else OPPOSITE.get(operator, operator), other


def reads_of_name(source: SyntaxTree, node: ast.expr) -> list[ast.expr]:
    """Expressions in which the name is read that an expression is assigned to."""
    match source.parents.get(node):
        case ast.Assign(targets=[ast.Name(id=name) as target]):
            return [
                each
                for each in ast.walk(source.scope(target))
                if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
            ]
    return []


def number_in(frame: FrameType, source: SyntaxTree, node: ast.expr) -> Number | None:
    """A literal, or a name's number. Asking a frame for its locals would keep them alive."""
    value: Any = None
    match node:
        case ast.Constant(value=value):
            pass
        case ast.Name(id=name):
            given = source.value_of(source.scope(node), name)
            value = frame.f_globals.get(name) if given is None else given.value
        case ast.Call(args=[first, *_]) if called_name(node) in ("approx", "tensor", "array"):
            return number_in(frame, source, first)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as positive)):
            value = -positive
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def satisfying(operator: type[ast.cmpop], other: Number, given: Number) -> Number:
    """The number given where it is as compared, else one that is."""
    if operator is ast.Eq:
        return other
    if operator is ast.NotEq and given == other:
        return other + 1
    is_below, is_above = given < other, given > other
    if operator in (ast.Lt, ast.LtE) and not is_below:
        return other / 2 if other > 0 else other * 2 - (not other)
    if operator in (ast.Gt, ast.GtE) and not is_above:
        return other * 2 + (not other) if other >= 0 else other / 2
    return given
