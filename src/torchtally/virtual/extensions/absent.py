"""Libraries of CUDA kernels that are not installed: the script imports a stand-in of each.

A stand-in is given to the script's own code, and to an installed library that cannot do without:
one whose import stands in no `try`. A library that only looks whether another is there is told the
truth, as it would take another way. So is a script that tries to import more of it than the
stand-in has, and every file of a package that needs more: they have a way of their own without it.
"""

import ast
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import Distribution
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple, NoReturn

import torchtally
from torchtally.virtual.later_modules import first_spec

HOME = Path(torchtally.__file__).parent / "libraries"
NOTE = "{name} is not installed: tally's stand-in for version {version} is used ({what})"


class Library(NamedTuple):
    module: str
    distribution: str
    version: str
    what: str


LIBRARIES = {
    library.module: library
    for library in (
        Library("flash_attn", "flash-attn", "2.8.3", "FlashAttention-2 and its fused layers"),
        Library("flash_attn_interface", "flash-attn-3", "3.0.0", "FlashAttention-3"),
        Library("apex", "apex", "0.1", "FusedAdam, FusedLayerNorm, FusedRMSNorm"),
        Library(
            "fused_weight_gradient_mlp_cuda", "apex", "0.1", "products added to weights' gradients"
        ),
        Library("xformers", "xformers", "0.0.35", "memory-efficient attention, SwiGLU"),
        Library("deep_ep", "deep-ep", "2.1.0", "tokens to experts within a node"),
        Library("deep_gemm", "deep-gemm", "2.1.1", "products in float8"),
        Library(
            "transformer_engine",
            "transformer-engine",
            "2.8.0",
            "products in float8, attention, layers",
        ),
        Library("kernels", "kernels", "0.12.0", "FlashAttention 2 and 3 of the Hugging Face Hub"),
    )
}
ON_REQUEST = {"transformers.modeling_flash_attention_utils": ("flash_attn", "flash_attn_interface")}
"""Modules that import a library when the script asks them to."""
BUILT_ON = {"megatron": ("transformer_engine", "fused_weight_gradient_mlp_cuda")}
"""Packages whose layers and optimizers are a library's, though each import of it is an attempt; of
what a stand-in lacks they do without.
"""

HELD_BY_STAND_INS: list[dict[object, Any]] = []
"""What modules of stand-ins hold as `HELD`: other packages that imported them still have them in
the next run.
"""


def is_absent(name: str) -> bool:
    """No other finder has it."""
    others = (finder for finder in sys.meta_path if not isinstance(finder, (Absent, StandInParts)))
    return first_spec(others, name) is None


class Absent:
    """A finder behind all others."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note
        self.imported: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        library = LIBRARIES.get(name)
        if library is None or not is_wanted(sys._getframe(1), name):
            return None
        self.imported.add(name)
        self.note(
            NOTE.format(name=library.distribution, version=library.version, what=library.what)
        )
        return with_answers(PathFinder.find_spec(name, [str(HOME)]))

    def find_distributions(self, context: Any) -> Iterator[Distribution]:
        """Distributions for `importlib.metadata`, of those that were imported: all, or one."""
        for name in self.imported:
            library = LIBRARIES[name]
            asked = context.name and context.name.replace("_", "-").lower()
            if asked in (None, library.distribution, library.module.replace("_", "-")):
                yield StandInDistribution(library)

    def forget(self) -> None:
        """No module of a stand-in is left, and what other modules still have holds no tensor."""
        for name in list(sys.modules) if self.imported else ():
            if name.partition(".")[0] in self.imported:
                held = vars(sys.modules.pop(name)).get("HELD")
                if held is not None:
                    HELD_BY_STAND_INS.append(held)
        for held in HELD_BY_STAND_INS:
            held.clear()


class StandInParts:
    """A finder before all others, of the modules within stand-ins."""

    def __init__(self, imported: Collection[str]) -> None:
        self.imported = imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        library, _, part = name.partition(".")
        if not part or library not in self.imported:
            return None
        return with_answers(PathFinder.find_spec(name, path))


def with_answers(spec: ModuleSpec | None) -> ModuleSpec | None:
    if spec is not None and spec.origin is not None:
        spec.loader = AnsweringLoader(spec.name, spec.origin)
    return spec


class AnsweringLoader(SourceFileLoader):
    """Loader of a stand-in's module, which answers for the names that it lacks."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        vars(module).setdefault("__getattr__", partial(refuse, module.__name__))


def refuse(module: str, name: str) -> NoReturn:
    """Raise AttributeError; to a script that tries to import the name, the error of a library
    that is not installed.
    """
    frame = sys._getframe(1)
    file = frame.f_code.co_filename
    if is_import(frame) and is_attempt(file, frame.f_lineno):
        missing = f"{module}.{name}"
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class StandInDistribution(Distribution):
    def __init__(self, library: Library) -> None:
        self.library = library

    def read_text(self, filename: str) -> str | None:
        if filename == "top_level.txt":
            return self.library.module
        if filename != "METADATA":
            return None
        name, version = self.library.distribution, self.library.version
        return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def locate_file(self, path: Any) -> Any:
        return HOME / path


