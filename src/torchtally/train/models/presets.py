"""Model shapes by name, the rows of `presets.toml`: GPT-2, Llama, and three small ones like it."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from torchtally.errors import UsageError, did_you_mean
from torchtally.train.models.config import TransformerConfig


def _read() -> dict[str, TransformerConfig]:
    table = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
    return {
        name: msgspec.convert(table["parts"][row["like"]] | row, TransformerConfig)
        for name, row in table["presets"].items()
    }


PRESETS: Mapping[str, TransformerConfig] = _read()


def preset(name: str, **changes: Any) -> TransformerConfig:
    """The config of a preset, with changes.

    Raises UsageError for an unknown preset, naming similar ones, and for invalid values.
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}. {did_you_mean(name, PRESETS)}")
    return replace(PRESETS[name], **changes)
