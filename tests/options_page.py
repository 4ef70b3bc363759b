"""The table of docs/plan.md: every option of `tally plan`, as its record declares it."""

from collections.abc import Iterator

from torchtally.options import Option, options_of
from torchtally.plan.questions import Request


def options_table() -> str:
    """One row per option, below the group that it is in."""
    return "\n".join(("| option | what it says |", "|---|---|", *_rows(options_of(Request))))


def _rows(options: dict[str, Option]) -> Iterator[str]:
    title = ""
    for option in options.values():
        if option.group.title != title:
            title = option.group.title
            yield f"| **{title}** | |"
        yield f"| `{_written(option)}` | {option.help} |"


def _written(option: Option) -> str:
    """An option with its value: "--gpus CHIPS", "--pace typical, best"."""
    names = f"{option.name}, {option.alias}" if option.alias else option.name
    if option.choices:
        return f"{names} {', '.join(option.choices)}"
    if option.form is None or not option.name.startswith("-"):
        return names
    return f"{names} {option.form.metavar}"
