"""What the allocator counts, as `torch.cuda.memory_stats()` shows it."""

from typing import Any


class Stat:
    """One quantity: now, at most, and in all."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        if self.current > self.peak:
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def reset_peak(self) -> None:
        self.peak = self.current

    def reset_accumulated(self) -> None:
        self.allocated = self.freed = 0

    def as_dict(self) -> dict[str, int]:
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class PoolStatistics:
    """The quantities of one pool, or of both together.

    An allocation changes five of them, ten with both pools' sum, a hundred thousand times in a
    step: they are plain numbers here, and become `Stat`s when somebody looks.
    """

    __slots__ = (
        "active_bytes_peak",
        "active_peak",
        "bytes",
        "bytes_peak",
        "bytes_total",
        "count",
        "count_peak",
        "count_total",
        "pending",
        "pending_bytes",
        "requested",
        "requested_peak",
        "requested_total",
        "reserved_bytes",
        "segment",
        "split",
        "split_bytes",
        "split_bytes_peak",
        "split_bytes_total",
        "split_peak",
        "split_total",
        "totals_before",
    )

    def __init__(self) -> None:
        self.segment = Stat()
        self.reserved_bytes = Stat()
        self.count = self.count_peak = self.count_total = 0
        self.bytes = self.bytes_peak = self.bytes_total = 0
        self.requested = self.requested_peak = self.requested_total = 0
        self.pending = self.pending_bytes = self.active_peak = self.active_bytes_peak = 0
        """Freed blocks that other streams may still use are active, though not allocated."""
        self.split = self.split_peak = self.split_total = 0
        self.split_bytes = self.split_bytes_peak = self.split_bytes_total = 0
        self.totals_before = (0, 0, 0, 0, 0)
        """Those that were current when the accumulated figures were reset."""

    def count_allocation(self, size: int, requested_bytes: int) -> None:
        """A block was handed out."""
        self.count_total += 1
        self.bytes_total += size
        self.requested_total += requested_bytes
        self.count = count = self.count + 1
        if count > self.count_peak:
            self.count_peak = count
        self.bytes = allocated_bytes = self.bytes + size
        if allocated_bytes > self.bytes_peak:
            self.bytes_peak = allocated_bytes
        self.requested = requested = self.requested + requested_bytes
        if requested > self.requested_peak:
            self.requested_peak = requested
        if self.pending:
            self.active_peak = max(self.active_peak, count + self.pending)
            self.active_bytes_peak = max(
                self.active_bytes_peak, allocated_bytes + self.pending_bytes
            )

    def count_free(self, size: int) -> None:
        """A block came back; it is active until it is available."""
        self.count -= 1
        self.bytes -= size

    def count_waiting(self, size: int) -> None:
        self.pending += 1
        self.pending_bytes += size
        self.active_peak = max(self.active_peak, self.count + self.pending)
        self.active_bytes_peak = max(self.active_bytes_peak, self.bytes + self.pending_bytes)

    def count_splits(self, blocks: int, size: int) -> None:
        """Free parts of segments became more or fewer."""
        self.split = split = self.split + blocks
        if split > self.split_peak:
            self.split_peak = split
        self.split_bytes = split_bytes = self.split_bytes + size
        if split_bytes > self.split_bytes_peak:
            self.split_bytes_peak = split_bytes
        if blocks > 0:
            self.split_total += blocks
        if size > 0:
            self.split_bytes_total += size

    def reset_peaks(self) -> None:
        self.segment.reset_peak()
        self.reserved_bytes.reset_peak()
        self.count_peak, self.bytes_peak = self.count, self.bytes
        self.requested_peak = self.requested
        self.active_peak = self.count + self.pending
        self.active_bytes_peak = self.bytes + self.pending_bytes
        self.split_peak, self.split_bytes_peak = self.split, self.split_bytes

    def reset_accumulated(self) -> None:
        self.segment.reset_accumulated()
        self.reserved_bytes.reset_accumulated()
        self.count_total = self.bytes_total = self.requested_total = 0
        self.split_total = self.split_bytes_total = 0
        self.totals_before = (self.count, self.bytes, self.requested, self.split, self.split_bytes)

    def as_dicts(self) -> dict[str, dict[str, int]]:
        """Every quantity by its name."""
        count_0, bytes_0, requested_0, split_0, split_bytes_0 = self.totals_before
        active, active_bytes = self.count + self.pending, self.bytes + self.pending_bytes
        active_peak = max(self.active_peak, self.count_peak)
        active_bytes_peak = max(self.active_bytes_peak, self.bytes_peak)
        return {
            "allocation": quantity(self.count, self.count_peak, self.count_total, count_0),
            "segment": self.segment.as_dict(),
            "active": quantity(active, active_peak, self.count_total, count_0),
            "inactive_split": quantity(self.split, self.split_peak, self.split_total, split_0),
            "allocated_bytes": quantity(self.bytes, self.bytes_peak, self.bytes_total, bytes_0),
            "reserved_bytes": self.reserved_bytes.as_dict(),
            "active_bytes": quantity(active_bytes, active_bytes_peak, self.bytes_total, bytes_0),
            "inactive_split_bytes": quantity(
                self.split_bytes, self.split_bytes_peak, self.split_bytes_total, split_bytes_0
            ),
            "requested_bytes": quantity(
                self.requested, self.requested_peak, self.requested_total, requested_0
            ),
        }


def quantity(current: int, peak: int, total: int, before: int) -> dict[str, int]:
    """Freed: what was there before and what was allocated since, less what is there now."""
    freed = before + total - current
    return {"current": current, "peak": peak, "allocated": total, "freed": freed}


class Statistics:
    """All that one device's allocator counts."""

    def __init__(self) -> None:
        self.all = PoolStatistics()
        self.small = PoolStatistics()
        self.large = PoolStatistics()
        self.oversize_allocations = Stat()
        self.oversize_segments = Stat()
        self.alloc_retries = 0
        self.ooms = 0
        self.sync_all_streams = 0
        self.device_allocs = 0
        self.device_frees = 0

    def reset_peaks(self) -> None:
        for each in (self.all, self.small, self.large):
            each.reset_peaks()
        self.oversize_allocations.reset_peak()
        self.oversize_segments.reset_peak()

    def reset_accumulated(self) -> None:
        for each in (self.all, self.small, self.large):
            each.reset_accumulated()
        self.oversize_allocations.reset_accumulated()
        self.oversize_segments.reset_accumulated()
        self.alloc_retries = self.ooms = self.sync_all_streams = 0
        self.device_allocs = self.device_frees = 0

    def as_nested_dict(self, max_split_bytes: int) -> dict[str, Any]:
        """Statistics in the shape of `torch.cuda.memory_stats_as_nested_dict()`."""
        pools = {"all": self.all, "small_pool": self.small, "large_pool": self.large}
        by_pool = {place: pool.as_dicts() for place, pool in pools.items()}
        return {
            "num_alloc_retries": self.alloc_retries,
            "num_ooms": self.ooms,
            "max_split_size": max_split_bytes if max_split_bytes < 2**63 else -1,
            "num_sync_all_streams": self.sync_all_streams,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
            **{name: {place: by_pool[place][name] for place in pools} for name in by_pool["all"]},
            "oversize_allocations": self.oversize_allocations.as_dict(),
            "oversize_segments": self.oversize_segments.as_dict(),
        }
