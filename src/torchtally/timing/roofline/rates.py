"""What a chip reaches of its data sheet: FLOP/s of products, bytes per second, vector work.

A published measurement of the chip itself comes first (`Peak.achieved_flop_per_s`,
`Chip.achieved_bandwidth_bytes_per_s`). Where there is none, what others reach of their promise
stands in: of products what chips of its family do with its power (`sustained.py`), of bandwidth an
estimate.
"""

from functools import lru_cache

from torchtally.chips import SAME_RATE, Chip, Peak
from torchtally.timing.constants import (
    ACHIEVED_SHARE_OF_BANDWIDTH,
    NORMALIZATION_SHARE_OF_BANDWIDTH,
)
from torchtally.timing.roofline.sustained import byte_at_limit_s, sustained_flop_per_s

REAL_OF_COMPLEX = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
"""Costs count complex arithmetic in real FLOPs."""

UPCAST = ("float32", "bfloat16", "float16")
"""What computes a dtype that the chip has no unit for, the first that there is.

Volta and Turing have no bfloat16: cuBLAS computes such products in float32, without tensor cores
(measured at 4 to 5 TFLOP/s on a Titan RTX, beside 40 to 66 in float16:
zzc0721/torch-performance-test-data issue 127). TPUs have no float32: it goes through the bfloat16
unit (JAX's and XLA's default precision of products).
"""


VECTOR_UNITS = frozenset({"float32", "float64", "float64_vector"})
"""Peaks of arithmetic outside the matrix units (float64 of some chips is within them)."""


def uses_matrix_unit(dtype: str, chip: Chip) -> bool:
    """The chip multiplies this dtype in tensor cores, and does not upcast it to float32."""
    real = REAL_OF_COMPLEX.get(dtype, dtype)
    return real not in VECTOR_UNITS and SAME_RATE.get(real, real) in chip.peaks


def peak_of(dtype: str, chip: Chip) -> Peak:
    """The promised dense rate at which the chip multiplies numbers of this dtype.

    Raises UsageError when the chip has neither that rate nor one of what it would be upcast to.
    """
    return named_peak(dtype, chip)[1]


def named_peak(dtype: str, chip: Chip) -> tuple[str, Peak]:
    """The same, behind the dtype that the chip computes it in."""
    real = REAL_OF_COMPLEX.get(dtype, dtype)
    real = SAME_RATE.get(real, real)
    if real in chip.peaks:
        return real, chip.peaks[real]
    share = chip.sm.float64_share
    if real == "float64" and share is not None:
        single = chip.peak("float32")
        return real, Peak(single.flop_per_s * share, single.source)
    for other in UPCAST:
        if other in chip.peaks:
            return other, chip.peaks[other]
    return real, chip.peak(real)


def achieved_flop_per_s(dtype: str, chip: Chip) -> float:
    """What large products reach: as measured, else as others do. Never more than the promise."""
    name, peak = named_peak(dtype, chip)
    reached = peak.achieved_flop_per_s or sustained_flop_per_s(name, peak.flop_per_s, chip)
    return min(reached, peak.flop_per_s)


@lru_cache(maxsize=256)
def limited_byte_s(dtype: str, chip: Chip) -> float:
    """What each byte that a product moves adds to its arithmetic, where power is its limit."""
    name, peak = named_peak(dtype, chip)
    if peak.achieved_flop_per_s is not None:
        return 0.0
    return byte_at_limit_s(name, peak.flop_per_s, chip)


def bandwidth_bytes_per_s(chip: Chip) -> float:
    """What a kernel that only reads and writes device memory reaches."""
    promised = chip.memory_bandwidth_bytes_per_s
    reached = chip.achieved_bandwidth_bytes_per_s or ACHIEVED_SHARE_OF_BANDWIDTH * promised
    return min(reached, promised)


def normalization_bytes_per_s(chip: Chip) -> float:
    """What a norm or a softmax reaches of it."""
    share = NORMALIZATION_SHARE_OF_BANDWIDTH
    return min(bandwidth_bytes_per_s(chip), share * chip.memory_bandwidth_bytes_per_s)


def vector_peak_flop_per_s(dtype: str, chip: Chip) -> float | None:
    """The promised rate outside the matrix units, for arithmetic on elements; None: not known.

    Half precision and integers are computed in float32, as PyTorch's elementwise kernels do.
    """
    if dtype in ("float64", "complex128"):
        if "float64_vector" in chip.peaks:
            return chip.peaks["float64_vector"].flop_per_s
        if "float64" in chip.peaks or chip.sm.float64_share is not None:
            return peak_of("float64", chip).flop_per_s
    return chip.peaks["float32"].flop_per_s if "float32" in chip.peaks else None
