"""PaLM: sizes, FLOPs a token, and the MFU that its authors defined."""

from tests.plan.published.models import A100, TPU_V4, V100, gpt, palm
from tests.plan.published.row import BILLIONS, FLOPS, PERCENT, TFLOPS_PER_TOKEN, Row, Source
from torchtally.plan.flops import Recompute, TokenFlops, token_flops
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.plan.training import mfu, training_flops_of
from torchtally.units import Unit

CHOWDHERY = "Chowdhery et al. 2022, arXiv 2204.02311"
SIZES = Source(
    "PaLM: parameters",
    f"{CHOWDHERY}, table 1",
    "Of the list of weights: multi-query attention with heads of 256, gated feed-forward of four "
    "widths, a tied embedding of 256,000.",
)
WORK = Source(
    "PaLM: training FLOPs",
    f"{CHOWDHERY}, table 22",
    "Per token as `token_flops` counts on sequences of 2048, attention in full; of a training on "
    "780e9 tokens. What is made again in the backward pass is inferred from the printed FLOPs: "
    "attention in 8B and 62B; in 540B attention and three quarters of the products with weights "
    "(all of them would make 4.36).",
)
MFU = Source(
    "PaLM: MFU",
    f"{CHOWDHERY}, appendix B",
    "Tokens/s x (6 N + 12 L H Q T) over the chips' peak: TPU v4's 275e12, A100's 312e12. "
    "Sequences of 2048. HFU: with the share that is made again in table 22.",
)
GOPHER = Source(
    "PaLM: MFU of Gopher",
    f"{CHOWDHERY}, appendix B; TPU v3's 123e12 from elsewhere",
    "0.0152 steps/s of 3072 x 2048 tokens on 4096 TPU v3; l 80, h 16384, 280e9 parameters.",
    is_secondary=True,
)
SHAPES = {"8B": (32, 16, 4096), "62B": (64, 32, 8192), "540B": (118, 48, 18_432)}
SPEED = 238.3e3


def flops_of(size: str, recompute: Recompute = Recompute.NONE) -> TokenFlops:
    return token_flops(palm(*SHAPES[size]), 2048, recompute=recompute)


def six_n(parameters: Amount) -> Quantity:
    """FLOPs of one token without attention."""
    return derive(
        "FLOPs of weights",
        Unit.FLOPS_PER_TOKEN,
        "6 * parameters",
        parameters=of(parameters, Unit.PARAMETERS),
    )


def with_attention(parameters: Amount, attention: Quantity) -> Quantity:
    """6 N + 12 L H Q T, with a number of parameters as their authors round it."""
    return derive(
        "model FLOPs",
        Unit.FLOPS_PER_TOKEN,
        "weights + 3 * attention",
        weights=six_n(parameters),
        attention=attention,
    )


def palms_hardware_flops() -> Quantity:
    """Of one token of PaLM 540B, with the share repeated that the table implies."""
    flops = flops_of("540B")
    return derive(
        "hardware FLOPs",
        Unit.FLOPS_PER_TOKEN,
        "model_flops + 0.75 * (weights + logits) + attention",
        model_flops=flops.model,
        weights=flops.weights,
        logits=flops.head,
        attention=flops.attention,
    )


def rows() -> tuple[Row, ...]:
    return (*_sizes(), *_work(), *_shares(), *_others())


def _sizes() -> tuple[Row, ...]:
    printed = {"8B": "8.63", "62B": "62.50", "540B": "540.35"}
    return tuple(
        Row(
            source=SIZES,
            what=f"PaLM {size}",
            inputs="l {}, a {}, h {}".format(*SHAPES[size]),
            published=published,
            unit=BILLIONS,
            computed=lambda size=size: parameters(palm(*SHAPES[size])).total,
            tolerance=2e-5 if size == "540B" else 0.0,
            why="The norms' 2.2 M are in ours; without them it is 540.354."
            if size == "540B"
            else "",
        )
        for size, published in printed.items()
    )


