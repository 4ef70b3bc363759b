"""What holds a file or a thread, and lets go of it at the end of a `with` block."""

from abc import ABC, abstractmethod
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go; a second call does nothing."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
