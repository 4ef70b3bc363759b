"""What such memory is for, and how far its size can be trusted."""

from dataclasses import dataclass
from enum import StrEnum


class Trust(StrEnum):
    MEASURED = "measured"
    """Seen on a device."""
    DOCUMENTED = "documented"
    """By PyTorch's source or the library's documentation."""
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class WorkspaceKind:
    """One purpose. `name` is that of `Storage.name` in a trace."""

    name: str
    trust: Trust
    source: str


@dataclass(frozen=True, slots=True)
class Workspace:
    """So many bytes for one purpose."""

    kind: WorkspaceKind
    bytes: int


BLAS = WorkspaceKind(
    "cuBLAS workspace",
    Trust.DOCUMENTED,
    "PyTorch 2.11, aten/src/ATen/cuda/CublasHandlePool.cpp; cuBLAS 13, cublasSetWorkspace",
)
BLAS_LT = WorkspaceKind(
    "cuBLASLt workspace",
    Trust.DOCUMENTED,
    "PyTorch 2.11, aten/src/ATen/cuda/CublasHandlePool.cpp (getCUDABlasLtWorkspaceSize)",
)
SCRATCH = WorkspaceKind(
    "operator's temporaries", Trust.DOCUMENTED, "PyTorch 2.11, aten/src/ATen/native/cuda"
)

KINDS = {kind.name: kind for kind in (BLAS, BLAS_LT, SCRATCH)}
