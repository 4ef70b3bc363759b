"""What becomes of a value that a script reads: a condition, a printed line, or a number.

Told from the source of the line that reads: the expression at the instruction (its position is in
the code object), what stands around it, and the uses of a name that it is assigned to. Known
limitation: a value that a function returns, or that goes into an attribute, is a number.
"""

import ast
import dis
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

from torchtally.trace import Use

PRINTERS = frozenset(
    """
    print format str repr write echo log info debug warning warn error critical set_postfix
    set_postfix_str set_description add_scalar
    """.split()
)
"""Names of functions and methods that show what they are given."""
ARITHMETIC = frozenset(
    """
    float int bool round abs min max sum len sqrt exp pow divmod isnan isinf isfinite
    """.split()
)
"""Functions whose result goes on being the value."""
MATHEMATICS = frozenset(["math", "np", "numpy", "torch"])
"""Modules whose functions do."""
NO_MORE_THAN = 20
"""Assignments that are followed from one read."""

Position = tuple[int | None, int | None, int | None, int | None]


def use_of(code: CodeType, instruction: int) -> Use:
    """What the value is for that the code reads at an instruction."""
    found = expression_in(code, instruction)
    return Use.NUMBER if found is None else Consumers(found[0]).of(found[1])


@lru_cache(maxsize=1024)
def expression_in(code: CodeType, instruction: int) -> "tuple[SyntaxTree, ast.expr] | None":
    """The expression that code evaluates at an instruction; None without source."""
    positions = list(code.co_positions())
    position = positions[instruction // 2] if instruction // 2 < len(positions) else None
    source = parse_file(code.co_filename)
    if position is None or source is None:
        return None
    jumps = [
        each.offset
        for each in dis.get_instructions(code)
        if "JUMP" in each.opname and positions[each.offset // 2] == position
    ]
    node = source.at(position, jumps.index(instruction) if instruction in jumps else 0)
    return None if node is None else (source, node)


def expression_at(frame: FrameType) -> "tuple[SyntaxTree, ast.expr] | None":
    """The expression that a frame is at."""
    return expression_in(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=16)
def parse_file(file: str) -> "SyntaxTree | None":
    """The syntax tree of a file; None where there is no source that parses."""
    text = "".join(linecache.getlines(file))
    try:
        return SyntaxTree(ast.parse(text)) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


class SyntaxTree:
    """A file's syntax tree, with the parent of each node and the expression at each position."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self._expressions: dict[Position, list[ast.expr]] = {}
        """Of a position mostly one. Python 3.11 asks for the truth of an operand that is no
        comparison at the position of the one before it that is, or of the statement.
        """
        for node in ast.walk(tree):  # outer nodes first, so that the innermost stays
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
            if isinstance(node, ast.expr):
                # `not x` asks x for its truth.
                is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
                self._expressions[place_of(node)] = list(operands_of(node)) if is_not else [node]
        for node in list(self.parents):
            if isinstance(node, (ast.If, ast.While, ast.Assert)):
                self._learn_operands(node)

    def _learn_operands(self, statement: ast.If | ast.While | ast.Assert) -> None:
        place = place_of(statement)
        self._expressions[place] = []
        for operand in operands_of(statement.test):
            if isinstance(operand, ast.Compare):
                place = place_of(operand)
                self._expressions[place] = []
            self._expressions[place].append(operand)

    def at(self, position: Position, turn: int = 0) -> ast.expr | None:
        """The expression there; of several the one whose turn it is."""
        nodes = self._expressions.get(position)
        return nodes[turn % len(nodes)] if nodes else None

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements behind one, in the same block."""
        for _, block in ast.iter_fields(self.parents[statement]):
            if isinstance(block, list) and statement in block:
                rest: list[ast.stmt] = block[block.index(statement) + 1 :]
                return rest
        return []

    def value_of(self, scope: ast.AST, name: str) -> ast.Constant | None:
        """The literal that a function assigns to a name, or has as its argument's default."""
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = [*scope.args.posonlyargs, *scope.args.args]
            defaults = zip(reversed(arguments), reversed(scope.args.defaults), strict=False)
            named = [*defaults, *zip(scope.args.kwonlyargs, scope.args.kw_defaults, strict=True)]
            for argument, default in named:
                if argument.arg == name and isinstance(default, ast.Constant):
                    return default
        for node in ast.walk(scope):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Constant() as value):
                    if target == name:
                        return value
        return None

    def scope(self, node: ast.AST) -> ast.AST:
        """The function around a node, or the module."""
        while node in self.parents and not isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        ):
            node = self.parents[node]
        return node


