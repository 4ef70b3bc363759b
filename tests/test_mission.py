"""What the mission itself asserts about tensors, compute and training, on the virtual GPU."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.traces import accounted, ops
from torchtally.memory import Category
from torchtally.trace import Phase


@pytest.fixture
def gpu() -> Iterator[None]:
    with torchtally.virtual_gpu("H100-SXM"):
        yield


MIB = 1024**2

# Memory.


@pytest.mark.usefixtures("gpu")
def test_bytes_of_a_tensor_are_elements_times_bytes_of_its_dtype():
    x = torch.zeros(4, 8, device="cuda")
    assert x.dtype is torch.float32
    assert (x.numel(), x.element_size(), x.nbytes) == (32, 4, 128)
    gpt3 = torch.empty(12288 * 4, 12288, device="cuda")
    assert gpt3.nbytes == torch.cuda.memory_allocated() - 512 == 2304 * MIB


@pytest.mark.usefixtures("gpu")
def test_number_formats():
    assert torch.finfo(torch.float8_e4m3fn).max == 448
    assert torch.finfo(torch.float8_e5m2).max == 57344
    for device in ("cpu", "cuda"):
        assert torch.tensor([1e-8], dtype=torch.float16, device=device).item() == 0
        assert torch.tensor([1e-8], dtype=torch.bfloat16, device=device).item() != 0
    sizes = {
        torch.float32: 4, torch.float16: 2, torch.bfloat16: 2,
        torch.float8_e4m3fn: 1, torch.float8_e5m2: 1,
    }  # fmt: skip
    for dtype, size in sizes.items():
        assert torch.zeros(512, device="cuda").to(dtype).nbytes == 512 * size


@pytest.mark.usefixtures("gpu")
def test_a_tensor_is_on_the_host_unless_moved():
    x = torch.zeros(32, 32)
    assert x.device == torch.device("cpu")
    assert torch.cuda.is_available()
    for index in range(torch.cuda.device_count()):
        assert torch.cuda.get_device_properties(index).total_memory > 79e9
    before = torch.cuda.memory_allocated()
    y = x.to("cuda:0")
    assert y.device == torch.device("cuda", 0)
    z = torch.zeros(32, 32, device="cuda:0")
    assert torch.cuda.memory_allocated() - before == 2 * (32 * 32 * 4) == 8192
    assert z.is_cuda


class Linear(nn.Module):
    """A layer whose outputs do not grow with its inputs."""

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(input_dim, output_dim) / math.sqrt(input_dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Cruncher(nn.Module):
    """The mission's deep linear model."""

    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(dim, dim) for _ in range(num_layers))
        self.final = Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, _ = x.shape
        for layer in self.layers:
            x = layer(x)
        x = self.final(x)
        assert x.shape == (batch, 1)
        return x.squeeze(-1)


@pytest.mark.parametrize("sizes", [(8, 128, 2), (64, 128, 4)])
def test_the_training_total(sizes: tuple[int, int, int]):
    """4 x (P + B D L + P + P) bytes with P = D D L + D: AdaGrad's state is one copy."""
    B, D, L = sizes

    def train() -> None:
        model = Cruncher(D, L).cuda()
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
        for _ in range(2):
            model(torch.randn(B, D, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    ledger = accounted(train)
    P = D * D * L + D
    held = {category: line.peak_bytes for category, line in ledger.memory.by_category().items()}
    assert held[Category.PARAMETERS] == 4 * P
    assert held[Category.GRADIENTS] == 4 * P
    assert held[Category.OPTIMIZER_STATE] in (4 * P, 4 * P + 512 * (L + 1))  # and step counters
    # One activation of B x D for each layer: the batch, and every layer's result but the last's.
    activations = held[Category.ACTIVATIONS] + held[Category.INPUTS]
    assert 4 * B * D * L <= activations <= 4 * B * D * (L + 1) + 4 * 512


# Tensors.


@pytest.mark.usefixtures("gpu")
def test_storage_is_one_flat_block():
    x = torch.arange(16.0, device="cuda").view(4, 4)
    assert x.stride() == (4, 1)
    index = 1 * x.stride(0) + 2 * x.stride(1)
    assert index == 6
    assert x.flatten()[index] == x[1, 2]


def same_storage(x: Tensor, y: Tensor) -> bool:
    return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


@pytest.mark.usefixtures("gpu")
def test_views_share_storage_and_cost_nothing():
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]], device="cuda")
    before = torch.cuda.memory_allocated()
    row, column = x[0], x[:, 1]
    turned, viewed = x.transpose(1, 0), x.view(3, 2)
    assert row.tolist() == [1, 2, 3]
    assert column.tolist() == [2, 5]
    assert viewed.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert turned.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert all(same_storage(x, y) for y in (row, column, turned, viewed))
    assert torch.cuda.memory_allocated() == before
    x[0][0] = 100
    assert viewed[0][0] == 100
    assert turned[0][0] == 100


