"""Options that a record declares (`torchtally.options`), in a parser and back."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from torchtally.cli.destination import add_output
from torchtally.options import Form, Option, OptionRecord, options_of

Record = TypeVar("Record", bound=OptionRecord)


def declare(
    parser: argparse.ArgumentParser, record: type[Record], command: Callable[[Record], int]
) -> None:
    """Add a record's options, and the command that is asked by it."""
    add_options(parser, record)
    parser.set_defaults(command=lambda args: command(asked(record, args)))


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
        how["action"] = "store_false" if option.turns_off else "store_true"
    else:
        how |= {"type": partial(_read, option.form), "metavar": option.form.metavar}
    if option.is_repeated:
        how["action"] = "append"
    if not option.name.startswith("-"):
        section.add_argument(field, nargs=option.nargs or None, **how)
        return
    if option.nargs and not getattr(parser, "HAS_SCRIPT", False):
        how |= {"nargs": option.nargs, "const": option.left_out}
    if option.is_required:
        how["required"] = True
    flags = (option.name, option.alias) if option.alias else (option.name,)
    if option.is_written:
        add_output(
            parser, *flags, group=section, makes_folder=option.makes_folder, dest=field, **how
        )
    else:
        section.add_argument(*flags, dest=field, **how)


def _read(form: Form, text: str) -> Any:
    # argparse reads the default of a positional argument that is left out, too.
    if text is argparse.SUPPRESS:
        return text
    try:
        return form.read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {form.metavar}, got {text!r}") from error


def asked(record: type[Record], args: argparse.Namespace) -> Record:
    """The record of what was typed, with fields that the parser fills by itself."""
    options = options_of(record)
    values = {each.name: vars(args)[each.name] for each in fields(record) if each.name in args}
    for field, value in values.items():
        if isinstance(value, list):
            values[field] = tuple(value)
        elif field in options:
            values[field] = options[field].value(value)
    return record(**values, given=tuple(field for field in options if field in values))
