"""The layers of the package, as a table, and the imports that break it.

ARCHITECTURE.md prints districts, the site layers; `test_layers.py` holds the source to them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from torchtally.chips.dtypes import DTYPE_BYTES

LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "units": ("errors",),
    "files": ("errors",),
    "options": ("errors", "units"),
    "chips": ("errors", "files"),
    "table": ("errors", "files", "units"),
    "trace": ("chips", "errors", "files", "table"),
    "torch_private": ("errors",),
    "work": ("trace",),
    "memory": ("chips", "errors", "trace"),
    "timing": ("chips", "errors", "files", "trace", "work"),
    "profiles": ("errors", "files", "memory", "trace"),
    "virtual": ("chips", "errors", "memory", "torch_private", "trace"),
    "isolation": ("errors", "options", "torch_private", "trace", "virtual"),
    "tracer": ("chips", "errors", "isolation", "memory", "options", "torch_private", "trace",
               "virtual"),
    "runs": ("chips", "errors", "isolation", "memory", "options", "profiles", "timing",
             "torch_private", "trace", "tracer", "virtual", "work"),
    "progress": ("units",),
    "number_formats": ("chips", "errors"),
    "ledger": ("errors", "memory", "table", "timing", "trace", "work"),
    "diagnosis": ("ledger", "memory", "table", "trace", "units"),
    "views": ("chips", "diagnosis", "errors", "ledger", "memory", "number_formats", "table",
              "timing", "trace", "units", "work"),
    "programs": ("chips", "errors", "files", "memory", "trace", "work"),
    "plan": ("chips", "errors", "files", "ledger", "memory", "options", "programs", "table",
             "timing", "trace", "units", "work"),
    "libraries": (),
    "gates": ("errors", "files", "ledger", "plan", "table", "units", "views"),
    "models": ("chips", "errors", "files", "ledger", "memory", "plan", "programs", "runs",
               "timing", "torch_private", "trace", "views"),
    "fit": ("chips", "errors", "ledger", "memory", "options", "runs", "table", "timing",
            "trace", "tracer", "units", "views"),
    "brief": ("chips", "files", "fit", "gates", "ledger", "memory", "table", "views"),
    "fixes": ("chips", "errors", "files", "fit", "ledger", "memory", "timing", "trace"),
    "tune": ("chips", "errors", "fit", "fixes", "ledger", "memory", "runs", "timing", "trace",
             "units", "views", "work"),
    "report": ("brief", "chips", "diagnosis", "errors", "fit", "fixes", "gates", "ledger", "memory",
               "number_formats", "plan", "profiles", "progress", "table", "trace", "tune", "units",
               "views"),
    "numerics": ("errors", "number_formats", "plan", "table", "torch_private", "tracer",
                 "units", "views", "virtual"),
    "bench": ("chips", "errors", "timing", "torch_private", "trace", "tracer", "virtual", "work"),
    "expressions": ("errors", "trace"),
    "checkpoints": ("chips", "errors", "files", "plan", "table", "torch_private", "units"),
    "train": ("checkpoints", "chips", "errors", "files", "numerics", "plan", "progress", "table",
              "torch_private", "units"),
    "live": ("chips", "errors", "files", "ledger", "models", "numerics", "report", "timing",
             "torch_private", "trace", "units", "views", "virtual"),
    "sweep": ("checkpoints", "errors", "files", "progress", "runs", "table", "train", "units"),
    "agents": ("errors", "options", "plan"),
    "editor": ("agents", "brief", "errors", "files", "ledger", "report", "timing", "trace", "units",
               "views"),
    "cli": ("agents", "bench", "brief", "checkpoints", "chips", "editor", "errors", "expressions",
            "files", "fit", "fixes", "gates", "isolation", "ledger", "live", "memory", "models",
            "number_formats", "numerics", "options", "plan", "profiles", "programs", "progress",
            "report", "runs", "sweep", "table", "timing", "trace", "tracer", "train", "tune",
            "units", "views", "virtual", "work"),
    "integrations": ("brief", "chips", "cli", "errors", "gates", "ledger", "models", "options",
                     "progress", "report", "runs", "timing", "trace", "tracer", "units", "views"),
}  # fmt: skip
"""Each module or package directly below `torchtally`, lowest first, and those it may import.

