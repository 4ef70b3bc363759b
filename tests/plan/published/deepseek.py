"""DeepSeek-V3: sizes, hours and what they cost."""

from tests.plan.published.row import (
    BILLIONS,
    DAYS,
    MILLION_USD,
    TFLOP_PER_S,
    THOUSAND_HOURS,
    Implied,
    Row,
    Source,
)
from torchtally.plan.architecture.lookup import model
from torchtally.plan.flops import token_flops
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.training import chip_hours, cost_usd, reached_flop_per_s
from torchtally.units import Unit

LIU = "DeepSeek-AI 2024, arXiv 2412.19437"
SIZES = Source(
    "DeepSeek-V3: parameters",
    f"{LIU}; inner width of dense layers and vocabulary from copies of its config",
    "Of our `deepseek-v3`, without the module that predicts one more token.",
    is_secondary=True,
)
TIME = Source(
    "DeepSeek-V3: GPU-hours and cost",
    f"{LIU}, table 1",
    "2048 H800s, 14.8e12 tokens, 2 USD an hour.",
)
IMPLIED = Source(
    "DeepSeek-V3",
    f"{LIU}, table 1",
    "6 N D with the 37e9 parameters that one token meets and 14.8e12 tokens, over the hours of "
    "pre-training: model FLOP/s of a GPU. No share: we have no source for H800's peak.",
)


def rows() -> tuple[Row, ...]:
    counted_parameters = parameters(model("deepseek-v3"))
    common = {"source": TIME}
    return (
        Row(
            source=SIZES,
            what="all",
            published="671",
            unit=BILLIONS,
            computed=lambda: counted_parameters.total,
        ),
        Row(
            source=SIZES,
            what="a token is multiplied by",
            published="37",
            unit=BILLIONS,
            computed=met,
        ),
        Row(
            what="a trillion tokens",
            inputs="3.7 days",
            published="180",
            unit=THOUSAND_HOURS,
            computed=lambda: chip_hours(2048, 3.7 * 86400),
            tolerance=0.0135,
            why="3.7 days are 3.66, rounded: by as much as 1.4 %.",
            **common,
        ),
        Row(
            what="a trillion tokens",
            inputs="180K hours",
            published="3.7",
            unit=DAYS,
            computed=lambda: days(180e3),
            **common,
        ),
        Row(
            what="pre-training",
            inputs="180K hours a trillion",
            published="2664",
            unit=THOUSAND_HOURS,
            computed=lambda: of_tokens(180e3, 14.8e12),
            **common,
        ),
        *(
            Row(
                what=f"cost of {what}",
                inputs=f"{hours}K hours",
                published=usd,
                unit=MILLION_USD,
                computed=lambda hours=hours: cost_usd(hours * 1e3, 2.0),
                **common,
            )
            for what, hours, usd in (
                ("pre-training", 2664, "5.328"),
                ("longer contexts", 119, "0.238"),
                ("post-training", 5, "0.01"),
                ("everything", 2788, "5.576"),
            )
        ),
    )


def met() -> Quantity:
    """Parameters that a token is multiplied by: those whose forward FLOPs are counted."""
    flops = token_flops(model("deepseek-v3"), 4096)
    return derive(
        "parameters met",
        Unit.PARAMETERS,
        "(weights + logits) / 2",
        weights=flops.weights,
        logits=flops.head,
    )


def days(hours: float) -> Quantity:
    """How long 2048 GPUs take for so many GPU-hours."""
    return derive(
        "time",
        Unit.SECONDS,
        "3600 * chip_hours / chips",
        chip_hours=of(hours, Unit.HOURS),
        chips=of(2048, Unit.CHIPS),
    )


def of_tokens(hours: float, tokens: float) -> Quantity:
    """GPU-hours for so many tokens, from those for a trillion."""
    return derive(
        "chip-hours",
        Unit.HOURS,
        "chip_hours * tokens / 10**12",
        chip_hours=of(hours, Unit.HOURS),
        tokens=of(tokens, Unit.TOKENS),
    )


def implied() -> tuple[Implied, ...]:
    speed = 14.8e12 / (2664e3 * 3600)
    return (
        Implied(
            source=IMPLIED,
            what="DeepSeek-V3",
            published="2664K H800-h",
            computed=lambda: reached_flop_per_s(speed, 6 * 37e9, 1),
            implied="342.6",
            unit=TFLOP_PER_S,
        ),
    )
