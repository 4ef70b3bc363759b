"""Sampling: what is drawn, from how much of the text, and that nothing else notices."""

import pytest
import torch
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.transformer import Transformer
from torchtally.train.sampling import next_ids, sample

V = 8


def decoder(**changes: object) -> Transformer:
    torch.manual_seed(3)
    sizes = {
        "layers": 1, "width": 8, "heads": 2, "kv_heads": 2, "ffn": 16, "vocabulary": V,
        "context": 4,
    }  # fmt: skip
    return Transformer(TransformerConfig(**{**sizes, **changes}))  # type: ignore[arg-type]


@torch.no_grad()
def successor() -> Transformer:
    """After id i comes i + 1: embeddings are unit vectors, and the blocks write nothing."""
    model = decoder()
    model.embedding.weight.copy_(torch.eye(V))
    for name, weight in model.blocks.named_parameters():
        if "norm" not in name:
            weight.zero_()
    model.head_weight.copy_(torch.eye(V).roll(1, dims=0))
    return model


def prompt(*ids: int) -> Tensor:
    return torch.tensor([ids])


def test_greedy_counts_on_beyond_the_context() -> None:
    token_ids = sample(successor(), prompt(5), tokens=9, temperature=0.0, seed=0)
    assert token_ids.tolist() == [[5, 6, 7, 0, 1, 2, 3, 4, 5, 6]]


def test_the_window_slides_when_the_context_is_full() -> None:
    model, seen = decoder(), []
    native = model.hidden

    def hidden(ids: Tensor) -> Tensor:
        seen.append(ids.tolist()[0])
        return native(ids)

    model.hidden = hidden  # type: ignore[method-assign]
    sampled = sample(model, prompt(1, 2, 3, 4, 5), tokens=3, seed=0).tolist()[0]
    assert seen == [sampled[1:5], sampled[2:6], sampled[3:7]]


def test_greedy_is_the_models_own_argmax() -> None:
    model = decoder().eval()
    ids = prompt(1, 2)
    for _ in range(6):
        ids = torch.cat([ids, model(ids[:, -4:])[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(sample(model, prompt(1, 2), tokens=6, temperature=0.0, seed=9), ids)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (0.5, 3), (2.0, 99)])
def test_ids_are_distributed_as_softmax_says(temperature: float, top_k: int | None) -> None:
    """Pearson's chi-squared of 20000 draws; 30 is far out in its tail for 7 degrees of freedom."""
    model, draws = decoder().eval(), 20_000
    draws_made = sample(
        model, prompt(1, 2).expand(draws, 2), tokens=1, temperature=temperature, top_k=top_k,
        seed=4,
    )[:, -1]  # fmt: skip
    with torch.no_grad():
        logits = model(prompt(1, 2))[0, -1].double()
    if top_k is not None and top_k < V:
        logits[logits.argsort()[:-top_k]] = -torch.inf
    expected = draws * torch.softmax(logits / temperature, -1)
    counts = torch.bincount(draws_made, minlength=V)
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    assert float(((counts - expected)[kept] ** 2 / expected[kept]).sum()) < 30
    # The same check finds a distribution that is another one.
    uniform = torch.full((V,), draws / V)
    assert float(((counts - uniform) ** 2 / uniform).sum()) > 30


def test_top_one_is_greedy() -> None:
    model = decoder()
    greedy = sample(model, prompt(1), tokens=5, temperature=0.0, seed=0)
    assert torch.equal(sample(model, prompt(1), tokens=5, top_k=1, seed=0), greedy)


def test_of_equals_greedy_takes_the_lowest_id() -> None:
    next_tokens = next_ids(
        torch.zeros(2, 5), temperature=0.0, top_k=None, generator=torch.Generator()
    )
    assert next_tokens.tolist() == [0, 0]


def test_a_seed_is_a_text_and_another_seed_another() -> None:
    model = decoder()
    texts = [sample(model, prompt(1), tokens=20, seed=seed).tolist() for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_training_is_undisturbed() -> None:
    model = decoder(dropout=0.5)
    state = torch.get_rng_state()
    samples = [sample(model, prompt(1), tokens=5, seed=1).tolist() for _ in range(2)]
    assert samples[0] == samples[1]  # without dropout
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_prompts_of_a_batch_do_not_touch_each_other() -> None:
    model = decoder()
    both = sample(model, torch.tensor([[1, 2], [3, 4]]), tokens=4, temperature=0.0, seed=0)
    alone = [sample(model, prompt(*ids), tokens=4, temperature=0.0, seed=0)
             for ids in ((1, 2), (3, 4))]  # fmt: skip
    assert torch.equal(both, torch.cat(alone))


def test_no_tokens_is_the_prompt() -> None:
    assert sample(decoder(), prompt(1, 2), tokens=0, seed=0).tolist() == [[1, 2]]


def test_a_narrow_model_is_drawn_from_in_float32() -> None:
    token_ids = sample(decoder().bfloat16(), prompt(1), tokens=3, seed=0)
    assert token_ids.shape == (1, 4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"prompt_ids": torch.zeros(1, 0, dtype=torch.long)}, "empty"),
        ({"prompt_ids": torch.tensor([[V]])}, "another tokenizer"),
        ({"prompt_ids": torch.tensor([[-1]])}, "another tokenizer"),
        ({"tokens": -1}, "tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], match: str) -> None:
    options = {"prompt_ids": prompt(1), "tokens": 1, "seed": 0, **change}
    with pytest.raises(UsageError, match=match):
        sample(decoder(), **options)  # type: ignore[arg-type]
