"""Chains of operators: what is known of every tensor on the way holds for real values."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import torchtally
from torchtally.virtual import values
from torchtally.virtual.facts import facts_or_range, substitute

Call = Callable[[str], Tensor]


SOURCES: dict[str, Call] = {
    "rand": lambda d: torch.rand(8, 8, device=d),
    "ids": lambda d: torch.randint(0, 100, (8, 8), device=d).float(),
    "normal": lambda d: torch.randn(8, 8, device=d),
    "constant": lambda d: torch.full((8, 8), 0.75, device=d),
    "ones": lambda d: torch.ones(8, 8, device=d),
    "zeros": lambda d: torch.zeros(8, 8, device=d),
    "range": lambda d: torch.arange(-32.0, 32, device=d).view(8, 8),
    "drop": lambda d: torch.bernoulli(torch.full((8, 8), 0.5, device=d)),
}
ONE: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in ("neg", "abs", "relu", "sigmoid", "tanh", "exp", "sin", "square", "round", "floor",
                 "sign", "isfinite", "logical_not", "erf")
} | {
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "clamp": lambda x: x.clamp(-1, 2),
    "scaled": lambda x: x * -3 + 1,
    "halved": lambda x: x / 2,
    "rows": lambda x: x.sum(1, keepdim=True).expand(8, 8),
    "means": lambda x: x.mean(0, keepdim=True).expand(8, 8),
    "norms": lambda x: x.norm(dim=1, keepdim=True).expand(8, 8),
    "largest": lambda x: x.amax(1, keepdim=True).expand(8, 8),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True).expand(8, 8),
    "counts": lambda x: x.count_nonzero(1).expand(8, 8),
    "sorted": lambda x: x.sort(1).values,
    "cumsum": lambda x: x.cumsum(1),
    "last sums": lambda x: x.cumsum(1)[:, -1:].expand(8, 8),
    "third sums": lambda x: x.cumsum(0)[2].expand(8, 8),
    "sums in place": lambda x: x.t().clone().cumsum_(1)[:, 5:6].expand(8, 8),
    "a column": lambda x: x[:, 2:3].expand(8, 8),
    "normalised": lambda x: F.layer_norm(x, (8,), bias=x[0]),
    "attention": lambda x: F.scaled_dot_product_attention(*x.expand(3, 1, 1, 8, 8))[0, 0],
    "doubled in a list": lambda x: torch._foreach_mul([x], 2.0)[0],
    "triangle": lambda x: x.tril(),
    "turned": lambda x: x.t().flip(0),
    "positive": lambda x: x > 0,
    "in half": lambda x: x.half(),
    "in bfloat16": lambda x: x.bfloat16(),
    "variances": lambda x: x.var(1, keepdim=True).expand(8, 8),
    "products": lambda x: x.prod(1, keepdim=True).expand(8, 8),
}  # fmt: skip
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "mm": torch.mm,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "less": torch.lt,
    "equal": torch.eq,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x[:4], y[:4]]),
    "fill": lambda x, y: x.masked_fill(y > 0, -7),
    "addmm": lambda x, y: torch.addmm(x, y, x, beta=2, alpha=-0.5),
    "mse": lambda x, y: F.mse_loss(x, y, reduction="none"),
}
Step = tuple[str, int]
steps = st.tuples(st.sampled_from([*ONE, *TWO]), st.integers(0, 1))
"""An operator, and by how much its second operand was computed before its first."""


def computed(device: str, sources: list[str], chain: list[Step]) -> list[Tensor]:
    """All tensors on the way."""
    made = [SOURCES[name](device) for name in sources]
    for name, before in chain:
        x = made[-1].float()
        y = made[-2 - before].float() if name in TWO else x
        made.append(TWO[name](x, y) if name in TWO else ONE[name](x))
    return made


@given(
    st.lists(st.sampled_from(list(SOURCES)), min_size=3, max_size=3),
    st.lists(steps, min_size=1, max_size=5),
)
def test_facts_and_placeholders_hold_for_real_values(sources: list[str], chain: list[Step]):
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("FLOAT_VALUE_BYTES", "INTEGER_VALUE_BYTES"):
            patch.setattr(values, limit, 0)
        with torchtally.virtual_gpu("H100-SXM"):
            made = computed("cuda", sources, chain)
            known = [(facts_or_range(each), each.dtype, substitute(each)) for each in made]
    for (facts, dtype, read), real in zip(known, computed("cpu", sources, chain), strict=True):
        assert facts.is_constant or facts.lower <= read <= facts.upper
        if facts.is_assumed:
            continue
        numbers = real.double()
        if facts.is_finite:
            # A run that goes well does not overflow.
            numbers = numbers[numbers.isfinite()]
        rounding = 0.02 if dtype in (torch.half, torch.bfloat16) else 1e-4
        error = rounding * (1 + numbers.abs())
        assert bool(
            (numbers >= facts.lower - error).all() and (numbers <= facts.upper + error).all()
        )