`__init__` and `__main__` stand above all of them.
"""

DISTRICTS: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "simulator": (3, "runs a script on a GPU that is not there, and writes its trace", (
        "torch_private", "virtual", "libraries", "isolation", "tracer", "runs",
        "models", "fit", "fixes", "tune", "expressions",
    )),
    "core": (1, "facts of a run and of devices; what they cost, hold and take", (
        "errors", "units", "files", "table", "progress", "options", "chips",
        "number_formats", "trace", "work", "memory", "timing", "ledger",
        "profiles",
    )),
    "plan": (2, "answers before a script exists: closed forms, and runs written out", (
        "programs", "plan",
    )),
    "show": (3, "tables of numbers, causes and limits; text and documents of them", (
        "diagnosis", "views", "gates", "brief", "report",
    )),
    "measured": (4, "what is real: a training, a device, files of tensors; measured, compared", (
        "live", "bench", "numerics",
    )),
    "train": (4, "a training stack, durable loops, sweeps", ("checkpoints", "train", "sweep")),
    "cli": (5, "what is typed: commands, cells, tests", (
        "agents", "editor", "cli", "integrations",
    )),
}  # fmt: skip
"""Each district's floor, what it is for, and its rooms; in the order in which data pass them.

Rooms import rooms of their own floor or of a lower one."""

CLIMBING: frozenset[tuple[str, str]] = frozenset()
"""Imports of a room on a higher floor. None may be added."""

TORCH = frozenset(
    {
        "torch_private",
        "virtual",
        "libraries",
        "tracer",
        "runs",
        "models",
        "bench",
        "expressions",
        "checkpoints",
        "numerics",
        "train",
        "live",
        "sweep",
    }
)
"""The only packages that import torch."""

UNDER_THEIR_OWN_NAMES = frozenset({"libraries"})
"""Stand-ins of other packages: their files import each other relatively, and files and classes have
the names that those have."""

UNFORMATTED = frozenset({"table", "views"})
"""Leave numbers to renderers: in cells, and in notes as a `Number` with its unit."""

LAZY = frozenset({"__init__", "__main__", "cli", "integrations"})
"""Import what needs torch inside functions only, so that `tally --help` is immediate."""

LOADED_ON_REQUEST = "notebook"
"""The folder of a lazy room that `%load_ext torchtally` alone imports."""

READS_CAPABILITIES = frozenset({"chips", "libraries"})
"""Read compute capabilities: what they mean is said in `chips`, and stand-ins of other packages
ask torch as those do."""

MEANINGLESS = frozenset({"utils", "util", "helpers", "helper", "common", "misc"})
"""Names that say nothing about what is inside."""


@cache
def parsed(source: str) -> ast.Module:
    """Once for all rules: parsing and walking the package takes longer than any of them."""
    return ast.parse(source)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def breaches(package: Path) -> list[str]:
    """What in this tree breaks the table: "src/.../views/lines.py:7: views imports torch"."""
    breaches_met = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        layer = Path(place.parts[0]).stem
        if layer not in UNDER_THEIR_OWN_NAMES:
            breaches_met += [
                f"{place}: says nothing" for part in place.parts if Path(part).stem in MEANINGLESS
            ]
        if layer not in LAYERS and layer not in LAZY:
            breaches_met.append(f"{place}: is in no layer")
            continue
        tree = parsed(path.read_text(encoding="utf-8"))
        for line, module, is_lazy in imports(tree, package.name, layer):
            is_late = is_lazy or LOADED_ON_REQUEST in place.parts
            reason = breach(layer, module, is_late, package.name)
            if reason:
                breaches_met.append(f"{place}:{line}: {reason}")
        if layer == "cli":
            breaches_met += [f"{place}:{line}: cli {what}" for line, what in not_of_a_command(tree)]
        if layer not in READS_CAPABILITIES:
            breaches_met += [f"{place}:{line}: {what}" for line, what in capabilities_read(tree)]
        if layer in UNFORMATTED:
            breaches_met += [f"{place}:{line}: {layer} {what}" for line, what in formatting(tree)]
        if layer in TORCH and layer != "torch_private":
            breaches_met += [
                f"{place}:{line}: {name} is private to torch"
                for line, name in private_names(tree, package.name)
            ]
    return breaches_met


CAPABILITIES = ("compute_capability", "device_version")
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def capabilities_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of each compute capability that is read or compared.

    `chip.sm` says what follows from it.
    """
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr in CAPABILITIES:
            yield node.lineno, f"reads {node.attr}; ask chip.sm, chip.is_cuda or chip.target"
        elif isinstance(node, ast.Compare):
            is_ordered = any(isinstance(operator, ORDERS) for operator in node.ops)
            if is_ordered and "capability" in ast.unparse(node):
                yield node.lineno, "compares compute capabilities; ask a row of chips.capabilities"