def place_of(node: ast.expr | ast.stmt) -> Position:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def operands_of(test: ast.expr) -> Iterator[ast.expr]:
    """Those of `and`, `or` and `not`, in order."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from operands_of(operand)
        case ast.BoolOp(values=operands):
            for operand in operands:
                yield from operands_of(operand)
        case _:
            yield test


class Consumers:
    """Follows one value through the expressions and names that it goes into."""

    def __init__(self, source: SyntaxTree) -> None:
        self.source = source
        self._names: set[tuple[ast.AST, str]] = set()

    def of(self, node: ast.expr) -> Use:
        """What the value of an expression is for."""
        child: ast.AST = node
        if is_printing(node):
            return Use.PRINT
        while (parent := self.source.parents.get(child)) is not None:
            use = use_within(child, parent)
            if use is not None:
                return use
            if isinstance(parent, ast.stmt):
                return self.of_targets(parent)
            if isinstance(parent, ast.NamedExpr):
                return max(self.of_name(parent.target), self.of(parent), key=URGENCY.index)
            child = parent
        return Use.NUMBER

    def of_targets(self, statement: ast.stmt) -> Use:
        """What the names are for that a statement assigns to."""
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            targets = [statement.target]
        else:
            return Use.NUMBER
        names = [
            node
            for target in targets
            for node in ast.walk(target)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        return max(map(self.of_name, names), key=URGENCY.index, default=Use.NUMBER)

    def of_name(self, name: ast.Name) -> Use:
        """The most that any use of a name comes to, in its function."""
        scope = self.source.scope(name)
        if (scope, name.id) in self._names or len(self._names) == NO_MORE_THAN:
            return Use.PRINT  # looked at already
        self._names.add((scope, name.id))
        uses = [
            self.of(node)
            for node in ast.walk(scope)
            if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
        ]
        return max(uses, key=URGENCY.index, default=Use.NUMBER)


URGENCY = (Use.PRINT, Use.NUMBER, Use.BRANCH)


def use_within(child: ast.AST, parent: ast.AST) -> Use | None:
    """What a value is for in the node around it; None where it goes on into the next one."""
    match parent:
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return Use.BRANCH if child is test else None
        case ast.comprehension(ifs=conditions):
            return Use.BRANCH if child in conditions else Use.NUMBER
        case ast.Match():
            return Use.BRANCH
        case ast.BoolOp(values=values):
            return Use.BRANCH if child is not values[-1] else None
        case ast.FormattedValue() | ast.JoinedStr():
            return Use.PRINT
        case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
            return Use.PRINT
        case ast.Call(func=function):
            return None if child is function else use_of_argument(parent)
        case _:
            return None


def use_of_argument(call: ast.Call) -> Use | None:
    """What a function does with its argument; None where its result is the value again."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") in MATHEMATICS:
        return None
    if name == "range":
        return Use.BRANCH
    if name in PRINTERS:
        return Use.PRINT
    return None if name in ARITHMETIC else Use.NUMBER


def is_printing(node: ast.expr) -> bool:
    """An expression that reads by printing: `print(t)` calls the tensor's `__repr__`."""
    if isinstance(node, (ast.FormattedValue, ast.JoinedStr)):
        return True
    return isinstance(node, ast.Call) and use_of_argument(node) is Use.PRINT
