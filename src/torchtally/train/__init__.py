"""The training stack: models, optimizers, data and a loop, each small enough to read."""

from importlib.util import find_spec

from torchtally.errors import UsageError

NEEDED = ("jaxtyping", "safetensors")
"""Packages of the extra `train`; nothing outside `train` and `sweep` imports them."""


class MissingExtraError(UsageError, ImportError):
    """The extra `train` is not installed."""


def check_extra() -> None:
    """Raise MissingExtraError where a package of the extra is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"training needs {', '.join(missing)}, which the extra `train` installs: "
            'pip install "torchtally[train]".'
        )


check_extra()
