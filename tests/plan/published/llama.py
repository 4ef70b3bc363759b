"""LLaMA, Llama 2 and Llama 3: sizes, GPU-hours and what they imply."""

from tests.plan.published.models import A100, H100, llama3
from tests.plan.published.row import (
    DAYS,
    FLOPS,
    HOURS,
    MILLION_HOURS,
    PARAMETERS,
    PERCENT,
    Implied,
    Row,
    Source,
)
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity
from torchtally.plan.training import (
    chip_hours,
    flops_within,
    mfu,
    mfu_of_training,
    training_flops,
    training_s,
)

TOUVRON = "Touvron et al. 2023, arXiv 2302.13971"
TOUVRON_2 = "Touvron et al. 2023, arXiv 2307.09288"
GRATTAFIORI = "Grattafiori et al. 2024, arXiv 2407.21783"
ONE = Source(
    "LLaMA: time of the 65B model",
    f"{TOUVRON}, text and table 15",
    "1.4e12 tokens at 380 tokens/s of each of 2048 A100s.",
    is_secondary=True,
)
THREE_SIZES = Source(
    "Llama 3: parameters",
    f"{GRATTAFIORI}, table 3; totals of the published weights",
    "Of our `llama-3-8b`, `llama-3-70b` and `llama-3.1-405b`.",
    is_secondary=True,
)
THREE_FLOPS = Source("Llama 3 405B: FLOPs", GRATTAFIORI, "6 N D with 15.6e12 tokens.")
THREE = Source(
    "Llama 3 405B: MFU",
    f"{GRATTAFIORI}, table 4",
    "The printed FLOP/s of a GPU over H100's 989.4e12.",
)
CARD_3 = Source(
    "Llama 3.1: GPU-hours",
    "meta-llama/llama-models, models/llama3_1/MODEL_CARD.md",
    "6 N D on 15e12 tokens (405B: 15.6e12) at 41 % of H100's peak, table 4's MFU on 16384 GPUs.",
)
IMPLIED_1 = Source(
    "LLaMA",
    f"{TOUVRON}, tables 2 and 15",
    "6 N D over the GPU-hours' peak, A100: N as table 2 prints it; 1.0e12 tokens, of 33B and 65B "
    "1.4e12.",
    is_secondary=True,
)
IMPLIED_2 = Source(
    "Llama 2",
    "meta-llama/llama-models, MODEL_CARD.md of Llama 2",
    "6 N D over the GPU-hours' peak, A100: N as in the models' names, 2.0e12 tokens.",
)
IMPLIED_3 = Source(
    "Llama 3.1",
    "meta-llama/llama-models, models/llama3_1/MODEL_CARD.md",
    "6 N D over the GPU-hours' peak, H100: 15e12 tokens (the card says 15T+), of 405B 15.6e12. "
    "While it runs, 405B reaches 38 to 43 % (table 4 of the paper).",
)
CARD_HOURS = {"8B": "1.46", "70B": "7.0", "405B": "30.84"}
CARD_TOKENS = {"8B": 15e12, "70B": 15e12, "405B": 15.6e12}
MORE = (
    "The card's hours hold more than this training at its best speed, and how much of what is not "
    "said: restarts, longer contexts, other speeds. They are no target for a formula."
)


def share(flop_per_s: float, chips: int) -> Quantity:
    """The MFU of so many chips at so many FLOP/s each, over an hour."""
    done = flops_within(3600.0, chips, flop_per_s, 1.0)
    return mfu_of_training(done, chips, H100)


def hours(size: str) -> Quantity:
    """At 41 % MFU on 16384 H100s; their number cancels out."""
    work = training_flops(parameters(llama3(size)).total, CARD_TOKENS[size])
    return chip_hours(16_384, training_s(work, 16_384, H100, 0.41))


def rows() -> tuple[Row, ...]:
    return (*_one(), *_three())


