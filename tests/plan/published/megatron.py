"""Megatron-LM's sizes, speeds and days, by its own equations."""

from tests.plan.published.models import A100, gpt
from tests.plan.published.row import BILLIONS, DAYS, PERCENT, PFLOP_PER_S, TFLOP_PER_S, Row, Source
from torchtally.plan.flops import Recompute, TokenFlops, token_flops
from torchtally.plan.parameters import decoder_parameters
from torchtally.plan.quantity import Quantity
from torchtally.plan.training import (
    mfu,
    reached_flop_per_s,
    tokens_per_s,
    training_flops_of,
    training_s,
    training_s_with_recompute,
)

NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473"
SIZES = Source(
    "Megatron-LM: parameters",
    f"{NARAYANAN}, table 1",
    "Equation 2, the same as the list of weights less the last norm. V 51,200, s 2048.",
)
SPEEDS = Source(
    "Megatron-LM: share of peak and aggregate speed",
    f"{NARAYANAN}, table 1",
    "From the printed FLOP/s of a GPU to tokens/s by equation 3 (hardware FLOPs, every layer made "
    "again), and from these to the share of A100's 312e12 and the speed of all GPUs. By our "
    "terms the share is an HFU: equation 3 counts recomputation.",
)
TIMES = Source(
    "Megatron-LM: days of training",
    f"{NARAYANAN}, table 2",
    "Equation 3's FLOPs a token x 300e9 tokens over the printed FLOP/s of all GPUs. Equation 4 "
    "(8 T P / n X), which the text gives beside it, is 1.6 to 2.6 % lower and misses most rows.",
)
EXAMPLES = Source(
    "Megatron-LM: end-to-end examples", f"{NARAYANAN}, section 5.1", "Equation 4: 8 T P / (n X)."
)
MT_NLG = Source(
    "MT-NLG 530B: speed of a GPU",
    "Smith et al. 2022, arXiv 2201.11990, section 2.4",
    "Equation 3's FLOPs of 1920 sequences of 2048 tokens over the printed time of a step. l 105, "
    "h 20480, V 51,200.",
    is_secondary=True,
)
ROUNDED_SPEED = "The FLOP/s of a GPU, from which this follows, is printed in whole TFLOP/s."
ROUNDED_STEP = "The time of a step is printed in three digits."

TABLE_1 = (
    # B parameters, a, h, l, GPUs, TFLOP/s of a GPU, % of peak, PFLOP/s of all
    ("1.7", 24, 2304, 24, 32, 137, "44", "4.4"),
    ("3.6", 32, 3072, 30, 64, 138, "44", "8.8"),
    ("7.5", 32, 4096, 36, 128, 142, "46", "18.2"),
    ("18.4", 48, 6144, 40, 256, 135, "43", "34.6"),
    ("39.1", 64, 8192, 48, 512, 138, "44", "70.8"),
    ("76.1", 80, 10_240, 60, 1024, 140, "45", "143.8"),
    ("145.6", 96, 12_288, 80, 1536, 148, "47", "227.1"),
    ("310.1", 128, 16_384, 96, 1920, 155, "50", "297.4"),
    ("529.6", 128, 20_480, 105, 2520, 163, "52", "410.2"),
    ("1008.0", 160, 25_600, 128, 3072, 163, "52", "502.0"),
)
AGGREGATE_TOLERANCE = {"70.8": 0.0025, "143.8": 0.004, "227.1": 0.002, "410.2": 0.002,
                       "502.0": 0.003, "297.4": 0.001}  # fmt: skip
GPT_175B = (96, 12_288, 96)
MT_530B = (105, 20_480, 128)
TABLE_2 = (
    # scheme, shape, GPUs, TFLOP/s of a GPU, days, tolerance
    ("ZeRO-3, 174.6B", GPT_175B, 384, 144, "90", 0.0),
    ("ZeRO-3, 174.6B", GPT_175B, 768, 88, "74", 0.0),
    ("ZeRO-3, 174.6B", GPT_175B, 1536, 44, "74", 0.0),
    ("ZeRO-3, 529.6B", MT_530B, 640, 138, "169", 0.0),
    ("ZeRO-3, 529.6B", MT_530B, 1120, 98, "137", 0.007),
    ("ZeRO-3, 529.6B", MT_530B, 2240, 48, "140", 0.01),
    ("PTD-P, 174.6B", GPT_175B, 384, 153, "84", 0.01),
    ("PTD-P, 174.6B", GPT_175B, 768, 149, "43", 0.013),
    ("PTD-P, 174.6B", GPT_175B, 1536, 141, "23", 0.0),
    ("PTD-P, 529.6B", MT_530B, 560, 171, "156", 0.0),
    ("PTD-P, 529.6B", MT_530B, 1120, 167, "80", 0.0),
    ("PTD-P, 529.6B", MT_530B, 2240, 159, "42", 0.0),
)


