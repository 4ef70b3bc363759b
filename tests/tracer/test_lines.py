"""Where an operator belongs: its line, its phase, and for the backward pass the forward's line."""

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.traces import accounted, names, ops, sources, traced
from torchtally.ledger import Ledger, Total
from torchtally.trace import Phase

B, D, K = 16, 32, 8


def line(ledger: Ledger, text: str) -> Total:
    """The total of the one source line that contains a text."""
    (of_line,) = [
        total for key, total in ledger.by_line().items() if key is not None and text in key.text
    ]
    return of_line


def weights(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda", requires_grad=True)


# The mission's two-layer model: x @ w1 @ w2.


def two_layers() -> None:
    x = torch.rand(B, D, device="cuda")
    w1, w2 = weights(D, D), weights(D, K)
    h1 = x @ w1
    h2 = h1 @ w2
    loss = h2.pow(2).mean()
    loss.backward()


def test_backward_flops_stand_on_the_forward_lines():
    ledger = accounted(two_layers)
    first, second = line(ledger, "h1 = x @ w1"), line(ledger, "h2 = h1 @ w2")
    assert first.flops_forward == 2 * B * D * D
    assert first.flops_backward == 2 * B * D * D  # x needs no gradient: half of the rule of thumb
    assert second.flops_forward == 2 * B * D * K
    assert second.flops_backward == 4 * B * D * K
    assert line(ledger, "loss = h2.pow(2).mean()").flops_backward > 0
    products = ledger.total.flops_matmul
    assert products == 4 * B * D * D + 6 * B * D * K


def test_a_line_knows_its_file_and_number():
    code, first = inspect.getsourcelines(two_layers)
    number = first + next(n for n, text in enumerate(code) if "h1 = x @ w1" in text)
    product = ops(traced(two_layers), "aten.mm", Phase.FORWARD)[0]
    assert product.site.line is not None
    assert (product.site.line.file, product.site.line.line) == (__file__, number)
    assert product.site.line.function == "two_layers"
    assert product.site.line.is_own


def test_what_backward_itself_makes_stands_on_the_line_that_called_it():
    trace = traced(two_layers)
    (seed,) = ops(trace, "aten.ones_like", Phase.BACKWARD)
    assert sources([seed]) == ["loss.backward()"]


def test_frames_go_from_the_inside_out():
    def inner(x: Tensor) -> Tensor:
        return x * 2

    def outer() -> None:
        inner(torch.ones(2, device="cuda"))

    (product,) = ops(traced(outer), "aten.mul")
    assert [frame.text for frame in product.site.frames][:2] == [
        "return x * 2",
        'inner(torch.ones(2, device="cuda"))',
    ]


def test_a_line_that_calls_twice_sums_both():
    def script() -> None:
        x = torch.rand(B, D, device="cuda")
        for w in (weights(D, D), weights(D, D)):
            x = x @ w
        x.sum().backward()

    ledger = accounted(script)
    total = line(ledger, "x = x @ w")
    assert total.flops_forward == 2 * 2 * B * D * D
    assert total.flops_backward == 3 * 2 * B * D * D  # both weights, and the input of the second


def test_library_lines_are_there_but_own_ones_count():
    """torch's own files are never shown; modules of torch count for the line that called them."""

    def script() -> None:
        model = nn.Linear(D, K).cuda()
        model(torch.rand(B, D, device="cuda")).sum().backward()

    trace = traced(script)
    (product,) = ops(trace, "aten.addmm")
    assert all("site-packages/torch/" not in frame.file for frame in product.site.frames)
    assert sources([product]) == ['model(torch.rand(B, D, device="cuda")).sum().backward()']
    assert product.site.module_class == "Linear"


# Backward, in all the ways there are to call it.


def phases(function: Callable[[], object], name: str = "aten.mm") -> list[Phase]:
    return [op.phase for op in ops(traced(function), name)]


def test_autograd_grad_is_backward():
    def script() -> None:
        w = weights(D, D)
        loss = (torch.rand(B, D, device="cuda") @ w).sum()
        torch.autograd.grad(loss, w)

    assert phases(script) == [Phase.FORWARD, Phase.BACKWARD]


def test_backward_with_a_gradient_given():
    def script() -> None:
        w = weights(D, D)
        out = torch.rand(B, D, device="cuda") @ w
        out.backward(torch.ones_like(out))

    trace = traced(script)
    assert [op.phase for op in ops(trace, "aten.mm")] == [Phase.FORWARD, Phase.BACKWARD]
    assert sources(ops(trace, "aten.mm")) == ['out = torch.rand(B, D, device="cuda") @ w'] * 2


def test_two_backward_passes_over_one_graph():
    def script() -> None:
        w = weights(D, D)
        loss = (torch.rand(B, D, device="cuda") @ w).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    assert phases(script) == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]