@pytest.mark.usefixtures("gpu")
def test_a_transposed_tensor_is_not_contiguous():
    x = torch.tensor([[1.0, 2, 3], [4, 5, 6]], device="cuda")
    y = x.transpose(1, 0)
    assert not y.is_contiguous()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        y.view(2, 3)
    copied = x.transpose(1, 0).contiguous().view(2, 3)
    assert not same_storage(x, copied)
    assert copied.tolist() == [[1, 4, 2], [5, 3, 6]]


@pytest.mark.usefixtures("gpu")
def test_elementwise_operators_make_a_new_tensor():
    x = torch.tensor([1.0, 4, 9], device="cuda")
    assert x.pow(2).tolist() == [1, 16, 81]
    assert x.sqrt().tolist() == [1, 2, 3]
    assert x.rsqrt().tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert (x + x).tolist() == (x * 2).tolist() == [2, 8, 18]
    assert (x / 0.5).tolist() == [2, 8, 18]
    assert not same_storage(x, x + x)
    assert torch.ones(3, 3, device="cuda").triu().tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]


@pytest.mark.usefixtures("gpu")
def test_products_are_batched_over_leading_dimensions():
    x = torch.ones(4, 8, 16, 32, device="cuda")
    w = torch.ones(32, 2, device="cuda")
    assert (x @ w).shape == (4, 8, 16, 2)


def test_a_report_tells_views_from_copies():
    def script() -> None:
        x = torch.rand(64, 32, device="cuda")
        y = x.transpose(0, 1)
        z = y.contiguous()
        assert z.shape == (32, 64)

    ledger = accounted(script)
    lines = {key.text: total for key, total in ledger.by_line().items() if key is not None}
    view, copy = lines["y = x.transpose(0, 1)"], lines["z = y.contiguous()"]
    assert (view.bytes, view.bytes_allocated) == (0, 0)
    assert (copy.bytes_read, copy.bytes_written) == (64 * 32 * 4, 64 * 32 * 4)


# Compute.


def test_a_product_at_the_missions_size():
    """B, D, K = 16384, 32768, 8192 on a GPU."""
    B, D, K = 16384, 32768, 8192

    def script() -> None:
        x = torch.ones(B, D, device="cuda")
        w = torch.randn(D, K, device="cuda")
        y = x @ w
        assert y.shape == (B, K)

    assert accounted(script).total.flops_matmul == 2 * B * D * K


def test_elementwise_and_the_rest_are_small_and_reported():
    def script() -> None:
        x = torch.ones(64, 32, device="cuda")
        added = x + x
        active = F.relu(x)
        shares = x.softmax(-1)
        assert added.shape == active.shape == shares.shape

    lines = {
        key.text: total for key, total in accounted(script).by_line().items() if key is not None
    }
    assert lines["added = x + x"].flops == 64 * 32
    assert lines["active = F.relu(x)"].flops == 64 * 32
    assert 64 * 32 <= lines["shares = x.softmax(-1)"].flops <= 5 * 64 * 32


