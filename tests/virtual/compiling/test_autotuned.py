"""mode="max-autotune": inductor's choices, by predicted times; what templates read and write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtally
from tests.traces import FullOp, accounted, names, ops, sources, traced
from torchtally.ledger import account
from torchtally.trace import Call, Phase, Tile, Trace
from torchtally.virtual.compiling.choices import LIBRARYS
from torchtally.virtual.compiling.events import CAPTURED
from torchtally.virtual.compiling.kernels import tile_in
from torchtally.work import cost_of

pytestmark = pytest.mark.one_case_in(2)

WIDTH = 256
MODE = "max-autotune-no-cudagraphs"
TOKENS, IN, OUT = 1024, 512, 2048
HALF = 2
"""Bytes of a bfloat16."""


class Wide(nn.Module):
    """Products with something behind them, which templates would take in."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(F.gelu(self.up(x)))
        x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
        return torch.bmm(x, torch.bmm(x.transpose(1, 2), x))


def assumed(trace: Trace) -> list[str]:
    return [note.text for note in trace.notes if "max-autotune" in note.text]


@pytest.mark.thorough(
    "test_padding.py, of another choice by times; test_compiled.py compiles products"
)
@pytest.mark.parametrize(("mode", "is_graphed"), [(MODE, False), ("max-autotune", True)])
def test_the_modes_that_tune_compile(mode: str, is_graphed: bool) -> None:
    def script() -> None:
        model = Wide().cuda()
        run = torch.compile(model, mode=mode)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            run(torch.randn(8, 128, WIDTH, device="cuda")).float().sum().backward()

    trace = traced(script)
    texts = assumed(trace)
    # 8 x 128 tokens of 256 by the weight of `up`; the tokens of each sequence by themselves.
    assert any("1024x256 by 256x1024" in text for text in texts)
    assert any("bmm of the library" in text and "8x256x128 by 8x128x256" in text for text in texts)
    assert all(" us beside " in text for text in texts)
    assert (CAPTURED in [note.text for note in trace.notes]) == is_graphed
    assert not any("eagerly" in note.text for note in trace.notes)
    ran = names(trace)
    assert any("convolution" in name for name in ran)
    assert any("triton" in name for name in ran)


def test_two_products_that_are_added_are_two_of_the_library() -> None:
    """inductor has an operator for both, which ATen has not."""

    def script() -> None:
        a, b = (torch.randn(512, WIDTH, device="cuda") for _ in range(2))
        c, d = (torch.randn(WIDTH, 128, device="cuda") for _ in range(2))
        run = torch.compile(lambda a, b, c, d: a @ c + b @ d, mode="max-autotune-no-cudagraphs")
        run(a, b, c, d)

    trace = traced(script)
    assert [name for name in names(trace) if "mm" in name] == ["aten.mm", "aten.addmm_"]
    assert any("_mm_plus_mm of the library" in note.text for note in trace.notes)
    assert account(trace).total.flops_matmul == 2 * 2 * 512 * WIDTH * 128


# A linear layer with a function behind it -------------------------------------------------------


def layer(function: Callable[[Tensor], Tensor] = torch.relu, **options: Any) -> Callable[[], None]:
    def script() -> None:
        with torch.no_grad():
            x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.bfloat16)
            weight = torch.zeros(IN, OUT, device="cuda", dtype=torch.bfloat16)

            def forward(x: Tensor, weight: Tensor) -> Tensor:
                y = x @ weight
                return function(y)

            torch.compile(forward, options={"max_autotune_gemm": True, **options})(x, weight)

    return script


@contextmanager
def times(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[Call], float]) -> Iterator[None]:
    """In place of the roofline's."""
    from torchtally.timing.prediction import Prediction

    with monkeypatch.context() as patch:
        patch.setattr(Prediction, "kernel_s", lambda prediction, call: seconds(call))
        yield


def kind_of(call: Call) -> str:
    """A library's product, a template, one with something fused, or what is by itself."""
    if call.fused is None:
        return "library"
    products = [part for part in call.fused.parts for each in part.calls if each.name == "aten.mm"]
    if not products:
        return "alone"
    return "template" if len(call.fused.parts) == 1 else "fused"