def _work() -> tuple[Row, ...]:
    per_token = tuple(
        Row(
            source=WORK,
            what=f"PaLM {size}, a token{words}",
            published=published,
            unit=TFLOPS_PER_TOKEN,
            computed=lambda model=(size, recompute): flops_of(*model).hardware,
        )
        for size, recompute, words, published in (
            ("8B", Recompute.NONE, "", "0.0550"),
            ("62B", Recompute.NONE, "", "0.388"),
            ("540B", Recompute.NONE, "", "3.28"),
            ("8B", Recompute.SELECTIVE, ", attention again", "0.0561"),
            ("62B", Recompute.SELECTIVE, ", attention again", "0.392"),
        )
    )
    again = Row(
        source=WORK,
        what="PaLM 540B, a token, with rematerialisation",
        published="4.10",
        unit=TFLOPS_PER_TOKEN,
        computed=palms_hardware_flops,
    )
    whole = tuple(
        Row(
            source=WORK,
            what=f"PaLM {size}, the training",
            published=published,
            unit=FLOPS,
            computed=lambda size=size: training_flops_of(flops_of(size).model, 780e9),
            differs_by=apart,
            why=why,
        )
        for size, published, apart, why in (
            ("8B", "4.29e22", None, ""),
            (
                "62B",
                "3.08e23",
                -0.0177,
                "The printed figure is 0.388e12 x 795e9 tokens, not 780e9.",
            ),
            ("540B", "2.56e24", None, ""),
        )
    )
    return (*per_token, again, *whole)


def _shares() -> tuple[Row, ...]:
    ours = flops_of("540B")
    inputs = "238.3K tokens/s, 6144 chips"
    theirs = 1920 * 2048 / 60.1
    mt_nlg = token_flops(gpt(105, 20_480, 128), 2048).attention
    common = {"source": MFU, "unit": PERCENT}
    return (
        Row(
            what="PaLM 540B",
            inputs=inputs,
            published="46.2",
            computed=lambda: mfu(SPEED, ours.model, 6144, TPU_V4),
            **common,
        ),
        Row(
            what="PaLM 540B, no attention",
            inputs=inputs,
            published="45.7",
            computed=lambda: mfu(SPEED, six_n(540.35e9), 6144, TPU_V4),
            **common,
        ),
        Row(
            what="PaLM 540B, HFU",
            inputs=inputs,
            published="57.8",
            computed=lambda: mfu(SPEED, palms_hardware_flops(), 6144, TPU_V4),
            **common,
        ),
        Row(
            what="MT-NLG 530B",
            inputs="65.43K tokens/s, 2240 A100s",
            published="30.2",
            computed=lambda: mfu(theirs, with_attention(530e9, mt_nlg), 2240, A100),
            tolerance=0.0025,
            why="30.26 is printed as 30.2: cut off, not rounded.",
            **common,
        ),
        Row(
            what="MT-NLG, no attention",
            inputs="65.43K tokens/s, 2240 A100s",
            published="29.7",
            computed=lambda: mfu(theirs, six_n(530e9), 2240, A100),
            tolerance=0.003,
            why="29.77 is printed as 29.7: cut off, not rounded.",
            **common,
        ),
    )


def _others() -> tuple[Row, ...]:
    attention = token_flops(gpt(80, 16_384, 128), 2048).attention
    speed = 0.0152 * 3072 * 2048
    return (
        Row(
            source=GOPHER,
            what="Gopher 280B",
            published="32.5",
            unit=PERCENT,
            computed=lambda: mfu(speed, with_attention(280e9, attention), 4096, 123e12),
        ),
        Row(
            source=MFU,
            what="GPT-3 175B",
            inputs="24.6 TFLOP/s of a V100",
            published="21.3",
            unit=PERCENT,
            computed=lambda: mfu(24.6e12 / 6 / 175e9, six_n(175e9), 1, V100),
            differs_by=-0.0761,
            why="It does not follow from its own inputs: 24.6 over V100's 125e12 is 19.7 %. It "
            "takes a peak of 115.5e12.",
        ),
    )
