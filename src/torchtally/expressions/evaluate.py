"""An expression evaluated by its syntax tree, so that each step of it is seen."""

import ast
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType, ModuleType
from typing import Any

import torch

from torchtally.errors import UsageError, did_you_mean
from torchtally.expressions.inputs import named_input
from torchtally.expressions.limits import (
    MOST_ITEMS,
    check_arithmetic,
    check_pieces,
    shorten,
    statements_of,
)
from torchtally.expressions.names import BUILTINS, MODULES, OF_EINOPS, REFUSED, of_einops, of_module
from torchtally.expressions.twins import (
    MOST_REAL_ELEMENTS,
    UNKNOWN,
    Twins,
    apart,
    run,
    tensors_of,
    together,
    values_of,
)
from torchtally.trace.strided import EvaluatedExpression, ExpressionStep, StepOrigin, StridedTensor

ALLOWED = (torch.Tensor, bool, int, float, complex, str, tuple, list, range, slice, torch.dtype,
           torch.memory_format, type(None), EllipsisType)  # fmt: skip
"""What a part of an expression may give."""
MOVES = frozenset(
    """
    [] bfloat16 bool cat clone concat concatenate contiguous double dstack flatten flip fliplr
    flipud float gather half hstack index_select int long masked_select ravel rearrange repeat
    repeat_interleave reshape reshape_as roll rot90 stack take take_along_dim tile to tril triu
    vstack
    """.split()
)
"""What gives other tensors' values: copied, where the result has memory of its own."""
OF_DEVICES = ("device", "out_device", "pin_memory")

BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.MatMult: operator.matmul, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FAILURES = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError,
            ArithmeticError, AssertionError, MemoryError)  # fmt: skip
"""Of torch, for what an expression asks of it. NotImplementedError is a RuntimeError."""


def evaluate(expression: str, inputs: Mapping[str, str] | None = None) -> EvaluatedExpression:
    """The steps of an expression that gives a tensor.

    `inputs` are tensors by name: "4x6:float32", numbered from 0, or an expression. Names may be set
    in the expression, too: "x = torch.ones(2, 3); x.T[1:]". Random numbers are those of seed 0.

    Raises UsageError for what is not an expression of tensors, or fails.
    """
    with (
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(action="ignore"),
    ):
        torch.manual_seed(0)
        evaluator = _Evaluator()
        try:
            for name, text in (inputs or {}).items():
                evaluator.add_input(name, text)
            return evaluator.evaluation(expression)
        except RecursionError:
            raise UsageError(
                "The expression is nested too deeply. Set names for parts of it."
            ) from None


