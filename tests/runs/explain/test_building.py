"""A profile as a trace and a ledger: sums that can be done in the head."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.kineto_files import BF16, TraceMaker, linear_step
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.explained import explained_report
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.runs.explaining import explain
from torchtally.timing.targets import known_roofline
from torchtally.trace import Phase, Trace
from torchtally.views import by
from torchtally.views.real_run import IdleCause, real_run
from torchtally.work import Kind

FLOPS = 2 * 4096**3
US = 1e-6


def trace_of(tmp_path: Path, recorder: TraceMaker, gpu: str | None = None, **more: Any) -> Trace:
    return explain(str(recorder.write(tmp_path / "trace.json.gz", **more)), gpu)


def ledger_of(trace: Trace) -> Ledger:
    ledger = account(trace, roofline=known_roofline(trace.chip))
    ledger.check()
    return ledger


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return ledger_of(trace_of(tmp_path_factory.mktemp("step"), linear_step()))


def test_every_moment_of_the_device_belongs_to_one_operator(step: Ledger) -> None:
    assert step.step_s == pytest.approx(680 * US)
    assert step.total.kernel_s == pytest.approx(610 * US)
    by_phase = step.by_phase()
    assert by_phase[Phase.FORWARD].seconds == pytest.approx(200 * US)
    assert by_phase[Phase.BACKWARD].seconds == pytest.approx((10 + 400) * US)
    assert by_phase[Phase.OPTIMIZER].seconds == pytest.approx((60 + 10) * US)


def test_flops_and_bytes_are_those_of_the_rules(step: Ledger) -> None:
    assert step.total.flops_forward == FLOPS
    assert step.total.flops_backward == 2 * FLOPS
    assert step.total.flops_optimizer == 4096**2
    assert step.by_op()["aten.mul_"].bytes == 2 * 2 * 4096**2
    assert step.coverage.uncounted == ()


def test_a_backward_operator_belongs_to_its_forward_line_and_module(step: Ledger) -> None:
    lines = {line and (line.file, line.line): total for line, total in step.by_line().items()}
    assert lines["model.py", 40].seconds == pytest.approx(610 * US)
    assert lines["train.py", 3].seconds == pytest.approx(70 * US)
    modules = {path.module: total.count for path, total in step.by_module().items()}
    assert modules["Linear.0"] == 3
    assert len(step.trace.differentiated) == 1


def test_idle_time_has_its_cause(tmp_path: Path, step: Ledger) -> None:
    assert dict(real_run(step).idle) == {IdleCause.BETWEEN: pytest.approx(70 * US)}
    maker = linear_step()
    # The host waits 560..645 for the device, which is done at 710, then launches at 800.
    maker.wait(560, 155)
    maker.operator("aten::mul_", 790, 50, [[8], []], [BF16, "double"], ["", "0.5"])
    maker.kernel("vectorized_elementwise_kernel<4, MulFunctor>", 800, 803, 2)
    # Nothing waited for: late at 900.
    maker.operator("aten::mul_", 890, 50, [[8], []], [BF16, "double"], ["", "0.5"])
    maker.kernel("vectorized_elementwise_kernel<4, MulFunctor>", 900, 905, 2)
    idle = dict(real_run(ledger_of(trace_of(tmp_path, maker))).idle)
    assert idle == {
        IdleCause.HOST_WAITED: pytest.approx((800 - 710) * US),
        IdleCause.HOST_LATE: pytest.approx((900 - 805) * US),
        IdleCause.BETWEEN: pytest.approx(70 * US),
        IdleCause.LAUNCHING: pytest.approx((3 + 5) * US),
    }


@pytest.mark.parametrize("view", ["idle", "real-kernel", "slow", "op", "line", "bound"])
def test_views_of_a_real_run_sum_to_it(step: Ledger, view: str) -> None:
    table = by(step, view)
    sums = {"idle": ("idle_s", 70), "real-kernel": ("kernel_s", 610), "slow": ("kernel_s", 610)}
    column, expected = sums.get(view, ("seconds", 680))
    place = [each.name for each in table.columns].index(column)
    assert sum(row[place] for row in table.rows) == pytest.approx(expected * US)  # type: ignore[misc]
    assert table.totals[place] == pytest.approx(expected * US)


def test_the_roofline_stands_beside_what_was_measured(step: Ledger) -> None:
    total = step.by_op()["aten.mm"]
    assert total.predicted_s == pytest.approx(3 * FLOPS / 989.4e12, rel=0.35)
    assert total.predicted_s < total.kernel_s  # 200 us a product: slower than an H100 has to be


def test_a_saved_account_opens_without_the_profile(tmp_path: Path, step: Ledger) -> None:
    path = tmp_path / "real.tally"
    step.trace.save(path)
    again = account(Trace.load(path), roofline=known_roofline("H100-SXM"))
    assert again.total == step.total
    assert again.is_measured


def test_memory_is_the_allocators(step: Ledger) -> None:
    assert step.memory.peak_bytes == 101_376 + 2048  # 101,000 held before, in blocks of 512
    assert [reserved.bytes for reserved in step.trace.reserved] == [2 << 20]


def test_kernels_launched_before_the_profiler_began_are_left_out_and_said(tmp_path: Path) -> None:
    maker = linear_step()
    maker.events.append(
        {"ph": "X", "cat": "kernel", "name": "earlier", "pid": 0, "tid": 7, "ts": 1, "dur": 9,
         "args": {"device": 0, "stream": 7, "correlation": 9999}}
    )  # fmt: skip
    trace = trace_of(tmp_path, maker)
    assert trace.measured is not None
    (lost,) = trace.measured.lost
    assert (lost.kernels, lost.duration_ns) == (1, 9000)
    assert trace.measured.device_ns == 619_000
    assert ledger_of(trace).total.kernel_s == pytest.approx(610 * US)


def test_what_is_of_another_library_keeps_its_time_and_is_uncounted(tmp_path: Path) -> None:
    maker = linear_step()
    maker.operator("vllm::unified_attention", 500, 20, [[16, 64]], [BF16])
    maker.kernel("flash_fwd_kernel", 505, 720, 30)
    maker.kernel("triton_poi_fused_add_0", 550, 760, 5)  # in no operator at all
    ledger = ledger_of(trace_of(tmp_path, maker))
    assert {each.op for each in ledger.coverage.uncounted} == {
        "vllm.unified_attention",
        "kernel.triton_poi_fused_add_0",
    }
    assert dict(real_run(ledger).uncounted) == {
        "vllm.unified_attention": pytest.approx(30 * US),
        "kernel.triton_poi_fused_add_0": pytest.approx(5 * US),
    }


def test_a_kernel_outside_of_operators_belongs_to_the_optimizer_around_it(tmp_path: Path) -> None:
    maker = linear_step()
    maker.annotation("Optimizer.step#FusedAdam.step", 790, 40)
    maker.kernel("void multi_tensor_apply_kernel<Adam>(int)", 800, 900, 25)
    ledger = ledger_of(trace_of(tmp_path, maker))
    (entry,) = (each for each in ledger.reported if "multi_tensor" in each.call.name)
    assert entry.op.phase is Phase.OPTIMIZER


def test_what_could_not_be_made_again_is_said_once_for_each_operator_with_kernels(
    tmp_path: Path,
) -> None:
    maker = linear_step()
    unfitting = [[4096, 7], [4096, 4096]]
    for at in (760, 770, 780):
        maker.operator("aten::mm", at, 8, unfitting, [BF16, BF16])
        if at > 760:
            maker.kernel("sm90_xmma_gemm_bf16bf16", at + 1, at + 40, 5)
    (note,) = (each for each in trace_of(tmp_path, maker).notes if "aten::mm" in each.text)
    assert note.count == 2


def test_without_shapes_nothing_is_counted_as_zero(tmp_path: Path) -> None:
    maker = linear_step()
    for event in maker.events:
        for name in ("Input Dims", "Input Strides", "Input type", "Concrete Inputs"):
            event["args"].pop(name, None)
    ledger = ledger_of(trace_of(tmp_path, maker))
    assert ledger.total.kernel_s == pytest.approx(610 * US)
    assert {each.op for each in ledger.coverage.uncounted} == {"aten.mm", "aten.mul_"}
    assert all("not recorded" in each.reason for each in ledger.coverage.uncounted)


def test_a_collective_has_its_group_and_payload(tmp_path: Path) -> None:
    maker = linear_step()
    maker.operator("nccl:all_reduce", 500, 20, [[1 << 20]], [BF16])
    maker.kernel(
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 505, 600, 150, stream=20,
        **{"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
           "Group size": 2, "dtype": "BFloat16", "Process Group Name": "0"},
    )  # fmt: skip
    group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
    told = {"rank": 0, "world_size": 2, "pg_config": [group]}
    ledger = ledger_of(trace_of(tmp_path, maker, distributedInfo=told))
    (entry,) = (each for each in ledger.reported if each.kind is Kind.COMMUNICATION)
    assert [group.ranks for group in ledger.trace.groups] == [(0, 1)]
    assert ledger.trace.groups[entry.call.literal("group")].description == "default_pg"
    assert entry.cost.network_bytes == 2 << 20
    assert ledger.total.network_s == pytest.approx(150 * US)
    # 600..750, beside products until 640 and the update 700..710.
    assert ledger.total.exposed_s == pytest.approx((60 + 40) * US)
    assert ledger.step_s == pytest.approx((750 - 30) * US)


def test_a_rank_that_waits_for_another_is_told_from_one_that_sends(tmp_path: Path) -> None:
    """Both ranks' all-reduce ends together: 150 us on the one that came first, 60 on the other."""
    traces = []
    for rank, (start, duration) in enumerate(((720, 150), (810, 60))):
        maker = linear_step()
        maker.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", 505, start, duration,
            stream=20,
            **{"Collective name": "allreduce", "In msg nelems": 1 << 20,
               "Out msg nelems": 1 << 20, "Group size": 2, "dtype": "BFloat16",
               "Process Group Name": "0"},
        )  # fmt: skip
        group = {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}
        told = {"rank": rank, "world_size": 2, "pg_config": [group]}
        traces.append(trace_of(tmp_path, maker, distributedInfo=told))
    first, second = traces
    ledger = account(first, roofline=known_roofline(first.chip), peers=[second])
    ledger.check()
    (entry,) = (each for each in ledger.reported if each.kind is Kind.COMMUNICATION)
    slot = ledger.slot(entry)
    assert slot.waiting_s == pytest.approx(90 * US)
    assert slot.exposed_s == pytest.approx(60 * US)
    run = real_run(ledger)
    assert run.waiting_s == pytest.approx(90 * US)
    assert run.exposed_s == pytest.approx(60 * US)
    assert run.busy_s + sum(seconds for _, seconds in run.idle) == pytest.approx(run.step_s)
    (other,) = ledger.others
    (entry,) = (each for each in other.reported if each.kind is Kind.COMMUNICATION)
    assert other.slot(entry).waiting_s == 0
    alone = ledger_of(first)
    (entry,) = (each for each in alone.reported if each.kind is Kind.COMMUNICATION)
    assert alone.slot(entry).waiting_s == 0


