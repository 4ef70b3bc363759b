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
        own = comma.with_changes(whitespace_after=call.whitespace_before_args)
        inner = args[-1].comma if args and isinstance(args[-1].comma, cst.Comma) else own
        return call.with_changes(
            args=[*args, last.with_changes(comma=inner), added.with_changes(comma=last.comma)]
        )
    return call.with_changes(args=[*args, last.with_changes(comma=comma), added])


def first_line(module: cst.Module, node: cst.CSTNode) -> str:
    """Text of a statement's first line, as a trace has it."""
    code = module.code_for_node(node)
    lines = (line.strip() for line in code.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def imported_modules(module: cst.Module) -> dict[str, str]:
    """Modules that the file's own statements import, and the names they have in it."""
    names: dict[str, str] = {}
    for statement in module.body:
        small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
        for each in small:
            for alias in each.names if isinstance(each, cst.Import) else ():
                name = dotted(alias.name)
                own = "" if alias.asname is None else dotted_alias(alias.asname)
                names[name.partition(".")[0] if not own else name] = own or name.partition(".")[0]
    return names


def names_assigned(module: cst.Module) -> frozenset[str]:
    """Names that statements outside functions and classes assign, and those of both."""
    definition = m.FunctionDef() | m.ClassDef()
    own = m.findall(module, definition)
    targets = [
        target
        for each in module.body
        if not m.matches(each, definition)
        for target in m.findall(each, m.AssignTarget(m.Name()))
    ]
    return frozenset(
        [each.target.value for each in targets if isinstance(each, cst.AssignTarget)
         and isinstance(each.target, cst.Name)]
        + [each.name.value for each in own if isinstance(each, cst.FunctionDef | cst.ClassDef)]
    )  # fmt: skip


def dotted_alias(alias: cst.AsName) -> str:
    """Name behind `as`."""
    return alias.name.value if isinstance(alias.name, cst.Name) else ""


def imports(module: cst.Module, package: str) -> bool:
    """Whether the file imports a package or something of it, in any form."""
    froms = m.findall(module, m.ImportFrom())
    names = {dotted(each.module) for each in froms if isinstance(each, cst.ImportFrom)
             and each.module is not None}  # fmt: skip
    return any(name.split(".")[0] == package for name in (*names, *imported_modules(module)))


def with_statements(module: cst.Module, statements: Iterable[str]) -> cst.Module:
    """The module with more statements behind its first imports; those it has are left out."""
    body = list(module.body)
    has = {module.code_for_node(each).strip() for each in body}
    has |= {f"import {name}" for name, alias in imported_modules(module).items() if name == alias}
    added = [cst.parse_statement(text) for text in statements if text not in has]
    importing = m.Import() | m.ImportFrom()
    end = 0
    for place, statement in enumerate(body):
        if m.matches(statement, m.SimpleStatementLine(body=[m.AtLeastN(importing, n=1)])):
            end = place + 1
        elif place and not m.matches(statement, m.SimpleStatementLine(body=[m.Expr()])):
            break
    return module.with_changes(body=[*body[:end], *added, *body[end:]])
