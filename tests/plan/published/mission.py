"""Two sums that everybody starts with, and the largest training of its time."""

from tests.plan.published.row import DAYS, FLOPS, PARAMETERS, Row, Source
from torchtally.plan.capacity import largest_parameters
from torchtally.plan.memory import bytes_per_parameter
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import recipe
from torchtally.plan.training import training_flops, training_s

CS336 = Source(
    "Napkin sums",
    "Stanford CS336, lecture 2 (resource accounting)",
    "FLOPs = 6 N D; time = FLOPs / (chips x peak x MFU); largest model = memory / bytes a "
    "parameter. Peak: H100's 1979e12 / 2, as the lecture has it.",
)


def rows() -> tuple[Row, ...]:
    work = training_flops(70e9, 15e12)
    size = bytes_per_parameter(recipe("fp32"), optimizer("adamw"))
    return (
        Row(
            source=CS336,
            what="FLOPs of 70B on 15T tokens",
            published="6.3e24",
            unit=FLOPS,
            computed=lambda: work,
        ),
        Row(
            source=CS336,
            what="its time on 1024 H100s",
            inputs="MFU 0.5",
            published="143.93",
            unit=DAYS,
            computed=lambda: training_s(work, 1024, 1979e12 / 2, 0.5),
        ),
        Row(
            source=CS336,
            what="largest model on 8 H100s",
            inputs="80e9 B each, AdamW, fp32",
            published="40e9",
            unit=PARAMETERS,
            computed=lambda: largest_parameters(8 * 80 * 10**9, size),
        ),
    )