def test_recomputation_is_told_from_the_backward_pass(tmp_path: Path) -> None:
    maker = linear_step()
    matrix = [4096, 4096]
    # Within the engine's node 5: makes a node of its own.
    maker.operator(
        "aten::mm", 180, 15, [matrix, matrix], [BF16, BF16], thread=2,
        **{"Sequence number": 9, "Fwd thread id": 0},
    )  # fmt: skip
    maker.kernel("sm90_xmma_gemm_bf16bf16", 185, 640, 50, thread=2)
    ledger = ledger_of(trace_of(tmp_path, maker))
    assert ledger.total.flops_recompute == FLOPS
    assert ledger.total.flops_backward == 2 * FLOPS


def test_an_unknown_gpu_is_asked_for(tmp_path: Path) -> None:
    maker = TraceMaker({"id": 0, "name": "NVIDIA Imaginary 9000"})
    with pytest.raises(UsageError, match=r"Imaginary 9000.*\n.*--gpu NAME"):
        trace_of(tmp_path, linear_step(maker))
    assert trace_of(tmp_path, linear_step(maker), "A100-SXM").chip.startswith("A100-SXM")


def test_hostile_shapes_take_no_memory_and_end_no_run(tmp_path: Path) -> None:
    maker = linear_step()
    for number, shape in enumerate(([1 << 61], [1 << 31] * 3, [0] * 300, [-1], ["x"], [[[1]]])):
        at = 500 + 10 * number
        maker.operator("aten::relu", at, 5, [[8]], ["float"])
        maker.events[-1]["args"]["Input Dims"] = [shape]
        maker.kernel("k", at + 1, 720 + number, 0.5)
    maker.operator("aten::__class__", 600, 5, [[8]], ["float"])
    maker.operator("aten::os.system", 610, 5, [[8]], ["float"], ["rm -rf /"])
    ledger = ledger_of(trace_of(tmp_path, maker))
    assert ledger.total.kernel_s == pytest.approx((610 + 3) * US)


