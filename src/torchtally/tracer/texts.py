"""Source text without a file of its own: code given on the command line, on stdin, in a cell."""

import linecache
from types import CodeType


def compiled(source: str, name: str) -> CodeType:
    """The code, whose lines tracebacks and reports find under this name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec", dont_inherit=True)
