"""Attention by one kernel, in place of its products and softmax written out."""

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from torchtally.fixes.fix import FileEvidence, ValueChange, fix
from torchtally.fixes.syntax import dotted, last_name, with_statements

SIMPLE = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])
SOFTMAX = ("torch.softmax", *(f"{name}.softmax" for name in ("F", "nn.functional")))
INFINITE = ('float("-inf")', '-float("inf")', "-torch.inf", "-math.inf")


def _assigned(statement: cst.CSTNode) -> tuple[str, cst.BaseExpression] | None:
    """Name and value of a statement `name = value`."""
    if not m.matches(statement, SIMPLE):
        return None
    line = cst.ensure_type(statement, cst.SimpleStatementLine)
    assign = cst.ensure_type(line.body[0], cst.Assign)
    return cst.ensure_type(assign.targets[0].target, cst.Name).value, assign.value


def _product(value: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Factors of `a @ b`, torch.matmul(a, b)."""
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.MatrixMultiply):
        return value.left, value.right
    is_call = isinstance(value, cst.Call) and dotted(value.func) == "torch.matmul"
    if isinstance(value, cst.Call) and is_call and len(value.args) == 2:
        return value.args[0].value, value.args[1].value
    return None


def _transposed(value: cst.BaseExpression, code: cst.Module) -> cst.BaseExpression | None:
    """k of k.transpose(-2, -1), k.mT."""
    if isinstance(value, cst.Attribute) and value.attr.value == "mT":
        return value.value
    is_call = isinstance(value, cst.Call) and last_attribute(value.func) == "transpose"
    if not isinstance(value, cst.Call) or not is_call or not isinstance(value.func, cst.Attribute):
        return None
    places = [code.code_for_node(arg.value) for arg in value.args]
    return value.func.value if sorted(places) == ["-1", "-2"] else None


def last_attribute(func: cst.BaseExpression) -> str:
    """Name of a method, of whatever it is called on."""
    return func.attr.value if isinstance(func, cst.Attribute) else last_name(func)


class _Attention(cst.CSTTransformer):
    """Rows of statements: scores, an optional mask, softmax, and the sum of values."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.module = module
        self.functions: list[cst.FunctionDef] = []
        self.is_changed = False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.functions.append(node)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        self.functions.pop()
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body = list(updated_node.body)
        for start in range(len(body)):
            for count in (3, 4):
                call = self.call_of(body[start : start + count])
                if call is None or self.is_read(body[start], body[start + count :], original_node):
                    continue
                self.is_changed = True
                last = cst.ensure_type(body[start + count - 1], cst.SimpleStatementLine)
                assign = cst.ensure_type(last.body[0], cst.Assign)
                changed = last.with_changes(body=[assign.with_changes(value=call)])
                body[start : start + count] = [changed]
                return updated_node.with_changes(body=body)
        return updated_node

    def is_read(
        self, first: cst.CSTNode, rest: Sequence[cst.CSTNode], block: cst.IndentedBlock
    ) -> bool:
        """Whether the scores are used afterwards, or named outside of their block."""
        assigned = _assigned(first)
        name = m.Name("" if assigned is None else assigned[0])
        outside = len(m.findall(self.functions[0], name)) if self.functions else 0
        return any(m.findall(each, name) for each in rest) or (
            outside > len(m.findall(block, name))
        )

    def call_of(self, statements: Sequence[cst.CSTNode]) -> cst.BaseExpression | None:
        """The one call that they are; None for other statements."""
        pairs = [_assigned(each) for each in statements]
        if len(pairs) < 3 or None in pairs:
            return None
        names, values = zip(*(pair for pair in pairs if pair is not None), strict=True)
        if len(set(names[:-1])) != 1:
            return None
        scores, *masks, softmax, summed = values
        query_key_scale = self.scores(scores)
        weights_value = _product(summed)
        if query_key_scale is None or weights_value is None:
            return None
        if dotted(weights_value[0]) != names[0] or not self.is_softmax(softmax, names[0]):
            return None
        mask = self.mask(masks[0], names[0]) if masks else ""
        if mask is None:
            return None
        query, key, scale = query_key_scale
        value = self.module.code_for_node(weights_value[1])
        words = [query, key, value, *([f"attn_mask={mask}"] if mask else []), f"scale={scale}"]
        call = f"torch.nn.functional.scaled_dot_product_attention({', '.join(words)})"
        return cst.parse_expression(call)

    def scores(self, value: cst.BaseExpression) -> tuple[str, str, str] | None:
        """Query, key and scale of (q @ k.transpose(-2, -1)) * scale."""
        code = self.module.code_for_node
        scale = "1.0"
        if _product(value) is None and isinstance(value, cst.BinaryOperation):
            if isinstance(value.operator, cst.Multiply):
                scale = code(value.right)
            elif isinstance(value.operator, cst.Divide):
                scale = f"1.0 / ({code(value.right)})"
            else:
                return None
            value = value.left
        product = _product(value)
        key = None if product is None else _transposed(product[1], self.module)
        if product is None or key is None:
            return None
        return code(product[0]), code(key), scale

    def is_softmax(self, value: cst.BaseExpression, name: str) -> bool:
        """Whether it is the softmax of a name over the last dimension, in its own dtype."""
        words = self.module.code_for_node(value).replace(" ", "").replace("dim=", "")
        return words in (f"{name}.softmax(-1)", *(f"{each}({name},-1)" for each in SOFTMAX))

    def mask(self, value: cst.BaseExpression, name: str) -> str | None:
        """Mask of places to attend to, of name.masked_fill(mask == 0, -inf); None of others."""
        if not isinstance(value, cst.Call) or dotted(value.func) != f"{name}.masked_fill":
            return None
        if len(value.args) != 2:
            return None
        where, filled = (self.module.code_for_node(arg.value) for arg in value.args)
        if filled.replace("'", '"') not in INFINITE:
            return None
        is_zero = where.endswith(" == 0")
        return f"{where.removesuffix(' == 0')} != 0" if is_zero else f"~({where})"


@fix(
    "fused attention", "attend by one kernel: scaled_dot_product_attention", ValueChange.ROUNDED,
    "scores, softmax and sum of attention in statements behind each other, without dropout",
)  # fmt: skip
def attention(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Statements of attention as one call."""
    written = _Attention(module)
    changed = module.visit(written)
    return with_statements(changed, ("import torch",)) if written.is_changed else module