def test_forward_and_backward_of_the_two_layer_model():
    """x has no gradient: of the 4 B D D of the rule of thumb only half is run."""
    B, D, K = 1024, 256, 64

    def script() -> None:
        x = torch.ones(B, D, device="cuda")
        w1 = torch.randn(D, D, device="cuda", requires_grad=True)
        w2 = torch.randn(D, K, device="cuda", requires_grad=True)
        h1 = x @ w1
        h2 = h1 @ w2
        h1.retain_grad()
        h2.retain_grad()
        loss = h2.pow(2).mean()
        loss.backward()
        assert w1.grad is not None
        assert w2.grad is not None
        assert h1.grad is not None
        assert (w1.grad.shape, w2.grad.shape, h1.grad.shape) == ((D, D), (D, K), (B, D))

    ledger = accounted(script)
    products = {
        phase: sum(entry.cost.flops for entry in ledger.reported
                   if entry.op.phase is phase and entry.call.name == "aten.mm")
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }  # fmt: skip
    assert products[Phase.FORWARD] == 2 * B * D * D + 2 * B * D * K
    assert products[Phase.BACKWARD] == 4 * B * D * K + 2 * B * D * D
    assert len(ops(ledger.trace, "aten.mm")) == 5


def test_a_training_step_is_six_times_batch_times_parameters():
    """Of a model whose input needs no gradient, but for the first layer's share."""
    B, D, L = 32, 64, 6

    def train() -> None:
        model = Cruncher(D, L).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            model(torch.randn(B, D, device="cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    P = D * D * L + D
    assert accounted(train).total.flops_matmul == 6 * B * P - 2 * B * D * D


@pytest.mark.usefixtures("gpu")
def test_autograd():
    x = torch.tensor([1.0, 2, 3], device="cuda")
    w = torch.tensor([1.0, 1, 1], device="cuda", requires_grad=True)
    predicted = x @ w
    loss = 0.5 * (predicted - 5).pow(2)
    loss.backward()
    assert loss.item() == 0.5
    assert w.grad is not None
    assert torch.equal(w.grad, torch.tensor([1.0, 2, 3], device="cuda"))
    assert x.grad is None
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert loss.grad is None
    with pytest.warns(UserWarning, match="not a leaf Tensor"):
        assert predicted.grad is None


# Models, data, optimizers, training.


@pytest.mark.usefixtures("gpu")
def test_outputs_grow_with_the_input_unless_scaled():
    torch.manual_seed(0)
    x, w = torch.randn(16384), torch.randn(16384, 8)
    assert (x @ w).square().mean().sqrt().item() == pytest.approx(math.sqrt(16384), rel=0.5)
    scaled = w / math.sqrt(16384)
    assert (x @ scaled).square().mean().sqrt().item() == pytest.approx(1, rel=0.5)
    assert nn.init.trunc_normal_(torch.empty(64, 8, device="cuda"), a=-3, b=3).is_cuda


@pytest.mark.usefixtures("gpu")
def test_the_crunchers_state():
    D, L = 64, 2
    model = Cruncher(D, L)
    assert {name: p.numel() for name, p in model.state_dict().items()} == {
        "layers.0.weight": D * D,
        "layers.1.weight": D * D,
        "final.weight": D,
    }
    assert sum(p.numel() for p in model.parameters()) == D * D * L + D
    model = model.to("cuda")
    assert model(torch.randn(8, D, device="cuda")).shape == (8,)


@pytest.mark.usefixtures("gpu")
def test_batches_of_a_memory_mapped_file(tmp_path):
    path = tmp_path / "data.npy"
    np.array(range(10000), dtype=np.int32).tofile(path)
    data = np.memmap(path, dtype=np.int32)
    starts = torch.randint(len(data) - 4, (2,))
    batch = torch.tensor(np.array([data[start : start + 4] for start in starts]))
    batch = batch.pin_memory()
    assert batch.is_pinned()
    batch = batch.to("cuda:0", non_blocking=True)
    assert batch.shape == (2, 4)
    assert (batch[:, 1:] - batch[:, :-1] == 1).all()


class AdaGrad(torch.optim.Optimizer):
    """The mission's own: lr * g / sqrt(G + 1e-5), G the sum of squared gradients."""

    def __init__(self, parameters, lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                squares = state.get("g2", torch.zeros_like(p.grad))
                squares += torch.square(p.grad)
                state["g2"] = squares
                p -= group["lr"] * p.grad / torch.sqrt(squares + 1e-5)


def losses(device: str, lr: float) -> list[float]:
    """The train loop: a linear teacher of weights 0..D-1, D = 16, B = 4, 10 steps."""
    D, B = 16, 4
    torch.manual_seed(0)
    model = Cruncher(D, 0)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    teacher = torch.arange(D, dtype=torch.float32).to(device)
    generator = torch.Generator().manual_seed(1)
    values = []
    for _ in range(10):
        x = torch.randn(B, D, generator=generator).to(device)
        loss = F.mse_loss(model(x), x @ teacher)
        values.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return values


def test_the_train_loop_learns_as_on_the_host():
    expected = {lr: losses("cpu", lr) for lr in (0.01, 0.1)}
    with torchtally.virtual_gpu("H100-SXM"):
        for lr, host in expected.items():
            assert losses("cuda", lr) == pytest.approx(host, rel=1e-3)
    assert expected[0.01] != expected[0.1]  # the learning rate matters
    assert expected[0.1][-1] < expected[0.1][0]


@pytest.mark.usefixtures("gpu")
def test_the_missions_optimizer_and_its_state():
    model = Cruncher(4, 2).cuda()
    optimizer = AdaGrad(model.parameters(), lr=0.1)
    x = torch.ones(2, 4, device="cuda")
    loss = F.mse_loss(model(x), torch.tensor([4.0, 5.0], device="cuda"))
    loss.backward()
    before = model.final.weight.tolist()
    optimizer.step()
    gradient = model.final.weight.grad
    assert gradient is not None
    # The first step of AdaGrad is lr times the gradient's sign, but for the 1e-5.
    expected = [
        [w - 0.1 * g / math.sqrt(g * g + 1e-5)]
        for (w,), (g,) in zip(before, gradient.tolist(), strict=True)
    ]
    assert model.final.weight.tolist() == [pytest.approx(row, rel=1e-4) for row in expected]
    assert optimizer.state[model.final.weight]["g2"].shape == (4, 1)
    assert optimizer.state[model.final.weight]["g2"].is_cuda
    optimizer.zero_grad(set_to_none=True)
    assert model.final.weight.grad is None


@pytest.mark.usefixtures("gpu")
def test_checkpoints_lose_nothing(tmp_path):
    model = Cruncher(64, 3).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1},
        tmp_path / "model_checkpoint.pt",
    )
    loaded = torch.load(tmp_path / "model_checkpoint.pt")
    assert loaded["step"] == 1
    assert list(loaded["model"]) == list(model.state_dict())
    restored = Cruncher(64, 3).cuda()
    restored.load_state_dict(loaded["model"])
    other = torch.optim.AdamW(restored.parameters(), lr=0.01)
    other.load_state_dict(loaded["optimizer"])
    assert other.state[restored.final.weight]["exp_avg"].shape == (64, 1)


def test_mixed_precision_keeps_weights_in_float32():
    def train() -> None:
        model = Cruncher(64, 2).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(torch.randn(8, 64, device="cuda"))
        assert out.dtype is torch.bfloat16
        out.float().mean().backward()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
        optimizer.step()
        assert optimizer.state[model.final.weight]["exp_avg"].dtype is torch.float32

    products = ops(accounted(train).trace, "aten.mm")
    assert {spec.dtype for op in products for spec in op.call.inputs} == {"bfloat16"}