def kernels(trace: Trace) -> list[FullOp]:
    """Those of the layer, without the operands' zeros."""
    return [op for op in ops(trace) if op.call.name == "aten.mm" or op.call.fused is not None]


CHOICES = [
    # library, template, fused, alone -> what ran
    ({"library": 1, "template": 2, "fused": 4, "alone": 1}, ["aten.mm", "pointwise"]),
    ({"library": 1, "template": 2, "fused": 2.5, "alone": 1}, ["aten.mm", "pointwise"]),
    ({"library": 1, "template": 1.5, "fused": 1.6, "alone": 1}, ["template"]),
    ({"library": 2, "template": 1, "fused": 4, "alone": 1}, ["template", "pointwise"]),
    ({"library": 2, "template": 1, "fused": 1.5, "alone": 1}, ["template"]),
]


@pytest.mark.parametrize(("milliseconds", "ran"), CHOICES)
def test_times_decide_as_inductor_decides(
    milliseconds: dict[str, float], ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fastest template is tried with what follows, where it is not slower than both apart."""
    with times(monkeypatch, lambda call: 1e-3 * milliseconds[kind_of(call)]):
        trace = traced(layer())
    found = [op.call.name if op.call.fused is None else op.call.fused.kind
             for op in kernels(trace)]  # fmt: skip
    assert found == ran
    (text,) = assumed(trace)
    beside = " us beside "
    if ran == ["aten.mm", "pointwise"]:
        assert "mm of the library is faster than 21 templates of inductor" in text
        assert f"1,000.0{beside}2,000.0" in text
    elif len(ran) == 2:
        assert "a template of inductor is faster than mm of the library for 1024x512" in text
        assert f"1,000.0{beside}2,000.0" in text
    else:
        assert "a template of inductor with aten.relu behind it" in text
        apart = min(milliseconds["library"], milliseconds["template"]) + milliseconds["alone"]
        assert f"{1000 * milliseconds['fused']:,.1f}{beside}{1000 * apart:,.1f}" in text
        assert f"its result, {TOKENS * OUT * HALF:,} bytes, is not in memory" in text


def test_of_templates_the_fastest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Tile(64, 128, 64, 3, 4)

    def seconds(call: Call) -> float:
        tile = call.fused.tile if call.fused is not None else None
        return 1e-6 if tile == wanted else 1e-3

    with times(monkeypatch, seconds):
        (kernel,) = kernels(traced(layer()))
    assert kernel.call.fused is not None
    assert kernel.call.fused.tile == wanted


@pytest.mark.parametrize(("chip", "most"), [("H100-SXM", 227), ("RTX-4090", 99)])
def test_a_template_that_does_not_fit_is_not_taken(
    chip: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The more shared memory the better: the largest that a block may have on this chip."""

    def kibibytes(tile: Tile) -> float:
        return tile.stages * (tile.rows + tile.columns) * tile.depth * HALF / 1024

    def seconds(call: Call) -> float:
        tile = call.fused.tile if call.fused is not None else None
        return 1.0 if tile is None else 1e-3 / kibibytes(tile)

    with times(monkeypatch, seconds):
        (kernel,) = kernels(traced(layer(), chip))
    assert kernel.call.fused is not None
    assert kernel.call.fused.tile is not None
    assert most / 2 < kibibytes(kernel.call.fused.tile) <= most


def test_a_small_gpu_has_no_templates() -> None:
    """A T4 has 40 multiprocessors, and inductor wants 68. It is not asked of the chip before."""
    assert assumed(traced(layer(), "H100-SXM"))
    trace = traced(layer(), "T4")
    assert assumed(trace) == []
    assert kernels(trace)[0].call.name == "aten.mm"


FORCED = {"max_autotune_gemm_backends": "TRITON"}
"""No product is the library's."""


def test_a_template_reads_its_operands_and_writes_what_follows() -> None:
    ledger = accounted(layer(**FORCED))
    (kernel,) = kernels(ledger.trace)
    call = kernel.call
    assert call.fused is not None
    assert call.fused.kind == "template"
    assert call.name == "inductor.triton_tem_fused_mm_relu_0"
    _, cost = cost_of(call)
    assert cost.bytes_read == (TOKENS * IN + IN * OUT) * HALF
    assert cost.bytes_written == TOKENS * OUT * HALF
    assert cost.flops == 2 * TOKENS * IN * OUT + TOKENS * OUT
    # The product's line reads, the function's writes.
    function, product = call.fused.parts
    assert (product.operator, product.bytes_read, product.bytes_written) == (
        "aten.mm", cost.bytes_read, 0,
    )  # fmt: skip
    assert (function.operator, function.bytes_read, function.bytes_written) == (
        "aten.relu", 0, cost.bytes_written,
    )  # fmt: skip
    entries = [entry for entry in ledger.entries if entry.call is call]
    assert [entry.site.line.text for entry in entries if entry.site.line] == [
        "return function(y)", "y = x @ weight",
    ]  # fmt: skip


def test_the_result_of_a_template_is_not_in_memory() -> None:
    """Of the library it is, until the function has read it; a relu is written in its place."""

    def bytes_allocated(**options: Any) -> int:
        ledger = accounted(layer(torch.Tensor.float, **options))
        return sum(entry.bytes_allocated for entry in ledger.entries
                   if entry.call.fused is not None or entry.call.name == "aten.mm")  # fmt: skip

    apart = {"max_autotune_gemm_backends": "ATEN"}
    assert bytes_allocated(**FORCED) == TOKENS * OUT * 4
    assert peak(layer(torch.Tensor.float, **apart)) - peak(
        layer(torch.Tensor.float, **FORCED)
    ) == pytest.approx(TOKENS * OUT * HALF, abs=32 << 20)


def peak(script: Callable[[], None]) -> int:
    return torchtally.account(traced(script)).memory.peak_bytes


def test_operands_made_before_are_no_part_of_a_template() -> None:
    """Of a product behind a GELU inductor names the GELU's operators too, which another kernel
    has computed.
    """

    def script() -> None:
        with torch.no_grad():
            x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.bfloat16)
            weight = torch.zeros(IN, OUT, device="cuda", dtype=torch.bfloat16)

            def forward(x: Tensor, weight: Tensor) -> Tensor:
                return F.gelu(x) @ weight

            torch.compile(forward, options={"max_autotune_gemm": True, **FORCED})(x, weight)

    *_, template = kernels(traced(script))
    assert template.call.fused is not None
    (part,) = template.call.fused.parts
    assert [call.name for call in part.calls] == ["aten.mm"]
    assert part.bytes_read == (TOKENS * IN + IN * OUT) * HALF
    assert cost_of(template.call)[1].flops == 2 * TOKENS * IN * OUT