def test_a_gradient_of_a_gradient():
    """WGAN's penalty: the inner gradient is backward, and so is the backward through it."""

    def script() -> None:
        w = weights(D, D)
        x = torch.rand(B, D, device="cuda", requires_grad=True)
        out = (x @ w).pow(2).sum()
        (gradient,) = torch.autograd.grad(out, x, create_graph=True)
        penalty = gradient.pow(2).sum()
        penalty.backward()
        assert w.grad is not None

    ledger = accounted(script)
    products = ops(ledger.trace, "aten.mm")
    assert [op.phase for op in products] == [Phase.FORWARD] + [Phase.BACKWARD] * (len(products) - 1)
    assert len(products) >= 4
    assert set(sources(products)) == {"out = (x @ w).pow(2).sum()"}
    assert ledger.total.flops_recompute == 0


def test_gradient_accumulation_adds_on_the_line_of_backward():
    """The first micro-batch's gradient is stolen; every later one is added to it."""

    def script() -> None:
        w = weights(D, D)
        for _ in range(3):
            loss = (torch.rand(B, D, device="cuda") @ w).sum()
            loss.backward()

    trace = traced(script)
    additions = ops(trace, "aten.add_", Phase.BACKWARD) + ops(trace, "aten.add", Phase.BACKWARD)
    assert len(additions) == 2
    assert set(sources(additions)) == {"loss.backward()"}
    assert {op.site.module_class for op in additions} <= {"", "AccumulateGrad"}


def test_hooks_stand_on_their_own_lines_in_backward():
    def script() -> None:
        w = weights(D, D)

        def halve(gradient: Tensor) -> Tensor:
            return gradient * 0.5

        w.register_hook(halve)
        (torch.rand(B, D, device="cuda") @ w).sum().backward()

    (halved,) = ops(traced(script), "aten.mul")
    assert halved.phase is Phase.BACKWARD
    assert sources([halved]) == ["return gradient * 0.5"]


def test_a_custom_functions_backward_stands_on_its_own_lines():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w  # forward

        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            dw = x.t() @ gradient
            return gradient @ w.t(), dw

    def script() -> None:
        x, w = weights(B, D), weights(D, D)
        Product.apply(x, w).sum().backward()

    ledger = accounted(script)
    assert line(ledger, "return x @ w  # forward").flops_forward == 2 * B * D * D
    assert line(ledger, "dw = x.t() @ gradient").flops_backward == 2 * B * D * D
    assert line(ledger, "return gradient @ w.t(), dw").flops_backward == 2 * B * D * D
    assert ledger.total.flops_recompute == 0


def test_evaluation_is_forward_without_a_backward():
    def script() -> None:
        w = weights(D, D)
        x = torch.rand(B, D, device="cuda")
        with torch.no_grad():
            x @ w
        with torch.inference_mode():
            x @ w
            F.linear(x, w)

    assert phases(script) == [Phase.FORWARD] * 3


def test_detached_parts_have_no_backward():
    def script() -> None:
        x, w1, w2 = torch.rand(B, D, device="cuda"), weights(D, D), weights(D, D)
        h = (x @ w1).detach()
        (h @ w2).sum().backward()

    assert phases(script) == [Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD]


# torch.func.


def test_torch_func_gradients_are_backward_on_the_forward_lines():
    def script() -> None:
        x, w = torch.rand(B, D, device="cuda"), torch.rand(D, D, device="cuda")

        def loss(w: Tensor) -> Tensor:
            return (x @ w).sum()

        gradient = torch.func.grad(loss)(w)
        assert gradient.shape == (D, D)

    trace = traced(script)
    assert [op.phase for op in ops(trace, "aten.mm")] == [Phase.FORWARD, Phase.BACKWARD]
    assert sources(ops(trace, "aten.mm")) == ["return (x @ w).sum()"] * 2


def test_vmap_batches_the_product():
    def script() -> None:
        x, w = torch.rand(B, D, device="cuda"), torch.rand(3, D, K, device="cuda")
        out = torch.func.vmap(lambda w: x @ w)(w)
        assert out.shape == (3, B, K)

    assert accounted(script).total.flops_matmul == 3 * 2 * B * D * K


def test_functional_call_runs_with_other_parameters():
    def script() -> None:
        model = nn.Linear(D, K, bias=False, device="cuda")
        stored = {"weight": torch.rand(K, D, device="cuda")}
        out = torch.func.functional_call(model, stored, (torch.rand(B, D, device="cuda"),))
        assert out.shape == (B, K)

    assert accounted(script).total.flops_matmul == 2 * B * D * K


