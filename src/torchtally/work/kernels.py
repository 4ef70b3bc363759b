"""Kernels that are none of PyTorch's: a script's Triton and CUDA kernels, custom operators.

What they compute is what the script declares of them (`torchtally.declare_cost`); otherwise their
FLOPs are unknown. A Triton kernel's bytes are those of the tensors that it loads from and of those
that it stores to, each once and whole, unless they are declared.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost

NAMESPACES = ("triton.", "cuda.")
"""Of the names of a script's kernels."""
UNDECLARED = "its FLOPs only: torchtally.declare_cost gives them; bytes: each tensor once"


def is_launched(call: Call) -> bool:
    """A kernel of the script's, no operator of a library."""
    return call.name.startswith(NAMESPACES) and call.literal("reads") is not None


def declared_flops(call: Call) -> int | None:
    flops = call.literal("declared_flops")
    return flops if isinstance(flops, int) else None


def kernel_bytes(call: Call) -> Cost:
    """Each tensor that it loads from, and each that it stores to."""
    reads = call.literal("reads")
    names = reads if isinstance(reads, tuple) else ()
    on_device = [spec for spec in call.inputs if spec.is_on_device]
    return Cost(
        bytes_read=sum(spec.bytes for spec in on_device if spec.argument in names),
        bytes_written=sum(spec.bytes for spec in on_device if spec.is_written),
    )


def declared_cost(call: Call, flops: int, plain: Cost) -> Cost:
    """`plain` is what it moves if each tensor counts once. Declared bytes are shared by reads and
    writes as those.
    """
    total = call.literal("declared_bytes")
    if not isinstance(total, int):
        return Cost(flops, plain.bytes_read, plain.bytes_written)
    written = total * plain.bytes_written // plain.bytes if plain.bytes else 0
    return Cost(flops, total - written, written)
