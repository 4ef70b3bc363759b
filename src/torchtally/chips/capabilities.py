"""What devices of one compute capability can do: instructions, memories, libraries; one row each.

A compute capability is compared here and nowhere else; others ask for a property,
`chip.sm.has_tma`, or look a measured constant up by `chip.sm.design` (`tests/layers.py` holds the
source to it).
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

MIB = 1 << 20

MatrixInstruction = Literal["", "m8n8k4", "m16n8k8", "m16n8k16", "wgmma", "tcgen05"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """All devices of one compute capability."""

    version: tuple[int, int]
    generation: str
    design: str = ""
    """Dies that were designed together, by NVIDIA's names of them: what was measured on one of
    them is a constant of all. "": no such constant is looked up."""
    has_bfloat16: bool = False
    """Products in bfloat16 and TF32 on the matrix unit."""
    has_float8: bool = False
    matrix_instruction: MatrixInstruction = ""
    """The widest instruction of a matrix unit for 16 bits, from which libraries' kernels are built
    (PTX ISA, "Warp Level Matrix Instructions", "wgmma" and "TensorCore 5th Generation"): `mma`
    of 8 x 8 x 4 on Volta, of 16 x 8 x 8 on Turing, of 16 x 8 x 16 from Ampere on and again on
    Blackwell's chips for graphics, `wgmma` on Hopper alone, `tcgen05` on Blackwell's for data
    centers and robots."""
    has_async_copies: bool = True
    """Loads go on beside the arithmetic by themselves: `cp.async`, since 8.0 (PTX ISA). Assumed of
    what is not a CUDA device."""
    has_tma: bool = False
    """Tiles are loaded by the Tensor Memory Accelerator, whose rows begin on 16 bytes:
    `cp.async.bulk.tensor`, since 9.0 (PTX ISA)."""
    has_multimem: bool = False
    """Adds up and sends to many in the switch of its links, NVLink SHARP: `multimem`, since 9.0
    (PTX ISA; NVIDIA H100 architecture paper)."""
    has_block_scales: bool = False
    """Products of 6 and 4 bits and of blocks with a scale: `.kind::f8f6f4`, `mxf4`, `mxf4nvf4`
    of `mma` and `tcgen05.mma`, since 10.0 (PTX ISA 8.7)."""
    has_int4: bool = False
    """Products of 4-bit integers: `mma` with `.s4`, 7.5 to 8.9; Hopper gave it up (PTX ISA)."""
    has_halved_l2: bool = True
    """Each half of the L2 cache keeps what its own multiprocessors read: of an A100 (NVIDIA A100
    architecture paper, "L2 cache"), assumed of those before and of other vendors' devices."""
    has_efficient_attention: bool = True
    """PyTorch's memory-efficient attention: since 5.0 (check_sm_version of aten/src/ATen/native/
    transformers/cuda/sdp_utils.cpp)."""
    has_flash_attention: bool = False
    """PyTorch's flash attention, and its rules for bfloat16 and TF32 in the memory-efficient one:
    since 8.0 (the same file)."""
    prefers_cudnn_attention: bool = False
    """PyTorch tries cuDNN's attention first, and lets it take heads of 192 and 128: major 9 and 10
    (`check_prefer_cudnn_attention` of the same file)."""
    trains_large_heads: bool = True
    """Flash attention's backward pass takes heads above 192; not in 99 KiB of shared memory: 8.6,
    8.9 and 12.x (`check_requires_grad_and_head_dim_gt192...` of the same file)."""
    float64_share: float | None = None
    """float64's rate over float32's, outside the matrix unit, on chips made for graphics: 2 units
    in each multiprocessor beside 64 (7.5) or 128 (CUDA C++ Programming Guide, "Arithmetic
    Instructions"; NVIDIA, "Ada GPU Architecture"; 12.0 is assumed to be as 8.9).
    None: the chip's own peak."""
    blas_workspace_bytes: int = 0
    """Of each cuBLAS handle and stream, by PyTorch's default (aten/src/ATen/cuda/
    CublasHandlePool.cpp)."""
    context_bytes: int = 0
    """Estimated: what the CUDA context and the libraries' code take outside the allocator. Reports
    of `nvidia-smi` beside `torch.cuda.memory_reserved()` give 0.4 to 0.6 GiB since Volta."""
    shared_kib: int = 96
    """Shared memory that a block may opt in to (CUDA C++ Programming Guide, "Technical
    Specifications per Compute Capability")."""
    reserved_kib: int = 0
    """Shared memory of a multiprocessor beyond that: 1 KiB of each block's since 8.0 (the same)."""
    threads: int = 2048
    """Resident in a multiprocessor (the same table)."""
    float32_lanes: int = 128
    """Multiplications with an addition that a multiprocessor starts in a clock, outside of matrix
    units (CUDA C++ Programming Guide, "Arithmetic Instructions")."""

    def is_no_newer_than(self, version: tuple[int, int]) -> bool:
        """Whether a device that says so of itself can do what these can."""
        return self.version <= version

    @property
    def has_tf32(self) -> bool:
        """Products of float32 on the matrix unit: since bfloat16's."""
        return self.has_bfloat16

    @property
    def has_wgmma(self) -> bool:
        return self.matrix_instruction == "wgmma"

    @property
    def has_tcgen05(self) -> bool:
        return self.matrix_instruction == "tcgen05"

    @property
    def has_tensor_cores(self) -> bool:
        return self.matrix_instruction != ""


