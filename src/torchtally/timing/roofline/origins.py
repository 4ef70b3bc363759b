"""Chips on which the constants of each class of predictions were measured."""

from dataclasses import dataclass

from torchtally.chips import Chip
from torchtally.chips.capabilities import AMPERE_AND_ADA, DATA_CENTER_BLACKWELL
from torchtally.timing.constants import OF_16_BITS, SHARE_OF_PEAK
from torchtally.timing.roofline.sustained import FAMILIES, Sustained

BANDWIDTH = "achieved_bandwidth_bytes_per_s"


@dataclass(frozen=True, slots=True)
class RateOrigin:
    """One class of kernels on one chip."""

    name: str
    chip: str
    """Where its constants were measured; "" where they are shares of many chips' promises."""
    basis: str
    """"measured" on the chip itself, of a "sibling", of its "design", of "all" chips
    alike, or the "data sheet" with what chips reach of theirs in the median."""


def origins(chip: Chip) -> tuple[RateOrigin, ...]:
    """Products by dtype, passes over device memory, attention, and what each kernel takes."""
    attention = ATTENTION_OF.get(chip.sm.design, "")
    return (
        *(
            _origin(
                f"products, {dtype}", chip, dtype, peak.achieved_flop_per_s, design_of(dtype, chip)
            )
            for dtype, peak in chip.peaks.items()
            if dtype not in NOT_PREDICTED
        ),
        _origin("device memory", chip, BANDWIDTH, chip.achieved_bandwidth_bytes_per_s, ""),
        RateOrigin("attention", attention, "design" if attention else "data sheet"),
        RateOrigin(
            "kernels at least", KERNELS_OF, "measured" if chip.name == KERNELS_OF else "all"
        ),
    )


ATTENTION_OF = {
    **dict.fromkeys((*AMPERE_AND_ADA, "GB20x", "GB20B"), "A100-SXM"),
    "GH100": "H100-SXM",
    **dict.fromkeys(DATA_CENTER_BLACKWELL, "GB200"),
    "GB110": "GB300",
}
"""Where the shares of `attention.SHARES` were measured, by the design of the dies."""

KERNELS_OF = "H100-SXM"
"""Where `limits.KERNEL_S` was measured, besides on a V100; one number for all chips."""

NOT_PREDICTED = ("float64_vector", "float16_accumulate_float16", "float8_e4m3fn_accumulate_float16")
"""Rates that no product of torch's is timed by."""


def design_of(dtype: str, chip: Chip) -> str:
    """The chip on which constants of this one's design were measured; "" where there are none."""
    family = FAMILIES.get(chip.sm.design, Sustained())
    if dtype == "float32":
        return family.float32_of
    has_joules = family.matrix_joules is not None and dtype in OF_16_BITS
    has_share = family.matrix_share != SHARE_OF_PEAK and dtype != "float64"
    return family.matrix_of if has_joules or has_share else ""


def _origin(kind: str, chip: Chip, name: str, reached: float | None, design: str) -> RateOrigin:
    if reached is not None:
        owner = chip.inherited.get(name)
        return RateOrigin(kind, owner or chip.name, "sibling" if owner else "measured")
    return RateOrigin(kind, design, "design" if design else "data sheet")
