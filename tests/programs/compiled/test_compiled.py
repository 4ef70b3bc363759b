"""Kernels that are derived from eager operators are those that PyTorch's compiler makes of them."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.programs.compiled.models import Dense, Gated, derived, figures, trained
from tests.traces import names, ops, traced
from torchtally import account
from torchtally.errors import ProgramError
from torchtally.programs.compiled import FUSED_BLOCKS, Regions, compiled
from torchtally.programs.compiled.regions import block_of, layer_of
from torchtally.trace import Phase, Trace

whole = Regions(lambda module: "", "the whole")


def trained_once(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Trace:
    """Forward and backward of a function of a parameter that is the result of a product."""

    def training() -> None:
        layer = nn.Linear(shape[-1], shape[-1], bias=False, device="cuda", dtype=torch.bfloat16)
        x = torch.ones(*shape, device="cuda", dtype=torch.bfloat16)
        out = torch.nn.Linear(shape[-1], 8, bias=False, device="cuda", dtype=torch.bfloat16)
        out(function(layer(x))).backward(torch.ones(*shape[:-1], 8, device="cuda").bfloat16())

    return traced(training)


def fused_bytes(trace: Trace, phase: Phase, module: str = "") -> list[int]:
    """Of each fused kernel: what it reads and writes."""
    return [
        sum(part.bytes_read + part.bytes_written for part in op.call.fused.parts)
        for op in ops(trace, phase=phase)
        if op.call.fused is not None and op.site.module.startswith(module)
    ]


def test_a_chain_of_loops_is_one_kernel_that_reads_and_writes_once() -> None:
    trace = compiled(trained_once(lambda x: (x * 2 + 1).relu() - 3, 64, 32), whole)
    assert 2 * 64 * 32 * 2 in fused_bytes(trace, Phase.FORWARD)  # read once, written once


def test_the_backward_pass_computes_loops_again_from_the_products_result() -> None:
    eager = trained_once(lambda x: torch.nn.functional.silu(x) * x, 64, 32)
    trace = compiled(eager, whole)
    # The gradient and x are read, one gradient is written; the eager run keeps silu(x), too.
    assert fused_bytes(trace, Phase.BACKWARD)[-1] == 3 * 64 * 32 * 2
    assert account(trace).memory.peak_bytes < account(eager).memory.peak_bytes


def test_products_are_those_of_the_eager_run() -> None:
    eager = trained_once(torch.relu, 64, 32)
    assert names(compiled(eager, whole)).count("aten.mm") == names(eager).count("aten.mm")


def test_a_mean_of_rows_is_read_with_what_is_computed_from_it() -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))

    trace = compiled(trained_once(norm, 64, 32), whole)
    kernels = fused_bytes(trace, Phase.FORWARD)
    # x read, the result and the roots of 64 rows written.
    assert 2 * 64 * 32 * 2 + 64 * 2 in kernels


def test_outside_of_regions_a_run_stays_as_it_was() -> None:
    eager = trained_once(torch.relu, 64, 32)
    trace = compiled(eager, Regions(lambda module: None, "nothing"))
    assert names(trace) == names(eager)
    assert account(trace).memory.peak_bytes == account(eager).memory.peak_bytes


def test_a_run_says_that_no_compiler_has_run() -> None:
    trace = compiled(trained_once(torch.relu, 64, 32), whole)
    assert "derived from the eager operators" in trace.notes[-1].text


CASES = {
    "gated": (Gated, 2, 512, False),
    "gated_autocast": (Gated, 2, 512, True),
    "dense": (Dense, 2, 512, False),
    "dense_autocast": (Dense, 2, 512, True),
    "gated_mixed_sums": (Gated, 8, 2048, False),
}
"""Layer, batch, sequence, autocast."""


@pytest.mark.thorough(cases=("dense", "gated_autocast", "dense_autocast", "gated_mixed_sums"))
@pytest.mark.parametrize("case", CASES)
def test_layers_are_those_of_inductor(case: str) -> None:
    layer, batch, sequence, autocast = CASES[case]
    eager = trained(layer, batch, sequence, autocast=autocast, is_compiled=False)
    real = figures(trained(layer, batch, sequence, autocast=autocast, is_compiled=True))
    ours = figures(derived(eager))
    assert ours.matmul_flops == real.matmul_flops
    assert ours.kernels == pytest.approx(real.kernels, abs=2 * (case == "gated_mixed_sums"))
    # What a kernel has written and reads again, inductor counts as read from memory.
    assert ours.fused_bytes == pytest.approx(real.fused_bytes, rel=0.03 if autocast else 0.001)
    assert ours.kept_bytes == pytest.approx(real.kept_bytes, rel=0.001)
    assert ours.peak_bytes == pytest.approx(real.peak_bytes, rel=0.03)
    assert ours.seconds == pytest.approx(real.seconds, rel=0.1)


def test_a_layer_is_a_region() -> None:
    assert layer_of("model.layers.3.mlp") == layer_of("model.layers.3") == "model.layers.3"
    assert layer_of("model.layers.3.mlp.experts.7") == "model.layers.3"
    assert layer_of("model.norm") is None
    assert block_of("model.layers.3.mlp.act") == "model.layers.3.mlp"
    assert block_of("model.layers.3") == "model.layers.3"
    assert block_of("model.norm") == "model.norm"


def test_fused_blocks_are_kernels_of_their_own() -> None:
    """Of each layer's 512 x 512 elements in bfloat16, forward: a norm reads x and writes its result
    and 512 roots, and so does the second; both rotations, which share their angles; a product 3 x
    512 wide, two sums.
    """
    eager = trained(Gated, 1, 512, autocast=False, is_compiled=False)
    trace = compiled(eager, FUSED_BLOCKS)
    whole_bytes = 512 * 512 * 2
    norm = 2 * whole_bytes + 512 * 2 + 512 * 4
    rotations = 2 * 2 * whole_bytes + 512 * 64 * 2
    layer = [norm, rotations, 3 * whole_bytes, norm, 9 * whole_bytes, 3 * whole_bytes]
    assert fused_bytes(trace, Phase.FORWARD, "layers.0")[-len(layer) :] == layer


def test_several_streams_are_refused() -> None:
    def on_two_streams() -> None:
        x = torch.ones(8, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x + 1

    with pytest.raises(ProgramError, match="several streams"):
        compiled(traced(on_two_streams), whole)
