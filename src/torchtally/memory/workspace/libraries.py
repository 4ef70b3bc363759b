"""Workspaces that libraries take once and keep."""

import re
from collections.abc import Mapping

from torchtally.chips import Chip
from torchtally.memory.workspace.kind import BLAS, BLAS_LT, Workspace

KIB, MIB = 1 << 10, 1 << 20

USES_BLAS = frozenset(
    """
    aten.mm aten.addmm aten.bmm aten.baddbmm aten.addbmm aten.mv aten.addmv aten.dot aten.vdot
    aten._addmm_activation aten._scaled_mm aten._int_mm
    """.split()
)
"""Operators whose CUDA kernels ask for a cuBLAS handle, and with it for its workspace."""

WITH_BIAS = frozenset(["aten.addmm", "aten._addmm_activation"])
"""Go to cuBLASLt when what is added is a vector."""


def uses_blas(operator: str) -> bool:
    return operator in USES_BLAS


def adds_bias(operator: str, added_dims: int) -> bool:
    """The product runs in cuBLASLt; `added_dims` are those of the first argument."""
    return operator in WITH_BIAS and added_dims == 1


def blas_workspace(chip: Chip, environment: Mapping[str, str]) -> Workspace:
    """What each cuBLAS handle takes for each stream it works on, when first used there.

    The thread that runs the script has one handle, autograd's thread of the device another.
    `CUBLAS_WORKSPACE_CONFIG` (":4096:2:16:8": pairs of KiB and count) overrides the default.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return Workspace(BLAS, sum(int(size) * KIB * int(count) for size, count in pairs))
    return Workspace(BLAS, chip.sm.blas_workspace_bytes)


def blas_lt_workspace(environment: Mapping[str, str]) -> Workspace:
    """What the cuBLASLt handle takes for each stream: products with a bias in their epilogue.

    `CUBLASLT_WORKSPACE_SIZE`, in KiB, overrides the default.
    """
    size = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    return Workspace(BLAS_LT, int(size) * KIB if size.isdecimal() else MIB)


def context_bytes(chip: Chip) -> int:
    """What the CUDA context and the libraries' code take of the device: an estimate; nothing of
    a device that has none.
    """
    return chip.sm.context_bytes


LEAST_CONTEXT_BYTES = 450 * MIB
"""With CUDA's lazy loading, which takes in a kernel's code when it first runs: the default since
CUDA 11.7 (CUDA C++ Programming Guide, "Lazy Loading"). Reports of nvidia-smi beside
`torch.cuda.memory_reserved()` begin at 0.4 to 0.6 GiB."""

MOST_CONTEXT_BYTES = 1485 * MIB
"""With every kernel of PyTorch's libraries loaded, as before, or by CUDA_MODULE_LOADING=EAGER:
1343 MiB on a V100 with nothing on it (huggingface/transformers @0016acf7, perf_train_gpu_one.mdx),
1451 on an A100 with a model of 27 parameters (itu-rad/GPUMemNet @f01eb05)."""


def context_limits_bytes(chip: Chip | None) -> tuple[int, int]:
    """The same at least and at most, by driver, PyTorch's build and how it loads kernels."""
    is_cuda = chip is not None and chip.is_cuda
    return (LEAST_CONTEXT_BYTES, MOST_CONTEXT_BYTES) if is_cuda else (0, 0)
