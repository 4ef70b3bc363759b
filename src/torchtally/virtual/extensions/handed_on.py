"""A Triton kernel of the script's in compiled code: inductor hands its source on."""

import ast
from typing import Any

from torchtally.virtual.extensions.accesses import Accesses, accesses_of, in_source, nodes


class HandedOn:
    """The kernel's last function of that name, with those that it calls, as inductor writes them
    (`define_user_defined_triton_kernel`, torch/_inductor/codegen/wrapper.py).
    """

    def __init__(self, name: str, source: str) -> None:
        tree = ast.parse(source)
        functions = [each for each in nodes(tree, ast.FunctionDef) if each.name == name]
        self.accesses = accesses_of(functions[-1], in_source(tree)) if functions else Accesses()
        self.constants = constants_in(tree)
        """What it is compiled for."""


def constants_in(tree: ast.Module) -> dict[str, Any]:
    """The constants of `triton_meta`, and none of another form of it."""
    for keyword in nodes(tree, ast.keyword):
        if keyword.arg == "triton_meta" and isinstance(keyword.value, ast.Dict):
            entries = dict(zip(map(text_of, keyword.value.keys), keyword.value.values, strict=True))
            if "constants" in entries:
                constants = ast.literal_eval(entries["constants"])
                return {name: value for name, value in constants.items() if isinstance(name, str)}
    return {}


def text_of(key: ast.expr | None) -> Any:
    return key.value if isinstance(key, ast.Constant) else None
