"""The layers of the package, as a table, and the imports that break it.

ARCHITECTURE.md prints this table and `test_layers.py` holds the source to it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "units": ("errors",),
    "table": ("errors", "units"),
    "atomic": (),
    "chips": ("errors",),
    "trace": ("atomic", "chips", "errors"),
    "work": ("trace",),
    "memory": ("chips", "errors", "trace"),
    "timing": ("atomic", "chips", "errors", "trace", "work"),
    "ledger": ("errors", "memory", "timing", "trace", "work"),
    "views": ("chips", "errors", "ledger", "memory", "table", "timing", "trace", "units", "work"),
    "plan": ("chips", "errors", "memory", "table", "timing", "trace", "units", "work"),
    "virtual": ("chips", "errors", "memory", "trace"),
    "tracer": ("chips", "errors", "memory", "trace", "virtual"),
    "runs": ("chips", "memory", "timing", "trace", "tracer", "virtual"),
    "fit": ("chips", "errors", "ledger", "memory", "runs", "table", "trace", "tracer", "units",
            "views"),
    "report": ("chips", "fit", "ledger", "memory", "plan", "table", "trace", "units", "views"),
    "bench": ("chips", "errors", "timing", "trace", "tracer", "virtual", "work"),
    "train": ("chips", "errors", "plan", "units"),
    "sweep": ("atomic", "errors", "runs", "table", "train", "units"),
    "cli": ("atomic", "bench", "chips", "errors", "fit", "ledger", "memory", "plan", "report",
            "runs", "sweep", "table", "timing", "trace", "tracer", "train", "units", "views",
            "work"),
}  # fmt: skip
"""Each module or package directly below `torchtally`, lowest first, and those it may import.

`__init__` and `__main__` stand above all of them.
"""

TORCH = frozenset({"virtual", "tracer", "runs", "bench", "train", "sweep"})
"""The only packages that import torch."""

LAZY = frozenset({"__init__", "__main__", "cli"})
"""Import what needs torch inside functions only, so that `tally --help` is immediate."""

MEANINGLESS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
"""Names that say nothing about what is inside."""


def breaches(package: Path) -> list[str]:
    """What in this tree breaks the table: "src/.../views/lines.py:7: views imports torch"."""
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        found += [
            f"{place}: says nothing" for part in place.parts if Path(part).stem in MEANINGLESS
        ]
        layer = Path(place.parts[0]).stem
        if layer not in LAYERS and layer not in LAZY:
            found.append(f"{place}: is in no layer")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, module, is_lazy in imports(tree, package.name):
            reason = breach(layer, module, is_lazy, package.name)
            if reason:
                found.append(f"{place}:{line}: {reason}")
    return found


def breach(layer: str, module: str, is_lazy: bool, package: str) -> str:
    """Why a layer may not import a module; "" where it may."""
    root, _, rest = module.partition(".")
    if root == "torch":
        return "" if layer in TORCH else f"{layer} imports torch"
    if root != package or not rest:
        return ""
    target = rest.partition(".")[0]
    if layer in LAZY and target in TORCH and not is_lazy:
        return f"{layer} imports {target} outside a function"
    above_all = layer in ("__init__", "__main__")
    if target == layer or above_all or target in LAYERS.get(layer, ()):
        return ""
    return f"{layer} imports {target}"


def classes_with_two_homes(package: Path) -> dict[str, list[str]]:
    """Public classes that several modules define, by name: {"Price": ["chips/chip.py", ...]}."""
    homes: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(package)))
    return {name: places for name, places in homes.items() if len(places) > 1}


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str, bool]]:
    """(line, module, inside a function or for type checkers alone) of everything imported."""
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_type_checking(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, id(node) in lazy
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports here are absolute"
            for name in imported_names(node, package):
                yield node.lineno, name, id(node) in lazy


def imported_names(node: ast.ImportFrom, package: str) -> list[str]:
    """`from package import a, b` imports package.a and package.b; else the module itself."""
    module = node.module or ""
    return [f"{module}.{name.name}" for name in node.names] if module == package else [module]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def layers_table() -> str:
    """The table as Markdown, lowest layer first."""
    rows = ["| layer | may import | torch |", "|---|---|---|"]
    for layer, below in LAYERS.items():
        allowed = ", ".join(f"`{name}`" for name in below) or "nothing of the package"
        torch = "yes" if layer in TORCH else "through `tracer`" if layer in LAZY else "no"
        rows.append(f"| `{layer}` | {allowed} | {torch} |")
    return "\n".join(rows)
