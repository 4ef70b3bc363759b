"""What CUDA's operators are made of: dropout, norms, recurrent networks, optimizers, scaling."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import torchtally
from tests.traces import names, ops, traced
from torchtally.trace import Phase

pytestmark = pytest.mark.one_case_in(2)

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def on_gpu(*shape: int, dtype: torch.dtype = FP32, trains: bool = False) -> Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda", requires_grad=trains)


def ran(function: Callable[[], object], phase: Phase | None = None) -> list[str]:
    """Names of the operators that ran, views and factories left out."""
    dull = {
        "aten.ones", "aten.ones_like", "aten.expand", "aten.detach", "aten.view", "aten.empty",
        "aten.zeros", "aten.t", "aten.alias", "aten.sum", "aten.unsqueeze", "aten._unsafe_view",
        "aten.select", "aten.fill_", "aten.zero_", "aten.empty_like", "aten.zeros_like",
    }  # fmt: skip
    return [name for name in names(traced(function), phase) if name not in dull]


# Dropout.


@pytest.mark.thorough
def test_dropout_is_one_kernel_each_way():
    assert ran(lambda: F.dropout(on_gpu(8, trains=True)).sum().backward()) == [
        "aten.native_dropout",
        "aten.native_dropout_backward",
    ]
    assert ran(lambda: nn.Dropout(0.1)(on_gpu(8))) == ["aten.native_dropout"]
    assert ran(lambda: F.dropout(on_gpu(8), p=0.0)) == []
    assert ran(lambda: F.dropout(on_gpu(8), training=False)) == []
    assert ran(lambda: nn.Dropout(0.5).eval()(on_gpu(8))) == []


def test_dropout_saves_a_mask_of_one_byte_an_element():
    with torchtally.virtual_gpu("H100-SXM"):
        x = on_gpu(1024, 1024, trains=True)
        before = torch.cuda.memory_allocated()
        y = F.dropout(x)
        assert torch.cuda.memory_allocated() - before == (4 + 1) * 1024 * 1024
        assert y.requires_grad


def test_dropout_works_in_inference_mode_and_under_vmap():
    def call() -> None:
        with torch.inference_mode():
            F.dropout(on_gpu(8))

    assert ran(call) == ["aten.native_dropout"]


# Norms.


def test_rms_norm_is_one_kernel_forward_and_one_backward():
    def step() -> None:
        norm = nn.RMSNorm(64, device="cuda")
        norm(on_gpu(8, 64, trains=True)).sum().backward()

    assert ran(step, Phase.FORWARD) == ["aten._fused_rms_norm"]
    assert "aten._fused_rms_norm_backward" in ran(step, Phase.BACKWARD)


def test_rms_norm_gives_the_hosts_gradients():
    torch.manual_seed(0)
    host = nn.RMSNorm(4)
    x = torch.randn(3, 4, requires_grad=True)
    host(x).square().sum().backward()
    with torchtally.virtual_gpu("H100-SXM"):
        norm = copy.deepcopy(host).cuda()
        norm.zero_grad()
        y = x.detach().cuda().requires_grad_()
        out = norm(y)
        assert out.shape == (3, 4)
        out.square().sum().backward()
        assert y.grad is not None
        assert norm.weight.grad is not None
        assert x.grad is not None
        assert (y.grad.shape, norm.weight.grad.shape) == (x.grad.shape, (4,))
        assert norm.weight.grad.dtype is FP32


def test_rms_norm_of_two_dtypes_falls_apart_as_on_cuda():
    def call() -> None:
        F.rms_norm(on_gpu(2, 4, dtype=BF16), (4,), on_gpu(4))

    assert "aten._fused_rms_norm" not in ran(call)


def test_rms_norm_without_weight_and_in_inference_mode():
    assert ran(lambda: F.rms_norm(on_gpu(2, 4), (4,))) == ["aten._fused_rms_norm"]

    def call() -> None:
        with torch.inference_mode():
            nn.RMSNorm(4, device="cuda")(on_gpu(2, 4))

    assert ran(call) == ["aten._fused_rms_norm"]


def test_layer_norm_is_native():
    def step() -> None:
        nn.LayerNorm(8, device="cuda")(on_gpu(2, 8, trains=True)).sum().backward()

    assert ran(step, Phase.FORWARD) == ["aten.native_layer_norm"]
    assert "aten.native_layer_norm_backward" in ran(step, Phase.BACKWARD)


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "kernel"),
    [
        (nn.BatchNorm2d, (2, 3, 4, 4), FP32, "aten.cudnn_batch_norm"),
        (nn.BatchNorm1d, (2, 3, 4), FP32, "aten.cudnn_batch_norm"),
        (nn.BatchNorm3d, (2, 3, 4, 4, 4), FP32, "aten.cudnn_batch_norm"),
        (nn.BatchNorm1d, (2, 3), FP32, "aten.native_batch_norm"),  # cuDNN wants three dimensions
        (nn.BatchNorm2d, (2, 3, 4, 4), BF16, "aten.native_batch_norm"),
    ],
)
def test_batch_norm_takes_the_kernel_cuda_takes(
    layer: type[nn.Module], shape: tuple[int, ...], dtype: torch.dtype, kernel: str
):
    def step() -> None:
        norm = layer(3, device="cuda", dtype=dtype)
        norm(on_gpu(*shape, dtype=dtype, trains=True)).sum().backward()

    assert kernel in ran(step, Phase.FORWARD)
    assert f"{kernel}_backward" in ran(step, Phase.BACKWARD)


def test_batch_norm_counts_its_batches():
    with torchtally.virtual_gpu("H100-SXM"):
        norm = nn.BatchNorm2d(3, device="cuda")
        for _ in range(3):
            norm(on_gpu(2, 3, 4, 4))
        assert norm.num_batches_tracked.item() == 3
        norm.eval()
        norm(on_gpu(2, 3, 4, 4))
        assert norm.num_batches_tracked.item() == 3


def test_batch_norm_without_affine_is_native():
    assert "aten.native_batch_norm" in ran(
        lambda: nn.BatchNorm2d(3, affine=False, device="cuda")(on_gpu(2, 3, 4, 4))
    )


def test_one_hot_is_zeros_and_a_scatter():
    def call() -> None:
        encoded = F.one_hot(torch.tensor([0, 2], device="cuda"), num_classes=3)
        assert encoded.tolist() == [[1, 0, 0], [0, 0, 1]]
        assert encoded.dtype is torch.int64
        assert F.one_hot(torch.tensor([1], device="cuda")).tolist() == [[0, 1]]

    assert "aten.scatter_" in ran(call)


# Recurrent networks.

RECURRENT: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "dropout": 0.1},
    {"bidirectional": True},
    {"batch_first": True},
    {"bias": False},
    {"batch_first": True, "bidirectional": True, "num_layers": 2},
]


def states(hidden: Any) -> list[Tensor]:
    return list(hidden) if isinstance(hidden, tuple) else [hidden]


@pytest.mark.parametrize("options", RECURRENT, ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_are_one_cudnn_call_of_the_hosts_shapes(
    kind: type[nn.RNNBase], options: dict[str, Any]
):
    host = kind(5, 7, **options)
    x = torch.zeros(3, 4, 5)
    expected, hidden = host(x)

    def step() -> None:
        model = copy.deepcopy(host).cuda()
        out, state = model(x.cuda())
        assert out.is_cuda
        assert out.shape == expected.shape
        assert [s.shape for s in states(state)] == [s.shape for s in states(hidden)]
        (out.sum() + sum(s.sum() for s in states(state))).backward()
        gradients = {
            name: p.grad.shape for name, p in model.named_parameters() if p.grad is not None
        }
        assert gradients == {name: p.shape for name, p in host.named_parameters()}

    trace = traced(step)
    assert len(ops(trace, "aten._cudnn_rnn", Phase.FORWARD)) == 1
    assert len(ops(trace, "aten._cudnn_rnn_backward", Phase.BACKWARD)) == 1


def test_lstm_with_projection():
    host = nn.LSTM(5, 7, proj_size=3)
    expected, (h, c) = host(torch.zeros(2, 4, 5))
    with torchtally.virtual_gpu("H100-SXM"):
        out, state = copy.deepcopy(host).cuda()(torch.zeros(2, 4, 5, device="cuda"))
        assert out.shape == expected.shape
        assert [s.shape for s in state] == [h.shape, c.shape]
        out.sum().backward()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences(kind: type[nn.RNNBase]):
    host = kind(5, 7, batch_first=True)
    x, lengths = torch.zeros(3, 6, 5), torch.tensor([6, 3, 1])
    expected, _ = host(pack_padded_sequence(x, lengths, batch_first=True))
    with torchtally.virtual_gpu("H100-SXM"):
        model = copy.deepcopy(host).cuda()
        packed = pack_padded_sequence(x.cuda(), lengths, batch_first=True)
        assert packed.data.shape == (10, 5)  # 6 + 3 + 1 steps
        assert packed.batch_sizes.tolist() == [3, 2, 2, 1, 1, 1]
        out, _ = model(packed)
        assert out.data.shape == expected.data.shape
        padded, unpacked = pad_packed_sequence(out, batch_first=True)
        assert padded.shape == (3, 6, 7)
        assert unpacked.tolist() == [6, 3, 1]
        padded.sum().backward()


def test_unsorted_sequences_pack_too():
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.zeros(3, 6, 5, device="cuda")
        packed = pack_padded_sequence(
            x, torch.tensor([1, 6, 3]), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.GRU(5, 7, batch_first=True).cuda()(packed)
        padded, lengths = pad_packed_sequence(out, batch_first=True)
        assert padded.shape == (3, 6, 7)
        assert lengths.tolist() == [1, 6, 3]


def test_sequences_are_padded_on_the_device():
    with torchtally.virtual_gpu("H100-SXM"):
        padded = pad_sequence([on_gpu(2), on_gpu(4)], batch_first=True)
        assert padded.is_cuda
        assert padded.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_an_initial_state_is_taken():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.LSTM(5, 7).cuda()
        h = torch.zeros(1, 4, 7, device="cuda")
        out, (hn, cn) = model(torch.zeros(3, 4, 5, device="cuda"), (h, h))
        assert (out.shape, hn.shape, cn.shape) == ((3, 4, 7), (1, 4, 7), (1, 4, 7))
        out, _ = model(torch.zeros(3, 5, device="cuda"))  # no batch dimension
        assert out.shape == (3, 7)


def test_cells():
    def step() -> None:
        cell = nn.LSTMCell(5, 7, device="cuda")
        h, c = cell(on_gpu(2, 5))
        h, c = cell(on_gpu(2, 5), (h, c))
        assert h.shape == c.shape == (2, 7)
        h.sum().backward()
        gru = nn.GRUCell(5, 7, device="cuda")
        assert gru(on_gpu(2, 5)).shape == (2, 7)
        assert nn.RNNCell(5, 7, device="cuda")(on_gpu(2, 5)).shape == (2, 7)

    met = ran(step)
    assert met.count("aten._thnn_fused_lstm_cell") == 2
    assert "aten._thnn_fused_lstm_cell_backward_impl" in met


# Optimizers.


def stepping(make: Callable[[Any], torch.optim.Optimizer], **layer: Any) -> Callable[[], None]:
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("cuda", **layer)
        optimizer = make(model.parameters())
        for _ in range(2):
            model(on_gpu(2, 4, **layer)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def optimizing(train: Callable[[], None]) -> list[str]:
    return ran(train, Phase.OPTIMIZER)


def test_adamw_takes_the_foreach_path_by_default():
    met = set(optimizing(stepping(lambda p: torch.optim.AdamW(p))))
    assert {"aten._foreach_lerp_", "aten._foreach_addcmul_", "aten._foreach_addcdiv_"} <= met
    assert not [name for name in met if name.startswith("aten.addcdiv")]


def test_sgd_takes_the_foreach_path_by_default():
    met = set(optimizing(stepping(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))))
    assert "aten._foreach_add_" in met
    assert "aten._foreach_mul_" in met
    assert "aten.add_" not in met


def test_foreach_may_be_turned_off():
    met = set(optimizing(stepping(lambda p: torch.optim.AdamW(p, foreach=False))))
    assert "aten.addcdiv_" in met
    assert not [name for name in met if "foreach" in name]


@pytest.mark.parametrize(
    ("make", "kernel"),
    [
        (lambda p: torch.optim.AdamW(p, fused=True), "aten._fused_adamw_"),
        (lambda p: torch.optim.Adam(p, fused=True), "aten._fused_adam_"),
        (lambda p: torch.optim.AdamW(p, torch.tensor(0.1), fused=True), "aten._fused_adamw_"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), "aten._fused_sgd_"),
        pytest.param(
            lambda p: torch.optim.Adagrad(p, fused=True),
            "aten._fused_adagrad_",
            marks=pytest.mark.skipif(
                "cuda_unsupported=True" in inspect.getsource(torch.optim.Adagrad),
                reason="this torch has no fused Adagrad for CUDA",
            ),
        ),
    ],
)
def test_fused_optimizers_are_one_kernel_a_step(make, kernel: str):
    assert optimizing(stepping(make)).count(kernel) == 2


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam,
        torch.optim.Adamax, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Rprop,
        torch.optim.ASGD, torch.optim.Adadelta, torch.optim.SGD, torch.optim.Adafactor,
    ],
)  # fmt: skip
def test_every_optimizer_steps_to_the_hosts_parameters(make: type[torch.optim.Optimizer]):
    """A toy model has values: three steps agree with the host's to rounding."""

    def train(device: str) -> list[list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        model.to(device)
        optimizer = make(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        x = torch.tensor([[1.0, 2.0, 3.0]]).to(device)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
        weights: list[list[float]] = model.weight.tolist()
        return weights

    expected = train("cpu")
    with torchtally.virtual_gpu("H100-SXM"):
        assert train("cuda") == [pytest.approx(row, rel=1e-4) for row in expected]


def test_a_fused_step_is_the_hosts_step():
    def train(device: str) -> list[list[float]]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([[1.0, 2.0, 3.0]]).to(device)).square().sum().backward()
            optimizer.step()
        weights: list[list[float]] = model.weight.tolist()
        return weights

    expected = train("cpu")
    with torchtally.virtual_gpu("H100-SXM"):
        assert train("cuda") == [pytest.approx(row, rel=1e-4) for row in expected]


def test_where_the_step_counter_lives():
    """On the host by default, on the device for fused and capturable optimizers."""
    with torchtally.virtual_gpu("H100-SXM"):
        for options, is_cuda in (
            ({}, False),
            ({"fused": True}, True),
            ({"capturable": True}, True),
        ):
            model = nn.Linear(2, 2, device="cuda")
            optimizer = torch.optim.AdamW(model.parameters(), **options)  # type: ignore[arg-type]
            for _ in range(2):
                model(on_gpu(1, 2)).sum().backward()
                optimizer.step()
            step = optimizer.state[model.weight]["step"]
            assert step.is_cuda is is_cuda
            assert step.item() == 2


def test_lr_may_be_a_tensor_and_schedulers_work():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Linear(2, 2, device="cuda")
        lr = torch.tensor(0.5, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, capturable=True)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        model(on_gpu(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        assert float(optimizer.param_groups[0]["lr"]) == 0.25
        plain = torch.optim.SGD(model.parameters(), lr=1.0)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(plain, T_max=2)
        plain.step()
        cosine.step()
        assert plain.param_groups[0]["lr"] == pytest.approx(0.5)


def test_lbfgs_and_closures():
    with torchtally.virtual_gpu("H100-SXM"):
        w = on_gpu(2, trains=True)
        optimizer = torch.optim.LBFGS([w], max_iter=3)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = ((w - 3) ** 2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        assert w.tolist() == pytest.approx([3, 3], abs=1e-3)


# Loss scaling and clipping.


def test_grad_scaler_steps_and_keeps_its_scale():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Linear(2, 1, bias=False, device="cuda")
        with torch.no_grad():
            model.weight.fill_(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        for _ in range(2):
            with torch.autocast("cuda", dtype=FP16):
                loss = model(on_gpu(1, 2)).sum()
            scaler.scale(loss).backward()
            assert model.weight.grad is not None
            assert model.weight.grad.tolist() == [[1024, 1024]]
            scaler.unscale_(optimizer)
            assert model.weight.grad.tolist() == [[1, 1]]
            clip_grad_norm_(model.parameters(), 100.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 1024
        assert scaler.is_enabled()
        assert model.weight.tolist() == [[0, 0]]
        state = scaler.state_dict()
        assert state["scale"] == 1024
        assert state["_growth_tracker"] == 2
        scaler.load_state_dict(state)


def test_grad_scaler_with_gradients_nobody_knows():
    """A model too big for values: gradients are assumed to be finite, the step is taken."""

    def train() -> None:
        model = nn.Linear(512, 512, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", dtype=FP16):
                loss = model(torch.rand(8, 512, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        assert scaler.get_scale() == 65536
        assert optimizer.state[model.weight]["step"].item() == 3

    trace = traced(train)
    assert len(trace.step_ends) == 3
    assert trace.placeholders == ()
    unscale = "aten._amp_foreach_non_finite_check_and_unscale_"
    assert len(ops(trace, unscale, Phase.OPTIMIZER)) == 3


def test_an_infinite_gradient_skips_the_step_and_halves_the_scale():
    """With values known the scaler does what it does on a real device."""
    with torchtally.virtual_gpu("H100-SXM"):
        w = on_gpu(2, trains=True)
        optimizer = torch.optim.SGD([w], lr=1.0)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        scaler.scale((w * float("inf")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert w.tolist() == [1, 1]
        assert scaler.get_scale() == 4


def test_a_disabled_scaler_does_nothing():
    with torchtally.virtual_gpu("H100-SXM"):
        w = on_gpu(2, trains=True)
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        optimizer = torch.optim.SGD([w], lr=1.0)
        scaler.scale(w.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert w.tolist() == [0, 0]


def test_clipping_by_norm_and_by_value():
    with torchtally.virtual_gpu("H100-SXM"):
        w = on_gpu(4, trains=True)
        (w * 3).sum().backward()
        assert clip_grad_norm_([w], 3.0).item() == pytest.approx(6)  # sqrt(4 * 9)
        assert w.grad is not None
        assert w.grad.tolist() == pytest.approx([1.5] * 4)
        clip_grad_value_([w], 1.0)
        assert w.grad.tolist() == [1] * 4
        total = nn.utils.get_total_norm([w.grad])
        assert total.item() == 2


def test_clipping_takes_the_foreach_path():
    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
        model(on_gpu(2, 4)).sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)

    met = names(traced(train), Phase.OPTIMIZER)
    assert "aten._foreach_norm" in met
    assert "aten._foreach_mul_" in met


def test_a_product_with_four_bit_weights_has_a_column_for_each_row_of_them() -> None:
    """As torchao and GPTQ's kernels have it: 16 x 64 by 32 weights of 64, two in a byte."""
    m, k, n, group = 16, 64, 32, 32

    def multiply() -> None:
        x = torch.ones(m, k, device="cuda", dtype=torch.bfloat16)
        weight = torch.zeros(n, k // 2, device="cuda", dtype=torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(weight, 2)
        scales = torch.ones(k // group, n, 2, device="cuda", dtype=torch.bfloat16)
        assert torch.ops.aten._weight_int4pack_mm(x, packed, group, scales).shape == (m, n)

    ledger = torchtally.account(traced(multiply))
    assert ledger.by_op()["aten._weight_int4pack_mm"].flops == 2 * m * k * n
