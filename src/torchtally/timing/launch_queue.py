"""How far ahead of its device a host gets: a stream's queue has room for so many launches."""

from collections import deque
from typing import Generic, TypeVar

from torchtally.chips import Chip

QUEUED_LAUNCHES = 1024
"""Of one stream of an NVIDIA GPU; to launch another kernel, the host waits until one has ended.
Measured: a thousand launches take 4 to 5 us each, every further one as long as a kernel runs, and
with three streams each takes a thousand (NVIDIA's developer forum, topic 68937); 1024 by OneFlow's
pull request 890."""

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
