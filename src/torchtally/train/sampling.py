"""Text from a decoder, one token after the other.

There is no cache of keys and values: each token runs the model over all tokens before it, up to its
context. It is for a look at what a training has learnt, not for serving.

Axes: `batch` prompts, `prompt` and `total` their tokens before and after, `vocabulary`, `kept` the
likeliest of it.
"""

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.train.evaluation import PrecisionContext, evaluation_mode
from torchtally.train.models.transformer import Transformer


def sample(
    model: Transformer,
    prompt_ids: Int[Tensor, "batch prompt"],
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int,
    precision_context: PrecisionContext = nullcontext,
) -> Int[Tensor, "batch total"]:
    """The prompts with `tokens` more tokens each, on the model's device.

    Each token is drawn from softmax(logits / temperature), of the `top_k` likeliest alone if given;
    temperature 0 takes the likeliest, the lowest id of equals. Once the model's context is full the
    window slides: the model sees the last tokens only. `seed` is that of this source alone
    (`seed_of(Source.SAMPLING, ...)`); the draws come from a generator of their own, and the
    training's modes and random states stay as they are.

    Raises UsageError for a prompt that is empty or outside of the vocabulary, and for a number out
    of its range.
    """
    _check(prompt_ids, model.config.vocabulary, tokens, temperature, top_k)
    weight = model.head_weight
    generator = torch.Generator(weight.device).manual_seed(seed)
    ids = prompt_ids.to(weight.device, torch.int64)
    with evaluation_mode(model):
        for _ in range(tokens):
            with precision_context():
                last = model.hidden(ids[:, -model.config.context :])[:, -1]
                logits = F.linear(last, weight)
            drawn = next_ids(
                logits.float(), temperature=temperature, top_k=top_k, generator=generator
            )
            ids = torch.cat([ids, drawn[:, None]], dim=1)
    return ids


def next_ids(
    logits: Float[Tensor, "batch vocabulary"],
    *,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Int[Tensor, " batch"]:
    """One id for each row, drawn as `sample` says."""
    if temperature == 0:
        return logits.argmax(dim=-1)
    if top_k is None or top_k >= logits.shape[-1]:
        return _draw(logits / temperature, generator)
    kept, places = logits.topk(top_k, dim=-1)
    chosen = _draw(kept / temperature, generator)
    return places.gather(-1, chosen[:, None])[:, 0]


def _draw(scores: Float[Tensor, "batch kept"], generator: torch.Generator) -> Int[Tensor, " batch"]:
    shares = torch.softmax(scores, dim=-1)
    return torch.multinomial(shares, 1, generator=generator)[:, 0]


def _check(
    prompt_ids: Tensor, vocabulary: int, tokens: int, temperature: float, top_k: int | None
) -> None:
    if prompt_ids.numel() == 0:
        raise UsageError("The prompt is empty: give at least one token to go on from.")
    least, greatest = (int(bound) for bound in prompt_ids.aminmax())
    if least < 0 or greatest >= vocabulary:
        raise UsageError(
            f"The prompt has ids from {least} to {greatest}; the model knows those below "
            f"{vocabulary}. Was it encoded by another tokenizer?"
        )
    if tokens < 0:
        raise UsageError(f"tokens: {tokens} is no count: give 0 or more.")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UsageError(f"temperature: {temperature} must be 0 or more.")
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k: {top_k} leaves no token to draw: give 1 or more.")