def test_per_sample_gradients():
    def script() -> None:
        w, x = torch.rand(D, device="cuda"), torch.rand(B, D, device="cuda")

        def loss(w: Tensor, x: Tensor) -> Tensor:
            return (w @ x) ** 2

        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        assert gradients.shape == (B, D)

    assert accounted(script).total.flops > 0


# Kinds of tensors.


def test_complex_products_count_four_real_ones():
    """(a + bi)(c + di) is 4 products and 2 sums: 8 FLOPs where a real multiply-add has 2."""

    def script() -> None:
        x = torch.rand(B, D, dtype=torch.complex64, device="cuda")
        w = torch.rand(D, K, dtype=torch.complex64, device="cuda", requires_grad=True)
        out = torch.view_as_real((x @ w).conj().resolve_conj())
        out.sum().backward()
        assert w.grad is not None
        assert w.grad.dtype is torch.complex64

    ledger = accounted(script)
    (forward,) = ops(ledger.trace, "aten.mm", Phase.FORWARD)
    assert {spec.dtype for spec in forward.call.inputs} == {"complex64"}
    assert ledger.total.flops_forward >= 8 * B * D * K


def test_views_are_free_and_a_contiguous_copy_is_not():
    def script() -> None:
        x = torch.rand(B, D, device="cuda")
        turned = x.t()
        copied = turned.contiguous()
        assert copied.stride() == (B, 1)
        assert turned[2:4].is_contiguous() is False

    ledger = accounted(script)
    assert line(ledger, "turned = x.t()").bytes == 0
    copied = line(ledger, "copied = turned.contiguous()")
    assert (copied.bytes_read, copied.bytes_written) == (4 * B * D, 4 * B * D)
    assert copied.bytes_allocated == 4 * B * D


def test_convolutions_on_channels_last_keep_the_layout():
    def script() -> None:
        model = nn.Conv2d(4, 8, 3, padding=1, bias=False).to(
            "cuda", memory_format=torch.channels_last
        )
        x = torch.rand(2, 4, 6, 6, device="cuda").to(memory_format=torch.channels_last)
        out = model(x)
        assert out.shape == (2, 8, 6, 6)
        assert out.is_contiguous(memory_format=torch.channels_last)
        out.sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.shape == (8, 4, 3, 3)

    ledger = accounted(script)
    products = 2 * (2 * 6 * 6) * 8 * (4 * 3 * 3)
    assert ledger.total.flops_matmul == 2 * products  # forward, and the weight's gradient


def test_in_place_operators_record_their_phase_and_keep_their_storage():
    def script() -> None:
        x = torch.zeros(B, D, device="cuda")
        x.add_(1).mul_(2)
        x[0] = 5

    trace = traced(script)
    storages = {number for op in trace.ops for number in op.outputs}
    assert len(storages) == 1  # a number fills, as on CUDA
    assert all(op.phase is Phase.FORWARD for op in trace.ops)


def test_threads_are_traced_on_their_lines():
    import threading

    def script() -> None:
        w = weights(D, D)

        def work() -> None:
            (torch.rand(B, D, device="cuda") @ w).sum().backward()

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    trace = traced(script)
    assert [op.phase for op in ops(trace, "aten.mm")] == [Phase.FORWARD, Phase.BACKWARD]
    assert set(sources(ops(trace, "aten.mm"))) == {
        '(torch.rand(B, D, device="cuda") @ w).sum().backward()'
    }


def test_an_empty_function_is_an_empty_trace():
    trace = traced(lambda: None)
    assert trace.ops == ()
    assert trace.storages == ()
    assert trace.step_ends == ()
    assert torchtally.account(trace).total.flops == 0


def test_host_operators_are_counted_but_not_accounted():
    def script() -> None:
        torch.rand(4) + torch.rand(4)
        torch.zeros(1, device="cuda")

    trace = traced(script)
    assert names(trace) == ["aten.zeros"]
    assert trace.host_ops == 3


def test_code_that_a_compiler_wrote_may_not_be_hashable() -> None:
    """Its constants may be dicts; the script reads a value there."""

    def script() -> None:
        dist.init_process_group("nccl")
        code = compile("x.sum().item() + value", "<compiled>", "eval")
        constants = tuple({} if constant is None else constant for constant in code.co_consts)
        unhashable = code.replace(co_consts=(*constants, {"a": 1}))
        with pytest.raises(TypeError):
            hash(unhashable)
        eval(unhashable, {"x": torch.ones(4, device="cuda"), "value": 1})

    assert len(ops(traced(script, gpu="2xH100-SXM"), "aten.sum")) == 1
