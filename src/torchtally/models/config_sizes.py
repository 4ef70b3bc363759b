"""Sizes in a config.json that no model can have: said by key, before a library builds for hours."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchtally.errors import UsageError

SIZE = re.compile(
    r"(hidden|intermediate|vocab)_size|head_dim|d_(model|ff|kv)|max_position_embeddings"
    r"|n_(embd|layers?|heads?|positions)|num_(\w+_)?(layers|heads|experts)|(en|de)coder_layers"
)
"""Keys whose value is a whole number, as transformers names them."""
NEVER_ZERO = re.compile(r"(hidden|vocab)_size|d_model|n_embd|n_heads?|num_(\w+_)?heads")
BUILT_ONE_BY_ONE = re.compile(r"\w*(layers?|experts)")
MOST_BUILT = 10_000
"""Layers or experts: each is a module, and takes milliseconds."""
MOST = 1 << 40


def check_sizes(path: str, values: Mapping[str, Any]) -> None:
    """Raises UsageError naming file and key."""
    for key, value in sizes_in(values, ""):
        if (wrong := complaint(key.rpartition(".")[2], value)) is not None:
            raise UsageError(f"{path}: {key}: {wrong}, found {str(value)[:40]!r}.")


def sizes_in(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys as "text_config.hidden_size", with their values."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from sizes_in(value, f"{prefix}{key}.")
        elif SIZE.fullmatch(key) and not isinstance(value, list | None):
            yield f"{prefix}{key}", value


def complaint(key: str, value: object) -> str | None:
    """What was expected instead."""
    if not isinstance(value, int) or isinstance(value, bool):
        return "expected a whole number"
    least = 1 if NEVER_ZERO.fullmatch(key) else 0
    if value < least:
        return f"expected at least {least}"
    most = MOST_BUILT if BUILT_ONE_BY_ONE.fullmatch(key) else MOST
    return f"expected at most {most:,}" if value > most else None
