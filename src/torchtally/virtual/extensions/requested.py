"""Libraries that use kernels of others where the script asks for it, and look for them before."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from torchtally.virtual.extensions.absent import HOME, is_absent
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

TRANSFORMERS = "transformers.modeling_flash_attention_utils"
VERSIONS = {2: "flash_attn", 3: "flash_attn_interface"}
CHECKS = ("general_availability_check", "pkg_availability_check")
MATRIX = "FLASH_ATTENTION_COMPATIBILITY_MATRIX"


HUB = "kernels"
LOADERS = ("get_kernel", "has_kernel")
LOADED = "kernels.{name} is provided by tally: the original is compiled for GPUs"


def patches(note: Callable[[str], None]) -> list[tuple[str, Replacements]]:
    def of_hub(module: ModuleType) -> list[StandIn]:
        """Stand-ins of the package that is installed: it would load what is compiled for GPUs."""
        if str(module.__file__).startswith(str(HOME)):
            return []
        return [StandIn(module, name, answering(name)) for name in LOADERS if hasattr(module, name)]

    def answering(name: str) -> Callable[..., Any]:
        def answer(*args: Any, **options: Any) -> Any:
            note(LOADED.format(name=name))
            return getattr(import_module("torchtally.libraries.kernels"), name)(*args, **options)

        return answer

    return [(TRANSFORMERS, of_transformers), (HUB, of_hub)]


def yes(*args: Any, **options: Any) -> bool:
    return True


class Entries:
    """A dictionary as an object whose attributes are its entries."""

    def __init__(self, entries: dict[str, Any]) -> None:
        object.__setattr__(self, "entries", entries)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "entries" if name == "__dict__" else name)

    def __setattr__(self, name: str, value: Any) -> None:
        self.entries[name] = value


def of_transformers(module: ModuleType) -> list[StandIn]:
    """`attn_implementation="flash_attention_2"` finds the package; nothing else takes it."""
    matrix: dict[int, dict[str, Any]] = getattr(module, MATRIX, {})
    stand_ins: list[StandIn] = []
    for version, package in VERSIONS.items():
        if version in matrix and is_absent(package):
            stand_ins.append(StandIn(module, f"is_flash_attn_{version}_available", yes))
            stand_ins += [StandIn(Entries(matrix[version]), check, yes) for check in CHECKS]
    return stand_ins
