"""Autocast on the virtual GPU: which dtype comes out of what, and what the casts cost."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.traces import names, ops, traced
from torchtally import torch_private as private
from torchtally.trace import Phase
from torchtally.virtual.autocast import CASTS, FP32_OVERLOAD, REFUSED

HALVES = [torch.bfloat16, torch.float16]


def float32(*shape: int) -> Tensor:
    return torch.rand(*shape, device="cuda")


def half(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float16, device="cuda")


def test_the_lists_are_those_this_torch_registers_for_cuda():
    ours = {f"aten::{name}" for name in (*CASTS, *REFUSED)}
    theirs = set(private.autocast_operators())
    named_tensors = {name for name in theirs if "name" in name}  # of torch 2.11
    # A build with CUDA has cuDNN's RNNs, too, which are cast in `kernels.py`.
    assert theirs - ours <= {"aten::_cudnn_rnn", *named_tensors}
    # Lists of CUDA's that only builds with CUDA register, and what older releases do not cast.
    only_cuda, newer = "aten::norm.ScalarOpt_dtype", ("aten::rms_norm", "aten::linalg_matrix_sqrth")
    assert ours - theirs <= {only_cuda, *newer}
    assert set(FP32_OVERLOAD) <= set(CASTS)


LOWER: dict[str, Callable[[], Tensor]] = {
    "mm": lambda: torch.mm(float32(4, 4), float32(4, 4)),
    "@": lambda: float32(4, 4) @ float32(4, 4),
    "bmm": lambda: torch.bmm(float32(2, 4, 4), float32(2, 4, 4)),
    "baddbmm": lambda: torch.baddbmm(float32(2, 4, 4), float32(2, 4, 4), float32(2, 4, 4)),
    "addmm": lambda: torch.addmm(float32(4), float32(4, 4), float32(4, 4)),
    "addbmm": lambda: torch.addbmm(float32(4, 4), float32(2, 4, 4), float32(2, 4, 4)),
    "mv": lambda: torch.mv(float32(4, 4), float32(4)),
    "matmul, batched": lambda: torch.matmul(float32(2, 3, 4, 4), float32(4, 4)),
    "matmul of vectors": lambda: torch.matmul(float32(4, 4), float32(4)),
    "einsum": lambda: torch.einsum("bij,bjk->bik", float32(2, 4, 4), float32(2, 4, 4)),
    "einsum of one": lambda: torch.einsum("ij,j->i", float32(4, 4), float32(4)),
    "linear": lambda: F.linear(float32(2, 4), float32(3, 4), float32(3)),
    "nn.Linear": lambda: nn.Linear(4, 3, device="cuda")(float32(2, 4)),
    "bilinear's products": lambda: torch.chain_matmul(float32(4, 4), float32(4, 4)),
    "multi_dot": lambda: torch.linalg.multi_dot([float32(4, 4), float32(4, 4), float32(4, 4)]),
    "conv1d": lambda: F.conv1d(float32(1, 2, 8), float32(3, 2, 3)),
    "conv2d": lambda: nn.Conv2d(2, 3, 3, device="cuda")(float32(1, 2, 8, 8)),
    "conv3d": lambda: F.conv3d(float32(1, 2, 4, 4, 4), float32(3, 2, 3, 3, 3)),
    "conv_transpose2d": lambda: F.conv_transpose2d(float32(1, 2, 8, 8), float32(2, 3, 3, 3)),
    "prelu": lambda: F.prelu(float32(2, 4), float32(1)),
    "attention": lambda: F.scaled_dot_product_attention(
        float32(1, 2, 8, 16), float32(1, 2, 8, 16), float32(1, 2, 8, 16)
    ),
    "attention module": lambda: nn.MultiheadAttention(16, 2, batch_first=True, device="cuda")(
        *[float32(2, 4, 16)] * 3, need_weights=False
    )[0],
    "LSTMCell": lambda: nn.LSTMCell(4, 4, device="cuda")(float32(2, 4))[0],
    "GRUCell": lambda: nn.GRUCell(4, 4, device="cuda")(float32(2, 4)),
    "vecdot": lambda: torch.linalg.vecdot(float32(4), float32(4)),
}
FP32: dict[str, Callable[[], Tensor]] = {
    "exp": lambda: half(4).exp(),
    "log": lambda: half(4).log(),
    "pow": lambda: half(4) ** 2,
    "pow of tensors": lambda: half(4) ** half(4),
    "rsqrt": lambda: half(4).rsqrt(),
    "reciprocal": lambda: half(4).reciprocal(),
    "softplus": lambda: F.softplus(half(4)),
    "layer_norm": lambda: F.layer_norm(half(2, 4), (4,)),
    "nn.LayerNorm": lambda: nn.LayerNorm(4, device="cuda")(half(2, 4)),
    "rms_norm": lambda: nn.RMSNorm(4, device="cuda")(half(2, 4)),
    "group_norm": lambda: nn.GroupNorm(2, 4, device="cuda")(half(2, 4, 3)),
    "softmax": lambda: half(2, 4).softmax(-1),
    "F.softmax": lambda: F.softmax(half(2, 4), dim=-1),
    "log_softmax": lambda: F.log_softmax(half(2, 4), dim=-1),
    "cross_entropy": lambda: F.cross_entropy(half(2, 4), torch.tensor([0, 1], device="cuda")),
    "mse_loss": lambda: F.mse_loss(half(4), half(4)),
    "l1_loss": lambda: F.l1_loss(half(4), half(4)),
    "smooth_l1_loss": lambda: F.smooth_l1_loss(half(4), half(4)),
    "bce_with_logits": lambda: F.binary_cross_entropy_with_logits(half(4), half(4)),
    "kl_div": lambda: F.kl_div(half(4), half(4), reduction="batchmean"),
    "cosine_similarity": lambda: F.cosine_similarity(half(2, 4), half(2, 4)),
    "sum": lambda: half(4).sum(),
    "sum over a dim": lambda: half(2, 4).sum(-1),
    "prod": lambda: half(4).prod(),
    "cumsum": lambda: half(4).cumsum(0),
    "norm": lambda: half(4).norm(),
    "norm over a dim": lambda: torch.norm(half(2, 4), dim=-1),
    "linalg.vector_norm": lambda: torch.linalg.vector_norm(half(4)),
    "cdist": lambda: torch.cdist(half(2, 4), half(3, 4)),
    "logsumexp": lambda: half(2, 4).logsumexp(-1),
    "interpolate": lambda: F.interpolate(half(1, 1, 4, 4), scale_factor=2),
    "bilinear interpolation": lambda: F.interpolate(
        half(1, 1, 4, 4), scale_factor=2, mode="bilinear"
    ),
    "dist": lambda: torch.dist(half(4), half(4)),
}
KEEPS: dict[str, Callable[[], Tensor]] = {
    "add": lambda: half(4) + half(4),
    "mul": lambda: half(4) * 2,
    "relu": lambda: half(4).relu(),
    "gelu": lambda: F.gelu(half(4)),
    "silu": lambda: F.silu(half(4)),
    "tanh": lambda: half(4).tanh(),
    "sigmoid": lambda: half(4).sigmoid(),
    "mean": lambda: half(4).mean(),
    "var": lambda: half(4).var(),
    "max": lambda: half(4).max(),
    "sqrt": lambda: half(4).sqrt(),
    "dropout": lambda: F.dropout(half(4)),
    "embedding": lambda: F.embedding(torch.tensor([0], device="cuda"), half(2, 4)),
    "batch_norm": lambda: nn.BatchNorm2d(2, device="cuda")(half(1, 2, 3, 3)),
    "max_pool": lambda: F.max_pool2d(half(1, 1, 4, 4), 2),
    "avg_pool": lambda: F.avg_pool2d(half(1, 1, 4, 4), 2),
    "transpose": lambda: half(2, 4).t().contiguous(),
}
PROMOTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "atan2": torch.atan2,
    "addcmul": lambda a, b: torch.addcmul(a, b, a),
    "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
    "dot": torch.dot,
    "cross": lambda a, b: torch.cross(a[:3], b[:3], dim=0),
    "tensordot": lambda a, b: torch.tensordot(a, b, dims=1),
    "scatter_add": lambda a, b: a.scatter_add(0, torch.arange(4, device="cuda"), b),
    "bilinear": lambda a, b: F.bilinear(a[None], b[None], a.new_ones(2, 4, 4)),
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]),
    "add": torch.add,
}


@pytest.mark.parametrize("dtype", HALVES)
def test_products_come_out_in_the_regions_dtype(dtype: torch.dtype):
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=dtype):
        dtypes = {name: call().dtype for name, call in LOWER.items()}
    assert dtypes == dict.fromkeys(LOWER, dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_sensitive_operators_come_out_in_float32(dtype: torch.dtype):
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=dtype):
        dtypes = {name: call().dtype for name, call in FP32.items()}
    uncast = {} if "aten::rms_norm" in private.autocast_operators() else {"rms_norm": torch.float16}
    assert dtypes == dict.fromkeys(FP32, torch.float32) | uncast


def test_the_rest_keeps_the_dtype_it_is_given():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.bfloat16):
        dtypes = {name: call().dtype for name, call in KEEPS.items()}
    assert dtypes == dict.fromkeys(KEEPS, torch.float16)


@pytest.mark.parametrize("name", PROMOTED)
def test_several_dtypes_are_promoted_to_the_widest(name: str):
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.float16):
        call = PROMOTED[name]
        assert call(half(4), float32(4)).dtype is torch.float32
        assert call(half(4), half(4)).dtype is torch.float16


def test_without_autocast_nothing_is_cast():
    with torchtally.virtual_gpu("H100-SXM"):
        assert {call().dtype for call in LOWER.values()} == {torch.float32}
        assert {FP32[name]().dtype for name in ("exp", "softmax", "sum", "layer_norm")} == {
            torch.float16
        }


def test_host_tensors_are_not_cast_by_cudas_autocast():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype is torch.float32
        assert (torch.rand(1024, 1024) @ torch.rand(1024, 1024)).dtype is torch.float32


def test_host_autocast_works_beside_it():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.rand(2, 2) @ torch.rand(2, 2)).dtype is torch.bfloat16
        assert (float32(2, 2) @ float32(2, 2)).dtype is torch.float32


def test_float64_integers_and_meta_tensors_are_never_cast():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.bfloat16):
        double = torch.rand(2, 2, dtype=torch.float64, device="cuda")
        assert (double @ double).dtype is torch.float64
        assert torch.arange(3, device="cuda").sum().dtype is torch.int64
        meta = torch.rand(2, 2, device="meta")
        assert (meta @ meta).dtype is torch.float32


def test_a_dtype_the_caller_chose_stands():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.bfloat16):
        assert half(4).softmax(-1, dtype=torch.float16).dtype is torch.float16
        assert half(4).sum(dtype=torch.float16).dtype is torch.float16
        assert half(4).softmax(-1, torch.float64).dtype is torch.float64


# Regions.


def product() -> torch.dtype:
    return (float32(2, 2) @ float32(2, 2)).dtype


def test_regions_nest_and_end():
    with torchtally.virtual_gpu("H100-SXM"):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert torch.is_autocast_enabled("cuda")
            assert torch.get_autocast_dtype("cuda") is torch.bfloat16
            with torch.autocast("cuda", dtype=torch.float16):
                assert product() is torch.float16
            assert product() is torch.bfloat16
            with torch.autocast("cuda", enabled=False):
                assert not torch.is_autocast_enabled("cuda")
                assert product() is torch.float32
                with torch.autocast("cuda", dtype=torch.float16):
                    assert product() is torch.float16
                assert product() is torch.float32
            assert product() is torch.bfloat16
        assert product() is torch.float32
        assert not torch.is_autocast_enabled("cuda")


def test_the_default_dtype_is_float16():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda"):
        assert product() is torch.float16


def test_the_region_ends_after_an_error():
    with torchtally.virtual_gpu("H100-SXM"):
        with pytest.raises(ValueError, match="mine"), torch.autocast("cuda"):
            raise ValueError("mine")
        assert product() is torch.float32


def test_autocast_by_its_old_names_and_as_a_decorator():
    with torchtally.virtual_gpu("H100-SXM"):
        with pytest.warns(FutureWarning), torch.cuda.amp.autocast(dtype=torch.bfloat16):
            assert product() is torch.bfloat16
        with torch.amp.autocast("cuda", torch.bfloat16):
            assert product() is torch.bfloat16
        with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=False):
            assert product() is torch.float32

        @torch.autocast("cuda", dtype=torch.bfloat16)
        def decorated() -> torch.dtype:
            return product()

        assert decorated() is torch.bfloat16

        class Model(nn.Linear):
            @torch.autocast("cuda", dtype=torch.float16)
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x)

        assert Model(2, 2, device="cuda")(float32(1, 2)).dtype is torch.float16
        assert product() is torch.float32


def test_autocast_in_inference_mode_and_no_grad():
    with torchtally.virtual_gpu("H100-SXM"), torch.autocast("cuda", dtype=torch.bfloat16):
        model = nn.Linear(4, 4, device="cuda")
        with torch.no_grad():
            assert model(float32(2, 4)).dtype is torch.bfloat16
        with torch.inference_mode():
            assert model(float32(2, 4)).dtype is torch.bfloat16
            assert LOWER["attention"]().dtype is torch.bfloat16
            assert LOWER["einsum"]().dtype is torch.bfloat16
            assert FP32["layer_norm"]().dtype is torch.float32
            assert FP32["softmax"]().dtype is torch.float32


def test_custom_fwd_and_custom_bwd():
    seen: list[torch.dtype] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen.append((a @ b).dtype)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            seen.append((grad @ b.t()).dtype)
            return grad @ b.t(), a.t() @ grad

    class Plain(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen.append((a @ b).dtype)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            product = grad @ b.to(grad.dtype).t()
            seen.append((a @ b).dtype)  # autocast is as it was in forward
            return product.to(a.dtype), (a.t().to(grad.dtype) @ grad).to(b.dtype)

    with torchtally.virtual_gpu("H100-SXM"):
        for function in (Product, Plain):
            a, b = float32(2, 2).requires_grad_(), float32(2, 2).requires_grad_()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = function.apply(a, b)
            out.sum().backward()
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


def test_binary_cross_entropy_is_refused_as_cuda_refuses_it():
    with torchtally.virtual_gpu("H100-SXM"):
        prob, target = float32(4), float32(4)
        with (
            torch.autocast("cuda", dtype=torch.bfloat16),
            pytest.raises(RuntimeError, match="unsafe to autocast"),
        ):
            F.binary_cross_entropy(prob, target)
        assert F.binary_cross_entropy(prob, target).dtype is torch.float32


# Gradients.


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_have_the_dtype_of_their_tensors(dtype: torch.dtype):
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)).cuda()
        x = float32(3, 4).requires_grad_()
        with torch.autocast("cuda", dtype=dtype):
            loss = model(x).float().mean()
        loss.backward()
        assert x.grad is not None
        assert x.grad.dtype is torch.float32
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
        assert all(p.grad is not None for p in model.parameters())


def test_backward_products_run_in_the_dtype_of_the_forward():
    def step() -> None:
        model = nn.Linear(4, 4, bias=False, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.rand(2, 4, device="cuda", requires_grad=True)).sum()
        loss.backward()

    products = ops(traced(step), "aten.mm")
    assert [op.phase for op in products] == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]
    assert {spec.dtype for op in products for spec in op.call.inputs} == {"bfloat16"}


# The cache of cast weights.


def casts_of(function: Callable[[], object], shape: tuple[int, ...] = (4, 4)) -> int:
    """Casts of a tensor of that shape to bfloat16 in the forward pass."""
    casts = ops(traced(function), "aten._to_copy", Phase.FORWARD)
    return sum(
        op.call.outputs[0].dtype == "bfloat16"
        and op.call.inputs[0].dtype == "float32"
        and op.call.outputs[0].shape == shape
        for op in casts
    )


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(4, 4, device="cuda"))


def test_a_weight_is_cast_once_in_a_region():
    def three_products() -> None:
        w, x = weight(), torch.ones(1, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(3):
                F.linear(x, w)

    assert casts_of(three_products) == 1
    assert casts_of(three_products, (1, 4)) == 3  # inputs are no leaves that require grad


def test_the_cache_lasts_as_long_as_the_outermost_region():
    def nested() -> None:
        w, x = weight(), torch.ones(1, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                F.linear(x, w)
            with torch.autocast("cuda", enabled=False):
                F.linear(x, w)
            F.linear(x, w)

    def twice() -> None:
        w, x = weight(), torch.ones(1, 4, device="cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                F.linear(x, w)

    assert casts_of(nested) == 1
    assert casts_of(twice) == 2


def test_without_the_cache_every_use_casts():
    def uncached() -> None:
        w, x = weight(), torch.ones(1, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            for _ in range(3):
                F.linear(x, w)

    assert casts_of(uncached) == 3


def test_what_does_not_require_grad_is_not_cached():
    def frozen() -> None:
        w, x = weight().requires_grad_(False), torch.ones(1, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(3):
                F.linear(x, w)

    assert casts_of(frozen) == 3


def test_the_cached_copy_is_freed_when_the_region_ends():
    with torchtally.virtual_gpu("H100-SXM"):
        w, x = weight(), torch.ones(1, 4, device="cuda")
        F.linear(x, w)  # cuBLAS has its workspace from now on
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
            F.linear(x, w)
            assert torch.cuda.memory_allocated() == before + 512  # the copy, of 32 bytes
        assert torch.cuda.memory_allocated() == before


def test_the_cached_copy_carries_the_gradient_of_all_its_uses():
    with torchtally.virtual_gpu("H100-SXM"):
        w, x = weight(), torch.ones(1, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (F.linear(x, w) + F.linear(x, w)).sum()
        loss.backward()
        assert w.grad is not None
        assert w.grad.tolist() == [[2.0] * 4] * 4
        assert w.grad.dtype is torch.float32


def test_a_weight_changed_between_regions_is_cast_anew():
    with torchtally.virtual_gpu("H100-SXM"):
        w, x = weight(), torch.ones(1, 4, device="cuda")
        dtypes = []
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
                dtypes.append(F.linear(x, w)[0, 0].item())
                w.mul_(2)
        assert dtypes == [4, 8]


def test_a_training_step_under_autocast_casts_what_cuda_casts():
    """Per layer one cast of the weight; the activations are half already after the first."""

    def step() -> None:
        model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)]).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(torch.ones(2, 8, device="cuda")).sum()

    assert casts_of(step, (8, 8)) == 3
    assert casts_of(step, (2, 8)) == 1


def test_composite_operators_cast_below_their_surface():
    """Batched einsum becomes bmm, on bfloat16."""

    def attention_scores() -> None:
        q, k = (torch.ones(2, 3, 4, 8, device="cuda") for _ in range(2))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            torch.einsum("bhqd,bhkd->bhqk", q, k)

    trace = traced(attention_scores)
    assert "aten.bmm" in names(trace)
    assert {spec.dtype for op in ops(trace, "aten.bmm") for spec in op.call.inputs} == {"bfloat16"}


def test_recurrent_networks_run_in_the_lower_precision():
    """A layer's 4 weights and biases, its input and two states: seven casts."""

    def train() -> None:
        lstm = torch.nn.LSTM(8, 16, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            y, _ = lstm(torch.randn(3, 2, 8, device="cuda"))
        assert y.dtype is torch.float16
        y.sum().backward()
        assert lstm.weight_hh_l0.grad.dtype is torch.float32

    trace = traced(train)
    (rnn,) = ops(trace, "aten._cudnn_rnn")
    assert {spec.dtype for spec in rnn.call.inputs} == {"float16"}
    forward = ops(trace, "aten._to_copy", Phase.FORWARD)
    assert len([op for op in forward if op.call.outputs[0].dtype == "float16"]) == 7


def test_kernels_come_with_the_first_region_and_go_with_the_session():
    def is_registered() -> bool:
        name = private.AUTOCAST_KEY.name
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", name))

    with torchtally.virtual_gpu("H100-SXM"):
        with torch.autocast("cuda", enabled=False):
            assert torch.mm(float32(4, 4), float32(4, 4)).dtype is torch.float32
        assert not is_registered()
        with torch.autocast("cuda", dtype=torch.float16):
            assert is_registered()
            assert torch.mm(float32(4, 4), float32(4, 4)).dtype is torch.float16
    assert not is_registered()


def test_a_region_entered_before_the_session_casts_in_it():
    torch.set_autocast_enabled("cuda", True)  # a region on a machine without CUDA does not
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with torchtally.virtual_gpu("H100-SXM"):
            assert torch.mm(float32(4, 4), float32(4, 4)).dtype is torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)


def test_autocast_that_is_enabled_by_hand_casts_too():
    with torchtally.virtual_gpu("H100-SXM"):
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            assert torch.mm(float32(4, 4), float32(4, 4)).dtype is torch.bfloat16
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", torch.float16)


def test_a_thread_of_the_script_casts_in_its_regions_alone():
    dtypes: list[torch.dtype] = []

    def multiply() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            dtypes.append(torch.mm(float32(4, 4), float32(4, 4)).dtype)
            with torch.autocast("cuda", enabled=False):
                dtypes.append(torch.mm(float32(4, 4), float32(4, 4)).dtype)
            dtypes.append(torch.mm(float32(4, 4), float32(4, 4)).dtype)
        dtypes.append(torch.mm(float32(4, 4), float32(4, 4)).dtype)

    with torchtally.virtual_gpu("H100-SXM"):
        thread = threading.Thread(target=multiply)
        thread.start()
        thread.join()
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