SMALL, LARGE = 2 * 4 * MIB + 8 * MIB // 64, 32 * MIB
OLDEST = Capability(
    version=(0, 0),
    generation="before Maxwell",
    has_async_copies=False,
    has_efficient_attention=False,
    blas_workspace_bytes=SMALL,
    context_bytes=500 * MIB,
    shared_kib=48,
)
MAXWELL = replace(OLDEST, version=(5, 0), generation="Maxwell", has_efficient_attention=True)
PASCAL = replace(MAXWELL, version=(6, 0), generation="Pascal", design="GP100", float32_lanes=64)
VOLTA = replace(
    PASCAL,
    version=(7, 0),
    generation="Volta",
    design="GV100",
    matrix_instruction="m8n8k4",
    shared_kib=96,
)
TURING = replace(
    VOLTA, version=(7, 5), generation="Turing", design="TU10x", matrix_instruction="m16n8k8",
    has_int4=True, float64_share=1 / 32, shared_kib=64, threads=1024,
)  # fmt: skip
AMPERE = replace(
    VOLTA, version=(8, 0), generation="Ampere", design="GA100", has_bfloat16=True,
    matrix_instruction="m16n8k16", has_async_copies=True, has_int4=True, has_flash_attention=True,
    shared_kib=163, reserved_kib=1,
)  # fmt: skip
GRAPHICS = replace(
    AMPERE, version=(8, 6), design="GA10x", has_halved_l2=False, trains_large_heads=False,
    float64_share=1 / 64, shared_kib=99, threads=1536, float32_lanes=128,
)  # fmt: skip
ORIN = replace(GRAPHICS, version=(8, 7), design="GA10B", trains_large_heads=True, shared_kib=163)
ADA = replace(GRAPHICS, version=(8, 9), generation="Ada", design="AD10x", has_float8=True)
HOPPER = replace(
    AMPERE, version=(9, 0), generation="Hopper", design="GH100", has_float8=True,
    matrix_instruction="wgmma", has_tma=True, has_multimem=True, has_int4=False,
    has_halved_l2=False, prefers_cudnn_attention=True, blas_workspace_bytes=LARGE,
    context_bytes=600 * MIB, shared_kib=227, float32_lanes=128,
)  # fmt: skip
BLACKWELL = replace(
    HOPPER,
    version=(10, 0),
    generation="Blackwell",
    design="GB100",
    matrix_instruction="tcgen05",
    has_block_scales=True,
)
GRAPHICS_BLACKWELL = replace(
    BLACKWELL, version=(12, 0), design="GB20x", matrix_instruction="m16n8k16",
    prefers_cudnn_attention=False, trains_large_heads=False, float64_share=1 / 64, shared_kib=99,
    threads=1536,
)  # fmt: skip
CAPABILITIES = (
    OLDEST,
    MAXWELL,
    PASCAL,
    replace(PASCAL, version=(6, 1), design="GP10x", float64_share=1 / 32, float32_lanes=128),
    VOLTA,
    TURING,
    AMPERE,
    GRAPHICS,
    ORIN,
    ADA,
    HOPPER,
    BLACKWELL,
    replace(BLACKWELL, version=(10, 3), design="GB110"),
    replace(BLACKWELL, version=(10, 7), generation="Vera Rubin", design="GR100"),
    replace(
        BLACKWELL,
        version=(11, 0),
        design="GB10B",
        prefers_cudnn_attention=False,
        blas_workspace_bytes=SMALL,
        threads=1536,
    ),
    GRAPHICS_BLACKWELL,
    replace(GRAPHICS_BLACKWELL, version=(12, 1), design="GB20B"),
)
"""Oldest first."""
AMPERE_AND_ADA = tuple(row.design for row in CAPABILITIES if row.generation in ("Ampere", "Ada"))
DATA_CENTER_BLACKWELL = tuple(
    row.design for row in CAPABILITIES if row.has_tcgen05 and row.prefers_cudnn_attention
)
"""Designs, Rubin's with them."""

OTHER = Capability(version=(0, 0), generation="", has_efficient_attention=False)
"""What is not a CUDA device: nothing that is asked of CUDA."""
ROCM = replace(
    OTHER, matrix_instruction="m16n8k16", has_efficient_attention=True, has_flash_attention=True
)
"""AMD's GPUs: PyTorch asks them as it asks an Ampere (sdp_utils.cpp, by `dprops->major` of 9 and
more), but for cuDNN's attention, which MIOpen lacks."""
CDNA4 = replace(ROCM, has_block_scales=True)
"""gfx950, whose matrix instructions take MX formats (AMD Instinct CDNA4 ISA, V_MFMA_SCALE)."""

BFLOAT16_SINCE = next(row for row in CAPABILITIES if row.has_bfloat16)
FLOAT8_SINCE = next(row for row in CAPABILITIES if row.has_float8)


@cache
def capability(version: tuple[int, int]) -> Capability:
    """The row of this version; of one without a row, the newest row that is older."""
    return next(row for row in reversed(CAPABILITIES) if row.version <= version)
