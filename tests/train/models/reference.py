"""The decoder once more, from its definition alone: a head and a token at a time, in float64."""

import math

import torch
from torch import Tensor

from torchtally.train.models.transformer import Transformer


def logits_of(model: Transformer, ids: Tensor) -> Tensor:
    """Of one sequence: (sequence, vocabulary)."""
    state = {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
    config = model.config
    x = state["embedding.weight"][ids]
    if config.positions == "learned":
        x = x + state["positions.weight"][: len(ids)]
    for at in range(config.layers):
        block = f"blocks.{at}"
        for name, part in (("attention", attention), ("feed_forward", feed_forward)):
            normed = norm(model, state, f"{block}.{name}_norm", x)
            x = x + part(model, state, f"{block}.{name}", normed)
    head = state["embedding.weight" if config.is_tied else "head.weight"]
    return norm(model, state, "norm", x) @ head.T


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def norm(model: Transformer, state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    if model.config.norm == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + model.config.norm_eps)
    x = x * state[f"{name}.weight"]
    return x + state[f"{name}.bias"] if f"{name}.bias" in state else x


def feed_forward(model: Transformer, state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    up = linear(state, f"{name}.up", x)
    if model.config.activation == "swiglu":
        gate = linear(state, f"{name}.gate", x)
        return linear(state, f"{name}.down", gate / (1 + torch.exp(-gate)) * up)
    if model.config.activation == "gelu":
        share = (1 + torch.erf(up / math.sqrt(2))) / 2
    else:
        share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3))) / 2
    return linear(state, f"{name}.down", up * share)


def attention(model: Transformer, state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    h, k, D = model.config.heads, model.config.kv_heads, model.config.head_size
    rows = linear(state, f"{name}.qkv", x).split([D] * (h + 2 * k), dim=-1)
    outputs = []
    for head in range(h):
        group = head // (h // k)
        q, key, value = rows[head], rows[h + group], rows[h + k + group]
        if model.config.positions == "rope":
            q, key = turned(model, q), turned(model, key)
        outputs.append(seen(model, q, key, value))
    return linear(state, f"{name}.output", torch.cat(outputs, dim=-1))


def seen(model: Transformer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Token by token: a softmax over those that it may see."""
    window = model.config.window or len(q)
    lines = []
    for at in range(len(q)):
        first = max(0, at - window + 1)
        scores = k[first : at + 1] @ q[at] / math.sqrt(q.shape[-1])
        lines.append(torch.softmax(scores, dim=0) @ v[first : at + 1])
    return torch.stack(lines)


def turned(model: Transformer, x: Tensor) -> Tensor:
    """Numbers i and i + D/2 of a head as a complex one, turned by position * theta^(-2 i / D)."""
    half = x.shape[-1] // 2
    rates = model.config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * rates
    pairs = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)
