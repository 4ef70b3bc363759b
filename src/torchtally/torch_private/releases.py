"""What differs between the releases of PyTorch that the simulation is tested with: one table.

Most of it is torch's own: its Python runs as it is. Here is what torch's C++ decides on a GPU, and
what only a build for CUDA knows of itself.
"""

from typing import NamedTuple

import torch


class Release(NamedTuple):
    """PyTorch's wheels for CUDA of one minor version."""

    version: tuple[int, int]
    cuda: str
    cudnn: int
    """As `torch.backends.cudnn.version()` prints it."""
    nccl: tuple[int, int, int]
    has_lt_workspace: bool
    """cuBLASLt has a workspace of its own; else it shares that of cuBLAS, as
    `TORCH_CUBLASLT_UNIFIED_WORKSPACE=1` makes it do (ATen/cuda/CUDABlas.cpp)."""
    fuses_attention_of_3d: bool
    """`scaled_dot_product_attention` of three dimensions takes a batch of one."""
    has_cudnn_drop_sixteenths: bool
    """cuDNN's attention is chosen for dropout of a multiple of 1/16 alone."""
    seeds_each_graph: bool
    """A CUDA graph has a random seed and an offset of its own; else all of a generator share one
    pair, made on the stream of the first capture (ATen/cuda/CUDAGeneratorImpl.cpp)."""
    differences: tuple[str, ...]
    """From the reference, where the same script has other operators; said at the start of a run."""

    @property
    def name(self) -> str:
        return "{}.{}".format(*self.version)


REFERENCE = Release((2, 13), "13.0", 92000, (2, 29, 7), False, False, True, True, ())
"""What tally is developed with, and what the documents show."""
RELEASES = (
    Release(
        (2, 11), "13.0", 91900, (2, 28, 9), True, False, False, False,
        ("autocast leaves rms_norm in its own dtype",),
    ),
    Release((2, 12), "13.0", 92000, (2, 29, 7), False, False, True, True, ()),
    REFERENCE,
    Release(
        (2, 15), "13.2", 92600, (2, 30, 7), False, True, True, True,
        ("attention of three dimensions takes the fused kernels",),
    ),
)  # fmt: skip
"""In order. The wheels' requirements name CUDA, cuDNN and NCCL."""

HIP = "7.2"
"""`torch.version.hip` begins so in the wheels for ROCm of the reference: torch==2.13.0+rocm7.2."""


def version_of(text: str) -> tuple[int, int]:
    """Major and minor number of a version: (2, 13) of "2.13.0+cpu"."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def release_of(version: tuple[int, int]) -> Release:
    """The newest release that is tested and not newer; the oldest for what is older than all."""
    return next((each for each in reversed(RELEASES) if each.version <= version), RELEASES[0])


def untested_remark(text: str) -> str:
    """A remark on a version of PyTorch that tally is not tested with; "" for the others."""
    release = release_of(version_of(text))
    if release.version == version_of(text):
        return ""
    return (
        f"tally is not tested with PyTorch {text}, but with {tested_versions()}; it is assumed to "
        f"behave like {release.name}."
    )


def tested_versions() -> str:
    *others, last = (release.name for release in RELEASES)
    return f"{', '.join(others)} and {last}"


def different(text: str) -> str:
    """What a script does otherwise on this version than in the documents; "" on the reference."""
    release = release_of(version_of(text))
    if not release.differences:
        return ""
    return f"PyTorch {text}, not {REFERENCE.name} as in the documents: " + "; ".join(
        release.differences
    )


HERE = release_of(version_of(torch.__version__))
"""What the torch that is installed works as."""
