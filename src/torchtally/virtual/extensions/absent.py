"""Libraries of CUDA kernels that are not installed: the script imports a stand-in of each.

A stand-in is given to the script's own code, and to an installed library that cannot do without:
one whose import stands in no `try`. A library that only looks whether another is there is told the
truth, as it would take another way.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

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
ON_REQUEST = {
    "transformers.modeling_flash_attention_utils": ("flash_attn", "flash_attn_interface"),
}
"""Modules that import a library when the script asks them to."""


def is_absent(name: str) -> bool:
    """No other finder has it."""
    others = (finder for finder in sys.meta_path if not isinstance(finder, Absent))
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
        folder = HOME / name
        self.imported.add(name)
        self.note(
            NOTE.format(name=library.distribution, version=library.version, what=library.what)
        )
        return spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )

    def find_distributions(self, context: Any) -> Iterator[Distribution]:
        """For `importlib.metadata.version`, of those that were imported."""
        for name in self.imported:
            library = LIBRARIES[name]
            asked = (context.name or "").replace("_", "-").lower()
            if asked in (library.distribution, library.module.replace("_", "-")):
                yield StandInDistribution(library)

    def forget(self) -> None:
        """No module of a stand-in is left."""
        for name in list(sys.modules) if self.imported else ():
            if name.partition(".")[0] in self.imported:
                del sys.modules[name]


class StandInDistribution(Distribution):
    def __init__(self, library: Library) -> None:
        self.library = library

    def read_text(self, filename: str) -> str | None:
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
    if not is_installed(file):
        return True
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


def is_import(frame: FrameType) -> bool:
    """The line that runs is an import, no call of `find_spec`."""
    return any(
        start <= frame.f_lineno <= end for start, end, _ in imports_of(frame.f_code.co_filename)
    )


def is_attempt(file: str, line: int) -> bool:
    return any(tried for start, end, tried in imports_of(file) if start <= line <= end)


@cache
def imports_of(file: str) -> Sequence[tuple[int, int, bool]]:
    """(first line, last line, whether it stands in a `try`) of each import in a file."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    tried = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    return [
        (node.lineno, node.end_lineno or node.lineno, id(node) in tried)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


@contextmanager
def with_stand_ins(note: Callable[[str], None]) -> Iterator[None]:
    """Within, libraries that are not installed have stand-ins."""
    finder = Absent(note)
    finders: list[Any] = sys.meta_path
    finders.append(finder)
    try:
        yield
    finally:
        finders.remove(finder)
        finder.forget()
