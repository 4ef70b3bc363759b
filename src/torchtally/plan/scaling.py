"""Scaling laws: how many tokens a model of some size deserves, and the loss to be expected.

N: parameters.  D: tokens.  C: training FLOPs.

These are fits to other people's models, data and tokenizers, and estimates for others: a
loss is in nats per token of *their* data. They extrapolate badly beyond the sizes they were fitted
to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchtally.plan.closed_form import Flops, Number, ParameterCount, closed_form
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit

HOFFMANN = "Hoffmann et al. 2022 (Chinchilla), arXiv 2203.15556"
TOKENS_PER_PARAMETER = 20
"""Chinchilla 70B was trained on 1.4T tokens; by table 3 it is about 20 at every size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLaw:
    """Loss = irreducible + A / N^a + B / D^b."""

    name: str
    irreducible: float
    A: float
    a: float
    B: float
    b: float
    source: str


_LAWS = (
    LossLaw(
        name="chinchilla", irreducible=1.69, A=406.4, a=0.34, B=410.7, b=0.28,
        source=f"{HOFFMANN}, equation 10 and appendix D.3",
    ),
    LossLaw(
        name="epoch", irreducible=1.8172, A=482.01, a=0.3478, B=2085.43, b=0.3658,
        source="Besiroglu et al. 2024 (a new fit of Chinchilla's data), arXiv 2404.10102",
    ),
)  # fmt: skip
LOSS_LAWS: Mapping[str, LossLaw] = {law.name: law for law in _LAWS}
RULE = (f"{HOFFMANN}, table 3", "estimated: a rule of thumb")


@closed_form("compute-optimal tokens", Unit.TOKENS, *RULE)
def optimal_tokens(
    parameters: ParameterCount, tokens_per_parameter: Number = TOKENS_PER_PARAMETER
) -> str:
    """Tokens on which a model of this size is best trained, if FLOPs are all that counts.

    A model that is much used is better smaller and trained for longer: Llama 3 8B on 1875 tokens a
    parameter.
    """
    return "tokens_per_parameter * parameters"


@closed_form("compute-optimal parameters", Unit.PARAMETERS, *RULE)
def optimal_parameters(
    flops: Flops,
    tokens_per_parameter: Number = TOKENS_PER_PARAMETER,
    flops_per_parameter: Number = 6,
) -> str:
    """The model that so many FLOPs train best: C = 6 N D with D = 20 N.

    `flops_per_parameter`, for each token, is more with attention's scores.
    """
    return "(flops / (flops_per_parameter * tokens_per_parameter))**0.5"


def losses(parameters: Quantity, tokens: Quantity, name: str = "loss") -> Iterator[Quantity]:
    """The loss by each law, under that name and the law's."""
    for law in LOSS_LAWS.values():
        yield loss(parameters, tokens, law).with_name(f"{name}, {law.name} law")


def loss(parameters: Amount, tokens: Amount, law: LossLaw) -> Quantity:
    """The loss, in nats per token of the law's own data, that a law estimates."""
    constants = {
        word: of(getattr(law, word), Unit.NUMBER) for word in ["irreducible", "A", "a", "B", "b"]
    }
    return derive(
        "loss",
        Unit.NUMBER,
        "irreducible + A / parameters**a + B / tokens**b",
        law.source,
        f"estimated by the {law.name} law, in nats per token of its own data",
        **constants,
        parameters=of(parameters, Unit.PARAMETERS),
        tokens=of(tokens, Unit.TOKENS),
    )
