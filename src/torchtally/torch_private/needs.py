"""Which names of torch's the package needs, and what stops working without them."""

import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed

from torchtally.errors import UnsupportedError
from torchtally.torch_private.releases import tested_versions

_TABLE = tomllib.loads(Path(__file__).with_name("needs.toml").read_text(encoding="utf-8"))
MODULES: list[str] = _TABLE["modules"].split()
NEEDS: Mapping[str, str] = _TABLE["names"]
DISTRIBUTED: Mapping[str, str] = _TABLE["distributed"]
COMPILING: Mapping[str, str] = _TABLE["compiling"]
LATER: Mapping[str, str] = _TABLE["later"]


def file_of(module: str) -> Path:
    """File of a module of torch's, whether it is there or not."""
    return Path(torch.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def has(name: str) -> bool:
    """Whether torch, with the modules above, has something by this dotted name."""
    value: object = torch
    for part in name.split(".")[1:]:
        try:
            value = getattr(value, part)
        except AttributeError:
            return False
    return True


def missing(needs: Mapping[str, str] = NEEDS) -> Iterator[tuple[str, str]]:
    """(name, what stops working without it) of each name that torch does not have."""
    for use, names in needs.items():
        for name in names.split():
            if not has(name):
                yield name, use


def check_names(needs: Mapping[str, str] = NEEDS) -> None:
    """Raise UnsupportedError, with all names that are missing."""
    for module in MODULES:
        try:
            import_module(module)
        except ModuleNotFoundError:
            continue  # its names are missing
    lost = list(missing(needs))
    if needs is NEEDS:
        lost += missing(DISTRIBUTED) if torch.distributed.is_available() else ()
        lost += [(name, use) for name, use in LATER.items() if not file_of(name).exists()]
    if lost:
        raise UnsupportedError(lost_names(lost))


def lost_names(lost: list[tuple[str, str]]) -> str:
    """The message for names that torch no longer has."""
    lines = [f"  {name}: {use}" for name, use in lost]
    return "\n".join(
        [
            f"tally cannot run with PyTorch {torch.__version__}, which lacks what it needs for:",
            *lines,
            f"It is tested with PyTorch {tested_versions()}: install one of these, or a newer "
            "tally.",
        ]
    )
