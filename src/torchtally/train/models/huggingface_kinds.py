"""The decoders of transformers that ours can be: `huggingface.toml`, a row for each model_type."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import msgspec

from torchtally.errors import UsageError
from torchtally.train.models.config import TransformerConfig

TABLE = Path(__file__).with_name("huggingface.toml")
OF_ALL = frozenset(
    """
    is_tied dropout rope_theta rope_stretch norm_eps head_dim active_experts init_std
    """.split()
)
"""Fields that are free in every row."""


class DecoderKind(msgspec.Struct, frozen=True, kw_only=True, rename={"class_name": "class"}):
    """One row; the table says what its fields are."""

    name: str
    class_name: str
    gguf: str
    keys: dict[str, str]
    always: dict[str, Any]
    modules: dict[str, str]
    fixed: dict[str, Any] = {}
    free: frozenset[str] = frozenset()
    epsilon: float = 1e-6
    theta: float = 10_000.0

    def unlike(self, config: TransformerConfig) -> list[str]:
        """Respects in which a config is not of this kind."""
        wanted = {
            field.name: self.fixed.get(field.name, field.default)
            for field in fields(config)
            if field.default is not MISSING and field.name not in OF_ALL | self.free
        }
        if self.name == "gpt2":
            wanted |= {"kv_heads": config.heads, "head_size": config.width // config.heads}
            wanted["activation"] = "gelu" if config.activation == "gelu" else "gelu_tanh"
        return [
            f"{name}={value!r} instead of {getattr(config, name)!r}"
            for name, value in wanted.items()
            if getattr(config, name) != value
        ]


def _read() -> dict[str, DecoderKind]:
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    parts = rows.pop("parts")
    return {
        name: msgspec.convert(
            row
            | {"name": name}
            | {
                table: _join(table, [*(parts[part] for part in row.get("like", ())), row])
                for table in ("fixed", "keys", "always", "modules")
            },
            DecoderKind,
        )
        for name, row in rows.items()
    }


def _join(table: str, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for row in rows for key, value in row.get(table, {}).items()}


KINDS = _read()
"""By model_type."""


def kind_of(config: TransformerConfig) -> DecoderKind:
    """The first kind that a config is of.

    Raises UsageError for a combination that no class of transformers has.
    """
    unlike = {name: kind.unlike(config) for name, kind in KINDS.items()}
    nearest = min(unlike, key=lambda name: len(unlike[name]))
    if not unlike[nearest]:
        return KINDS[nearest]
    raise UsageError(
        f"transformers has no such model. The nearest is {nearest}, with "
        f"{', '.join(unlike[nearest])}."
    )
