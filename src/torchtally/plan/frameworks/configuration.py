"""A layout that stands in a framework's configuration: which framework's, and in our words."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Model
from torchtally.plan.frameworks import accelerate, deepspeed, fine_tuners, megatron, torchtitan
from torchtally.plan.frameworks.fine_tuners import Adapters
from torchtally.plan.frameworks.values import count
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

READ = (
    "torchtitan (.toml), DeepSpeed (.json), accelerate, axolotl and LLaMA-Factory (.yaml), or "
    "Megatron-LM's arguments"
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a file says of a layout."""

    framework: str
    words: str
    """As --layout takes them."""
    batch: int | None
    """Sequences in an optimizer step, where the file says it."""
    stack: str
    """Software that reads it, as `--stack` takes it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What it says instead of the stack's facts, by their knobs."""
    sequence: int | None = None
    """Tokens of a sequence, where the file says it."""
    adapters: Adapters | None = None
    """None: all weights are trained."""


def configuration(path: str, layers: int | None) -> Configuration:
    """The layout in a file. `layers` of the model, by which chunks of a pipeline are counted.

    Raises UsageError for a file that cannot be read, or says nothing of a layout.
    """
    text = _text(path)
    name = os.path.basename(path)
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".toml":
        document = _toml(text, name)
        words, batch = torchtitan.layout_words(document, layers)
        facts = torchtitan.facts_of(document)
        return Configuration("torchtitan", ", ".join(words), batch, "torchtitan", facts)
    if suffix == ".json":
        document = _json(text, name)
        words, batch = deepspeed.layout_words(document, name)
        facts = deepspeed.facts_of(document)
        return Configuration("DeepSpeed", ", ".join(words), batch, "deepspeed", facts)
    if suffix in (".yaml", ".yml"):
        return _of_yaml(_yaml(text, name), name)
    words, batch = megatron.layout_words(text, name, layers)
    facts = megatron.facts_of(text)
    return Configuration("Megatron-LM", ", ".join(words), batch, "megatron", facts)


def _of_yaml(document: Mapping[str, Any], name: str) -> Configuration:
    """Configuration by the keys: accelerate's, axolotl's and LLaMA-Factory's files end alike."""
    adapters = fine_tuners.adapters(document)
    if fine_tuners.is_axolotl(document):
        return Configuration(
            "axolotl", ", ".join(fine_tuners.axolotl_words(document, name)), None, "axolotl",
            fine_tuners.axolotl_facts(document), _length(document, "sequence_len"), adapters,
        )  # fmt: skip
    if fine_tuners.is_llama_factory(document):
        return Configuration(
            "LLaMA-Factory",
            ", ".join(fine_tuners.llama_factory_words(document, name)),
            None,
            "trainer",
            fine_tuners.llama_factory_facts(document),
            _length(document, "cutoff_len"),
            adapters,
        )
    words, batch = accelerate.layout_words(document, name)
    return Configuration("accelerate", ", ".join(words), batch, "fsdp")


def _length(document: Mapping[str, Any], key: str) -> int | None:
    return count(document, key) if key in document else None


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
