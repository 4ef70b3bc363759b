"""Reads how long a script trains from the loops around the optimizer's step.

A bound is an expression (`range(args.steps)`, `iter_num > max_iters`) of names, attributes and
numbers, evaluated in the frame that runs it; what calls anything else is unknown.
"""

import ast
import inspect
import linecache
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from types import FrameType
from typing import Any

from msgspec.structs import replace

from torchtally.trace.loop import Recurring, TrainingLoop
from torchtally.tracer.source import Code, classify_path
from torchtally.tracer.texts import shown_file

ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
BEYOND = (ast.Gt, ast.GtE, ast.Eq)
"""Comparisons by which a loop without a bound is left."""


def training_loop(frame: FrameType | None) -> TrainingLoop | None:
    """The loops of the script above a frame; None where there are none."""
    steps: int | None = 1
    steps_of_turn: Fraction | None = Fraction(1)
    heads: list[str] = []
    recurring: list[Recurring] = []
    while frame is not None:
        if classify_path(frame.f_code.co_filename) is Code.OWN:
            for loop in enclosing_loops(frame):
                turns = turns_of(loop, frame)
                inner = [*blocks_every(loop, frame), *(beside(loop, frame) if heads else ())]
                whole = turns
                for test, every in steps_every(loop, frame):
                    turns = None if turns is None else turns // every
                    steps_of_turn = None if steps_of_turn is None else steps_of_turn / every
                    heads.insert(0, f"if {ast.unparse(test)}")
                steps = None if steps is None or turns is None else steps * turns
                heads.insert(0, head_of(loop))
                if steps_of_turn is not None:
                    recurring += [in_steps(block, steps_of_turn) for block in inner]
                    steps_of_turn = None if whole is None else steps_of_turn * whole
            forget_locals(frame)
        frame = frame.f_back
    return TrainingLoop(steps, "; ".join(heads), tuple(recurring)) if heads else None


def in_steps(block: Recurring, steps_of_turn: Fraction) -> Recurring:
    """A block of a loop whose turns have so many steps, with its interval in steps."""
    return replace(block, every=max(round(block.every * steps_of_turn), 1))


OWN_REFERENCES = 3
"""To the dictionary of a function's variables: the frame's, a name's and an argument's."""


def forget_locals(frame: FrameType) -> None:
    """Let go of a function's variables, unless somebody else has their dictionary.

    Up to Python 3.12 a frame keeps the copy that was read, and so would tensors live as long as
    the function runs.
    """
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables = frame.f_locals
        if sys.getrefcount(variables) <= OWN_REFERENCES:
            variables.clear()


def enclosing_loops(frame: FrameType) -> Iterator[ast.For | ast.While]:
    """Loops of the frame's own function around its line, innermost first."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    line = frame.f_lineno
    first = frame.f_code.co_firstlineno
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While)
        and first <= node.lineno
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
    ]
    yield from sorted(around, key=lambda node: node.lineno, reverse=True)


def head_of(loop: ast.For | ast.While) -> str:
    """The loop's first line, without its body."""
    if isinstance(loop, ast.For):
        return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
    return f"while {ast.unparse(loop.test)}"


def turns_of(loop: ast.For | ast.While, frame: FrameType) -> int | None:
    """How often the loop runs; None where its source does not say so."""
    if isinstance(loop, ast.For):
        return length_of(loop.iter, frame)
    tests = [loop.test] if isinstance(loop.test, ast.Compare) else list(tests_of_breaks(loop))
    for test in tests:
        for compare in [node for node in ast.walk(test) if isinstance(node, ast.Compare)]:
            bound = value_of(compare.comparators[0], frame)
            is_count = isinstance(value_of(compare.left, frame), int)
            if isinstance(bound, int) and is_count and bound > 1:
                # `while True: ...; n += 1; if n > most: break` takes one step more.
                return bound + isinstance(compare.ops[0], ast.LtE | ast.Gt)
    return None