def recomputing(layers: int, width: int, heads: int, vocabulary: int = 51_200) -> TokenFlops:
    """Equations 3 (`hardware`) and, without its recomputation, Korthikanti's 7 (`model`)."""
    return token_flops(gpt(layers, width, heads, vocabulary), 2048, recompute=Recompute.FULL)


def days(flops: TokenFlops, chips: int, reached_flop_per_s: float) -> Quantity:
    work = training_flops_of(flops.hardware, 300e9)
    return training_s(work, chips, reached_flop_per_s, 1.0)


def rows() -> tuple[Row, ...]:
    return (*_table_1(), *_table_2(), *_examples(), *_mt_nlg())


def _table_1() -> tuple[Row, ...]:
    sizes, shares, aggregates = [], [], []
    for billions, a, h, L, n, x, share, petaflop_per_s in TABLE_1:
        sizes.append(
            Row(
                source=SIZES,
                what=f"{billions}B",
                inputs=f"l {L}, h {h}",
                published=billions,
                unit=BILLIONS,
                computed=lambda L=L, h=h: decoder_parameters(L, h, 51_200, 2048),
            )
        )
        flops = recomputing(L, h, a)
        speed = tokens_per_s(flops.hardware, n, x * 1e12, 1.0)
        inputs = f"{n} GPUs x {x} TFLOP/s"
        shares.append(
            Row(
                source=SPEEDS,
                what=f"{billions}B, share of peak",
                inputs=inputs,
                published=share,
                unit=PERCENT,
                computed=lambda speed=speed, flops=flops, n=n: mfu(speed, flops.hardware, n, A100),
            )
        )
        tolerance = AGGREGATE_TOLERANCE.get(petaflop_per_s, 0.0)
        aggregates.append(
            Row(
                source=SPEEDS,
                what=f"{billions}B, all GPUs",
                inputs=inputs,
                published=petaflop_per_s,
                unit=PFLOP_PER_S,
                computed=lambda speed=speed, flops=flops: reached_flop_per_s(
                    speed, flops.hardware, 1
                ),
                tolerance=tolerance,
                why=ROUNDED_SPEED if tolerance else "",
            )
        )
    return (*sizes, *shares, *aggregates)


def _table_2() -> tuple[Row, ...]:
    return tuple(
        Row(
            source=TIMES,
            what=what,
            inputs=f"{n} GPUs x {x} TFLOP/s",
            published=published,
            unit=DAYS,
            computed=lambda shape=shape, n=n, x=x: days(recomputing(*shape), n, x * 1e12),
            tolerance=tolerance,
            why=ROUNDED_SPEED if tolerance else "",
        )
        for what, shape, n, x, published, tolerance in TABLE_2
    )


def _examples() -> tuple[Row, ...]:
    trillion = decoder_parameters(128, 25_600, 51_200, 2048)
    return (
        Row(
            source=EXAMPLES,
            what="GPT-3 175B on 300e9 tokens",
            inputs="1024 GPUs x 140 TFLOP/s",
            published="34",
            unit=DAYS,
            computed=lambda: training_s_with_recompute(300e9, 175e9, 1024, 140e12),
        ),
        Row(
            source=EXAMPLES,
            what="1T (1008B) on 450e9 tokens",
            inputs="3072 GPUs x 163 TFLOP/s",
            published="84",
            unit=DAYS,
            computed=lambda: training_s_with_recompute(450e9, trillion, 3072, 163e12),
        ),
    )


def _mt_nlg() -> tuple[Row, ...]:
    flops = recomputing(*MT_530B)
    tolerances = {121: 0.006}
    return tuple(
        Row(
            source=MT_NLG,
            what=f"{n} GPUs",
            inputs=f"{seconds} s a step",
            published=str(x),
            unit=TFLOP_PER_S,
            computed=lambda n=n, seconds=seconds: reached_flop_per_s(
                1920 * 2048 / seconds, flops.hardware, n
            ),
            tolerance=tolerances.get(x, 0.0),
            why=ROUNDED_STEP if x in tolerances else "",
        )
        for n, seconds, x in ((2240, 60.1, 126), (2800, 50.2, 121), (3360, 44.4, 113))
    )
