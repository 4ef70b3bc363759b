"""Tensor subclasses that hold other tensors: what they do inside is what counts."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import torchtally
from tests.traces import accounted, ops, traced
from torchtally.errors import UnsupportedError
from torchtally.trace import Role

CUDA = torch.device("cuda", 0)


class Wrapper(Tensor):
    """Holds one tensor, as quantised weights do, and says with which operators it was used."""

    inner: Tensor
    met: list[str] = []  # noqa: RUF012 (of the class: instances come and go)

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapper":
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, inner.shape, dtype=inner.dtype, device=inner.device,
            requires_grad=inner.requires_grad,
        )  # fmt: skip

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: None, size: Any, stride: Any) -> "Wrapper":
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.met.append(str(func))

        def inside(leaf: Any) -> Any:
            return leaf.inner if isinstance(leaf, Wrapper) else leaf

        result = func(*tree_map(inside, args), **tree_map(inside, kwargs or {}))
        return tree_map(lambda t: Wrapper(t) if isinstance(t, Tensor) else t, result)


def test_the_operators_inside_a_wrapper_are_counted():
    """2 x 3 by 3 x 4, forward and both gradients: three products of 2 * 2 * 3 * 4 FLOPs."""

    def script() -> None:
        weight = Wrapper(torch.randn(3, 4, device="cuda")).requires_grad_()
        x = torch.randn(2, 3, device="cuda", requires_grad=True)
        y = x @ weight
        assert type(y) is Wrapper
        assert y.device == CUDA
        assert y.is_cuda
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == (2, 3)

    Wrapper.met.clear()
    ledger = accounted(script)
    products = [entry for entry in ledger.entries if entry.call.name == "aten.mm"]
    assert [entry.cost.flops for entry in products] == [2 * 2 * 3 * 4] * 3
    assert "aten.mm.default" in Wrapper.met


def test_a_wrapped_parameter_is_a_parameter():
    def script() -> None:
        model = nn.Linear(3, 4, bias=False, device="cuda")
        model.weight = nn.Parameter(Wrapper(model.weight.detach()))
        assert type(model.weight.data) is Wrapper
        model(torch.randn(2, 3, device="cuda"))

    trace = traced(script)
    assert [(s.name, s.requested_bytes) for s in trace.storages if s.role is Role.PARAMETER] == [
        ("weight", 4 * 3 * 4)
    ]
    assert len(ops(trace, "aten.mm")) == 1


def test_a_wrapper_moves_to_the_gpu():
    with torchtally.virtual_gpu("H100-SXM"):
        host = Wrapper(torch.ones(2))
        assert host.device == torch.device("cpu")
        moved = host.to("cuda")
        assert type(moved) is Wrapper
        assert moved.device == moved.inner.device == CUDA
        assert moved.inner.tolist() == [1, 1]


# Jagged nested tensors.


def ragged(**options: Any) -> Tensor:
    """Sequences of 3 and 5 tokens of 16 features."""
    rows = [torch.randn(3, 16), torch.randn(5, 16)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda", **options)


class Attention(nn.Module):
    """Two heads of 8, after a norm, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, [2, 8]).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        out: Tensor = x + self.out(y)
        return out


def test_a_jagged_batch_costs_its_tokens_and_no_padding():
    def script() -> None:
        model = Attention().to("cuda", torch.bfloat16)
        y = model(ragged(dtype=torch.bfloat16))
        assert y.is_cuda
        y.values().sum().backward()

    ledger = accounted(script)
    tokens = 3 + 5
    forward = [e.cost.flops for e in ledger.entries if e.call.name == "aten.addmm"]
    assert forward == [2 * tokens * 16 * 48, 2 * tokens * 16 * 16]
    assert ops(ledger.trace, "aten._flash_attention_forward")
    assert ledger.coverage.uncounted == ()


@pytest.mark.usefixtures("gpu")
def test_jagged_tensors_are_reduced_padded_and_taken_apart():
    batch = ragged()
    assert batch.sum(1).shape == (2, 16)
    assert torch.nested.to_padded_tensor(batch, 0.0).shape == (2, 5, 16)
    assert [row.shape for row in batch.unbind()] == [(3, 16), (5, 16)]
    offsets = torch.tensor([0, 3, 8], device="cuda")
    again = torch.nested.nested_tensor_from_jagged(torch.randn(8, 16, device="cuda"), offsets)
    assert again[0].shape == (3, 16)


@pytest.mark.usefixtures("gpu")
def test_strided_nested_tensors_are_refused_with_the_way_out():
    for make in (
        lambda: torch.nested.nested_tensor([torch.randn(3, 2)], device="cuda"),
        lambda: torch.nested.as_nested_tensor([torch.randn(3, 2, device="cuda")]),
        lambda: torch.nested.nested_tensor([torch.randn(3, 2)]).cuda(),
    ):
        with pytest.raises(UnsupportedError, match=r"tally does not simulate .*\n.*torch\.jagged"):
            make()
    assert torch.nested.nested_tensor([torch.randn(3, 2)])[0].shape == (3, 2)


class Quantised(nn.Parameter):
    """A subclass that dispatches nothing itself, as bitsandbytes' `Params4bit`."""

    def __new__(cls, data: Tensor) -> "Quantised":
        return Tensor._make_subclass(cls, data, False)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.usefixtures("gpu")
def test_a_parameter_of_a_class_of_its_own_is_plain():
    for weight in (Quantised(torch.ones(2, device="cuda")), nn.Parameter(torch.ones(2).cuda())):
        assert weight.data.detach().device == CUDA
        assert (weight + 1).tolist() == [2, 2]
