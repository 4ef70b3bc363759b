"""Korthikanti et al. 2022: utilisation, and what selective recomputation costs."""

from tests.plan.published.models import A100, gpt
from tests.plan.published.row import PERCENT, Row, Source
from torchtally.plan.flops import Recompute, TokenFlops, token_flops
from torchtally.plan.quantity import Quantity, derive
from torchtally.plan.training import mfu
from torchtally.units import Unit

KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198"
MFU = Source(
    "Korthikanti: MFU",
    f"{KORTHIKANTI}, table 5",
    "Tokens/s from the printed time of a step x model FLOPs a token (equation 7), over A100's "
    "312e12. V 51,200, s 2048.",
)
AS_PRINTED = Source(
    "Korthikanti: HFU by the paper's equation 8",
    f"{KORTHIKANTI}, table 5",
    "The same, with equation 8 as it is printed: 72 B L s h^2 (1 + s/3h + V/12hL). Over equation "
    "7 it adds 12 B L s^2 h: forward and backward of attention's two products once more.",
)
COUNTED = Source(
    "Korthikanti: HFU by what is done again",
    f"{KORTHIKANTI}, table 5",
    "As the MFU above, of hardware FLOPs with `Recompute.SELECTIVE`: attention's two products "
    "once more, forward.",
)
OVERHEAD = Source(
    "Korthikanti: what recomputation costs",
    f"{KORTHIKANTI}, section 5 and table 4",
    "FLOPs done again over model FLOPs.",
)
TABLE_5 = (
    # model, (L, h, a), GPUs, batch, s a step, MFU %, HFU %, HFU counted over printed less 1
    ("22B", (48, 6144, 64), 8, 4, 1.10, "41.5", "43.7", -0.0304),
    ("175B", (96, 12_288, 96), 64, 64, 13.75, "51.4", "52.8", -0.0180),
    ("530B", (105, 20_480, 128), 280, 280, 37.83, "56.0", "57.0", -0.0115),
    ("1T", (128, 25_600, 160), 512, 512, 71.49, "56.3", "57.0", -0.0086),
)
STEP = "1.10 s a step is rounded: by as much as 0.45 %."
EQUATION_8 = (
    "Equation 8 adds 12 B L s^2 h (s/3h in its bracket instead of s/6h). What the text describes, "
    "one more forward pass of two products, is 4 B L s^2 h: 2s/9h. We count what is done."
)
TIME = (
    "The paper's figure is time, not FLOPs: full recomputation adds a third of a layer's model "
    "FLOPs (backward is twice forward). The paper overlaps an all-reduce of the baseline with "
    "gradients of weights; and selective recomputation makes softmax and dropout again too, which "
    "are no matrix products."
)


def selective(layers: int, width: int, heads: int) -> TokenFlops:
    return token_flops(gpt(layers, width, heads), 2048, recompute=Recompute.SELECTIVE)


def equation_8(flops: TokenFlops) -> Quantity:
    """Hardware FLOPs of one token as the paper prints them."""
    return derive(
        "hardware FLOPs, equation 8",
        Unit.FLOPS_PER_TOKEN,
        "model_flops + 3 * attention",
        KORTHIKANTI,
        model_flops=flops.model,
        attention=flops.attention,
    )


def overhead(flops: TokenFlops) -> Quantity:
    """FLOPs repeated over model FLOPs."""
    return derive(
        "overhead",
        Unit.FRACTION,
        "recompute / model_flops",
        recompute=flops.recompute,
        model_flops=flops.model,
    )


def layer_overhead(flops: TokenFlops) -> Quantity:
    """The same of the layers alone, without logits."""
    return derive(
        "overhead",
        Unit.FRACTION,
        "recompute / (3 * (weights + attention))",
        recompute=flops.recompute,
        weights=flops.weights,
        attention=flops.attention,
    )


def rows() -> tuple[Row, ...]:
    return (*_table_5(), *_overheads())


def _table_5() -> tuple[Row, ...]:
    of_mfu, printed, counted = [], [], []
    for model, shape, n, batch, seconds, model_share, hardware_share, apart in TABLE_5:
        flops, speed = selective(*shape), batch * 2048 / seconds
        is_rounded = model == "22B"
        common = {
            "what": model,
            "inputs": f"{n} GPUs, batch {batch}, {seconds:.2f} s",
            "unit": PERCENT,
        }
        within = {"tolerance": 0.0045 if is_rounded else 0.0, "why": STEP if is_rounded else ""}
        of_mfu.append(
            Row(
                source=MFU,
                published=model_share,
                computed=lambda model=flops.model, v=speed, n=n: mfu(v, model, n, A100),
                **common,
                **within,
            )
        )
        printed.append(
            Row(
                source=AS_PRINTED,
                published=hardware_share,
                computed=lambda flops=flops, v=speed, n=n: mfu(v, equation_8(flops), n, A100),
                **common,
                **within,
            )
        )
        counted.append(
            Row(
                source=COUNTED,
                published=hardware_share,
                computed=lambda hardware=flops.hardware, v=speed, n=n: mfu(v, hardware, n, A100),
                differs_by=apart,
                why=EQUATION_8,
                **common,
            )
        )
    flops = selective(*TABLE_5[2][1])
    many = Row(
        source=MFU,
        what="530B",
        inputs="2240 GPUs, batch 2240, 39.15 s",
        published="54.2",
        unit=PERCENT,
        computed=lambda: mfu(2240 * 2048 / 39.15, flops.model, 2240, A100),
    )
    return (*of_mfu, many, *printed, *counted)


def _overheads() -> tuple[Row, ...]:
    def row(what: str, published: str, computed: Quantity, differs_by: float, why: str) -> Row:
        return Row(
            source=OVERHEAD,
            what=what,
            published=published,
            unit=PERCENT,
            computed=lambda: computed,
            differs_by=differs_by,
            why=why,
        )

    shapes = {model: shape for model, shape, *_ in TABLE_5}
    full = token_flops(gpt(*shapes["22B"]), 2048, recompute=Recompute.FULL)
    large = token_flops(gpt(*shapes["530B"]), 2048, recompute=Recompute.FULL)
    return (
        row("full, a layer of 22B", "39", layer_overhead(full), -0.1453, TIME),
        row("full, 530B and 1T", "36", overhead(large), -0.0759, TIME),
        row(
            "selective, a layer of 22B",
            "7",
            layer_overhead(selective(*shapes["22B"])),
            -0.7494,
            TIME,
        ),
        row("selective, 175B", "2.7", overhead(selective(*shapes["175B"])), -0.6675, EQUATION_8),
        row("selective, 530B", "1.6", overhead(selective(*shapes["530B"])), -0.6591, EQUATION_8),
    )
