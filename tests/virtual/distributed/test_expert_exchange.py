"""DeepEP where it is not installed: tokens to experts on 8 GPUs and back."""

from collections.abc import Callable
from math import comb
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torchtally
from torchtally.trace import Ending, Trace, World
from torchtally.tracer.session import recording
from torchtally.views.collectives import network_time
from torchtally.virtual.distributed.expert_exchange import share_reaching
from torchtally.work import cost_of

RANKS, TOKENS, WIDTH, EXPERTS, CHOICES = 8, 4096, 1024, 64, 6


def run(script: Callable[[], Any], *what_ifs: str) -> Trace:
    world = World(size=RANKS, rank=0, gpus_per_node=RANKS)
    with recording("H100-SXM", script="", what_ifs=what_ifs, world=world) as recorder:
        dist.init_process_group("nccl")
        script()
    return recorder.trace(Ending("exit"))


def exchanged(topk_idx: Tensor, width: int = WIDTH) -> tuple[Any, ...]:
    import deep_ep

    buffer = deep_ep.Buffer(dist.group.WORLD, 2**20)
    x = torch.randn(len(topk_idx), width, device="cuda", dtype=torch.bfloat16)
    weights = torch.rand(topk_idx.shape, device="cuda")
    ranks, _, experts, is_in_rank, _ = buffer.get_dispatch_layout(topk_idx, EXPERTS)
    came = buffer.dispatch(
        x, num_tokens_per_rank=ranks, is_token_in_rank=is_in_rank, num_tokens_per_expert=experts,
        topk_idx=topk_idx, topk_weights=weights,
    )  # fmt: skip
    back, back_weights, _ = buffer.combine(came[0], came[4], topk_weights=came[2])
    assert back.shape == x.shape
    assert back_weights.shape == weights.shape
    return came


def chosen() -> Tensor:
    return torch.randn(TOKENS, EXPERTS, device="cuda").topk(CHOICES, -1).indices


def exchanges(trace: Trace) -> dict[str, Any]:
    calls = [call for call in trace.calls if call.name.startswith("deep_ep.")]
    return {call.name.partition(".")[2]: cost_of(call)[1] for call in calls}


def test_a_token_goes_once_to_a_rank_even_for_two_experts_there() -> None:
    """Experts 0 and 1 are on rank 0, 8 on rank 1, 63 on rank 7; -1 goes nowhere."""
    came: list[Any] = []

    def script() -> None:
        came.extend(exchanged(torch.tensor([[0, 1], [0, 8], [63, -1], [-1, -1]], device="cuda")))
        came.append(came[1].tolist())

    costs = exchanges(run(script))
    handle = came[4]
    assert handle.sent == handle.received == [2, 1, 0, 0, 0, 0, 0, 1]
    # What others send is what is sent to them: of expert e here, what every rank's e-th gets.
    assert came[3] == [3, 1, 0, 0, 0, 0, 0, 1]
    assert sorted(choice for row in came[6] for choice in row) == [-1] * 3 + [0] * 3 + [1, 7]
    row_bytes = 2 * WIDTH + 2 * (8 + 4)
    assert costs["dispatch"].network_bytes == 4 * row_bytes
    assert costs["combine"].network_bytes == 4 * (2 * WIDTH + 2 * 4)
    # Read and written: 4 rows, and of 4 tokens whether they go to each of 8 ranks.
    assert costs["dispatch"].bytes_read == 4 * row_bytes + 4 * RANKS
    assert costs["dispatch"].bytes_written == costs["combine"].bytes_read + 4 * 2 * 8
    assert costs["dispatch"].flops == costs["combine"].flops == 0


