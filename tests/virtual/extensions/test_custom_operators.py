"""Custom operators written in Python run their own code; others are one operator."""

import pytest
import torch
from torch import Tensor

import torchtally
from torchtally.trace import Phase


def names_of(function) -> list[str]:
    trace = torchtally.run(function, gpu="H100-SXM")
    return [trace.calls[op.call].name for op in trace.ops]


def test_what_a_custom_operator_calls_is_recorded():
    @torch.library.custom_op("tally_tests::product", mutates_args=())
    def product(x: Tensor) -> Tensor:
        return (x @ x).relu()

    product.register_fake(torch.empty_like)
    product.register_autograd(lambda ctx, grad: grad * 2)

    def run() -> None:
        x = torch.randn(8, 8, device="cuda", requires_grad=True)
        product(x).sum().backward()

    names = names_of(run)
    assert names[:3] == ["aten.randn", "aten.mm", "aten.relu"]
    assert "aten.mul" in names[3:]


def test_one_that_calls_compiled_code_is_one_operator_and_the_report_says_why():
    @torch.library.custom_op("tally_tests::opaque", mutates_args=())
    def opaque(x: Tensor) -> Tensor:
        return torch.ops.tally_tests_missing.kernel(x)

    opaque.register_fake(torch.empty_like)
    trace = torchtally.run(lambda: opaque(torch.ones(4, device="cuda")), gpu="H100-SXM")
    assert [trace.calls[op.call].name for op in trace.ops][-1] == "tally_tests.opaque"
    (note,) = (note.text for note in trace.notes if "tally_tests.opaque" in note.text)
    assert "counted as one operator of unknown cost" in note


def test_one_that_builds_compiled_code_for_the_host_is_asked_for_values_once():
    """As optimum-quanto's: its folder takes no build in a run, and the result has no values."""
    tries = []
    library = torch.library.Library("tally_tests_built", "DEF")
    library.define("unpack(Tensor x) -> Tensor")

    def build(x: Tensor) -> Tensor:
        tries.append(x.shape)
        raise FileNotFoundError("build.ninja")

    library.impl("unpack", build, "CPU")
    library.impl("unpack", torch.empty_like, "Meta")

    def run() -> None:
        for _ in range(3):
            torch.ops.tally_tests_built.unpack(torch.ones(4, device="cuda"))

    assert names_of(run).count("tally_tests_built.unpack") == 3
    assert len(tries) == 1


def test_the_cost_of_a_custom_operator_can_be_declared():
    @torch.library.custom_op("tally_tests::declared", mutates_args=())
    def declared(x: Tensor) -> Tensor:
        return torch.ops.tally_tests_missing.kernel(x)

    declared.register_fake(torch.empty_like)
    torchtally.declare_cost("tally_tests::declared", flops=lambda x: 7 * x.numel())
    trace = torchtally.run(lambda: declared(torch.ones(4, device="cuda")), gpu="H100-SXM")
    ledger = torchtally.account(trace, step="all")
    assert ledger.entries[-1].cost.flops == 28
    assert not ledger.coverage.uncounted


def test_a_size_that_values_decide_is_the_least_and_listed():
    """As bitsandbytes' count of outliers (LLM.int8()): four rows, and no column of their own."""

    def fake(x: Tensor) -> tuple[Tensor, Tensor]:
        outliers = torch.library.get_ctx().new_dynamic_size()
        return torch.empty_like(x), x.new_empty(outliers, dtype=torch.int64)

    torch.library.define("tally_tests::outliers", "(Tensor x) -> (Tensor, Tensor)")
    torch.library.register_fake("tally_tests::outliers", fake)
    sizes = []

    def run() -> None:
        rows, columns = torch.ops.tally_tests.outliers(torch.ones(4, device="cuda"))
        sizes.extend((rows.numel(), columns.numel()))

    trace = torchtally.run(run, gpu="H100-SXM")
    assert sizes == [4, 0]
    (placeholder,) = trace.placeholders
    assert placeholder.op == "tally_tests.outliers"
    assert placeholder.given == "assumed: a size of 0, the least"


@pytest.mark.thorough
def test_a_compiled_product_in_float8_within_one():
    """As in modded-nanogpt: 64 x 32 times 32 x 16, forward, and again in its backward."""

    def multiply(x: Tensor, w: Tensor) -> Tensor:
        one = x.new_tensor(1.0, dtype=torch.float32)
        narrow, columns = (each.to(torch.float8_e4m3fn) for each in (x, w.T.contiguous().T))
        return torch._scaled_mm(narrow, columns, one, one, out_dtype=torch.bfloat16)

    @torch.library.custom_op("tally_tests::float8", mutates_args=())
    def float8(x: Tensor, w: Tensor) -> Tensor:
        return torch.compile(multiply)(x, w)

    float8.register_fake(lambda x, w: x @ w)
    float8.register_autograd(
        lambda ctx, grad: (float8(ctx.x, ctx.w) @ ctx.w.T, None), setup_context=keep
    )

    def run() -> None:
        x = torch.randn(64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        w = torch.randn(32, 16, device="cuda", dtype=torch.bfloat16)
        float8(x, w).sum().backward()

    ledger = torchtally.account(torchtally.run(run, gpu="H100-SXM"), step="all")
    products = [
        (entry.op.phase, entry.cost.flops)
        for entry in ledger.entries
        if entry.call.name == "aten._scaled_mm"
    ]
    assert products == [(phase, 2 * 64 * 32 * 16) for phase in (Phase.FORWARD, Phase.BACKWARD)]


def keep(ctx, inputs, output) -> None:
    ctx.x, ctx.w = inputs