class _Evaluator:
    def __init__(self) -> None:
        self.names: dict[str, Twins] = {}
        self.record = _Record()
        self.source = ""

    def add_input(self, name: str, text: str) -> None:
        """A tensor by its shape, or by an expression of its own."""
        _check_name(name)
        tensor = named_input(text, MOST_REAL_ELEMENTS)
        if tensor is None:
            self.names[name] = self.result(text)
        else:
            self.names[name] = Twins(tensor.to("meta"), UNKNOWN if tensor.is_meta else tensor)
            self.record.add(name, name, self.names[name])

    def evaluation(self, expression: str) -> EvaluatedExpression:
        """The steps, the last of which is the value of the expression."""
        result = self.result(expression)
        if not isinstance(result.meta, torch.Tensor):
            raise _no_tensor(expression, result.meta)
        self.record.end_with(expression, result)
        return EvaluatedExpression(expression, tuple(self.record.steps), values_of(result))

    def result(self, text: str) -> Twins:
        """The value of the last of some statements, each an expression or a name set to one."""
        self.source = text
        result = Twins(None, None)
        for statement in statements_of(text):
            match statement:
                case ast.Expr(value=value):
                    result = self.value(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    _check_name(name)
                    result = self.names[name] = self.value(value)
                case _:
                    raise self.refusal(statement)
        return result

    def code(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ast.unparse(node)

    def refusal(self, node: ast.AST) -> UsageError:
        """Error of syntax that is not understood."""
        return UsageError(
            f"{shorten(self.code(node))} cannot be used here. Tensor expressions consist of "
            "calls, methods, indices, numbers and operators: x.transpose(0, 1)[1:] + 2."
        )

    # Parts of an expression ------------------------------------------------------------------

    def value(self, node: ast.expr) -> Twins:
        """The value of a part of the expression. Every tensor that it gives is a step."""
        match node:
            case ast.Constant(value=value):
                return self.check(Twins(value, value), node)
            case ast.Name(id=name):
                return self.look_up(name)
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return together(tuple if isinstance(node, ast.Tuple) else list, self.items(items))
            case ast.Slice():
                return self.slice(node)
            case ast.Subscript(value=base, slice=index):
                operands = [self.value(base), self.value(index)]
                return self.apply(node, "[]", operator.getitem, operands, base)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.call(node)
            case _:
                return self.operation(node)

    def look_up(self, name: str) -> Twins:
        """The tensor of this name."""
        if name in self.names:
            return self.names[name]
        raise UsageError(
            f"{name!r} is not defined. {did_you_mean(name, [*self.names, *MODULES, *BUILTINS])} "
            f'A tensor of that name: --let "{name}=4x6:float32".'
        )

    def slice(self, node: ast.Slice) -> Twins:
        bounds = [
            Twins(None, None) if bound is None else self.value(bound)
            for bound in (node.lower, node.upper, node.step)
        ]
        return self.apply(node, "slice", lambda *values: slice(*values), bounds)

    def operation(self, node: ast.expr) -> Twins:
        """An operator between values."""
        match node:
            case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
                return self.apply(node, "", UNARY[type(op)], [self.value(operand)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
                one, other = self.value(left), self.value(right)
                check_arithmetic(op, one.meta, other.meta, self.code(node))
                return self.apply(node, "", BINARY[type(op)], [one, other])
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in COMPARED:
                operands = [self.value(left), self.value(right)]
                return self.apply(node, "", COMPARED[type(sign)], operands)
            case _:
                raise self.refusal(node)

    def items(self, nodes: Sequence[ast.expr]) -> list[Twins]:
        """The values of items or arguments; `*x` stands for all that x has."""
        twins: list[Twins] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                spread = self.value(node.value)
                check_pieces("list()", [spread.meta], {}, self.code(node))
                twins += apart(self.apply(node, "list()", list, [spread]))
            else:
                twins.append(self.value(node))
        return twins

    def module(self, node: ast.expr) -> ModuleType | None:
        """The module that a name or an attribute is, unless the name is set to a tensor."""
        if isinstance(node, ast.Name):
            return None if node.id in self.names else MODULES.get(node.id)
        if isinstance(node, ast.Attribute) and (module := self.module(node.value)) is not None:
            value = of_module(module, node.attr)
            return value if isinstance(value, ModuleType) else None
        return None

    def attribute(self, node: ast.Attribute) -> Twins:
        name = node.attr
        if (module := self.module(node.value)) is not None:
            value = of_module(module, name)
            return self.check(Twins(value, value), node)
        _check_attribute(name)
        return self.apply(
            node, name, operator.attrgetter(name), [self.value(node.value)], node.value
        )

    def call(self, node: ast.Call) -> Twins:
        name, called, base = self.function_of(node.func)
        given = [] if base is None else [self.value(base)]
        if given and not isinstance(given[0].meta, torch.Tensor | torch.Size):
            raise self.refusal(node.func)
        arguments = [*given, *self.items(node.args)]
        named = {key: value for keyword in node.keywords for key, value in self.keyword(keyword)}
        self.check_call(node, name, arguments, named)
        count, keys = len(arguments), list(named)

        def function(*values: Any) -> Any:
            return called(*values[:count], **dict(zip(keys, values[count:], strict=True)))

        return self.apply(node, name, function, [*arguments, *named.values()], base)

    def function_of(self, node: ast.expr) -> tuple[str, Callable[..., Any], ast.expr | None]:
        """The name of what is called, the function, and whose method it is."""
        match node:
            case ast.Name(id=name) if name in OF_EINOPS:
                return name, of_einops(name), None
            case ast.Name(id=name) if name in BUILTINS:
                return f"{name}()", BUILTINS[name], None
            case ast.Attribute(value=base, attr=name):
                if (module := self.module(base)) is None:
                    _check_attribute(name)
                    return name, _method(name), base
                function = of_module(module, name)
                if callable(function):
                    return name, function, None
        raise self.refusal(node)

    def keyword(self, node: ast.keyword) -> list[tuple[str, Twins]]:
        if node.arg is None or node.arg in OF_DEVICES:
            raise UsageError(
                f"{shorten(self.code(node))} cannot be used here: a layout does not depend on "
                "the device."
            )
        return [(node.arg, self.value(node.value))]

    def check_call(
        self, node: ast.Call, name: str, arguments: Sequence[Twins], named: Mapping[str, Twins]
    ) -> None:
        """Raises UsageError for a device, and for what would make too many tensors."""
        metas = [argument.meta for argument in arguments]
        if name == "to" and any(type(meta) in (str, int) for meta in metas):
            raise UsageError(
                f"{shorten(self.code(node))}: a layout does not depend on the device. Give a "
                "dtype: .to(torch.bfloat16)."
            )
        options = {key: twins.meta for key, twins in named.items()}
        check_pieces(name, metas, options, self.code(node))

    # Steps -----------------------------------------------------------------------------------

    def apply(
        self,
        node: ast.AST,
        name: str,
        function: Callable[..., Any],
        operands: Sequence[Twins],
        base: ast.expr | None = None,
    ) -> Twins:
        """The function of the operands. `name` is the function's, "[]" an index."""
        try:
            twins = run(name, function, operands)
        except FAILURES as error:
            message = str(error).strip() or type(error).__name__
            raise UsageError(f"{shorten(self.code(node))}: {message.splitlines()[0]}") from None
        self.check(twins, node)
        if isinstance(twins.meta, torch.Tensor):
            code = self.code(node)
            step = code if base is None else _behind(self.code(base), code)
            self.record.add(step, code, twins, operands, name)
        return twins

    def check(self, twins: Twins, node: ast.AST) -> Twins:
        """Raises UsageError for what is no strided tensor, number, text or list of them."""
        value, code = twins.meta, shorten(self.code(node))
        if not isinstance(value, ALLOWED):
            what = type(value).__name__
            raise UsageError(f"{code} evaluates to {what}, which is neither a tensor nor a number.")
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
            raise UsageError(f"{code} is sparse: it has no strides to draw.")
        if isinstance(value, str | tuple | list | range) and len(value) > MOST_ITEMS:
            raise UsageError(f"{code} has {len(value)} items, expected at most {MOST_ITEMS}.")
        return twins


class _Record:
    """The steps so far, and the storages of their tensors."""

    def __init__(self) -> None:
        self.steps: list[ExpressionStep] = []
        self.results: list[torch.Tensor] = []
        """Of each step. Kept alive, so that no storage has the identity of one that has gone."""
        self.storages: list[torch.UntypedStorage] = []

    def add(
        self,
        code: str,
        expression: str,
        twins: Twins,
        operands: Sequence[Twins] = (),
        name: str = "",
    ) -> None:
        """A step that gave a tensor."""
        known = len(self.storages)
        tensor = self.strided_tensor(twins)
        if any(operand.meta is twins.meta for operand in operands):
            origin = StepOrigin.IN_PLACE if name.endswith("_") else StepOrigin.ITSELF
        elif tensor.storage < known:
            origin = StepOrigin.VIEW
        else:
            has_given = any(tensors_of(operand.meta) for operand in operands)
            origin = StepOrigin.COPY if has_given and name in MOVES else StepOrigin.NEW
        self.steps.append(ExpressionStep(code, expression, tensor, origin))
        self.results.append(twins.meta)

    def end_with(self, expression: str, twins: Twins) -> None:
        """The result is the last step, also where it was made by an earlier one."""
        if not self.results or self.results[-1] is not twins.meta:
            self.add(expression, expression, twins, (twins,))

    def strided_tensor(self, twins: Twins) -> StridedTensor:
        tensor = twins.facts
        return StridedTensor(
            shape=tuple(tensor.shape),
            strides=tensor.stride(),
            offset=tensor.storage_offset(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            element_bytes=tensor.element_size(),
            storage=self._number(twins.meta.untyped_storage()),
            storage_bytes=tensor.untyped_storage().nbytes(),
        )

    def _number(self, storage: torch.UntypedStorage) -> int:
        for number, known in enumerate(self.storages):
            if known is storage:  # torch keeps one Python object for each storage
                return number
        self.storages.append(storage)
        return len(self.storages) - 1


def _method(name: str) -> Callable[..., Any]:
    """`operator.methodcaller` of arguments that are given later."""
    return lambda value, *arguments, **named: getattr(value, name)(*arguments, **named)


def _behind(base: str, code: str) -> str:
    """What a step adds to what it is of: ".transpose(0, 1)"."""
    return code[len(base) :].strip() if code.startswith(base) else code


def _check_attribute(name: str) -> None:
    if name.startswith("_") or name in REFUSED:
        raise UsageError(
            f".{name} cannot be used here: it leaves tensors, their device or their interface."
        )


def _check_name(name: str) -> None:
    if not name.isidentifier() or name.startswith("_") or name in {*MODULES, *BUILTINS}:
        raise UsageError(f"{shorten(name)!r} cannot be the name of a tensor. x, q or weight can.")


def _no_tensor(expression: str, value: Any) -> UsageError:
    code = shorten(expression)
    if tensors := tensors_of(value):
        return UsageError(f"{code} gives {len(tensors)} tensors. Take one of them: [0].")
    return UsageError(f"{code} gives {shorten(repr(value))}, which is not a tensor.")
