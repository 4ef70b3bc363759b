"""Korthikanti et al. 2022: bytes of activations that a layer and a stage keep."""

from typing import Unpack

from tests.plan.published.korthikanti import KORTHIKANTI
from tests.plan.published.models import gpt
from tests.plan.published.row import BYTES, GIB, PERCENT, Row, Source
from torchtally.plan.activations.kept import layer_activation_bytes
from torchtally.plan.activations.setting import AttentionKernel, Implementation, Options, setting_of
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Schedule
from torchtally.plan.parallel.pipeline import in_flight
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.recipes import recipe
from torchtally.units import Unit

LAYER = Source(
    "Korthikanti: activations of a layer",
    f"{KORTHIKANTI}, table 2",
    "The table prints formulas: published is what they give with the models' numbers put in, "
    "s 2048, TP 8, a micro-batch of 4 (22B) or 1. Ours is the sum of tensors that "
    "`Implementation.FUSED` keeps, with dropout and attention operator by operator.",
)
SAVING = Source(
    "Korthikanti: what selective recomputation saves",
    f"{KORTHIKANTI}, section 5",
    "1 less a layer's activations with selective recomputation over those without, on one GPU.",
)
OUTPUTS = Source(
    "Korthikanti: output tensors of a pipeline's first stage",
    f"{KORTHIKANTI}, appendix B",
    "An output of s b h numbers, 2 bytes each, for every micro-batch in flight: 530B, p 35, b 1. "
    'What the paper calls GB is GiB: 2.936e9 bytes are printed as "2.73 GB".',
)
TENSOR = 8
S = 2048
MODELS = {
    # l, h, a, b
    "22B": (48, 6144, 64, 4),
    "175B": (96, 12_288, 96, 1),
    "530B": (105, 20_480, 128, 1),
    "1T": (128, 25_600, 160, 1),
}
WAYS: dict[str, Options] = {
    "on one GPU": {},
    "TP": {"tensor": TENSOR},
    "TP, SP": {"tensor": TENSOR, "is_sequence_parallel": True},
    "TP, selective": {"tensor": TENSOR, "recompute": Recompute.SELECTIVE},
    "TP, SP, selective": {
        "tensor": TENSOR,
        "is_sequence_parallel": True,
        "recompute": Recompute.SELECTIVE,
    },
    "full": {"tensor": TENSOR, "recompute": Recompute.FULL},
}


def formulas(h: int, a: int, b: int) -> dict[str, int]:
    """Table 2 as it is printed, in bytes."""
    t, s = TENSOR, S
    return {
        "on one GPU": s * b * (34 * h + 5 * a * s),
        "TP": s * b * (10 * h + 24 * h // t + 5 * a * s // t),
        "TP, SP": s * b * (34 * h + 5 * a * s) // t,
        "TP, selective": s * b * (10 * h + 24 * h // t),
        "TP, SP, selective": 34 * s * b * h // t,
        "full": 2 * s * b * h,
    }


def layer_bytes(
    layers: int, width: int, heads: int, batch: int, **options: Unpack[Options]
) -> Quantity:
    model = gpt(layers, width, heads, dropout=0.1)
    at = setting_of(
        model,
        batch,
        S,
        recipe("mixed"),
        kernel=AttentionKernel.MATH,
        implementation=Implementation.FUSED,
        **options,
    )
    return layer_activation_bytes(at, model.kinds[0])


def saving(shape: tuple[int, int, int, int]) -> Quantity:
    return derive(
        "saving",
        Unit.FRACTION,
        "1 - selective / whole",
        selective=layer_bytes(*shape, recompute=Recompute.SELECTIVE),
        whole=layer_bytes(*shape),
    )


def outputs() -> Quantity:
    return derive(
        "outputs",
        Unit.BYTES,
        "2 * sequence * width * micro_batches",
        sequence=of(S, Unit.TOKENS),
        width=of(20_480, Unit.COUNT),
        micro_batches=in_flight(Schedule.ONE_F_ONE_B, 35, 280),
    )


def rows() -> tuple[Row, ...]:
    layers = tuple(
        Row(
            source=LAYER,
            what=f"{size}, {way}",
            published=f"{published:,}",
            unit=BYTES,
            computed=lambda shape=shape, way=way: layer_bytes(*shape, **WAYS[way]),
        )
        for size, shape in MODELS.items()
        for way, published in formulas(*shape[1:]).items()
    )
    savings = tuple(
        Row(
            source=SAVING,
            what=size,
            published=published,
            unit=PERCENT,
            computed=lambda size=size: saving(MODELS[size]),
        )
        for size, published in (("175B", "70"), ("530B", "65"))
    )
    kept = Row(source=OUTPUTS, what="530B", published="2.73", unit=GIB, computed=outputs)
    return (*layers, *savings, kept)
