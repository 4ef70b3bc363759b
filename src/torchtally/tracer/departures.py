"""Loops and functions that a script leaves because of a value that does not exist.

Which statements a value decides is told from the source, as in `reads.py`; whether one of them is
taken, by Python itself: from the read on, the frame that read is traced (`sys.settrace`) until the
statements are passed. Nothing is traced where no statement leaves anything, or under a debugger.
"""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from torchtally.tracer.checks import called_name, fails
from torchtally.tracer.reads import SyntaxTree, expression_in

Exit = ast.If | ast.While
Loop = ast.For | ast.AsyncFor | ast.While
Left = Callable[[FrameType, Exit, int], None]
"""Told of the frame, the statement, and in which round of it."""

JUDGES = frozenset(["step", "check", "should_stop"])
"""Methods that make their object know whether to go on."""
MOST_EVENTS = 5000
"""Lines that are traced from one read on."""


class Departures:
    """Watches what becomes of placeholders."""

    def __init__(self) -> None:
        self._rounds: dict[Exit, tuple[int, int]] = {}
        """By statement: the frame, and how often it was decided there."""
        self._exits: dict[tuple[int, int, bool], tuple[dict[Exit, Loop | None], CodeType]] = {}
        """By the id of code, which is kept: Python hashes code by all that is in it."""

    def watch(self, frame: FrameType, left: Left, *, is_own: bool) -> None:
        """A frame has read a placeholder; `left` is told of a statement that leaves because of it.

        In libraries' functions a return is no departure: they return early all the time.
        """
        exits = self._exits_behind(frame.f_code, frame.f_lasti, is_own)
        if not exits or sys.gettrace() is not None:
            return

        def decided(at: FrameType, statement: Exit, *, has_left: bool) -> None:
            before, rounds = self._rounds.get(statement, (0, 0))
            rounds = rounds + 1 if before == id(at) else 1
            self._rounds[statement] = id(at), rounds
            if has_left:
                del self._rounds[statement]
                left(at, statement, rounds)

        frame.f_trace = FrameWatch(exits, frame.f_lineno, decided).event
        sys.settrace(ignore_call)

    def _exits_behind(
        self, code: CodeType, instruction: int, is_own: bool
    ) -> dict[Exit, Loop | None]:
        key = id(code), instruction, is_own
        if key not in self._exits:
            self._exits[key] = exits_behind(code, instruction, is_own), code
        return self._exits[key][0]


def ignore_call(frame: FrameType, kind: str, argument: Any) -> None:
    """Functions called meanwhile are not traced."""


class FrameWatch:
    """Follows one frame past the statements that a value decides."""

    def __init__(self, exits: dict[Exit, Loop | None], line: int, decided: Any) -> None:
        self._left_over = dict(exits)
        self._decided = decided
        self._events = 0
        self._pending = self._at(line)

    def _at(self, line: int) -> Exit | None:
        return next((each for each in self._left_over if line in lines_of_test(each)), None)

    def event(self, frame: FrameType, kind: str, argument: Any) -> Any:
        """The next of the frame: each is a call of Python's, so what is asked first is cheap."""
        self._events += 1
        pending, line = self._pending, frame.f_lineno
        if pending is not None and not (kind == "line" and line in lines_of_test(pending)):
            has_left = leaves(pending, self._left_over.pop(pending), kind, line)
            self._pending = None
            self._decided(frame, pending, has_left=has_left)
            if has_left:
                return self._stop(frame)
        if kind == "return" or not self._left_over or self._events > MOST_EVENTS:
            return self._stop(frame)
        if kind == "line":
            self._pending = self._at(line) or self._pending
        return self.event

    def _stop(self, frame: FrameType) -> None:
        sys.settrace(None)
        frame.f_trace = None


@lru_cache(maxsize=4096)
def lines_of_test(statement: Exit) -> range:
    return range(statement.lineno, (statement.test.end_lineno or statement.lineno) + 1)


