"""The error of PyTorch where memory runs out, in its words."""

from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(eq=False)
class OutOfMemoryError(Exception):
    """A request that nothing could satisfy, with what stood at that moment. In bytes."""

    requested_bytes: int
    """What the segment for it would have taken."""
    device_index: int
    total_bytes: int
    free_bytes: int
    allowed_bytes: int | None
    """What a memory fraction leaves to this process; None without one."""
    allocated_bytes: int
    reserved_bytes: int

    def __str__(self) -> str:
        """Text as c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11 words it."""
        allowed = f"{torch_size(self.allowed_bytes)} allowed; " if self.allowed_bytes else ""
        unallocated_bytes = self.reserved_bytes - self.allocated_bytes
        in_use = torch_size(self.total_bytes - self.free_bytes)
        return (
            f"CUDA out of memory. Tried to allocate {torch_size(self.requested_bytes)}. "
            f"GPU {self.device_index} has a total capacity of {torch_size(self.total_bytes)} "
            f"of which {torch_size(self.free_bytes)} is free. "
            f"Including non-PyTorch memory, this process has {in_use} memory in use. "
            f"{allowed}Of the allocated memory {torch_size(self.allocated_bytes)} is allocated by "
            f"PyTorch, and {torch_size(unallocated_bytes)} is reserved by PyTorch but unallocated."
            " If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
            "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )


def torch_size(size_bytes: int) -> str:
    """A size as PyTorch prints it in this message: 2.00 GiB, 512.00 MiB, 100 bytes."""
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB")):
        if size_bytes <= unit * KIB:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes / GIB:.2f} GiB"