def is_wanted(frame: FrameType | None, name: str) -> bool:
    """Whether the code that imports is the script's, or cannot do without."""
    importer = first_outside_of_importing(frame)
    if importer is None:
        return False
    file, module = importer.f_code.co_filename, importer.f_globals.get("__name__", "")
    if file.startswith(str(HOME)) or name in ON_REQUEST.get(module, ()):
        return True
    if name in BUILT_ON.get(module.partition(".")[0], ()):
        return True
    if not is_installed(file):
        return is_answered(importer, name)
    return is_import(importer) and not is_attempt(file, importer.f_lineno)


IMPORTING = ("<frozen importlib", "importlib/", "importlib\\", "_bootstrap")


def first_outside_of_importing(frame: FrameType | None) -> FrameType | None:
    """Also of our own functions that stand for Python's: the script's clocks watch imports."""
    own, libraries = str(HOME.parent), str(HOME)
    while frame is not None:
        file = frame.f_code.co_filename
        is_ours = file.startswith(own) and not file.startswith(libraries)
        if not (is_ours or any(part in file for part in IMPORTING)):
            return frame
        frame = frame.f_back
    return None


def is_installed(file: str) -> bool:
    """The code is of an installed package, of torch's or Python's own."""
    libraries = ("site-packages", "dist-packages", sys.prefix + "/lib", sys.base_prefix + "/lib")
    return any(part in file for part in libraries)


class ImportStatement(NamedTuple):
    """A statement of a file."""

    first_line: int
    last_line: int
    attempt: int | None
    """The line of the innermost `try` whose body it stands in."""
    is_deferred: bool
    """It stands in a function."""
    parts: tuple[tuple[str, str], ...]
    """Modules, each with a name of it, or with ""."""


def is_import(frame: FrameType) -> bool:
    """The line that runs is an import, no call of `find_spec`."""
    return import_at(frame.f_code.co_filename, frame.f_lineno) is not None


def is_attempt(file: str, line: int) -> bool:
    found = import_at(file, line)
    return found is not None and found.attempt is not None


def import_at(file: str, line: int) -> ImportStatement | None:
    return next((i for i in imports_of(file) if i.first_line <= line <= i.last_line), None)


def is_answered(importer: FrameType, library: str) -> bool:
    """Whether a stand-in has all that is imported of it where its lack is provided for: in the same
    `try`, or in a file that looks first whether it is there. And all that other files of the
    package import of it once one of them has found it.
    """
    file = importer.f_code.co_filename
    found = import_at(file, importer.f_lineno)
    if found is not None and found.attempt is None:
        return True
    attempt = None if found is None else found.attempt
    together = [each for each in imports_of(file) if attempt in (None, each.attempt)]
    return has_parts(together, library) and all(
        has_parts((each for each in imports_of(other) if is_relied_on(each)), library)
        for other in users_in_package(file, library)
    )


def is_relied_on(statement: ImportStatement) -> bool:
    """An import that ends the run where it fails."""
    return statement.attempt is None and not statement.is_deferred


def has_parts(statements: Iterable[ImportStatement], library: str) -> bool:
    """Whether a stand-in has all that statements import of a library."""
    return all(
        has_part(module, name)
        for each in statements
        for module, name in each.parts
        if module.partition(".")[0] == library
    )


@cache
def users_in_package(file: str, library: str) -> Sequence[str]:
    """The files of the outermost package around a file that name a library."""
    package: Path | None = None
    for folder in Path(file).parents:
        if not (folder / "__init__.py").is_file():
            break
        package = folder
    files = () if package is None else package.rglob("*.py")
    return [str(each) for each in files if library.encode() in each.read_bytes()]


@cache
def has_part(module: str, name: str) -> bool:
    """Whether a stand-in has a module, and a name in it."""
    place = HOME.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.exists():
        return False
    if name in ("", "*") or has_part(f"{module}.{name}", ""):
        return True
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
    return name in names


@cache
def imports_of(file: str) -> Sequence[ImportStatement]:
    """Those of a file, in no order."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    attempts = {
        id(inner): node.lineno
        for node in ast.walk(tree)  # from the outermost to the innermost
        if isinstance(node, ast.Try)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    deferred = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    return [
        ImportStatement(
            node.lineno,
            node.end_lineno or node.lineno,
            attempts.get(id(node)),
            id(node) in deferred,
            parts_of(node),
        )
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


def parts_of(node: ast.Import | ast.ImportFrom) -> tuple[tuple[str, str], ...]:
    if isinstance(node, ast.Import):
        return tuple((alias.name, "") for alias in node.names)
    if node.level or node.module is None:
        return ()
    return tuple((node.module, alias.name) for alias in node.names)


@contextmanager
def with_stand_ins(note: Callable[[str], None]) -> Iterator[None]:
    """Context in which libraries that are not installed have stand-ins."""
    finder = Absent(note)
    finders: list[Any] = sys.meta_path
    parts = StandInParts(finder.imported)
    finders.insert(0, parts)
    finders.append(finder)
    try:
        yield
    finally:
        finders.remove(finder)
        finders.remove(parts)
        finder.forget()
