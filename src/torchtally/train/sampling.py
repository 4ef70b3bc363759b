"""Sampling text from a decoder, token by token.

Until the context is full a KV cache keeps what previous tokens left; then each token runs the model
over the last ones. It is for inspecting a training, not for serving.

Axes: `batch` prompts, `prompt` and `total` their tokens before and after, `width`, `vocabulary`,
`kept` its top k.
"""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from torchtally.checkpoints.checked import Count, Magnitude, Size, convert
from torchtally.errors import UsageError
from torchtally.train.data.tokenizer import Tokenizer
from torchtally.train.evaluation import PrecisionContext, evaluation_mode
from torchtally.train.models.past import Past
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
    """The prompts continued by `tokens` tokens each, on the model's device.

    Each token is drawn from softmax(logits / temperature), restricted to the `top_k` likeliest if
    given; temperature 0 takes the likeliest, of equals the lowest id. Once the context is full the
    model sees only the last tokens. `seed` is this source's own (`seed_of(Source.SAMPLING, ...)`);
    the model's modes and the training's random states are unaffected.

    Raises UsageError for an empty prompt, ids outside of the vocabulary, and numbers out of range.
    """
    for name, hint, value in (
        ("tokens", Count, tokens),
        ("temperature", Magnitude, temperature),
        ("top_k", Size | None, top_k),
    ):
        convert(name, hint, value)
    _check_prompt(prompt_ids, model.config.vocabulary)
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    ids = prompt_ids.to(device, torch.int64)
    with evaluation_mode(model):
        past = model.no_past()
        for _ in range(tokens):
            with precision_context():
                logits = model.logits(_last_hidden(model, ids, past))
            drawn = next_ids(
                logits.float(), temperature=temperature, top_k=top_k, generator=generator
            )
            ids = torch.cat([ids, drawn[:, None]], dim=1)
    return ids


def continue_prompt(
    model: Transformer, tokenizer: Tokenizer, prompt: str, *, tokens: int, **options: Any
) -> tuple[list[int], str]:
    """The ids of a prompt and of what `sample` draws after it, and their text."""
    chunks = tokenizer.encode([prompt.encode(errors="surrogateescape")])
    ids = torch.tensor([[int(token) for chunk in chunks for token in chunk]], dtype=torch.int64)
    drawn = sample(model, ids, tokens=tokens, **options)[0].tolist()
    return drawn, tokenizer.decode(drawn)


def _last_hidden(
    model: Transformer, ids: Int[Tensor, "batch total"], past: list[Past]
) -> Float[Tensor, "batch width"]:
    """The input of the head for the token after these."""
    if ids.shape[1] > model.config.context:
        return model.hidden(ids[:, -model.config.context :])[:, -1]
    return model.hidden(ids[:, past[0].tokens :], past)[:, -1]


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


def _check_prompt(prompt_ids: Tensor, vocabulary: int) -> None:
    if prompt_ids.numel() == 0:
        raise UsageError("The prompt is empty: give at least one token.")
    least, greatest = (int(bound) for bound in prompt_ids.aminmax())
    if least < 0 or greatest >= vocabulary:
        raise UsageError(
            f"The prompt has ids from {least} to {greatest}; the vocabulary has "
            f"{vocabulary}. Was it encoded by another tokenizer?"
        )
