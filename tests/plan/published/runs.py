"""Two open models of GPT-3's size."""

from tests.plan.published.megatron import GPT_175B, recomputing
from tests.plan.published.row import DAYS, FLOPS, MILLIONS, Row, Source
from torchtally.plan.architecture.lookup import model
from torchtally.plan.parameters import parameters
from torchtally.plan.training import training_flops_of, training_s

OPT = Source(
    "OPT-175B",
    "facebookresearch/metaseq, OPT chronicles, final update",
    "300e9 tokens, hardware FLOPs with every layer made again; l 96, h 12288, V 51,200, s 2048.",
)
BLOOM = Source(
    "BLOOM",
    "BigScience 2022, arXiv 2211.05100",
    "Of our `bloom`: l 70, h 14336, V 250,880, no positions, a norm after the embedding.",
    is_secondary=True,
)


def rows() -> tuple[Row, ...]:
    work = training_flops_of(recomputing(*GPT_175B).hardware, 300e9)
    bloom = model("bloom")
    return (
        Row(source=OPT, what="FLOPs", published="4.30e23", unit=FLOPS, computed=lambda: work),
        Row(
            source=OPT,
            what="time",
            inputs="1024 A100s x 147 TFLOP/s",
            published="33",
            unit=DAYS,
            computed=lambda: training_s(work, 1024, 147e12, 1.0),
        ),
        Row(
            source=BLOOM,
            what="parameters",
            published="176,247",
            unit=MILLIONS,
            computed=lambda: parameters(bloom).total,
        ),
    )
