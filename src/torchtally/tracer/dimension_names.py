"""How a script names the dimensions of the tensor that a line makes: by jaxtyping or by einops.

x: Float[Tensor, "batch seq hidden"] = ...              the annotation of the name
return x @ w                                            the annotation of the function's result
y = reduce(x, "batch seq hidden -> batch seq", "sum")   the pattern's right side
"""

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache

from torchtally.tracer.reads import SyntaxTree, parse_file

JAXTYPING = re.compile(
    r"(Shaped|Bool|Key|Num|Real|Inexact|Integer|Float|BFloat|Complex|U?Int)(\d+\w*)?"
)
"""Its dtypes: https://docs.kidger.site/jaxtyping/api/array/."""
EINOPS = frozenset({"einsum", "rearrange", "reduce", "repeat"})
SIMPLE = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Return, ast.Expr)


def dimension_names(file: str, line: int) -> str:
    """The names, as the script writes them: "batch seq hidden"; "" where there are none."""
    return _names(file).get(line, "")


@lru_cache(maxsize=64)
def _names(file: str) -> dict[int, str]:
    """Names on every line of a file that names dimensions. A file that cannot is not parsed."""
    text = "".join(linecache.getlines(file))
    if "jaxtyping" not in text and "ein" not in text:
        return {}
    tree = parse_file(file)
    return {} if tree is None else dict(_named_lines(tree))


def _named_lines(tree: SyntaxTree) -> Iterator[tuple[int, str]]:
    for node in tree.parents:
        if isinstance(node, SIMPLE) and (names := _statement_names(node, tree)):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                yield line, names


def _statement_names(statement: ast.AST, tree: SyntaxTree) -> str:
    match statement:
        case ast.AnnAssign(annotation=annotation):
            return _annotated_dimensions(annotation)
        case ast.Return(value=value):
            function = tree.scope(statement)
            returns = getattr(function, "returns", None)
            return _annotated_dimensions(returns) or _pattern(value)
        case ast.Assign(value=value) | ast.Expr(value=value):
            return _pattern(value)
        case _:
            return ""


def _annotated_dimensions(annotation: ast.expr | None) -> str:
    """The last string of `Float[Tensor, "batch seq"]`."""
    match annotation:
        case ast.Subscript(
            value=ast.Name(id=dtype) | ast.Attribute(attr=dtype),
            slice=ast.Tuple(elts=[*_, ast.Constant(value=str(names))]),
        ) if JAXTYPING.fullmatch(dtype):
            return " ".join(names.split())
        case _:
            return ""


def _pattern(value: ast.expr | None) -> str:
    """The right side of the pattern of einops' functions, and of torch.einsum with an arrow."""
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in EINOPS:
            texts = [each.value for each in value.args if isinstance(each, ast.Constant)]
            patterns = [text for text in texts if isinstance(text, str) and "->" in text]
            return " ".join(patterns[0].partition("->")[2].split()) if patterns else ""
        case _:
            return ""
