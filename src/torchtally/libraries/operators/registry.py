"""How an operator of a library is defined: its schema and its shapes."""

from collections.abc import Callable
from typing import Any

from torch.library import Library, register_fake

_libraries: dict[str, Library] = {}
"""By namespace; operators are known as long as these live."""

Shape = Callable[..., Any]


def define(namespace: str, schema: str) -> Callable[[Shape], Shape]:
    """Define an operator by its schema; the function below gives its results' shapes."""
    library = _libraries.get(namespace)
    if library is None:
        library = _libraries[namespace] = Library(namespace, "FRAGMENT")
    library.define(schema)

    def register(function: Shape) -> Shape:
        register_fake(f"{namespace}::{schema.partition('(')[0]}", function, lib=library)
        return function

    return register
