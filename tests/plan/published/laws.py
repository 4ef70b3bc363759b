"""Chinchilla: its own table of optima, its count of FLOPs, and where its law has its minimum."""

from tests.plan.published.models import chinchilla
from tests.plan.published.row import FACTOR, FLOPS, TOKENS, Row, Source
from torchtally.plan.flops import attention_flops, weight_flops
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.scaling import LOSS_LAWS, LossLaw, loss, optimal_tokens
from torchtally.plan.training import training_flops
from torchtally.units import Unit

HOFFMANN = "Hoffmann et al. 2022, arXiv 2203.15556"
OPTIMA = Source(
    "Chinchilla: optimal trainings",
    f"{HOFFMANN}, table 3 (approach 1)",
    "6 N D with the printed N and D.",
)
OPTIMA_3 = Source(
    "Chinchilla: optimal trainings, approach 3",
    f"{HOFFMANN}, table A3",
    "6 N D with the printed N and D.",
)
RATIOS = Source(
    "Chinchilla: its count of FLOPs over 6 N D",
    f"{HOFFMANN}, table A4 and appendix F",
    "Products with weights and attention in full on sequences of 2048, over 6 N. The printed "
    "ratios come out if N has an embedding of 32,000 and a matrix of relative positions in every "
    "layer, and the FLOPs have neither of them, nor logits; appendix F says that embeddings are "
    "counted.",
)
RULE = Source("Chinchilla: tokens of the 70B model", HOFFMANN, "20 tokens a parameter.")
MINIMA = Source(
    "Tokens a parameter where a loss law has its minimum",
    "Besiroglu et al. 2024, arXiv 2404.10102",
    "The smallest `loss` along C = 6 N D, C = 5.76e23, with the printed constants.",
    is_secondary=True,
)
ROUNDED = "Parameters and tokens are printed in two or three digits."
SOFTMAX = "The paper's count has softmax in it, three FLOPs a score: with those it is 1.026."
MISPRINT = "A misprint: 6 x 175e9 x 12.0e12 is ten times as much."

TABLE_3 = (
    # parameters, tokens, FLOPs, tolerance
    (400e6, 8.0e9, "1.92e19", 0.0),
    (1e9, 20.2e9, "1.21e20", 0.0),
    (10e9, 205.1e9, "1.23e22", 0.0),
    (67e9, 1.5e12, "5.76e23", 0.05),
    (175e9, 3.7e12, "3.85e24", 0.015),
    (280e9, 5.9e12, "9.90e24", 0.002),
    (520e9, 11.0e12, "3.43e25", 0.0),
    (1e12, 21.2e12, "1.27e26", 0.0),
    (10e12, 216.2e12, "1.30e28", 0.0),
)
TABLE_A4 = (
    # size, layers, width, inner width, heads, head dim, ratio
    ("73M", (10, 640, 2560, 10, 64), "1.03"),
    ("305M", (20, 1024, 4096, 16, 64), "1.10"),
    ("552M", (24, 1280, 5120, 10, 128), "1.08"),
    ("1.1B", (26, 1792, 7168, 14, 128), "1.04"),
    ("1.6B", (28, 2048, 8192, 16, 128), "1.03"),
    ("6.8B", (40, 3584, 14_336, 28, 128), "0.99"),
)
BUDGET = 5.76e23


def ratio(layers: int, width: int, inner: int, heads: int, head_dim: int) -> Quantity:
    shape = layers, width, inner, heads, head_dim
    plain = chinchilla(*shape, has_relative_positions=False)
    return derive(
        "own count over 6 N",
        Unit.NUMBER,
        "3 * (weights + attention) / (6 * parameters)",
        weights=weight_flops(plain),
        attention=attention_flops(plain, 2048),
        parameters=parameters(chinchilla(*shape)).total,
    )


def best_size(law: LossLaw) -> float:
    """Parameters of the smallest loss for the budget, by trisection of the logarithm."""
    low, high = 1e9, 1e12
    for _ in range(200):
        left, right = low ** (2 / 3) * high ** (1 / 3), low ** (1 / 3) * high ** (2 / 3)
        if loss_for(left, law) < loss_for(right, law):
            high = right
        else:
            low = left
    return low


def loss_for(parameters: float, law: LossLaw) -> float:
    return loss(parameters, BUDGET / (6 * parameters), law).value


def tokens_a_parameter(law: LossLaw) -> Quantity:
    size = best_size(law)
    return derive(
        "tokens a parameter",
        Unit.NUMBER,
        "tokens / parameters",
        tokens=of(BUDGET / (6 * size), Unit.TOKENS),
        parameters=of(size, Unit.PARAMETERS),
    )


def rows() -> tuple[Row, ...]:
    optima = tuple(
        Row(
            source=OPTIMA,
            what=f"{N / 1e9:g}B parameters",
            inputs=f"{D / 1e9:g}B tokens",
            published=flops,
            unit=FLOPS,
            computed=lambda N=N, D=D: training_flops(N, D),
            tolerance=tolerance,
            why=ROUNDED if tolerance else "",
        )
        for N, D, flops, tolerance in TABLE_3
    )
    misprint = Row(
        source=OPTIMA_3,
        what="175B parameters",
        inputs="12000B tokens",
        published="1.26e24",
        unit=FLOPS,
        computed=lambda: training_flops(175e9, 12.0e12),
        differs_by=9.0,
        why=MISPRINT,
    )
    ratios = tuple(
        Row(
            source=RATIOS,
            what=size,
            inputs="l {}, h {}, f {}, a {} of {}".format(*shape),
            published=published,
            unit=FACTOR,
            computed=lambda shape=shape: ratio(*shape),
            tolerance=0.01 if size == "73M" else 0.0,
            why=SOFTMAX if size == "73M" else "",
        )
        for size, shape, published in TABLE_A4
    )
    rule = Row(
        source=RULE,
        what="Chinchilla 70B",
        published="1.4e12",
        unit=TOKENS,
        computed=lambda: optimal_tokens(70e9),
    )
    minima = tuple(
        Row(
            source=MINIMA,
            what=what,
            published=published,
            unit=FACTOR,
            computed=lambda name=name: tokens_a_parameter(LOSS_LAWS[name]),
        )
        for what, name, published in (
            ("Hoffmann et al. 2022, rounded exponents", "chinchilla", "93"),
            ("Besiroglu et al. 2024", "epoch", "18"),
        )
    )
    return (*optima, misprint, *ratios, rule, *minima)
