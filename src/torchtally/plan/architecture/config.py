"""A Hugging Face config.json as a model. Nothing in it is run, and no weights are needed.

Families are rows (`gpt_like.py`, `llama_like.py`, `mixtures.py`, `multimodal.py`), each tested
against the class of transformers. A family without a row is an error: its keys may look like
Llama's and mean something else.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torchtally.errors import UnknownFamilyError
from torchtally.plan.architecture.config_keys import BY_HAND, Config, excerpt, load
from torchtally.plan.architecture.families import Family, read_decoder
from torchtally.plan.architecture.gpt_like import GPT_LIKE
from torchtally.plan.architecture.hybrids import HYBRIDS
from torchtally.plan.architecture.llama_like import LLAMA_LIKE
from torchtally.plan.architecture.mixtures import MIXTURES
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.multimodal import NARROWED, WRAPPERS, text_part

FAMILIES: Mapping[str, Family] = GPT_LIKE | LLAMA_LIKE | MIXTURES | HYBRIDS
"""Every model_type of a text model that can be read."""
GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def read_config(path: Path | str) -> Model:
    """The model of a config.json; of a multimodal one, its text part.

    Raises UsageError naming file, key, what was found and what to give instead.
    """
    path = Path(path)
    return model_of(load(path), name=path.resolve().parent.name)


def from_values(values: Mapping[str, Any], *, name: str, place: str) -> Model:
    """The model of a config.json's content; `place` is what messages call it."""
    return model_of(Config(place, values), name=name)


def model_of(config: Config, *, name: str) -> Model:
    """The model of these keys. Raises UsageError as `read_config` does."""
    model_type = _model_type(config)
    notes = _notes(config, model_type)
    if (wrapper := WRAPPERS.get(model_type)) is None:
        return replace(_text_model(config, name), notes=notes)
    model = _text_model(text_part(config.of_type(model_type), wrapper), name)
    return replace(model, left_out=wrapper.parts + model.left_out, notes=notes)


def _text_model(config: Config, name: str) -> Model:
    model_type = _model_type(config)
    parts: tuple[str, ...] = ()
    config = config.of_type(model_type)
    if model_type in NARROWED:
        config, parts = NARROWED[model_type](config)
    if model_type not in FAMILIES:
        raise config.wrong("model_type", f"{model_type} is not a text model")
    model = read_decoder(config, FAMILIES[model_type], name)
    return replace(model, left_out=parts + model.left_out)


def _model_type(config: Config) -> str:
    """Model type of a family that can be read. Raises UsageError for any other."""
    value = config.values.get("model_type")
    if value is None and isinstance(of_diffusers := config.values.get("_class_name"), str):
        raise UnknownFamilyError(
            f"{config.place}: {excerpt(of_diffusers)} is a diffusers model without a closed "
            "form: it is counted in its own class, where diffusers is installed and has it."
        )
    if value is None:
        raise config.wrong("model_type", "is missing; the meaning of the other keys depends on it")
    if not isinstance(value, str):
        raise config.wrong("model_type", f"expected a string, found {excerpt(value)}")
    if config.values.get("is_encoder_decoder") is True:
        wrong = config.wrong("is_encoder_decoder", "encoder-decoder models are not supported")
        raise UnknownFamilyError(str(wrong))
    if value not in FAMILIES and value not in WRAPPERS:
        raise UnknownFamilyError(_unknown(config, value))
    return value


def _unknown(config: Config, model_type: str) -> str:
    names = sorted({*FAMILIES, *WRAPPERS})
    near = get_close_matches(model_type, names, n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else ""
    why = (
        "it is defined by code of its own (auto_map), which is never run"
        if "auto_map" in config.values
        else "unknown family; its keys may mean something else than another family's"
    )
    return f"{config.place}: model_type {excerpt(model_type)}: {why}.{hint} {BY_HAND}"


def _notes(config: Config, model_type: str) -> tuple[str, ...]:
    """What a reader must know of a model that was read from this file."""
    notes = []
    if "auto_map" in config.values:
        notes.append(
            f"its own code (auto_map) is not run: read as transformers' class {model_type}"
        )
    quantised = config.values.get("quantization_config")
    if quantised is not None:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        by = f" by {excerpt(method)}" if isinstance(method, str) else ""
        notes.append(f"quantised{by}: weights are counted as before quantisation")
    architectures = config.values.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(first, str) and not first.endswith(GENERATES):
        notes.append(f"the file describes a {excerpt(first)}: counted with a language-model head")
    return tuple(notes)
