"""The keys of a config.json of transformers or diffusers, read without either."""

import json
from typing import Any

from torchtally.errors import UsageError
from torchtally.files.reading import read_bytes


def config_values(path: str) -> dict[str, Any]:
    """What a config.json says. Raises UsageError for another file."""
    try:
        values: Any = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}).") from error
    named = values if isinstance(values, dict) else {}
    if not any(isinstance(named.get(key), str) for key in ("model_type", "_class_name")):
        raise UsageError(
            f"{path}: no model_type (of transformers) and no _class_name (of diffusers)."
        )
    return named
