"""What is known of tensors whose values are not kept, and that it holds on the host."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torchtally
from tests.traces import traced
from torchtally.trace import Placeholder
from torchtally.virtual import values
from torchtally.virtual.facts import Facts, facts_of

pytestmark = pytest.mark.one_case_in(3)

N = 4096
"""Elements: 16 KiB of floats, of which no values are kept."""


@pytest.fixture(params=[1024], autouse=True)
def integer_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Integers beyond 1 KiB have facts alone, as they have beyond 8 MiB."""
    monkeypatch.setattr(values, "INTEGER_VALUE_BYTES", request.param)
    return request.param


SIZES = pytest.mark.parametrize("integer_bytes", [1024, 40_000, 8 << 20], indirect=True)
"""Neither the choices of 4096 tokens have values nor masks of them, the choices alone, or both."""


def unknown(device: str, *shape: int) -> Tensor:
    return torch.randn(shape or (N,), device=device)


def full(device: str, *shape_and_number: float, dtype: torch.dtype = torch.float32) -> Tensor:
    *shape, number = shape_and_number
    return torch.full(shape, number, dtype=dtype, device=device)  # type: ignore[arg-type]


def gradient(factor: Tensor) -> Tensor:
    """Of a sum of products by a constant."""
    weights = torch.ones_like(factor, requires_grad=True)
    (weights * factor).sum().backward()
    assert weights.grad is not None
    return weights.grad


def ids(device: str, *shape: int, below: int = 100) -> Tensor:
    return torch.randint(0, below, shape or (N,), device=device)


def mask(device: str) -> Tensor:
    return unknown(device) > 0


Call = Callable[[str], Tensor]