def tests_of_breaks(loop: ast.While) -> Iterator[ast.expr]:
    """Conditions on which the loop is left."""
    for node in ast.walk(loop):
        if isinstance(node, ast.If) and any(isinstance(each, ast.Break) for each in node.body):
            is_beyond = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], BEYOND)
            if is_beyond:
                yield node.test


def length_of(node: ast.expr, frame: FrameType) -> int | None:
    """How many items an iterable gives: a range, or what has a length and a name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id in ("enumerate", "tqdm", "trange") and node.args:
            is_count = node.func.id == "trange"
            return value_of(node.args[0], frame) if is_count else length_of(node.args[0], frame)
        if node.func.id == "range":
            bounds = [value_of(each, frame) for each in node.args]
            numbers = [bound for bound in bounds if isinstance(bound, int)]
            return len(range(*numbers)) if len(numbers) == len(bounds) else None
    value = value_of(node, frame)
    try:
        return None if value is None else len(value)
    except Exception:  # of the script's own __len__, which it may never call itself
        return None


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Value of names, attributes of plain data, numbers and sums of them; None of all else."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return frame.f_locals.get(name, frame.f_globals.get(name))
        case ast.Attribute(value=inner, attr=name):
            # Without __getattr__ or a property of the script's own: nothing of it is run.
            held = value_of(inner, frame)
            return getattr(held, "__dict__", {}).get(name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            held = value_of(inner, frame)
            return held.get(key) if type(held) is dict else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            numbers = value_of(left, frame), value_of(right, frame)
            if all(isinstance(number, int) for number in numbers) and numbers[1]:
                return ARITHMETIC[type(op)](*numbers)
    return None


def remainders(test: ast.expr, frame: FrameType) -> Iterator[int]:
    """Intervals in a condition: `step % every == 0`, `(step + 1) % every == 0`."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.BinOp):
            every = value_of(node.left.right, frame)
            is_rest = isinstance(node.left.op, ast.Mod) and isinstance(node.ops[0], ast.Eq)
            if is_rest and isinstance(every, int) and every > 0:
                yield every


def conditions(loop: ast.For | ast.While) -> Iterator[ast.If]:
    """The loop's own conditions, not those within another loop in it."""
    waiting: list[ast.stmt] = list(loop.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.If):
            yield node
            waiting += [*node.body, *node.orelse]
        elif isinstance(node, ast.With | ast.Try):
            waiting += node.body


def steps_every(loop: ast.For | ast.While, frame: FrameType) -> Iterator[tuple[ast.expr, int]]:
    """Conditions around the frame's line: of accumulated gradients, one step in so many turns."""
    for node in conditions(loop):
        if node.body[0].lineno <= frame.f_lineno <= (node.body[-1].end_lineno or 0):
            every = math.lcm(*remainders(node.test, frame))
            if every > 1:
                yield node.test, every


def blocks_every(loop: ast.For | ast.While, frame: FrameType) -> Iterator[Recurring]:
    """Blocks that run in one of so many turns."""
    for node in conditions(loop):
        every = math.lcm(*remainders(node.test, frame))
        last = node.body[-1].end_lineno or 0
        if every == 1 or node.body[0].lineno <= frame.f_lineno <= last:
            continue
        yield recurring_of(node, frame, ast.unparse(node.test), every)


def beside(loop: ast.For | ast.While, frame: FrameType) -> Iterator[Recurring]:
    """Statements of a loop that run once a turn, beside the one of the inner loop."""
    for node in loop.body:
        is_around = node.lineno <= frame.f_lineno <= (node.end_lineno or 0)
        if not is_around and not isinstance(node, ast.If):
            yield recurring_of(node, frame, head_of(loop), 1)


def recurring_of(node: ast.stmt, frame: FrameType, text: str, every: int) -> Recurring:
    """A statement that runs in one of so many turns."""
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return Recurring(
        os.path.abspath(shown_file(frame.f_code.co_filename)),
        node.lineno,
        node.end_lineno or node.lineno,
        text,
        every,
        any("save" in ast.unparse(function).rpartition(".")[2] for function in calls),
    )
