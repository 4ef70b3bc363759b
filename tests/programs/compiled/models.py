"""Blocks of layers, trained as they are and with each layer compiled by PyTorch's own compiler."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.traces import traced
from torchtally import account
from torchtally.chips import chip
from torchtally.programs.compiled import COMPILED_LAYERS, compiled
from torchtally.timing.roofline import Roofline
from torchtally.trace import Phase, Trace
from torchtally.work import Kind

GPU = "H100-SXM"
WIDTH, HEADS, LAYERS = 512, 8, 2


class RMSNorm(nn.Module):
    """As transformers writes it: in float32, operator by operator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Gated(nn.Module):
    """RMS norms, rotated queries and keys, SwiGLU: Llama's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.mlp = SwiGLU()

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (
            each(h).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        q, k = q * cos + half(q) * sin, k * cos + half(k) * sin
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norm_2(x))


def half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Dense(nn.Module):
    """Layer norms, biases, dropout, GELU: GPT-2's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for each in self.qkv(self.norm(x)).split(WIDTH, -1)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.o(a.transpose(1, 2).reshape(x.shape)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_2(x)))), 0.1, self.training)


class Blocks(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def trained(
    layer: Callable[[], nn.Module], batch: int, sequence: int, *, autocast: bool, is_compiled: bool
) -> Trace:
    """Two steps."""

    def training() -> None:
        model = Blocks(layer).cuda()
        dtype = torch.float32 if autocast else torch.bfloat16
        model = model.to(dtype)
        if is_compiled:
            for each in model.layers:
                each.compile()
        optimizer = torch.optim.AdamW(model.parameters())
        angles = torch.ones(sequence, WIDTH // HEADS, device="cuda", dtype=dtype)
        for _ in range(2):
            x = torch.ones(batch, sequence, WIDTH, device="cuda", dtype=dtype)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = model(x, angles, angles).float().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return traced(training, GPU, memory_is_limited=False)


def derived(trace: Trace) -> Trace:
    return compiled(trace, COMPILED_LAYERS)


class Figures(NamedTuple):
    """Of the second step; memory of the whole run."""

    kernels: int
    fused_bytes: int
    matmul_flops: int
    kept_bytes: int
    peak_bytes: int
    seconds: float


def figures(trace: Trace) -> Figures:
    ledger = account(trace, roofline=Roofline(chip(GPU)))
    ledger.check()
    first, _ = trace.steady_step
    backward = min(e.op.clock for e in ledger.reported if e.op.phase is Phase.BACKWARD)
    fused = [entry for entry in ledger.reported if entry.kind is Kind.FUSED]
    assert ledger.step_s is not None
    return Figures(
        len(list(ledger.kernels(fused))),
        sum(entry.cost.bytes for entry in fused),
        sum(entry.cost.flops for entry in ledger.reported if entry.kind.is_matmul),
        sum(
            s.requested_bytes
            for s in trace.storages
            if first <= s.born < backward and (s.died is None or s.died > backward)
        ),
        ledger.memory.peak_bytes,
        ledger.step_s,
    )