def test_balanced_tokens_reach_a_rank_by_expectation() -> None:
    came: list[Any] = []
    trace = run(lambda: came.extend(exchanged(chosen())))
    share = 1 - comb(EXPERTS - EXPERTS // RANKS, CHOICES) / comb(EXPERTS, CHOICES)
    rows = round(TOKENS * share)
    assert came[4].sent == came[4].received == [rows] * RANKS
    assert came[0].shape == (RANKS * rows, WIDTH)
    assert came[3] == [TOKENS * CHOICES // EXPERTS * RANKS] * (EXPERTS // RANKS)
    row_bytes = 2 * WIDTH + CHOICES * (8 + 4)
    assert exchanges(trace)["dispatch"].network_bytes == RANKS * rows * row_bytes
    assert {each.given for each in trace.placeholders} == {"assumed: balanced routing"}


def test_choices_without_values_are_taken_to_be_balanced() -> None:
    """Experts by arithmetic on unknown numbers."""
    came: list[Any] = []

    def script() -> None:
        scores = torch.randn(TOKENS, CHOICES, device="cuda")
        came.extend(exchanged((scores * EXPERTS).long()))

    run(script)
    assert came[3] == [TOKENS * CHOICES // EXPERTS * RANKS] * (EXPERTS // RANKS)


def test_the_busiest_rank_gets_more_tokens() -> None:
    came: list[Any] = []
    trace = run(lambda: came.extend(exchanged(chosen())), "imbalance=2")
    sent, received = came[4].sent, came[4].received
    assert sent == sorted(sent, reverse=True)
    assert received == [sent[0]] * RANKS
    mean = TOKENS * CHOICES // EXPERTS * RANKS
    assert came[3][0] == pytest.approx(2 * mean, rel=1e-2)
    assert sum(received) <= sum(came[3]) <= CHOICES * sum(received)
    assert exchanges(trace)["dispatch"].network_bytes == sum(received) * (2 * WIDTH + 12 * CHOICES)


def test_shares_are_exact_where_experts_are_alike_and_grow_with_the_load() -> None:
    alike = share_reaching([CHOICES / EXPERTS] * EXPERTS, CHOICES, range(8))
    assert alike == pytest.approx(1 - comb(56, 6) / comb(64, 6))
    busy = share_reaching([2 * 6 / 64] * 8 + [(6 - 16 * 6 / 64) / 56] * 56, CHOICES, range(8))
    assert busy > alike


def test_a_layer_of_experts_is_trained_and_its_exchanges_are_collectives() -> None:
    """Backward of a dispatch is a combine, that of a combine a dispatch along the same ways; both
    overlap with products on the caller's stream.
    """

    def script() -> None:
        import deep_ep

        buffer = deep_ep.Buffer(dist.group.WORLD, 2**28)
        assert torch.cuda.memory_allocated() >= 2**28

        class Dispatch(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, choices: Tensor) -> Any:
                previous = buffer.capture()
                ranks, _, experts, where, event = buffer.get_dispatch_layout(
                    choices, EXPERTS, previous, async_finish=True
                )
                y, _, _, _, handle, event = buffer.dispatch(
                    x, None, ranks, None, where, experts, choices,
                    torch.rand(choices.shape, device="cuda"), previous_event=event,
                    async_finish=True,
                )  # fmt: skip
                event.current_stream_wait()
                ctx.handle = handles[0:] = [handle]
                return y

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Any:
                return buffer.combine(grad, ctx.handle[0])[0], None

        class Combine(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, y: Tensor) -> Any:
                return buffer.combine(y, handles[0])[0]

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Any:
                return buffer.dispatch(grad, handles[0])[0]

        handles: list[Any] = []
        weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        y = Combine.apply(Dispatch.apply(x, chosen()) @ weight)
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape

    trace = run(script)
    names = [trace.calls[op.call].name for op in trace.ops]
    assert names.count("deep_ep.dispatch") == names.count("deep_ep.combine") == 2
    assert names.count("deep_ep.notify_dispatch") == 1
    ledger = torchtally.account(trace, roofline=torchtally.roofline("H100-SXM"))
    network = network_time(ledger)
    assert network is not None
    # Seven of eight ranks' rows leave over NVLink, at 450 GB/s at most.
    rows = [e.cost.network_bytes for e in ledger.entries if e.call.name == "deep_ep.dispatch"]
    assert network.busy_s > sum(rows) * 7 / 8 / 450e9


@pytest.mark.parametrize("options", [{"low_latency_mode": True}, {"num_worst_tokens": 4}])
def test_what_it_has_not_is_refused_by_name(options: dict[str, Any]) -> None:
    def script() -> None:
        import deep_ep

        if "low_latency_mode" in options:
            deep_ep.Buffer(dist.group.WORLD, **options)
        else:
            deep_ep.Buffer(dist.group.WORLD).dispatch(torch.ones(4, 4), **options)

    with pytest.raises(NotImplementedError, match=next(iter(options))):
        run(script)