def test_operands_larger_than_the_result_are_read_whole() -> None:
    """Inductor counts as many elements of each as the result has."""

    def script() -> None:
        with torch.no_grad():
            left = torch.zeros(64, 512, device="cuda", dtype=torch.bfloat16)
            right = torch.zeros(512, 64, device="cuda", dtype=torch.bfloat16)
            torch.compile(torch.mm, options={"max_autotune_gemm": True, **FORCED})(left, right)

    (template,) = kernels(traced(script))
    assert cost_of(template.call)[1].bytes_read == 2 * 64 * 512 * HALF


def test_backward_templates_belong_to_the_forward_line() -> None:
    def script() -> None:
        model = nn.Linear(IN, OUT, bias=False, device="cuda", dtype=torch.bfloat16)

        def forward(x: Tensor) -> Tensor:
            return model(x).relu()

        x = torch.zeros(TOKENS, IN, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        run = torch.compile(forward, options={"max_autotune_gemm": True, **FORCED})
        run(x).sum().backward()

    trace = traced(script)
    backward = [op for op in ops(trace, phase=Phase.BACKWARD)
                if op.call.fused is not None and op.call.fused.kind == "template"]  # fmt: skip
    # Of the weight and of the tokens.
    assert [cost_of(op.call)[1].flops for op in backward] == [2 * TOKENS * IN * OUT] * 2
    assert sources(backward) == ["return model(x).relu()"] * 2


def test_a_convolution_is_the_librarys() -> None:
    """Its templates are slower wherever they were timed, and are not timed here."""

    def script() -> None:
        conv = nn.Conv2d(64, 128, 3, device="cuda")
        torch.compile(conv, mode=MODE)(torch.zeros(8, 64, 32, 32, device="cuda"))

    trace = traced(script)
    (text,) = assumed(trace)
    assert "convolution of the library is faster than" in text
    assert text.endswith("for 8x64x32x32 by 128x64x3x3")
    assert any("convolution" in name for name in names(trace))


def test_parts_of_a_norms_gradient_are_not_timed() -> None:
    """Inductor would try several numbers of rows for each block of such a reduction."""

    def script() -> None:
        model = nn.Sequential(nn.LayerNorm(768), nn.Linear(768, 768)).cuda()
        x = torch.zeros(12288, 768, device="cuda", requires_grad=True)
        torch.compile(model, mode=MODE)(x).sum().backward()

    trace = traced(script)
    assert not any("eagerly" in note.text for note in trace.notes)
    assert any("native_layer_norm_backward" in name for name in names(trace, Phase.BACKWARD))


# Sums over parts of K ---------------------------------------------------------------------------

SHORT, LONG = 64, 16384


def long_product(**options: Any) -> Callable[[], None]:
    def script() -> None:
        with torch.no_grad():
            left = torch.zeros(SHORT, LONG, device="cuda", dtype=torch.bfloat16)
            right = torch.zeros(LONG, SHORT, device="cuda", dtype=torch.bfloat16)

            def forward(left: Tensor, right: Tensor) -> Tensor:
                return left @ right

            torch.compile(forward, options={"max_autotune_gemm": True, **options})(left, right)

    return script


def test_a_long_sum_is_a_batch_of_products_and_a_kernel_that_adds_them() -> None:
    """Both are the product's, with its line; the products in float32 are between them."""
    trace = traced(long_product(**FORCED))
    batched, added = [op for op in ops(trace) if op.call.name == "aten.bmm" or op.call.fused]
    parts = batched.call.inputs[0].shape[0]
    assert parts > 1
    assert batched.call.inputs[0].shape == (parts, SHORT, LONG // parts)
    assert cost_of(batched.call)[1].flops == 2 * SHORT * SHORT * LONG
    assert added.call.fused is not None
    assert {part.operator for part in added.call.fused.parts} == {"aten.mm"}
    assert cost_of(added.call)[1].bytes_read == parts * SHORT * SHORT * 4
    assert cost_of(added.call)[1].bytes_written == SHORT * SHORT * HALF
    assert sources([batched, added]) == ["return left @ right"] * 2


def test_who_wins_a_long_sum_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with times(monkeypatch, lambda call: 1e-3 if call.name == "aten.mm" else 2e-4):
        trace = traced(long_product())
    (text,) = assumed(trace)
    assert "adding products of parts of K is faster than mm of the library" in text
    assert text.endswith("400.0 us beside 1,000.0")
    assert any(op.call.name == "aten.bmm" for op in ops(trace))


# What it is read from ---------------------------------------------------------------------------


def test_the_tile_of_a_description_and_of_a_source() -> None:
    described = "BLOCK_K=64, BLOCK_M=128, BLOCK_N=256, EVEN_K=True, num_stages=4, num_warps=8"
    source = (
        "@triton_heuristics.template(num_stages=4, num_warps=8)\n"
        "BLOCK_M : tl.constexpr = 128\nBLOCK_N : tl.constexpr = 256\nBLOCK_K : tl.constexpr = 64"
    )
    assert tile_in(described) == tile_in(source) == Tile(128, 256, 64, 4, 8)
    assert tile_in(described.replace("BLOCK_K", "XBLOCK")) is None


def test_the_librarys_kernels_are_inductors() -> None:
    """Their names, of which a run would say nothing if they were others."""
    import torch._inductor.kernel.bmm as bmm
    import torch._inductor.kernel.mm as mm

    found = {each.name for each in (mm.aten_mm, mm.aten_addmm, mm.aten_bias_addmm,
                                    bmm.aten_bmm, bmm.aten_baddbmm)}  # fmt: skip
    assert found == set(LIBRARYS)