@lru_cache(maxsize=4096)
def lines_of(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def leaves(statement: Exit, loop: Loop | None, kind: str, line: int) -> bool:
    """What happens next, an event at a line, means that the statement left something."""
    if isinstance(statement, ast.While):
        is_inside = any(line in lines_of(each) for each in statement.body)
        return kind == "return" or (kind == "line" and not is_inside)
    for arm in filter(leaving, (statement.body, statement.orelse)):
        if arm[0].lineno not in lines_of_test(statement):
            if kind == "line" and line in lines_of(arm[0]):
                return True
            continue
        # On the line of the condition: what follows tells.
        match leaving(arm):
            case ast.Break():
                is_outside = loop is not None and line not in lines_of(loop)
                if kind == "return" or (kind == "line" and is_outside):
                    return True
            case ast.Return():
                if kind == "return" and loop is not None:
                    return True
            case _:
                if kind == "exception":
                    return True
    return False


def leaving(arm: list[ast.stmt]) -> ast.stmt | None:
    """The statement of a block that leaves the loop, the function or the script."""
    for statement in arm:
        if isinstance(statement, (ast.Break, ast.Return, ast.Raise)):
            return statement
    return arm[-1] if fails(arm) else None


# Which statements a value decides ----------------------------------------------------------------


def exits_behind(code: CodeType, instruction: int, is_own: bool) -> dict[Exit, Loop | None]:
    """Statements that may leave by the value read there, each with the loop around it."""
    found = expression_in(code, instruction)
    if found is None:
        return {}
    source, node = found
    exits = {}
    for statement in decided_by(source, node):
        loop = loop_around(source, statement)
        arms = (statement.body, getattr(statement, "orelse", []))
        ends = [each for each in map(leaving, arms) if each is not None]
        if isinstance(statement, ast.While) or any(
            not isinstance(end, ast.Return) or (is_own and (loop is not None or is_bare(end)))
            for end in ends
        ):
            exits[statement] = loop
    return exits


def is_bare(statement: ast.Return) -> bool:
    return statement.value is None


def loop_around(source: SyntaxTree, statement: ast.stmt) -> Loop | None:
    node: ast.AST = statement
    while (parent := source.parents.get(node)) is not None:
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and node in parent.body:
            return parent
        node = parent
    return None


def decided_by(source: SyntaxTree, node: ast.expr) -> list[Exit]:
    """Conditions that a value goes into: itself, by names, or by names that are given another value
    where it decides (`waited += 1`).
    """
    scope = source.scope(node)
    conditions = [each for each in ast.walk(scope) if isinstance(each, (ast.If, ast.While))]
    names = set(targets_of(source, node))
    decided: dict[Exit, None] = {}
    for _ in range(len(conditions) + 1):
        before = len(decided), len(names)
        for statement in conditions:
            if node_within(source, node, statement.test) or names & names_in(statement.test):
                decided[statement] = None
                for arm in (statement.body, statement.orelse):
                    if isinstance(statement, ast.If):
                        names |= {name for part in arm for name in names_assigned(part)}
        for each in ast.walk(scope):
            if isinstance(each, ast.Assign) and names & names_in(each.value):
                names |= set(names_assigned(each))
        if (len(decided), len(names)) == before:
            break
    return list(decided)


def node_within(source: SyntaxTree, node: ast.AST | None, outer: ast.expr) -> bool:
    while node is not None and node is not outer:
        node = source.parents.get(node)
    return node is outer


def targets_of(source: SyntaxTree, node: ast.AST) -> Iterator[str]:
    """Names that get a value, or are objects that judge by it."""
    while (parent := source.parents.get(node)) is not None:
        match parent:
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                yield from names_assigned(parent)
            case ast.NamedExpr(target=target):
                yield target.id
            case ast.Call(func=ast.Name(id=name)) if node is not parent.func:
                yield name  # `stopper(loss)`, and then `if stopper.stop`
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if (
                node is not parent.func and called_name(parent) in JUDGES
            ):
                yield name
        if isinstance(parent, ast.stmt):
            return
        node = parent


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def names_assigned(statement: ast.AST) -> Iterable[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