def _one() -> tuple[Row, ...]:
    work = training_flops(65.2e9, 1.4e12)
    reached = mfu(380 * 2048, 6 * 65.2e9, 2048, A100)
    time = training_s(work, 2048, A100, reached)
    return (
        Row(source=ONE, what="LLaMA 65B", published="21", unit=DAYS, computed=lambda: time),
        Row(
            source=ONE,
            what="LLaMA 65B, A100-hours",
            published="1,022,362",
            unit=HOURS,
            computed=lambda: chip_hours(2048, time),
            tolerance=0.0013,
            why="380 tokens/s is rounded: by as much as 0.13 %.",
        ),
    )


def _three() -> tuple[Row, ...]:
    totals = {"8B": "8,030,261,248", "70B": "70,553,706,496", "405B": "405,853,388,800"}
    sizes = tuple(
        Row(
            source=THREE_SIZES,
            what=f"Llama 3 {size}",
            published=published,
            unit=PARAMETERS,
            computed=lambda size=size: parameters(llama3(size)).total,
        )
        for size, published in totals.items()
    )
    work = Row(
        source=THREE_FLOPS,
        what="Llama 3 405B",
        published="3.8e25",
        unit=FLOPS,
        computed=lambda: training_flops(parameters(llama3("405B")).total, 15.6e12),
    )
    shares = tuple(
        Row(
            source=THREE,
            what=f"{n} GPUs, sequences of {sequence}",
            inputs=f"{x} TFLOP/s",
            published=published,
            unit=PERCENT,
            computed=lambda n=n, x=x: share(x * 1e12, n),
            tolerance=tolerance,
            why="400 TFLOP/s are 40.4 % of the peak; 41 % takes 406." if tolerance else "",
        )
        for n, sequence, x, published, tolerance in (
            (8192, 8192, 430, "43", 0.0),
            (16_384, 8192, 400, "41", 0.02),
            (16_384, 131_072, 380, "38", 0.0),
        )
    )
    cards = tuple(
        Row(
            source=CARD_3,
            what=f"Llama 3.1 {size}, H100-hours",
            published=published,
            unit=MILLION_HOURS,
            computed=lambda size=size: hours(size),
            differs_by=apart,
            why=MORE,
        )
        for (size, published), apart in zip(
            CARD_HOURS.items(), (-0.6611, -0.3789, -0.1564), strict=True
        )
    )
    return (*sizes, work, *shares, *cards)


def implied() -> tuple[Implied, ...]:
    ones = tuple(
        Implied(
            source=IMPLIED_1,
            what=f"LLaMA {what}",
            published=f"{number:,} A100-h",
            computed=lambda N=N, D=D, number=number: mfu_of_training(
                training_flops(N, D), number, A100
            ),
            implied=published,
            unit=PERCENT,
        )
        for what, N, D, number, published in (
            ("7B", 6.7e9, 1.0e12, 82_432, "43.4"),
            ("13B", 13.0e9, 1.0e12, 135_168, "51.4"),
            ("33B", 32.5e9, 1.4e12, 530_432, "45.8"),
            ("65B", 65.2e9, 1.4e12, 1_022_362, "47.7"),
        )
    )
    twos = tuple(
        Implied(
            source=IMPLIED_2,
            what=f"Llama 2 {billions}B",
            published=f"{number:,} A100-h",
            computed=lambda N=billions * 1e9, number=number: mfu_of_training(
                training_flops(N, 2.0e12), number, A100
            ),
            implied=published,
            unit=PERCENT,
        )
        for billions, number, published in (
            (7, 184_320, "40.6"),
            (13, 368_640, "37.7"),
            (70, 1_720_320, "43.5"),
        )
    )
    threes = tuple(
        Implied(
            source=IMPLIED_3,
            what=f"Llama 3.1 {size}",
            published=f"{CARD_HOURS[size]}M H100-h",
            computed=lambda size=size: mfu_of_training(
                training_flops(parameters(llama3(size)).total, CARD_TOKENS[size]),
                float(CARD_HOURS[size]) * 1e6,
                H100,
            ),
            implied=published,
            unit=PERCENT,
        )
        for size, published in (("8B", "13.9"), ("70B", "25.5"), ("405B", "34.6"))
    )
    return (*ones, *twos, *threes)
