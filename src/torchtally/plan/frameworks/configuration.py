"""A layout that stands in a framework's configuration: which framework's, and in our words."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Model
from torchtally.plan.frameworks import accelerate, deepspeed, megatron, torchtitan
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.step import Workload


class Framework(NamedTuple):
    """What a framework can run, and how it is told to."""

    name: str
    is_its: Callable[[Layout], bool]
    """Whether it has all that a layout needs."""
    written: Callable[[Layout, Workload], str]
    """Its configuration of a layout. Raises UsageError for a model that it does not have."""
    check: Callable[[Model], object] = str
    """Raises UsageError for a model that it does not have."""


FRAMEWORKS: Mapping[str, Framework] = {
    "torchtitan": Framework(
        "torchtitan", torchtitan.is_its, torchtitan.config_text, torchtitan.flavor_of
    ),
    "megatron": Framework("Megatron-LM", megatron.is_its, megatron.config_text),
    "deepspeed": Framework("DeepSpeed", deepspeed.is_its, deepspeed.config_text),
    "accelerate": Framework("accelerate", accelerate.is_its, accelerate.config_text),
}
"""By option of `tally plan`."""

READ = "torchtitan (.toml), DeepSpeed (.json), accelerate (.yaml), or Megatron-LM's arguments"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a file says of a layout."""

    framework: str
    words: str
    """As --layout takes them."""
    batch: int | None
    """Sequences in an optimizer step, where the file says it."""


def configuration(path: str, layers: int | None) -> Configuration:
    """The layout in a file. `layers` of the model, by which chunks of a pipeline are counted.

    Raises UsageError for a file that cannot be read, or says nothing of a layout.
    """
    text = _text(path)
    name = os.path.basename(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".toml":
        return _of("torchtitan", torchtitan.layout_words(_toml(text, name), layers))
    if suffix == ".json":
        return _of("DeepSpeed", deepspeed.layout_words(_json(text, name), name))
    if suffix in (".yaml", ".yml"):
        return _of("accelerate", accelerate.layout_words(_yaml(text, name), name))
    return _of("Megatron-LM", megatron.layout_words(text, name, layers))


def _of(framework: str, layout: tuple[list[str], int | None]) -> Configuration:
    words, batch = layout
    return Configuration(framework, ", ".join(words), batch)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read(1 << 20)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"{path}: cannot be read ({why}). Layouts are read from {READ}."
        ) from error


def _toml(text: str, name: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: not TOML ({error}).") from None


def _json(text: str, name: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{name}: not JSON ({error}).") from None
    return _mapping(document, name)


def _yaml(text: str, name: str) -> Mapping[str, Any]:
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UsageError(f"{name}: reading YAML needs a package: pip install pyyaml") from None
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{name}: not YAML ({str(error).splitlines()[0]}).") from None
    return _mapping(document, name)


def _mapping(document: object, name: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise UsageError(f"{name}: no key with a value found. Layouts are read from {READ}.")
    return document
