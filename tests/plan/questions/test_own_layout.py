"""A layout of one's own, beside the fastest."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama
from torchtally.chips.clusters import cluster
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.pricing import step
from torchtally.plan.questions import Request, subject
from torchtally.plan.questions.layouts import layouts
from torchtally.plan.questions.own_layout import layout_of, own_layout
from torchtally.plan.questions.workload import workload_of
from torchtally.plan.recipes import recipe

ASKED = Request(
    recipe=recipe("mixed"), optimizer=optimizer("adamw"), subject=subject(llama()),
    cluster=cluster("8xH100-SXM"), sequence=1024, global_batch=16, layout="tp 4, zero-1, mb 2",
)  # fmt: skip


def test_it_is_priced_as_a_search_prices_it() -> None:
    own = Layout(
        data=2, tensor=4, is_sequence_parallel=True, shard=Sharding.ZERO1, micro_batch=2,
        micro_batches=4, implementation=Implementation.FUSED,
    )  # fmt: skip
    workload, _ = workload_of(ASKED)
    assert layout_of(ASKED, workload) == own
    answer = own_layout(ASKED)
    assert answer.figures[0].value == step(workload, own).seconds.value


def test_its_parts_stand_beside_the_fastest_ones() -> None:
    """What the fastest saves in each part sums to the difference of the steps."""
    answer, fastest = own_layout(ASKED), layouts(replace(ASKED, layout=""))
    table = answer.tables[0]
    assert table.totals[1] == answer.figures[0].value
    assert table.totals[2] == pytest.approx(fastest.figures[0].value)
    saved = [row[3] for row in table.rows]
    assert sum(saved) == pytest.approx(table.totals[3])  # type: ignore[arg-type]
    assert saved == sorted(saved, reverse=True)  # type: ignore[type-var]
    assert "faster" in str(answer.headline[-1])


def test_the_fastest_has_nothing_over_itself() -> None:
    words = "dp 8 zero-1, mb 2x1"
    best = layouts(replace(ASKED, layout=""))
    same = own_layout(replace(ASKED, layout=str(best.headline[0]).removesuffix(": ")))
    assert "faster" not in "".join(part for part in same.headline if isinstance(part, str))
    assert own_layout(replace(ASKED, layout=words)).figures[0].value >= best.figures[0].value


def test_every_reason_why_it_is_impossible_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        own_layout(replace(ASKED, layout="dp 4, tp 3, mb 1x1"))
    message = str(caught.value)
    assert "are 12 chips, not 8" in message
    assert "8 heads do not divide by tp 3" in message
    assert "are 4 sequences, not 16" in message