def breach(layer: str, module: str, is_lazy: bool, package: str) -> str:
    """Why a layer may not import a module; "" where it may."""
    root, _, rest = module.partition(".")
    if root == "torch":
        return "" if layer in TORCH else f"{layer} imports torch"
    if root == "rich":
        return "" if layer == "report" else f"{layer} imports rich"
    if root == "textual":
        return "" if layer == "report" else f"{layer} imports textual"
    if root != package or not rest:
        return ""
    target = rest.partition(".")[0]
    if layer in LAZY and target in TORCH and not is_lazy:
        return f"{layer} imports {target} outside a function"
    above_all = layer in ("__init__", "__main__")
    if target == layer or above_all or target in LAYERS.get(layer, ()):
        return ""
    return f"{layer} imports {target}"


def not_of_a_command(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of what a file of the command line must not have: tables, documents, classes;
    and what was asked is not written to.

    It may define parsers, their actions and formatters, what a command is asked, and its state.
    """
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            is_parser = bases and all(
                base.endswith(("Parser", "Action", "Formatter")) for base in bases
            )
            if not is_parser and not node.name.endswith(("Options", "State")):
                yield node.lineno, f"defines the class {node.name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("Table", "Column"):
            yield node.lineno, "makes a table"
        elif isinstance(node, ast.Import) and any(name.name == "json" for name in node.names):
            yield node.lineno, "imports json"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("report.document"):
            yield node.lineno, "makes a document"
        elif is_written(node, "args"):
            yield node.lineno, f"writes {ast.unparse(node)}"


def is_written(node: ast.AST, name: str) -> bool:
    """Whether an attribute of the variable of this name is assigned to."""
    is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return is_stored and ast.unparse(node.value) == name


def formatting(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of everything that writes a number as text: formats and their functions."""
    for node in nodes(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            yield node.lineno, f"formats {ast.unparse(node.value)}"
        elif isinstance(node, ast.ImportFrom) and node.module == "torchtally.units":
            for name in node.names:
                if name.name.startswith("format_") or name.name in ("FORMATS", "IN_PROSE"):
                    yield node.lineno, f"imports {name.name}"


def classes_with_two_homes(package: Path) -> dict[str, list[str]]:
    """Public classes that several modules define, by name: {"Price": ["chips/chip.py", ...]}."""
    homes: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        layer, *inner = path.relative_to(package).parts
        if layer in UNDER_THEIR_OWN_NAMES and inner[0] != "operators":
            continue
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(package)))
    return {name: places for name, places in homes.items() if len(places) > 1}


