"""The tables of `tally plan`: where a step's time goes."""

from tests.plan.parallel.builders import llama, workload
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.pricing import step
from torchtally.plan.questions.fit import time_table


def named(chips: str, layout: Layout) -> dict[object, object]:
    """What each part of the step sends, by the table's last column."""
    table = time_table(step(workload(llama(), chips), layout), workload(llama(), chips))
    assert [column.name for column in table.columns][-1] == "collectives"
    return {row[0]: row[-1] for row in table.rows}


def test_the_time_of_a_step_names_collectives_and_their_ways() -> None:
    seconds_named = named("8xH100-SXM", Layout(data=2, tensor=2, pipeline=2, micro_batches=4))
    assert str(seconds_named["tensor parallel"]).startswith("all-reduce ring")
    assert seconds_named["pipeline"] == "send"
    assert seconds_named["compute"] == seconds_named["bubble"] == ""
    shared = named("8xH100-SXM", Layout(data=8, shard=Sharding.ZERO3))
    assert "reduce-scatter ring" in str(shared["data parallel"])
    assert "all-gather ring" in str(shared["data parallel"])


def test_one_chip_sends_nothing() -> None:
    alone = workload(llama(), "1xH100-SXM")
    table = time_table(step(alone, Layout()), alone)
    assert [column.name for column in table.columns] == ["part", "seconds", "seconds_share"]


def test_what_a_chip_sends_stands_beside_the_time() -> None:
    """Gradients of 8 ranks: 7/8 of them, and both ways."""
    given = workload(llama(), "8xH100-SXM")
    table = time_table(step(given, Layout(data=8)), given)
    sent = {row[0]: row[3] for row in table.rows}
    assert [column.name for column in table.columns][3] == "sent_bytes"
    parameters = sum(weight.elements for weight in weights_of(llama()))
    assert sent["data parallel"] == 2 * 7 * parameters * 2 // 8
    assert table.totals is not None
    assert table.totals[3] == sent["data parallel"]
