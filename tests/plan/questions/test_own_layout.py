"""A layout of one's own, beside the fastest."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama
from torchtally.chips.clusters import cluster
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.known import known_model
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.degrees import layout_text
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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_fastest_has_nothing_over_itself() -> None:
    words = "dp 8 zero-1, mb 2x1"
    best = layouts(replace(ASKED, layout=""))
    same = own_layout(replace(ASKED, layout=str(best.headline[0]).removesuffix(": ")))
    assert "faster" not in "".join(part for part in same.headline if isinstance(part, str))
    assert own_layout(replace(ASKED, layout=words)).figures[0].value >= best.figures[0].value


def test_deepseeks_experts_over_tensor_parallelism() -> None:
    """2,048 chips: 128 of a stage hold 256 experts of 58 layers four each, so two have the same.

    The fullest of 16 stages has 4 of 61 layers; the first has the embedding, split by 8.
    """
    asked = replace(
        ASKED, subject=subject(known_model("DeepSeek-V3")), cluster=cluster("2048xH800-SXM"),
        sequence=4096, global_batch=None, layout="dp16,tp8,pp16,ep64,zero2,mb1x8,1f1b",
    )  # fmt: skip
    workload, _ = workload_of(asked)
    layout = layout_of(asked, workload)
    assert layout_text(layout) == (
        "dp 16 zero-2, tp 8 with sp, pp 16 1f1b, ep 64 etp 1, micro-batch 1 x8"
    )
    priced = step(workload, layout)
    assert priced.memory.stage == 0
    experts = 58 * 4 * 3 * 7168 * 2048 * 4 / 61
    states = priced.memory.states
    dense = states.parameters.value / 2 - experts
    assert states.master.value == pytest.approx(4 * (dense / 16 + experts / 2), rel=1e-6)
    assert states.gradients.value == pytest.approx(2 * (dense / 16 + experts / 2), rel=1e-6)
    latent = 7168 * (1536 + 512 + 64) + 128 * (1536 * 192 + 512 * 256 + 128 * 7168) // 8
    blocks = (58 * 3 * 7168 * 2048 + 3 * 3 * 7168 * 18432) // 8 + 58 * 7168 * 256
    assert dense == pytest.approx(
        (61 * latent + blocks) * 4 / 61 + 129280 * 7168 / 8, rel=2e-3
    )  # and norms
    assert priced.parts["expert"].value > 0
    assert priced.fits


def test_every_reason_why_it_is_impossible_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        own_layout(replace(ASKED, layout="dp 4, tp 3, mb 1x1"))
    message = str(caught.value)
    assert "are 12 chips, not 8" in message
    assert "8 heads do not divide by tp 3" in message
    assert "are 4 sequences, not 16" in message