def imports(tree: ast.Module, package: str, layer: str) -> Iterator[tuple[int, str, bool]]:
    """(line, module, inside a function or for type checkers alone) of everything imported."""
    for node, is_lazy in statements(tree, is_lazy=False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, is_lazy
        elif isinstance(node, ast.ImportFrom):
            if node.level and layer in UNDER_THEIR_OWN_NAMES:
                continue
            assert node.level == 0, f"line {node.lineno}: imports here are absolute"
            for name in imported_names(node, package):
                yield node.lineno, name, is_lazy


def statements(parent: ast.AST, *, is_lazy: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """(statement, inside a function or for type checkers alone) of every one, without a look at
    expressions, which are most of a file and import nothing.
    """
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(parent, block, ()):
            is_inside = is_lazy or isinstance(node, FUNCTIONS) or is_type_checking(node)
            if isinstance(node, ast.stmt):
                yield node, is_inside
            yield from statements(node, is_lazy=is_inside)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def districts_table() -> str:
    """Districts as Markdown: the floor, the rooms with links to their pages, what they are for."""
    rows = ["| district | floor | what it does | rooms |", "|---|--:|---|---|"]
    for district, (floor, purpose, rooms) in DISTRICTS.items():
        names = ", ".join(linked(room) for room in rooms)
        rows.append(f"| **{district}** | {floor} | {purpose} | {names} |")
    return "\n".join(rows)


def linked(room: str) -> str:
    """A room's name, as a link where the room has a page."""
    page = f"src/torchtally/{room}/README.md"
    has_page = (Path(__file__).parents[1] / page).is_file()
    return f"[`{room}`]({page})" if has_page else f"`{room}`"


def climbs() -> set[tuple[str, str]]:
    """(room, room on a higher floor that it may import)."""
    floors = {room: floor for floor, _, rooms in DISTRICTS.values() for room in rooms}
    return {
        (room, other)
        for room, below in LAYERS.items()
        for other in below
        if floors[other] > floors[room]
    }


def private_names(tree: ast.Module, package: str) -> list[tuple[int, str]]:
    """(line, name) of everything private to torch that a file writes.

    Imports, attributes, and strings where an attribute or a module is looked up by name. Other
    libraries' and the file's own private names are left alone, and so are names of operators
    (`torch.ops.aten._softmax`): the dispatcher's schemas and every trace have them.
    """
    foreign, operators, own = names_bound(tree, package)
    private: list[tuple[int, str]] = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            private += [(node.lineno, name.name) for name in node.names if is_private(name.name)]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
            private += [(node.lineno, name) for name in names if is_private(name)]
        elif isinstance(node, ast.Attribute) and is_hidden(node.attr):
            chain = ast.unparse(node)
            root = chain.partition(".")[0]
            is_operator = chain.startswith("torch.ops.") or root in operators
            if root not in foreign and not is_operator and node.attr not in own:
                private.append((node.lineno, chain))
        elif isinstance(node, ast.Constant) and is_private(node.value):
            private.append((node.lineno, node.value))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in LOOK_UPS
        ):
            private += [
                (node.lineno, argument.value)
                for argument in node.args[1:2]
                if isinstance(argument, ast.Constant)
                and is_hidden(argument.value)
                and argument.value not in own
            ]
    return private


LOOK_UPS = frozenset({"StandIn", "getattr", "setattr", "hasattr", "delattr"})
"""Functions whose second argument is the name of an attribute."""


def is_hidden(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def is_private(path: object) -> bool:
    """A dotted path into torch, one part of it with an underscore."""
    if not isinstance(path, str) or re.fullmatch(r"torch(\.\w+)+", path) is None:
        return False
    return any(map(is_hidden, path.split("."))) and not path.startswith("torch.ops.")


def names_bound(tree: ast.Module, package: str) -> tuple[set[str], set[str], set[str]]:
    """Names of other libraries' modules and objects; of `torch.ops.*`; and the file's own."""
    foreign: set[str] = set()
    operators: set[str] = set()
    own = {"_replace", "_asdict", "_fields"}  # public, of named tuples
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.partition(".")[0] != "torch":
                    foreign.add(name.asname or name.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] not in ("torch", package):
                foreign |= {name.asname or name.name for name in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            own.add(node.attr)  # what an object says of itself
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and ast.unparse(node.value).startswith("torch.ops.")
        ):
            operators |= {ast.unparse(target) for target in node.targets}
    return foreign, operators, own


def arrows(package: Path) -> set[tuple[str, str]]:
    """(room, room it imports) for each pair of rooms, as the source has it."""
    return {
        (room, target)
        for path in package.rglob("*.py")
        for room in [Path(path.relative_to(package).parts[0]).stem]
        for _, module, _ in imports(parsed(path.read_text(encoding="utf-8")), package.name, room)
        for target in [module.removeprefix(f"{package.name}.").partition(".")[0]]
        if room in LAYERS and target in LAYERS and target != room
    }


def arrows_line() -> str:
    """How many rooms there are, and arrows between them."""
    package = Path(__file__).parents[1] / "src" / "torchtally"
    return (
        f"Today there are {len(LAYERS)} rooms and {len(arrows(package))} arrows, without a circle."
    )


def quantities_with_two_homes(package: Path) -> dict[str, list[str]]:
    """Public functions and constants that say a unit in their name, where two modules have one.

    A function is a quantity, and has one home. A constant of one name and one value in two modules
    is a fact that stands twice. {"energy_joules": ["chips/power.py", ...]}.
    """
    homes: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        layer = Path(path.relative_to(package).parts[0]).stem
        if layer in UNDER_THEIR_OWN_NAMES:
            continue
        for name in quantities(parsed(path.read_text(encoding="utf-8"))):
            homes.setdefault(name, []).append(str(path.relative_to(package)))
    return {name: places for name, places in homes.items() if len(places) > 1}


UNIT = re.compile(
    r"(?i)(^|_)(bytes|flops|seconds|s|joules|watts|usd|hours|hz|bits|flop_per_s|bytes_per_s|mfu)$"
)
"""At the end of a quantity's name."""


def quantities(tree: ast.Module) -> Iterator[str]:
    """Names of a module's quantities; of a constant "NAME = 3.0"."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if UNIT.search(node.name) and not node.name.startswith("_"):
                yield node.name
        elif isinstance(node, ast.Assign) and is_number(node.value):
            for target in node.targets:
                if isinstance(target, ast.Name) and UNIT.search(target.id):
                    yield f"{target.id} = {evaluate(node.value)}"


def is_number(node: ast.expr) -> bool:
    """A number, or arithmetic on numbers alone: 8 * 2**20."""
    return all(
        isinstance(part, (ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop))
        or (isinstance(part, ast.Constant) and isinstance(part.value, (int, float)))
        for part in ast.walk(node)
    )


def evaluate(node: ast.expr) -> object:
    return eval(compile(ast.Expression(node), "a constant", "eval"), {"__builtins__": {}})


FACTS: dict[str, tuple[str, ...]] = {
    "tdp_watts": ("chips/power.py", "timing/roofline/sustained.py"),
    "chip_watts": ("plan/training.py",),
    "usd_per_hour": ("chips/chip.py", "plan/training.py"),
    "peak_flop_per_s": ("plan/training.py",),
    "weight_bytes": ("plan/parallel/compute.py",),
    "cache_bytes": ("views/generation.py",),
    "parameter_bytes": ("trace/trace.py",),
}
"""Facts of a chip or a training, and where arithmetic is done with each: the power that a chip
draws and the rate at its limit of power; energy; money, of a traced step and as a formula that a
plan prints; MFU and time at a peak; bytes of a parameter (what an optimizer and casts read and
write) and of the parameters of a run (beside gradients and states); growth of a KV cache."""


def second_sources(package: Path) -> list[str]:
    """Arithmetic on a fact of `FACTS` in another module than its own, and tables of dtypes' sizes
    beside `DTYPE_BYTES`: "views/money.py:7: computes with tdp_watts".
    """
    places = []
    for path in sorted(package.rglob("*.py")):
        place = str(path.relative_to(package))
        if Path(place).parts[0] in UNDER_THEIR_OWN_NAMES:
            continue
        tree = parsed(path.read_text(encoding="utf-8"))
        places += [
            f"{place}:{line}: computes with {fact}"
            for line, fact in computed_facts(tree)
            if place not in FACTS[fact]
        ]
        if place != "chips/dtypes.py":
            places += [f"{place}:{line}: sizes of dtypes" for line in tables_of_dtypes(tree)]
    return places


def computed_facts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, fact) of each sum or product with a fact, in Python or in the text of a formula."""
    for node in nodes(tree):
        if isinstance(node, ast.BinOp):
            for operand in (node.left, node.right):
                name = operand.attr if isinstance(operand, ast.Attribute) else (
                    operand.id if isinstance(operand, ast.Name) else "")  # fmt: skip
                if name in FACTS:
                    yield node.lineno, name
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Constant):
            yield from ((node.lineno, fact) for _, fact in computed_facts(formula(node.value)))


def formula(constant: ast.Constant) -> ast.AST:
    """The expression that a closed form returns as text; nothing of another constant."""
    try:
        return ast.parse(str(constant.value), mode="eval")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def tables_of_dtypes(tree: ast.AST) -> Iterator[int]:
    """Lines of dicts from two or more of torch's dtypes to whole numbers."""
    for node in nodes(tree):
        if isinstance(node, ast.Dict):
            names = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            numbers = [value.value for value in node.values if isinstance(value, ast.Constant)]
            are_sizes = all(type(number) is int for number in numbers) and len(numbers) > 1
            if are_sizes and len(DTYPE_BYTES.keys() & set(map(str, names))) > 1:
                yield node.lineno
