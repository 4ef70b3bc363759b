"""Fields of a training config by dotted names: `optimizer.lr`, `model.layers`, `seed`.

Their values are read from text here, for changes on a command line as for the values of a sweep. A
changed config is checked as a whole by `config_of`, like a file without changes.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

from torchtally.checkpoints.checked import convert, hints, plain_members, table_of, type_in_words
from torchtally.errors import UsageError
from torchtally.files.reading import parse_toml
from torchtally.train.config import WHAT, ModelConfig, TrainConfig, config_of
from torchtally.train.models.config import TransformerConfig

QUOTES = ("[", "{", '"', "'")
"""Of values that are written as in TOML."""

HELP_INDENT = 36

HINTS = hints(TrainConfig)
"""The type of each field, by key."""

KeyValues = tuple[tuple[str, Any], ...]
"""(key, value), in command-line order."""


def hint_of(key: str) -> Any:
    """The type of a field. Raises UsageError with suggestions."""
    if key in HINTS:
        return HINTS[key]
    section, _, _ = key.rpartition(".")
    if get_origin(HINTS.get(section)) is dict:  # `model.arguments` takes any key
        return get_args(HINTS[section])[1]
    if inner := [hint for hint in HINTS if hint.startswith(f"{key}.")]:
        raise UsageError(f"{key}: is a section. It has: {', '.join(inner)}.")
    # The last part alone, `lr`, is as likely as a typo.
    by_last = [hint for hint in HINTS if hint.rpartition(".")[2] == key]
    near = by_last or get_close_matches(key, HINTS, n=3)
    guess = (
        f" Did you mean {' or '.join(near)}?" if near else " `tally train CONFIG --help` lists all."
    )
    raise UsageError(f"{key}: unknown key.{guess}")


def is_number(hint: Any) -> bool:
    return is_whole(hint) or float in plain_members(hint)


def is_whole(hint: Any) -> bool:
    """Whether the field is a whole number."""
    return int in plain_members(hint) and float not in plain_members(hint)


def is_array(hint: Any) -> bool:
    """Whether the field has several values."""
    return any(get_origin(member) is tuple for member in plain_members(hint))


def read_value(key: str, text: str) -> Any:
    """A field's value as written on a command line. Raises UsageError naming key and value.

    Numbers, true, false, words; none for optional fields; TOML's arrays and quoted strings.
    """
    hint = hint_of(key)
    if text.lower() == "none" and type(None) in plain_members(hint):
        return None
    value: Any = text
    if hint is Any:
        with suppress(UsageError):  # a word without quotes is a text
            value = parse_toml(f"value = {text}", key, "a TOML value")["value"]
    elif text[:1] in QUOTES:
        value = parse_toml(f"value = {text}", f"{key}: {text[:200]}", "a TOML value")["value"]
    return convert(key, hint, value, strict=False)


def value_text(value: Any) -> str:
    """A value as text that `read_value` accepts: 0.01, 1e-05, true, none, [0.9, 0.95]."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_inner_text, value))}]"
    if isinstance(value, dict):
        items = (f"{json.dumps(key)} = {_inner_text(item)}" for key, item in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    is_like_toml = isinstance(value, str) and (value[:1] in QUOTES or value.lower() == "none")
    return json.dumps(value, ensure_ascii=False) if is_like_toml else str(value)


def _inner_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value_text(value)


# A command line ---------------------------------------------------------------------------------


def flag(key: str, value: Any) -> str:
    """A value as an option of `tally train`."""
    return f"--{key}={value_text(value)}"


def read_changes(words: Sequence[str]) -> KeyValues:
    """The values of `--key value`, `--key=value`, `--array one two`, `--flag` and `--no-flag`.

    Raises UsageError that names the option.
    """
    starts = [at for at, word in enumerate(words) if word.startswith("--")]
    if words and starts[:1] != [0]:
        raise UsageError(f"unexpected argument {words[0]!r}: a change is --key value.")
    return tuple(
        _change(
            *words[begin].removeprefix("--").partition("=")[::2],
            "=" in words[begin],
            words[begin + 1 : end],
        )
        for begin, end in pairwise((*starts, len(words)))
    )


def _change(name: str, text: str, is_equation: bool, words: Sequence[str]) -> tuple[str, Any]:
    key = name.replace("-", "_")
    texts = [text, *words] if is_equation else [*words]
    section, dot, last = key.rpartition(".")
    positive = f"{section}{dot}{last.removeprefix('no_')}"
    if key not in HINTS and bool in plain_members(HINTS.get(positive)):
        key, texts = positive, ["false", *texts]
    try:
        hint = hint_of(key)
        if is_array(hint) and (len(texts) != 1 or (texts[0][:1] != "[" and texts[0] != "none")):
            return key, convert(key, hint, texts, strict=False)
        if bool in plain_members(hint) and not texts:
            return key, True
        if len(texts) != 1:
            raise UsageError(f"{key}: expected one value, got {' '.join(texts) or 'none'}.")
        return key, read_value(key, texts[0])
    except UsageError as error:
        raise UsageError(f"--{error}") from error


def changed_config(toml: str, place: str, changes: KeyValues) -> TrainConfig:
    """The config of a TOML text with changed values. Raises UsageError naming them."""
    document = parse_toml(toml, place, WHAT)
    for key, value in changes:
        *sections, name = key.split(".")
        inner = document
        if sections and isinstance(document.get(sections[0]), str):
            document[sections[0]] = {"code": document[sections[0]]}  # model = "module:Class"
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise UsageError(f"{place}: {section}: is a section, not {inner!r}.")
        inner[name] = value
    listed = ", ".join(f"{key}={value_text(value)}" for key, value in changes)
    return config_of(document, f"{place} with {listed}" if listed else place)


def help_text(config: TrainConfig, width: int) -> str:
    """Every key with its value in this config, what it takes and what it means."""
    return "\n".join(_help_lines(TrainConfig, config, "", width)) + "\n"


def _help_lines(kind: type, config: Any, before: str, width: int) -> Iterator[str]:
    """Lines of a section; without a config all values are none."""
    docs = _docs(kind)
    if kind is ModelConfig:
        docs = _docs(TransformerConfig) | docs
    for name, hint in get_type_hints(kind).items():
        key, value = before + name, getattr(config, name, None)
        if (table := table_of(hint)) is not None:
            title = inspect.cleandoc(table.__doc__ or "").splitlines()[0]
            yield from ("", *textwrap.wrap(f"{key}: {title}", width))
            yield from _help_lines(table, value, f"{key}.", width)
        else:
            head = f"  --{key} {value_text(value)}".ljust(HELP_INDENT - 1) + " "
            text = f"{type_in_words(HINTS[key])}. {docs.get(name, '')}".strip()
            rest = " " * HELP_INDENT
            yield from textwrap.wrap(text, width, initial_indent=head, subsequent_indent=rest)


def _docs(kind: type) -> dict[str, str]:
    """The text below each field in the source of its class."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(str(text.value.value)).replace("\n", " ")
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
