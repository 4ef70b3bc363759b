"""The table of docs/agents.md: every tool of `tally mcp`, as its type declares it."""

from inspect import getdoc

import msgspec

from torchtally.agents.arguments import TOOLS


def tools_table() -> str:
    """One row per tool: what it does, and its arguments; those with a default may be left out."""
    rows = [
        f"| `{name}` | {', '.join(map(_argument, msgspec.structs.fields(kind)))} | "
        f"{' '.join((getdoc(kind) or '').split())} |"
        for name, kind in TOOLS.items()
    ]
    return "\n".join(("| tool | arguments | what it does |", "|---|---|---|", *rows))


def _argument(field: msgspec.structs.FieldInfo) -> str:
    """An argument with its default."""
    if field.required:
        return f"`{field.name}`"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory() if callable(field.default_factory) else None
    return f"`{field.name}={msgspec.json.encode(value).decode()}`"
