"""Which model and how many tokens are compute-optimal for a budget?"""

from torchtally.errors import UsageError
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.bill import bill, unknown_costs
from torchtally.plan.questions.plan_options import PEAK
from torchtally.plan.questions.request import Request, peak_flop_per_s
from torchtally.plan.questions.uses import Fields, uses
from torchtally.plan.scaling import losses, optimal_parameters, optimal_tokens
from torchtally.plan.training import training_s
from torchtally.table import Column, Table
from torchtally.units import Unit

MARKS = (
    ("GPT-3 175B", 3.14e23, "Brown et al. 2020, arXiv 2005.14165, table D.1"),
    ("Chinchilla 70B", 5.88e23, "6 * 70e9 * 1.4e12, arXiv 2203.15556"),
    ("Llama 3 405B", 3.8e25, "arXiv 2407.21783, section 3.2"),
    ("GPT-4", 2e25, "unpublished: an estimate"),
    ("US order of 2023", 1e26, "reporting threshold; revoked in 2025"),
)
"""(what, FLOPs, where from): scale marks of whole trainings."""


def _used(request: Request) -> Fields:
    return () if request.cluster is None else ("mfu", "usd_per_hour", *PEAK)


@uses("flops", _used)
def compute_budget(request: Request) -> Answer:
    """The compute-optimal model and tokens, and what they cost on the given chips."""
    if request.flops is None:
        raise UsageError("Missing compute budget: give --flops 3e24.")
    flops = of(request.flops, Unit.FLOPS).with_name("compute budget")
    parameters = optimal_parameters(flops)
    tokens = optimal_tokens(parameters)
    return Answer(
        question="compute-budget",
        headline=(
            parameters,
            " parameters on ",
            tokens,
            " tokens are compute-optimal for ",
            flops,
            ", by the rule of 20 tokens per parameter",
        ),
        figures=(parameters, tokens, *losses(parameters, tokens), *_on_chips(request, flops)),
        tables=(_marks(int(flops.value)),),
        assumptions=(
            "A rule of thumb for training cost only: a model that serves many requests should "
            "be smaller and trained longer.",
        ),
        unknown=() if request.cluster is None else unknown_costs(request, request.chip),
    )


def _on_chips(request: Request, flops: Quantity) -> tuple[Quantity, ...]:
    """Time, money and energy, if chips and an MFU are given."""
    if request.cluster is None:
        return ()
    chips = request.of_chips
    mfu = request.of_mfu
    seconds = training_s(flops, chips, peak_flop_per_s(request, request.chip), mfu)
    return (seconds, *bill(request, chips, seconds, request.chip))


def _marks(flops: int) -> Table:
    """The budget among known trainings."""
    marks = [(name, float(size), source) for name, size, source in MARKS]
    rows = sorted([*marks, ("this budget", float(flops), "")], key=lambda pair: pair[1])
    return Table(
        title="Compared with known trainings",
        columns=(
            Column("training", "training", Unit.NAME),
            Column("flops", "FLOPs", Unit.FLOPS),
            Column("times", "times this", Unit.NUMBER),
            Column("source", "from", Unit.TEXT, rank=1),
        ),
        rows=tuple((name, int(size), size / flops, source) for name, size, source in rows),
        totals=(None,) * 4,
    )
