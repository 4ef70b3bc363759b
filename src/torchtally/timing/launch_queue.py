"""How far ahead of its device a host gets: a stream's queue has room for so many launches."""

from collections import deque
from typing import Generic, TypeVar

from torchtally.chips import Chip
from torchtally.timing.constants import QUEUED_LAUNCHES

Operator = TypeVar("Operator")


def has_known_queue(chip: Chip) -> bool:
    """How many launches other vendors' queues hold is not known; their hosts wait for no room."""
    return chip.vendor == "NVIDIA"


class LaunchQueue(Generic[Operator]):
    """The launches that one stream was given last, of whatever stands for their operators."""

    __slots__ = ("_launches", "_operators")

    def __init__(self) -> None:
        self._operators: deque[tuple[Operator, int]] = deque()
        self._launches = 0

    def make_room(self, launches: int) -> Operator | None:
        """The last operator that must have ended before another one's launches fit."""
        last, operators = None, self._operators
        while operators and self._launches + launches > QUEUED_LAUNCHES:
            last, count = operators.popleft()
            self._launches -= count
        return last

    def add(self, operator: Operator, launches: int) -> None:
        self._operators.append((operator, launches))
        self._launches += launches
