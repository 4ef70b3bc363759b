"""An optimizer's step in one kernel moves each number once each way."""

import torch
from torch import nn

from tests.programs.compiled.models import figures
from tests.programs.compiled.test_compiled import fused_bytes
from tests.traces import names, traced
from torchtally import account
from torchtally.programs.compiled import COMPILED_LAYERS, FUSED_BLOCKS, compiled
from torchtally.trace import Phase, Trace

NUMBERS = 64 * 64


def trained(optimizer: str) -> Trace:
    """Two steps of a layer of 64 x 64 numbers in float32."""

    def training() -> None:
        layer = nn.Linear(64, 64, bias=False, device="cuda")
        steps = getattr(torch.optim, optimizer)(layer.parameters(), lr=0.1)
        for _ in range(2):
            layer(torch.ones(8, 64, device="cuda")).sum().backward()
            steps.step()
            steps.zero_grad()

    return traced(training)


def updates(trace: Trace) -> list[int]:
    return fused_bytes(trace, Phase.OPTIMIZER)


def test_adamw_reads_four_numbers_and_writes_three() -> None:
    eager = trained("AdamW")
    trace = compiled(eager, FUSED_BLOCKS)
    assert updates(trace)[-1] == (4 + 3) * 4 * NUMBERS
    assert names(trace, Phase.OPTIMIZER)[-1] == (
        "derived.foreach_mul_lerp_addcmul_sqrt_div_add_addcdiv"
    )
    assert figures(trace).peak_bytes < figures(eager).peak_bytes  # no roots of all parameters


def test_sgd_reads_two_numbers_and_writes_one() -> None:
    assert updates(compiled(trained("SGD"), FUSED_BLOCKS))[-1] == (2 + 1) * 4 * NUMBERS


def test_flops_and_states_are_those_of_the_operators() -> None:
    eager = account(trained("AdamW"))
    fused = account(compiled(eager.trace, FUSED_BLOCKS))
    fused.check()
    assert fused.total.flops == eager.total.flops
    sizes = [
        sorted(s.requested_bytes for s in ledger.trace.storages if s.role == "optimizer_state")
        for ledger in (eager, fused)
    ]
    assert sizes[0] == sizes[1] != []


def test_compiled_layers_leave_the_optimizer_as_it_is() -> None:
    eager = trained("AdamW")
    assert names(compiled(eager, COMPILED_LAYERS), Phase.OPTIMIZER) == names(eager, Phase.OPTIMIZER)
