"""What rewrites ask of Python's syntax."""

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m


def dotted(node: cst.BaseExpression) -> str:
    """Dotted text of a name, torch.optim.AdamW; "" of any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr.value}"
    return ""


def last_name(node: cst.BaseExpression) -> str:
    """Last part of a name: AdamW of torch.optim.AdamW."""
    return dotted(node).rpartition(".")[2]


def has_keyword(call: cst.Call, *names: str) -> bool:
    """Whether the call says one of these, or may, by `**options`."""
    return any(
        arg.star == "**" or (arg.keyword is not None and arg.keyword.value in names)
        for arg in call.args
    )


def with_keyword(call: cst.Call, name: str, value: str) -> cst.Call:
    """The call with one more keyword."""
    added = cst.Arg(
        cst.parse_expression(value), cst.Name(name), equal=cst.AssignEqual(
            cst.SimpleWhitespace(""), cst.SimpleWhitespace("")
        ),
    )  # fmt: skip
    *args, last = call.args or (None,)
    if last is None:
        return call.with_changes(args=[added])
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(last.comma, cst.Comma):  # one argument a line, and a comma behind the last
        inner = args[-1].comma if args and isinstance(args[-1].comma, cst.Comma) else comma
        return call.with_changes(
            args=[*args, last.with_changes(comma=inner), added.with_changes(comma=last.comma)]
        )
    return call.with_changes(args=[*args, last.with_changes(comma=comma), added])


def first_line(module: cst.Module, node: cst.CSTNode) -> str:
    """Text of a statement's first line, as a trace has it."""
    code = module.code_for_node(node)
    lines = (line.strip() for line in code.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def with_statements(module: cst.Module, statements: Iterable[str]) -> cst.Module:
    """The module with more statements behind its first imports; those it has are left out."""
    body = list(module.body)
    has = {module.code_for_node(each).strip() for each in body}
    added = [cst.parse_statement(text) for text in statements if text not in has]
    imports = m.Import() | m.ImportFrom()
    end = 0
    for place, statement in enumerate(body):
        if m.matches(statement, m.SimpleStatementLine(body=[m.AtLeastN(imports, n=1)])):
            end = place + 1
        elif place and not m.matches(statement, m.SimpleStatementLine(body=[m.Expr()])):
            break
    return module.with_changes(body=[*body[:end], *added, *body[end:]])
