"""Whether a known model fits one chip is answered by its own step, written out."""

from dataclasses import replace

import pytest

from tests.programs.ship import MODES, SHARDED_MODES, asked_of
from torchtally.chips import Cluster, chip
from torchtally.errors import UsageError
from torchtally.ledger import account
from torchtally.memory.workspace import context_bytes
from torchtally.plan.activations.setting import Implementation, Loss
from torchtally.plan.architecture.known import known_model
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.pace import BEST, Host
from torchtally.plan.questions.compared import compare
from torchtally.plan.questions.fit import fit, is_class_alone
from torchtally.plan.questions.largest import largest_batch
from torchtally.plan.questions.request import Request, subject
from torchtally.plan.recipes import recipe
from torchtally.programs.shipped import shipped_step
from torchtally.timing.roofline import Roofline
from torchtally.trace import World
from torchtally.units import format_bytes

H100 = chip("H100-SXM")
REQUEST = Request(
    subject=subject(known_model("llama-3.2-1b")), cluster=Cluster(H100), recipe=recipe("bf16"),
    optimizer=optimizer("adamw"), micro_batch=2, sequence=1024,
)  # fmt: skip
WRITTEN = "Written out operator by operator"


def is_written(request: Request) -> bool:
    return any(text.startswith(WRITTEN) for text in fit(request).assumptions)


def test_it_says_what_the_trace_says() -> None:
    """Memory is what the allocator reserves and the context, seconds are the ledger's."""
    answer = fit(REQUEST)
    trace = shipped_step("llama", "Llama 3.2 1B", replace(asked_of(MODES[0], 2), sequence=1024))
    assert trace is not None
    ledger = account(trace, roofline=Roofline(H100))
    memory, _, seconds, speed, *_ = answer.figures
    assert memory.value == max(each.bytes for each in trace.reserved) + context_bytes(H100)
    assert seconds.value == pytest.approx(ledger.step_s)
    assert speed.value == pytest.approx(2 * 1024 / seconds.value)
    assert is_written(REQUEST)
    for table in answer.tables:
        assert table.totals is not None
        assert sum(row[1] for row in table.rows) == pytest.approx(table.totals[1])


@pytest.mark.parametrize("count", [8, 16])
def test_chips_that_share_all_weights_run_fsdp2(count: int) -> None:
    """The trace that -o writes has the same bytes and seconds."""
    answer = fit(replace(REQUEST, cluster=Cluster(H100, count), recipe=recipe("mixed")))
    asked = replace(asked_of(SHARDED_MODES[1], 2), sequence=1024, world=World(count, 8))
    trace = shipped_step("llama", "Llama 3.2 1B", asked)
    assert trace is not None
    assert trace.groups[0].ranks == tuple(range(count))
    ledger = account(trace, roofline=Roofline(H100))
    memory, _, seconds, speed, *_ = answer.figures
    held = max(each.bytes for each in trace.reserved)
    assert held < memory.value < held + 2 * context_bytes(H100)
    assert seconds.value == pytest.approx(ledger.step_s)
    assert speed.value == pytest.approx(count * 2 * 1024 / seconds.value)
    (times,) = (table for table in answer.tables if table.title == "Time of a step")
    assert times.totals is not None
    assert 0 < times.totals[-1] < times.totals[-2]  # type: ignore[operator]


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster": Cluster(H100, 3)},  # 3 ranks pad weights
        {"cluster": Cluster(H100, 8), "host": Host.COMPILED},
        {"cluster": Cluster(H100, 8), "overlap": {"data": 0.5}},
        {"cluster": Cluster(chip("MI300X"))},
        {"global_batch": 4},
        {"sequence": 1000},
        {"pace": BEST},
        {"recipe": recipe("fp8")},
        {"subject": subject(replace(known_model("llama-3.2-1b"), name="another"))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_no_program_is_for_has_closed_forms(changes: dict[str, object]) -> None:
    assert not is_written(replace(REQUEST, **changes))


def test_chips_beside_each_other_are_asked_alike() -> None:
    answer = compare(REQUEST, ["A100-SXM"], fit)
    assert not any(text.startswith(WRITTEN) for text in answer.assumptions)


def seconds_of(**changes: object) -> float:
    answer = fit(replace(REQUEST, **changes))  # type: ignore[arg-type]
    assert any(text.startswith(WRITTEN) for text in answer.assumptions)
    return float(answer.figures[2].value)


def test_compiled_layers_and_fused_blocks_are_derived_from_the_step() -> None:
    """Fused kernels and a fused optimizer take less than compiled layers, and those than eager."""
    eager = seconds_of()
    compiled = seconds_of(host=Host.COMPILED)
    fused = seconds_of(implementation=Implementation.FUSED)
    assert fused < compiled < eager


def test_the_largest_batch_is_the_last_that_fits() -> None:
    """By the same steps: one sequence more does not fit."""
    question = replace(REQUEST, micro_batch=None, sequence=4096)
    answer = largest_batch(question)
    size = int(answer.figures[0].value)
    assert size > 1
    fitting, larger = (fit(replace(question, micro_batch=n)) for n in (size, size + 1))
    assert answer.figures[2].value == fitting.figures[0].value <= H100.total_memory_bytes
    assert larger.figures[0].value > H100.total_memory_bytes


def test_no_batch_fits_where_a_written_step_of_one_does_not() -> None:
    """Llama 3 8B in bf16: 45 GiB of weights and moments, and the same bytes in both answers."""
    question = replace(
        REQUEST, subject=subject(known_model("llama-3-8b")), micro_batch=None, sequence=4096
    )
    single = replace(question, micro_batch=1)
    assert is_written(single)
    takes = format_bytes(int(fit(single).figures[0].value))
    with pytest.raises(UsageError, match=f"takes {takes} of"):
        largest_batch(question)


@pytest.mark.parametrize(
    ("changes", "spared"),
    [
        ({}, {"offloaded": 6}),
        ({}, {"modules": ("mlp",)}),
        ({"lora": 16}, {}),
        ({"loss": Loss.FLOAT32}, {"implementation": Implementation.FUSED}),
    ],
    ids=str,
)
def test_what_a_written_step_lacks_is_not_answered_by_it(
    changes: dict[str, object], spared: dict[str, object]
) -> None:
    assert is_class_alone(REQUEST, Layout())
    request = replace(REQUEST, **changes)  # type: ignore[arg-type]
    assert not is_class_alone(request, Layout(**spared))  # type: ignore[arg-type]
