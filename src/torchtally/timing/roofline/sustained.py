"""What large products sustain on a chip that nobody measured: its family's share, within its power.

    rate = min(share * promise, rated power / joules per FLOP)

A chip that multiplies for seconds draws its rated power, and lowers its clocks until it does: an
L4 promises 30.3 TFLOP/s in float32 and has 72 W for them. What a FLOP takes is a matter of the
family: chips of one process and one design, whose published rates at their limit of power are these
joules. So this is the rate of a long run; one that is over in milliseconds may run at the clocks of
the promise (an L4 has been seen at 15 TFLOP/s for a moment, and at 9 to 11 for seconds).

    chip      watts  float32: here / published      16 bits: here / published
    A10         150       11.9 / 12.5, 14.0 (a, b)       61 / 54, 56 (b)
    RTX A4000   140       11.1 / 11.9 (97)               57 / 56 to 61 (97)
    RTX A2000    70        5.5 / 5.5 (72)                29 / 28 (72)
    L4           72        9.4 / 10.7 (120)              55 / 54 to 59 (120)
    RTX 6000 Ada 300      39.2 / 35.0 (c)                 - / -
    A100-PCIe-40 250      15.8 / 17.6 (108)              211 / 198 to 215 (108)
    H100 PCIe    350         - / -                       397 / 431 (d)

Sizes of 8192 and more, by cuBLAS. Numbers are issues of zzc0721/torch-performance-test-data; a:
NVIDIA/cutlass issue 941; b and c: chsasank/device-benchmarks, README @02b8262e and issue 16; d:
pytorch/ao pull request 3342. No constant is from these rows.
"""

from dataclasses import dataclass, replace

from torchtally.chips import Chip
from torchtally.timing.constants import BYTE_FLOPS, HALVED_SHARE, OF_16_BITS, SHARE_OF_PEAK


@dataclass(frozen=True, slots=True)
class Sustained:
    """One family of chips: those of one design."""

    float32_share: float = SHARE_OF_PEAK
    """Of the promised rate outside the matrix units."""
    float32_joules: float | None = None
    """For one FLOP there. None: no chip of the family was seen at its limit of power."""
    matrix_joules: float | None = None
    """For one FLOP of 16 bits in the matrix units."""
    matrix_share: float = SHARE_OF_PEAK
    """Of the promised rate inside the matrix units."""
    float32_of: str = ""
    """Chips on which those outside were measured; "" where none was."""
    matrix_of: str = ""
    """The same of those inside."""


FAMILIES: dict[str, Sustained] = {
    # A V100 PCIe: 13.3 of 14 TFLOP/s (sitar-lab/NeuSight @6945927, linear layers above 1 ms).
    # A V100 SXM: 119 of 125 with tensor cores, but for writing results (products.py).
    "GV100": Sustained(
        float32_share=0.95,
        matrix_share=0.95,
        float32_of="V100-PCIe-16GB",
        matrix_of="V100-SXM-16GB",
    ),
    # An A100 PCIe: 17.6 of 19.5 at 2048 cubed (triton-lang/triton issue 2491), taken for what
    # linear layers reach, 0.96 of the best (`products.ROWS_SHARE`). Of 40 GB, with 250 W, 17.6 at
    # 8192 cubed (zzc0721/... issue 108): no more joules than that. With 300 W 252.9 in bfloat16
    # (stas00/ml-engineering).
    "GA100": Sustained(
        0.94, 250 / 17.6e12, 300 / 252.9e12, float32_of="A100-PCIe-40GB", matrix_of="A100-PCIe"
    ),
    # An A10G: 23.4 of 31.5 (zzc0721/torch-performance-test-data issue 126). An A40 with 300 W:
    # 23.73 and 122.29 (issue 185).
    "GA10x": Sustained(0.74, 300 / 23.73e12, 300 / 122.29e12, float32_of="A40", matrix_of="A40"),
    # An RTX 4090: 54.5 of 82.6 at 16384 cubed (mli/transformers-benchmarks issue 3). An L20 with
    # 275 W: 35.88; an L40S with 350 W: 269.15 (zzc0721/... issues 107 and 43).
    "AD10x": Sustained(0.66, 275 / 35.88e12, 350 / 269.15e12, float32_of="L20", matrix_of="L40S"),
    # An H100 SXM with 700 W: 794.5 (stas00/ml-engineering). In float32 it is not at its limit.
    "GH100": Sustained(matrix_joules=700 / 794.5e12, matrix_of="H100-SXM"),
    # A B200 with 1000 W: 1745 (stas00/ml-engineering).
    "GB100": Sustained(matrix_joules=1000 / 1745e12, matrix_of="B200"),
    # A GB300's attention with heads of 256 reaches 2096 of 2500 in bfloat16, and products are no
    # slower: a GB200's 1812 there are 0.99 of its best product (NVIDIA/cudnn-frontend @3929da2e,
    # benchmark/sdpa_benchmark_training/results, qwen35 and dsv3).
    "GB110": Sustained(matrix_share=0.84, matrix_of="GB300"),
    # An RTX 5090 reaches 66.3 of 104.8 (zzc0721/torch-performance-test-data pull request 15).
    "GB20x": Sustained(float32_share=0.63, float32_of="RTX-5090"),
}


