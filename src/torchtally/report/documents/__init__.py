"""The documents for programs as types: JSON, JSON Schema and the page of keys come from them.

A key is a field. Its type has the unit, and one of the fields that have its name its meaning. A
field takes the attribute of its name of what the document is about (`report/keys.py`).

A new file here is one that `tally schema` finds. A key that is removed or changes its meaning
raises the number in its document's tag; a new one does not.
"""

import os
from functools import cache
from importlib import import_module

from torchtally.report.keys import DocumentPart


@cache
def documents() -> dict[str, type[DocumentPart]]:
    """Every kind of document by its name: the tag before its version."""
    files = os.listdir(os.path.dirname(__file__))
    names = {name.removesuffix(".py") for name in files if name.endswith(".py")} - {"__init__"}
    tagged = {
        str(kind.__struct_config__.tag).partition("/"): kind
        for name in names
        for kind in vars(import_module(f"{__name__}.{name}")).values()
        if isinstance(kind, type) and issubclass(kind, DocumentPart)
    }
    return {name: kind for (name, mark, _), kind in sorted(tagged.items()) if mark}