DECIDED: dict[str, tuple[Call, float]] = {
    "zeros": (lambda d: torch.zeros(N, device=d), 0),
    "ones": (lambda d: torch.ones(N, dtype=torch.int64, device=d), 1),
    "full": (lambda d: torch.full((N,), 0.1, device=d), torch.tensor(0.1).item()),
    "fill_": (lambda d: unknown(d).fill_(3), 3),
    "zero_": (lambda d: unknown(d).zero_(), 0),
    "arithmetic of constants": (lambda d: (torch.ones(N, device=d) * 3 + 1) / 2, 2),
    "a constant in another dtype": (lambda d: torch.full((N,), 2.7, device=d).long(), 2),
    "rounded to bfloat16": (lambda d: torch.full((N,), 0.1, device=d).bfloat16(), 0.10009765625),
    "a view of a constant": (lambda d: torch.ones(N, device=d).view(64, 64).t()[3:5], 1),
    "zero times an unknown": (lambda d: unknown(d) * 0, 0),
    "zeros times an unknown": (lambda d: torch.zeros(N, device=d) * unknown(d), 0),
    "isfinite": (lambda d: torch.isfinite(unknown(d)), 1),
    "isfinite().all()": (lambda d: torch.isfinite(unknown(d)).all(), 1),
    "isnan": (lambda d: torch.isnan(unknown(d)).any(), 0),
    "isinf": (lambda d: torch.isinf(unknown(d)).any(), 0),
    "x == x": (lambda d: (lambda x: x == x)(unknown(d)), 1),
    "x != x": (lambda d: (lambda x: x != x)(unknown(d)).any(), 0),
    "x != inf": (lambda d: unknown(d) != math.inf, 1),
    "abs(x) < inf": (lambda d: unknown(d).abs() < math.inf, 1),
    "true | ?": (lambda d: mask(d) | torch.ones(N, dtype=torch.bool, device=d), 1),
    "false & ?": (lambda d: torch.zeros(N, dtype=torch.bool, device=d) & mask(d), 0),
    "0 & ? of integers": (lambda d: ids(d) & 0, 0),
    "logical_and": (lambda d: torch.logical_and(mask(d), torch.tensor(False, device=d)), 0),
    "~true": (lambda d: ~torch.ones(N, dtype=torch.bool, device=d), 0),
    "not of a positive": (lambda d: torch.logical_not(unknown(d).abs() + 1), 0),
    "all of true": (lambda d: (ids(d) >= 0).all(), 1),
    "any of false": (lambda d: (ids(d) < 0).any(), 0),
    "any over a dim": (lambda d: (ids(d, 64, 64) >= 0).any(1), 1),
    "ids below the vocabulary": (lambda d: (ids(d) < 100).all(), 1),
    "ids after arithmetic": (lambda d: (ids(d) * 2 + 1 < 200).all(), 1),
    "a remainder": (lambda d: (ids(d, below=10**6) % 7 < 7).all(), 1),
    "isin": (lambda d: torch.isin(ids(d), torch.tensor([100, 101], device=d)), 0),
    "isin of one": (lambda d: torch.isin(ids(d), 100), 0),
    "where(true, a, ?)": (
        lambda d: torch.where(ids(d) >= 0, torch.full((N,), 7.0, device=d), unknown(d)), 7),
    "where of one constant": (
        lambda d: torch.where(mask(d), torch.full((N,), 7.0, device=d), 7.0), 7),
    "masked_fill with false": (
        lambda d: torch.ones(N, device=d).masked_fill(ids(d) < 0, -math.inf), 1),
    "softmax": (lambda d: (unknown(d, 64, 64).softmax(-1) <= 1).all(), 1),
    "sigmoid": (lambda d: (torch.sigmoid(unknown(d)) >= 0).all(), 1),
    "rand": (lambda d: (torch.rand(N, device=d) <= 1).all(), 1),
    "uniform_": (lambda d: (unknown(d).uniform_(2, 3) >= 2).all(), 1),
    "relu": (lambda d: (torch.relu(unknown(d)) >= 0).all(), 1),
    "clamp": (lambda d: (unknown(d).clamp(-1, 1).abs() <= 1).all(), 1),
    "clamp to one number": (lambda d: unknown(d).clamp(2, 2), 2),
    "the largest of an arange": (lambda d: torch.arange(N, device=d).max(), N - 1),
    "the largest of a permutation": (lambda d: torch.randperm(N, device=d).max(), N - 1),
    "the sum of a permutation": (lambda d: torch.randperm(N, device=d).sum(), N * (N - 1) // 2),
    "the largest index of a sort": (lambda d: unknown(d).argsort().max(), N - 1),
    "the sum of ones": (lambda d: torch.ones(N, device=d).sum(), N),
    "the mean of a constant": (lambda d: torch.full((N,), 2.5, device=d).mean(), 2.5),
    "a copy from the host": (lambda d: torch.arange(5, N + 5).to(d).max(), N + 4),
    "cat": (lambda d: torch.cat([torch.ones(N, device=d), torch.ones(N, device=d)]), 1),
    "zeros padded": (lambda d: F.pad(torch.zeros(N, device=d), (1, 1)), 0),
    "an embedding of zeros": (lambda d: F.embedding(ids(d), torch.zeros(100, 64, device=d)), 0),
    "a product of constants": (lambda d: full(d, 64, 128, 2.0) @ full(d, 128, 64, 3.0), 768),
    "a scalar product": (lambda d: full(d, 1 << 20, 1.0) @ full(d, 1 << 20, 1.0), 1 << 20),
    "a linear layer of constants": (
        lambda d: F.linear(full(d, 64, 128, 1.0), full(d, 64, 128, 2.0), full(d, 64, 5.0)), 261),
    "products in a batch": (lambda d: full(d, 4, 64, 64, 2.0) @ full(d, 4, 64, 64, 0.5), 64),
    "a sum of indices": (
        lambda d: torch.einsum("bij,bkj->bik", full(d, 4, 8, 64, 1.0), full(d, 4, 8, 64, 1.0)), 64),
    "addmm with factors": (
        lambda d: torch.addmm(full(d, 64, 1.0), full(d, 64, 64, 2.0), full(d, 64, 64, 3.0),
                              beta=2, alpha=0.5), 194),
    "a product in bfloat16": (
        lambda d: full(d, 64, 300, 0.1).bfloat16() @ full(d, 300, 64, 3.0).bfloat16(), 90),
    "a product beyond half": (
        lambda d: (full(d, 64, 4096, 100.0) @ full(d, 4096, 64, 100.0)).half(), math.inf),
    "a factor beyond half": (lambda d: full(d, N, 1000.0, dtype=torch.half) * 1000, math.inf),
    "a convolution": (
        lambda d: F.conv2d(full(d, 4, 4, 64, 64, 1.0), full(d, 8, 4, 3, 3, 1.0)), 36),
    "a norm": (lambda d: full(d, N, -3.0).norm(), 192),
    "another norm": (lambda d: full(d, N, -3.0).norm(1), 3 * N),
    "the largest as a norm": (lambda d: full(d, N, -3.0).norm(math.inf), 3),
    "no variance": (lambda d: full(d, N, 3.0).var(), 0),
    "a product of all": (lambda d: full(d, 64, 100, 2.0).prod(1), 2.0**100),
    "an overflow": (lambda d: full(d, N, 2.0).prod(), math.inf),
    "equal scores": (lambda d: full(d, 64, 64, 3.0).softmax(1), 1 / 64),
    "a distance": (lambda d: F.mse_loss(full(d, N, 2.0), full(d, N, 5.0)), 9),
    "a pool": (lambda d: F.avg_pool2d(full(d, 4, 4, 64, 64, 3.0), 2), 3),
    "nearest neighbours": (lambda d: F.interpolate(full(d, 4, 4, 64, 64, 3.0), scale_factor=2), 3),
    "a count": (lambda d: torch.ones(N, device=d).count_nonzero(), N),
    "a chain": (lambda d: (full(d, N, 3.0) + 1).sqrt().pow(3).neg().abs().log2(), 3),
    "a gradient": (lambda d: gradient(full(d, 1 << 16, 2.0)), 2),
    "a choice by a true mask": (lambda d: torch.where(full(d, 1 << 16, 1.0) > 0, 2.0, 3.0), 2),
    "a constant that equals another": (
        lambda d: torch.tensor(torch.equal(full(d, N, 2.0) * 2, full(d, N, 4.0))), 1),
    "a constant that does not": (
        lambda d: torch.tensor(torch.equal(full(d, N, 2.0) * 2, full(d, N, 5.0))), 0),
    "equal elements, normalised": (lambda d: F.layer_norm(full(d, 8, N, 3.0), (N,)), 0),
    "with weight and bias": (
        lambda d: F.layer_norm(full(d, 8, N, 3.0), (N,), unknown(d), full(d, N, 5.0)), 5),
    "by the root of mean squares": (
        lambda d: F.rms_norm(full(d, 8, N, 3.0), (N,), full(d, N, 2.0), eps=7.0), 1.5),
    "attention to equal values": (
        lambda d: F.scaled_dot_product_attention(
            full(d, 2, 4, 64, 64, 0.0), unknown(d, 2, 4, 64, 64), full(d, 2, 4, 64, 64, 3.0)), 3),
    "causal attention": (
        lambda d: F.scaled_dot_product_attention(
            *[full(d, 64, 4, 2, 64, 0.0)] * 2, full(d, 64, 4, 2, 64, 3.0), is_causal=True), 3),
    "the last sum": (lambda d: full(d, N, 3.0).cumsum(0)[-1], 3 * N),
    "a column of sums": (lambda d: full(d, 64, N, 3.0).cumsum(1)[:, 99], 300),
    "a row of sums": (lambda d: full(d, 64, N, 2.0).cumsum(0)[9], 20),
    "one sum, copied": (lambda d: full(d, 64, N, -2.0).cumsum(0).clone()[9, 7:9], -20),
    "the last of an arange": (lambda d: torch.arange(0.0, N, 0.5, device=d)[-1], N - 0.5),
    "the middle of a linspace": (lambda d: torch.linspace(3, -1, N + 1, device=d)[N // 2], 1),
    "a trace": (lambda d: full(d, 64, 64, 3.0).trace(), 192),
    "a list": (lambda d: torch._foreach_add(*[[full(d, N, 2.0)]] * 2, alpha=2)[0], 6),
    "a list in place": (lambda d: in_place([full(d, N, 3.0), unknown(d), full(d, N, 2.0)]), 4),
    "norms of a list": (lambda d: torch._foreach_norm([unknown(d), full(d, N, -3.0)])[1], 192),
    "clipped": (lambda d: clipped(full(d, N, 1.0)), 0.5),
    "one step of momentum": (lambda d: stepped(full(d, N, 2.0)), 1.5),
    "a one-hot row": (lambda d: F.one_hot(ids(d), 100).max() <= 1, 1),
}  # fmt: skip


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize("name", DECIDED)
def test_facts_decide_what_they_can(name: str):
    """Read without a placeholder, and the same on the host."""
    call, expected = DECIDED[name]
    on_host = call("cpu").double()
    assert on_host.min() == on_host.max() == expected

    def script() -> None:
        result = call("cuda")
        assert set(torch.unique(torch.tensor(result.tolist()).double()).tolist()) == {expected}

    assert traced(script).placeholders == ()


def in_place(tensors: list[Tensor]) -> Tensor:
    torch._foreach_mul_(tensors, 2.0)
    return tensors[-1]


def clipped(gradient: Tensor) -> Tensor:
    weight = torch.nn.Parameter(torch.empty_like(gradient))
    weight.grad = gradient
    torch.nn.utils.clip_grad_norm_([weight], 32, foreach=True)
    return gradient


def stepped(start: Tensor) -> Tensor:
    weight = torch.nn.Parameter(start)
    weight.grad = torch.ones_like(start)
    torch.optim.SGD([weight], lr=0.5, momentum=0.9, foreach=True).step()
    return weight.detach()


BOUNDED: dict[str, Call] = {
    "randint": ids,
    "rand": lambda d: torch.rand(N, device=d),
    "negated": lambda d: -torch.rand(N, device=d),
    "a difference": lambda d: torch.rand(N, device=d) - 3 * torch.rand(N, device=d),
    "a product of signs": lambda d: (torch.rand(N, device=d) - 0.5) * torch.rand(N, device=d),
    "a quotient": lambda d: ids(d) / 7,
    "floor division": lambda d: ids(d) // 7,
    "a remainder": lambda d: ids(d) % 7,
    "an absolute": lambda d: (torch.rand(N, device=d) - 0.5).abs(),
    "absolute of a positive": lambda d: (torch.rand(N, device=d) + 1).abs(),
    "bitwise not": lambda d: ~ids(d),
    "bitwise and": lambda d: ids(d) & ids(d),
    "rounded": lambda d: torch.round(5 * torch.rand(N, device=d)),
    "floor": lambda d: torch.floor(-5 * torch.rand(N, device=d)),
    "minimum": lambda d: torch.minimum(unknown(d), torch.rand(N, device=d)),
    "maximum": lambda d: torch.maximum(unknown(d), torch.rand(N, device=d)),
    "clamp from below": lambda d: unknown(d).clamp(min=0.5),
    "where": lambda d: torch.where(mask(d), torch.rand(N, device=d), ids(d)),
    "masked_fill": lambda d: torch.rand(N, device=d).masked_fill(mask(d), -7),
    "gathered": lambda d: torch.rand(N, device=d)[ids(d)],
    "tril": lambda d: (torch.rand(64, 64, device=d) + 1).tril(),
    "cat": lambda d: torch.cat([torch.rand(N, device=d), 5 + torch.rand(N, device=d)]),
    "stacked": lambda d: torch.stack([torch.rand(N, device=d), torch.zeros(N, device=d)]),
    "rows of a sum": lambda d: ids(d, 64, 64).sum(1),
    "rows of a mean": lambda d: torch.rand(64, 256, device=d).mean(1),
    "rows of a maximum": lambda d: torch.rand(8192, 2, device=d).amax(1),
    "cumsum": lambda d: ids(d).cumsum(0),
    "sorted": lambda d: torch.rand(N, device=d).sort().values,
    "the top": lambda d: torch.rand(64, 64, device=d).topk(40).values,
    "a permutation": lambda d: torch.randperm(N, device=d),
    "cast down": lambda d: (300 * torch.rand(N, device=d)).int(),
    "written in part": lambda d: torch.zeros(N, device=d).index_fill_(0, ids(d), 3.0),
    "written to a view": lambda d: write(torch.zeros(N, device=d), 7),
    "overwritten by less": lambda d: write(torch.full((N,), 9.0, device=d), 7),
    "scattered": lambda d: torch.zeros(N, device=d).scatter_(0, ids(d), 2.0),
    "put": lambda d: torch.ones(N, device=d).index_put_((ids(d),), torch.rand(N, device=d)),
    "a mask of minus infinity": lambda d: unknown(d).masked_fill(mask(d), -math.inf),
    "with infinity added": lambda d: torch.rand(N, device=d) + infinite(d),
    "a truncated quotient": lambda d: torch.div(ids(d) + 5, 2, rounding_mode="trunc"),
    "a quotient floored below zero": lambda d: (ids(d) - 50) // 7,
    "copied in broadcast": lambda d: torch.zeros(2, N, device=d).copy_(torch.randperm(N, device=d)),
    "an even choice as a bool": lambda d: ids(d, below=8).bool().long() + 1,
    "a product": lambda d: torch.rand(64, 64, device=d) @ (torch.rand(64, 64, device=d) - 0.5),
    "a product with a bias": lambda d: F.linear(
        torch.rand(64, 64, device=d), torch.rand(64, 64, device=d), -torch.rand(64, device=d)),
    "a convolution with an edge": lambda d: F.conv2d(
        torch.rand(4, 4, 64, 64, device=d) + 1, torch.rand(8, 4, 3, 3, device=d), padding=1),
    "norms of rows": lambda d: (torch.rand(8192, 4, device=d) - 2).norm(dim=1),
    "sums of exponentials": lambda d: torch.rand(8192, 4, device=d).logsumexp(1),
    "a pool with an edge": lambda d: F.avg_pool2d(torch.rand(4, 4, 64, 64, device=d) + 1, 3, 1, 1),
    "spaced": lambda d: torch.linspace(3, -1, N, device=d),
    "likelihoods": lambda d: unknown(d, 64, 64).log_softmax(1),
    "counts": lambda d: (unknown(d, 8192, 4) > 0).count_nonzero(1),
    "in place": lambda d: torch.rand(N, device=d).add_(1).mul_(-2).clamp_(max=-2.5),
}  # fmt: skip


def write(tensor: Tensor, number: float) -> Tensor:
    tensor[: N // 2].fill_(number)
    return tensor


def infinite(device: str) -> Tensor:
    return torch.zeros(N, device=device).masked_fill(mask(device), math.inf)


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_on_the_host(name: str):
    call = BOUNDED[name]
    with torchtally.virtual_gpu("H100-SXM"):
        facts = facts_of(call("cuda"))
    assert facts is not None
    real = call("cpu").double()
    if facts.is_finite:
        assert real.isfinite().all()
    assert facts.lower <= real.min().item() + 1e-6
    assert real.max().item() <= facts.upper + 1e-6
    if facts.total is not None:
        assert real.sum().item() == facts.total
    if facts.is_permutation:
        assert torch.equal(real.sort().values, torch.arange(real.numel()).double())


UNDECIDED: dict[str, Call] = {
    "a comparison": mask,
    "its negation": lambda d: ~mask(d),
    "true & ?": lambda d: torch.ones(N, dtype=torch.bool, device=d) & mask(d),
    "false | ?": lambda d: torch.zeros(N, dtype=torch.bool, device=d) | mask(d),
    "finite, of what may be infinite": lambda d: torch.isfinite(infinite(d)),
    "zero times what may be infinite": lambda d: infinite(d) * 0 == 0,
    "what may be NaN equals itself": lambda d: (lambda x: x == x)(infinite(d) - infinite(d)),
    "a constant written over in part": lambda d: write(torch.zeros(N, device=d), 1) == 0,
    "a constant with an unknown added": lambda d: torch.zeros(N, device=d).add_(unknown(d)) == 0,
    "the bytes of a constant": lambda d: torch.ones(N, device=d).view(torch.int32) == 1,
    "an unknown copied in": lambda d: torch.zeros(N, device=d).copy_(unknown(d)) == 0,
    "an integer that overflows": lambda d: ids(d, below=2**40).int() >= 0,
    "put with accumulation": lambda d: (
        torch.zeros(N, device=d).index_put_((ids(d),), torch.ones(N, device=d), accumulate=True) < 2
    ),
    "scattered with a sum": lambda d: (
        torch.zeros(N, device=d).scatter_(0, ids(d), 1.0, reduce="add") < 2
    ),
    "logical and of fractions": lambda d: (
        torch.logical_and(torch.rand(N, device=d) / 2, torch.rand(N, device=d) / 2) == 1
    ),
    "more than float16 holds": lambda d: (torch.rand(N, device=d) * 1e5).half() < 1e6,
    "rounded to tens": lambda d: torch.round(15 * torch.rand(N, device=d), decimals=-1) <= 15,
    "inverted isin": lambda d: ~torch.isin(ids(d), 7, invert=True),
    "sums turned round": lambda d: torch.ones(64, 64, device=d).cumsum(0).flip(0)[-1] == 64,
    "sums transposed": lambda d: torch.ones(64, 64, device=d).cumsum(0).t().contiguous()[-1] == 64,
    "sums in part written over": lambda d: sums_written_over(d)[-1] == N,
    "sums along a row": lambda d: torch.ones(64, 64, device=d).cumsum(0)[:, 3] == 64,
    "attention with a mask of unknown choice": lambda d: F.scaled_dot_product_attention(
        *[torch.ones(1, 1, 64, 64, device=d)] * 3, attn_mask=unknown(d, 64, 64) > 0) == 1,
    "a foreach operator beside an unknown": lambda d: torch._foreach_add(
        [torch.ones(N, device=d)], [unknown(d)])[0] == 2,
    "updated by a foreach operator": lambda d: foreach(torch.zeros(N, device=d), unknown(d)) == 0,
}  # fmt: skip


def sums_written_over(device: str) -> Tensor:
    sums = torch.ones(N, device=device).cumsum(0)
    sums[:9] = torch.randn(9, device=device)
    return sums


def foreach(tensor: Tensor, change: Tensor) -> Tensor:
    torch._foreach_add_([tensor], [change])
    return tensor


@pytest.mark.parametrize("name", UNDECIDED)
def test_facts_claim_no_more_than_is_known(name: str):
    def script() -> None:
        assert not UNDECIDED[name]("cuda").all()

    (placeholder,) = traced(script).placeholders
    assert placeholder.given == "False"


def test_a_tensor_equals_itself():
    def script() -> None:
        x = unknown("cuda")
        assert torch.equal(x, x)
        assert torch.allclose(x, x)
        assert torch.equal(x.view(64, 64), x.view(64, 64))
        assert not torch.equal(x, x.view(64, 64))
        assert torch.equal(torch.ones(N, device="cuda"), torch.ones(N, device="cuda"))
        assert not torch.equal(torch.ones(N, device="cuda"), torch.zeros(N, device="cuda"))

    assert traced(script).placeholders == ()


def test_a_permutation_has_as_many_different_numbers_as_elements():
    def script() -> None:
        order = torch.randperm(N, device="cuda")
        assert torch.unique(order).shape == (N,)

    assert traced(script).placeholders == ()


# Choices.


def given(function: Callable[[], object]) -> set[str]:
    return {placeholder.given for placeholder in traced(function).placeholders}


@SIZES
def test_a_top_1_router_sends_every_expert_its_share():
    """8 experts: `argmax`, then a mask or a split of sorted tokens for each."""
    tokens = N

    def script() -> None:
        x = unknown("cuda", tokens, 64)
        chosen = (x @ unknown("cuda", 64, 8)).argmax(-1)
        counts = torch.bincount(chosen, minlength=8)
        assert counts.tolist() == [tokens // 8] * 8
        assert [len(part) for part in x[chosen.argsort()].split(counts.tolist())] == [
            tokens // 8
        ] * 8
        assert torch.histc(chosen.int(), 8, 0, 7).tolist() == [tokens // 8] * 8
        for expert in range(8):
            assert x[chosen == expert].shape == (tokens // 8, 64)
        hot = F.one_hot(chosen, 8)
        assert hot.sum(0).tolist() == [tokens // 8] * 8
        assert (hot.sum(0) > 0).nonzero().shape == (8, 1)
        for expert in range(8):
            assert torch.where(hot.t()[expert])[0].shape == (tokens // 8,)
            assert (chosen == expert).any()
        assert F.one_hot(chosen).shape == (tokens, 8)
        assert (chosen[:, None] == torch.arange(8, device="cuda")).sum(0).tolist() == [
            tokens // 8
        ] * 8

    assert given(script) == {"assumed: balanced routing"}


@SIZES
def test_a_top_2_router_sends_every_expert_its_share():
    def script() -> None:
        scores, chosen = unknown("cuda", N, 8).softmax(-1).topk(2)
        assert (scores <= 1).all()
        for expert in range(8):
            rows, _place = torch.where(chosen == expert)
            assert rows.shape == (N // 4,)

    assert given(script) == {"assumed: balanced routing"}


def test_experts_that_choose_tokens_choose_each_equally_often():
    """16 tokens, 4 experts of 8 places: each token twice, and no expert one token twice."""

    def script() -> None:
        places = unknown("cuda", 16, 4).expand(16, 4).contiguous()
        places = (places @ unknown("cuda", 4, 4096))[:, :4].topk(8, dim=0).indices
        assert torch.bincount(places.flatten()).tolist() == [2] * 16
        assert all(len(set(column)) == 8 for column in places.t().tolist())

    assert given(script) == {"assumed: balanced routing"}


def test_a_single_choice_is_from_the_middle():
    def script() -> None:
        logits = unknown("cuda", 1, 50_000)
        assert logits.argmax(-1).item() == 30_901
        assert logits.argmax().item() == 30_901
        assert logits.max(-1).indices.tolist() == [30_901]

    assert given(script) == {"assumed: balanced routing"}


def test_known_scores_choose_for_themselves():
    def script() -> None:
        scores = torch.tensor([[0.0, 2.0, 1.0]], device="cuda")
        assert scores.argmax().item() == 1
        assert scores.topk(2).indices.tolist() == [[1, 2]]

    assert traced(script).placeholders == ()


def test_the_assumption_goes_with_all_that_follows_from_a_choice():
    def script() -> None:
        chosen = unknown("cuda", 8, 512).argmax(-1)
        buffer = torch.zeros(8, dtype=torch.long, device="cuda")
        buffer += chosen
        (buffer * 2).cpu()
        buffer.zero_()
        buffer.cpu()

    (placeholder,) = traced(script).placeholders
    assert (placeholder.op, placeholder.given, placeholder.count) == (
        "aten._to_copy", "assumed: balanced routing", 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda x, mask: x > -1e9, True),
        (lambda x, mask: x <= mask, False),
        (lambda x, mask: mask < x, True),
        (lambda x, mask: mask >= x, False),
        (lambda x, mask: x > mask + 1e10, None),
    ],
)
def test_scores_above_a_mask_are_an_assumption(
    ask: Callable[[Tensor, Tensor], Tensor], answer: bool | None
):
    """What transformers' beam search asks after each token: can an open beam improve?"""
    answers = []

    def script() -> None:
        mask = torch.full((N,), -1e9, device="cuda")
        answers.append(bool(ask(torch.randn(N, device="cuda"), mask).any()))

    (read,) = traced(script).placeholders
    assert (read.given == "assumed: unknown scores lie above -1e9") is (answer is not None)
    assert answers == [bool(answer)]


def test_one_hot_of_many_ids_is_as_wide_as_their_bounds():
    def script() -> None:
        assert F.one_hot(ids("cuda")).shape == (N, 100)
        assert F.one_hot(ids("cpu", below=50).to("cuda")).shape == (N, 50)

    (placeholder,) = traced(script).placeholders
    assert placeholder.given == "assumed: evenly drawn"


def test_a_mask_of_known_share_selects_that_share():
    def script() -> None:
        kept = torch.empty(N, device="cuda").bernoulli_(0.25).bool()
        assert unknown("cuda")[kept].shape == (N // 4,)
        assert unknown("cuda")[~kept].shape == (3 * N // 4,)

    assert given(script) == {"assumed: evenly drawn"}


def test_hits_among_a_known_mask_are_at_most_its_ones():
    """A recall is at most 1, and so is an intersection over a union."""

    def script() -> None:
        labels, guesses = (torch.arange(1000) % 10 == 0).cuda(), unknown("cuda")[:1000] > 0
        assert guesses.float().sum().item() == guesses.sum().item() == 500
        assert labels.float().mean().item() == pytest.approx(labels.sum().item() / 1000)
        for hits in (guesses & labels, guesses * labels, guesses.float() * labels.float()):
            assert 0 < hits.sum().item() <= labels.sum().item() == 100

    traced(script)


@SIZES
def test_a_label_may_be_among_the_likeliest():
    """An accuracy of 0 would be as special as one of 1."""

    def script() -> None:
        likeliest = unknown("cuda", N, 100).topk(5).indices
        hits = (likeliest == torch.randint(100, (N, 1)).cuda()).any(1)
        assert 0 < hits.float().mean().item() < 1

    traced(script)


def test_a_mask_that_is_known_as_a_whole_needs_no_assumption():
    def script() -> None:
        assert unknown("cuda")[ids("cuda") >= 0].shape == (N,)
        assert unknown("cuda")[ids("cuda") < 0].shape == (0,)
        assert torch.masked_select(unknown("cuda"), ids("cuda") >= 0).shape == (N,)

    assert traced(script).placeholders == ()


def placeholders(function: Callable[[], object]) -> tuple[Placeholder, ...]:
    return traced(function).placeholders


def test_an_unknown_number_within_bounds_reads_as_one_of_them():
    def script() -> None:
        x = ids("cuda", below=101)
        assert x[0].item() == 50
        assert x[:2].tolist() == [50, 50]
        assert (unknown("cuda").clamp(2, 3))[0].item() == 2
        assert torch.rand(N, device="cuda")[0].item() == 1

    assert [placeholder.given for placeholder in placeholders(script)] == [
        "50", "50 in every element", "2.0", "1.0",
    ]  # fmt: skip


def test_facts_die_with_what_they_are_of():
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.zeros(N, device="cuda")
        assert facts_of(x) == Facts(0.0, 0.0)
        x.resize_(2 * N)
        assert facts_of(x) is None


def test_facts_go_with_a_copy_to_the_host_and_back():
    def script() -> None:
        x = torch.full((N, 1024), 0.5, device="cuda")
        assert (x.cpu().cuda() == 0.5).all()
        assert x.cpu()[3, 4].item() == 0.5
        assert x.cpu().numpy().sum() == N * 512

    assert traced(script).placeholders == ()