def test_the_profilers_own_trace_of_a_cpu_training_has_the_flops_of_a_simulated_run(
    tmp_path: Path,
) -> None:
    """Operator by operator, FLOPs and bytes: the profiler's account and ours of one script."""
    import torch
    from torch import nn

    from torchtally.runs.explaining import HOST
    from torchtally.runs.recording import record
    from torchtally.trace import Ending
    from torchtally.tracer.session import recording

    def train(device: str, done: Any, steps: int) -> None:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 16),
            nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 10),
        ).to(device)  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(steps):
            images = torch.randn(4, 3, 8, 8, device=device)
            labels = torch.randint(0, 10, (4,), device=device)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done()

    path = tmp_path / "cpu.json"
    with record(path, wait=1, warmup=1, active=2) as step_done:
        train("cpu", step_done, 4)
    real = ledger_of(explain(str(path)))
    with recording(HOST, script="train", dispatch="cpu") as recorder:
        train("cuda", lambda: None, 4)
        simulated = account(recorder.trace(Ending("exit")))

    def costs(ledger: Ledger) -> dict[str, tuple[int, int, int]]:
        return {
            name: (total.count, total.flops, total.bytes)
            for name, total in ledger.by_op().items()
            if total.bytes
        }

    assert costs(real) == costs(simulated)
    assert real.total.flops == simulated.total.flops > 0
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert real.by_phase()[phase].flops == simulated.by_phase()[phase].flops
    assert real.total.kernel_s > 0


def test_the_document_says_what_was_measured(tmp_path: Path) -> None:
    ledger = ledger_of(trace_of(tmp_path, linear_step()))
    measured = json.loads(render(explained_report(ledger), "json", Look()))["measured"]
    assert measured["step_s"] == pytest.approx(680 * US)
    assert measured["idle_causes_s"] == {"between queued kernels": pytest.approx(70 * US)}
