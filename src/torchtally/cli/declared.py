"""Options that a record declares (`torchtally.options`), in a parser and back."""

import argparse
from typing import Any, TypeVar

from torchtally.cli.destination import add_output
from torchtally.options import Option, OptionRecord, options_of

Record = TypeVar("Record", bound=OptionRecord)


def add_options(parser: argparse.ArgumentParser, record: type[OptionRecord]) -> None:
    """Add a record's options, in sections by their groups."""
    sections: dict[str, Any] = {"": parser}
    for field, option in options_of(record).items():
        title = option.group.title
        if title not in sections:
            sections[title] = parser.add_argument_group(title)
        _add(parser, sections[title], field, option)


def _add(parser: argparse.ArgumentParser, section: Any, field: str, option: Option) -> None:
    # What is not given is not in the namespace: the record has the defaults.
    how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": option.help or None}
    if option.choices:
        how["choices"] = tuple(option.choices)
    elif option.form is None:
        how["action"] = "store_true"
    else:
        how |= {"type": option.form.read, "metavar": option.form.metavar}
    if option.is_repeated:
        how["action"] = "append"
    if not option.name.startswith("-"):
        section.add_argument(field, nargs="?", **how)
        return
    flags = (option.name, option.alias) if option.alias else (option.name,)
    if option.is_written:
        add_output(parser, *flags, group=section, dest=field, **how)
    else:
        section.add_argument(*flags, dest=field, **how)


def asked(record: type[Record], args: argparse.Namespace) -> Record:
    """The record of what was typed."""
    typed = {field: option for field, option in options_of(record).items() if hasattr(args, field)}
    values = {field: option.value(getattr(args, field)) for field, option in typed.items()}
    return record(**values, given=tuple(typed))
