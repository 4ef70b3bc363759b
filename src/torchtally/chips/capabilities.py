"""What a compute capability of NVIDIA's means, one row each: formats, float64 units, libraries."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Capability:
    """All devices of one compute capability."""

    version: tuple[int, int]
    generation: str
    has_bfloat16: bool
    """Products in bfloat16 and TF32 on the matrix unit."""
    has_float8: bool
    float64_share: float | None
    """float64's rate over float32's, outside the matrix unit, on chips made for graphics: 2 units
    in each multiprocessor beside 64 (7.5) or 128 (CUDA C++ Programming Guide, "Arithmetic
    Instructions"; NVIDIA, "Ada GPU Architecture"; 12.0 is assumed to be as 8.9).
    None: the chip's own peak."""
    blas_workspace_bytes: int
    """Of each cuBLAS handle and stream, by PyTorch's default (aten/src/ATen/cuda/
    CublasHandlePool.cpp)."""
    context_bytes: int
    """Estimated: what the CUDA context and the libraries' code take outside the allocator. Reports
    of `nvidia-smi` beside `torch.cuda.memory_reserved()` give 0.4 to 0.6 GiB since Volta."""
    shared_kib: int = 96
    """Shared memory that a block may opt in to (CUDA C++ Programming Guide, "Technical
    Specifications per Compute Capability"); a multiprocessor has 1 KiB more since 8.0."""
    threads: int = 2048
    """Resident in a multiprocessor (the same table)."""
    float32_lanes: int = 128
    """Multiplications with an addition that a multiprocessor starts in a clock, outside of matrix
    units (CUDA C++ Programming Guide, "Arithmetic Instructions")."""


SMALL, LARGE = 2 * 4 * MIB + 8 * MIB // 64, 32 * MIB
CAPABILITIES = (
    Capability((0, 0), "before Pascal", False, False, None, SMALL, 500 * MIB, 48),
    Capability((6, 0), "Pascal", False, False, None, SMALL, 500 * MIB, 48, float32_lanes=64),
    Capability((6, 1), "Pascal", False, False, 1 / 32, SMALL, 500 * MIB, 48),
    Capability((7, 0), "Volta", False, False, None, SMALL, 500 * MIB, float32_lanes=64),
    Capability((7, 5), "Turing", False, False, 1 / 32, SMALL, 500 * MIB, 64, 1024, 64),
    Capability((8, 0), "Ampere", True, False, None, SMALL, 500 * MIB, 163, 2048, 64),
    Capability((8, 6), "Ampere", True, False, 1 / 64, SMALL, 500 * MIB, 99, 1536),
    Capability((8, 9), "Ada", True, True, 1 / 64, SMALL, 500 * MIB, 99, 1536),
    Capability((9, 0), "Hopper", True, True, None, LARGE, 600 * MIB, 227, 2048),
    Capability((10, 0), "Blackwell", True, True, None, LARGE, 600 * MIB, 227, 2048),
    Capability((11, 0), "Blackwell", True, True, None, SMALL, 600 * MIB, 227, 1536),
    Capability((12, 0), "Blackwell", True, True, 1 / 64, LARGE, 600 * MIB, 99, 1536),
)
"""Oldest first."""
BFLOAT16_SINCE = next(row.version for row in CAPABILITIES if row.has_bfloat16)
FLOAT8_SINCE = next(row.version for row in CAPABILITIES if row.has_float8)


def capability(version: tuple[int, int]) -> Capability:
    """The row of this version; of one without a row, the newest row that is older."""
    return next(row for row in reversed(CAPABILITIES) if row.version <= version)