def byte_joules(chip: Chip) -> float | None:
    """None where it is not known: what HBM takes, and what families that are at no limit do."""
    joules = FAMILIES.get(chip.sm.design, Sustained()).float32_joules
    return BYTE_FLOPS * joules if joules and chip.memory_type.startswith("GDDR") else None


def flop_joules(dtype: str, chip: Chip) -> float | None:
    family = FAMILIES.get(chip.sm.design, Sustained())
    return family.float32_joules if dtype == "float32" else matrix_joules(dtype, family)


def rated_power_s(joules: float, chip: Chip) -> float:
    """Seconds for which so many joules are all of the chip's rated power."""
    assert chip.tdp_watts is not None
    return joules / chip.tdp_watts


def byte_at_limit_s(dtype: str, promised_flop_per_s: float, chip: Chip) -> float:
    """Seconds by which each byte of device memory makes a product longer, which has to multiply
    slower for the power that it takes; 0 where power is no limit.
    """
    joules = byte_joules(chip)
    if joules is None or chip.tdp_watts is None:
        return 0.0
    unlimited = replace(chip, tdp_watts=None)
    sustained = sustained_flop_per_s(dtype, promised_flop_per_s, chip)
    is_limited = sustained < sustained_flop_per_s(dtype, promised_flop_per_s, unlimited)
    return rated_power_s(joules, chip) if is_limited else 0.0


def sustained_flop_per_s(dtype: str, promised_flop_per_s: float, chip: Chip) -> float:
    """Rate of a dtype that the chip has a peak for; by the estimate alone where its power is
    unknown.
    """
    family = FAMILIES.get(chip.sm.design, Sustained())
    if dtype == "float32":
        share, joules = family.float32_share, family.float32_joules
    else:
        share = HALVED_SHARE if is_halved(dtype, chip) else family.matrix_share
        joules = matrix_joules(dtype, family)
    if joules is None or chip.tdp_watts is None:
        return share * promised_flop_per_s
    return min(share * promised_flop_per_s, chip.tdp_watts / joules)


def is_halved(dtype: str, chip: Chip) -> bool:
    """Sums in float32 take twice as long as the multipliers need, which sums in float16 show."""
    faster = chip.peaks.get("float16_accumulate_float16")
    half = chip.peaks.get("float16")
    return (
        dtype in OF_16_BITS
        and faster is not None
        and half is not None
        and faster.flop_per_s > 1.9 * half.flop_per_s
    )


def matrix_joules(dtype: str, family: Sustained) -> float | None:
    times = OF_16_BITS.get(dtype)
    return None if family.matrix_joules is None or times is None else times * family.matrix_joules
