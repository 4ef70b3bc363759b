"""How much work: a quantity that adds."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact counts. Bytes are the device memory's: host memory is not in them."""

    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    network_bytes: int = 0

    def __add__(self, other: Self) -> "Cost":
        return Cost(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.network_bytes + other.network_bytes,
        )

    def __mul__(self, times: int) -> "Cost":
        return Cost(
            self.flops * times,
            self.bytes_read * times,
            self.bytes_written * times,
            self.network_bytes * times,
        )

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written
