"""The packages, from names.txt."""

from pathlib import Path
from typing import NamedTuple

NAMES = Path(__file__).with_name("names.txt")


class Package(NamedTuple):
    module: str
    """What a script imports."""
    requirement: str
    """What an installer is asked for."""

    @property
    def distribution(self) -> str:
        return self.requirement.partition("<")[0].partition("[")[0]


def packages() -> list[Package]:
    lines = (line.split() for line in NAMES.read_text().splitlines() if line[:1] != "#")
    return [Package(words[0], words[-1]) for words in lines]
