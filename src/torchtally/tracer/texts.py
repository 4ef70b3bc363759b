"""Source text without a file of its own: code given on the command line, on stdin, in a cell."""

import linecache
from collections.abc import Callable, Mapping
from types import CodeType

cell_names: list[Callable[[], Mapping[str, str]]] = []
"""Of notebooks that run: by the file that a cell was compiled as, what reports call it: "cell [3]".
"""


def shown_file(file: str) -> str:
    """What reports call a file."""
    return next((names()[file] for names in cell_names if file in names()), file)


def compile_text(source: str, name: str) -> CodeType:
    """The code, whose lines tracebacks and reports find under this name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec", dont_inherit=True)
