"""Source text without a file of its own: code given on the command line, on stdin, in a cell."""

import linecache
from types import CodeType

cell_names: dict[str, str] = {}
"""By the name of a file that a notebook compiled a cell as: what reports call it, "cell [3]"."""


def shown_file(file: str) -> str:
    """What reports call a file."""
    return cell_names.get(file, file)


def compiled(source: str, name: str) -> CodeType:
    """The code, whose lines tracebacks and reports find under this name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec", dont_inherit=True)
