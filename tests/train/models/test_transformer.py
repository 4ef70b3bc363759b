"""The decoder computes what its definition says, however it is built, cast or compiled."""

import copy
import math
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.train.models.reference import logits_of
from tests.warm import warm
from torchtally.errors import UsageError
from torchtally.train.models.attention import document_mask, window_mask
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.transformer import Transformer

LLAMA = TransformerConfig(
    layers=3, width=32, heads=4, kv_heads=2, ffn=48, vocabulary=61, context=24
)  # fmt: skip
GPT2 = replace(
    LLAMA, kv_heads=4, norm="layer", positions="learned", activation="gelu_tanh", is_tied=True,
    has_bias=True,
)  # fmt: skip
KINDS = {
    "llama": LLAMA,
    "gpt2": GPT2,
    "exact gelu": replace(GPT2, activation="gelu"),
    "no biases": replace(GPT2, has_bias=False),
    "one kv head": replace(LLAMA, kv_heads=1, rope_theta=500.0),
    "window": replace(LLAMA, window=5),
    "window of one": replace(LLAMA, window=1),
    "window of all": replace(LLAMA, window=20),
    "biases with rope": replace(LLAMA, has_bias=True, norm="layer", is_tied=True),
}


def model_of(config: TransformerConfig, **options: Any) -> Transformer:
    """With norms and biases away from 1 and 0, so that a forgotten one shows."""
    torch.manual_seed(0)
    model = Transformer(config, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model


def ids_of(config: TransformerConfig, batch: int = 2, sequence: int = 20) -> Tensor:
    return torch.randint(
        config.vocabulary, (batch, sequence), generator=torch.Generator().manual_seed(1)
    )


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_logits_equal_those_of_the_definition(config: TransformerConfig) -> None:
    model, ids = model_of(config), ids_of(config)
    expected = torch.stack([logits_of(model, row) for row in ids])
    torch.testing.assert_close(model(ids).double(), expected, rtol=1e-5, atol=2e-5)


def test_another_window_would_be_found() -> None:
    model, ids = model_of(replace(LLAMA, window=5)), ids_of(LLAMA)
    model.config = replace(LLAMA, window=6)
    assert not torch.allclose(model(ids)[0].double(), logits_of(model_of(LLAMA), ids[0]), atol=1e-3)


def test_a_window_as_a_picture() -> None:
    mask = window_mask(4, 2, torch.device("cpu"))
    assert mask is not None
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert window_mask(4, 4, torch.device("cpu")) is None
    assert window_mask(4, None, torch.device("cpu")) is None


@pytest.mark.parametrize("config", [LLAMA, replace(LLAMA, window=3)], ids=["all", "window"])
def test_masked_documents_are_as_each_by_itself(config: TransformerConfig) -> None:
    model, ids = model_of(config), ids_of(config, batch=1).clamp(min=1)
    ids[0, [7, 12]] = 0
    model.document_start = 0
    together = model(ids)
    model.document_start = None
    apart = torch.cat([model(part) for part in ids.split([7, 5, 8], dim=1)], dim=1)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)


def test_a_mask_of_documents_as_a_picture() -> None:
    (mask,) = document_mask(torch.tensor([[5, 5, 0, 5]]), 0, None)[:, 0]
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("config", [LLAMA, GPT2, KINDS["window"]])
def test_no_token_sees_a_later_one(config: TransformerConfig) -> None:
    model, ids = model_of(config), ids_of(config)
    changed = ids.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % config.vocabulary
    before, after = model(ids), model(changed)
    assert torch.allclose(before[:, :12], after[:, :12], atol=1e-6)
    assert not torch.allclose(before[:, 12:], after[:, 12:], atol=1e-3)


def test_a_new_model_guesses_evenly() -> None:
    """Logits of unit variance cost half a nat more than log(vocabulary)."""
    torch.manual_seed(0)
    config = replace(LLAMA, width=256, ffn=512, vocabulary=512, context=64)
    for model in (config, replace(config, is_tied=True)):
        ids, targets = ids_of(model, 8, 64), ids_of(model, 8, 64).flip(1)
        loss = Transformer(model).loss(ids, targets).item()
        assert loss == pytest.approx(math.log(512) + 0.5, abs=0.15)


def test_what_writes_into_the_residual_stream_starts_smaller() -> None:
    block: Any = Transformer(replace(LLAMA, width=256, ffn=512)).blocks[0]
    for layer, gain in (
        (block.attention.qkv, 1.0), (block.feed_forward.up, 1.0),
        (block.attention.output, 1 / math.sqrt(6)), (block.feed_forward.down, 1 / math.sqrt(6)),
    ):  # fmt: skip
        std = layer.weight.std().item() * math.sqrt(layer.in_features)
        assert std == pytest.approx(0.98658 * gain, rel=0.03)


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_the_loss_is_the_cross_entropy_of_the_logits(
    config: TransformerConfig, chunk: int | None
) -> None:
    model, ids = model_of(config), ids_of(config)
    targets = ids.roll(-1, 1)
    targets[:, -1] = -100
    expected = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model.loss(ids, targets, chunk_tokens=chunk), expected)
    expected.backward()
    gradients = gradients_of(model)
    model.loss(ids, targets, chunk_tokens=chunk).backward()
    for name, gradient in gradients_of(model).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-6)


def gradients_of(model: Transformer) -> dict[str, Tensor]:
    """And none are left."""
    gradients = {
        name: parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    assert len(gradients) == len(list(model.parameters()))
    model.zero_grad(set_to_none=True)
    return gradients


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("config", [replace(LLAMA, dropout=0.2), KINDS["window"]])
def test_recomputing_changes_no_gradient(config: TransformerConfig, recompute: str) -> None:
    ids, gradients = ids_of(config), []
    for option in ("none", recompute):
        model = model_of(config, recompute=option)
        torch.manual_seed(3)
        model.loss(ids, ids).backward()
        gradients.append(gradients_of(model))
    for name, tensor in gradients[0].items():
        assert torch.equal(tensor, gradients[1][name])


def test_dropout_is_for_training_alone() -> None:
    model, ids = model_of(replace(LLAMA, dropout=0.5)), ids_of(LLAMA)
    assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))
    torch.testing.assert_close(model(ids), model_of(LLAMA)(ids))


@pytest.mark.parametrize("config", [LLAMA, GPT2])
def test_built_on_meta_and_filled_it_is_as_built_at_once(config: TransformerConfig) -> None:
    torch.manual_seed(0)
    at_once = Transformer(config)
    with torch.device("meta"):
        model = Transformer(config)
    assert all(parameter.is_meta for parameter in [*model.parameters(), *model.buffers()])
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, math.nan)
    torch.manual_seed(0)
    model.reset_parameters()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, at_once.state_dict()[name]), name
    assert torch.equal(model(ids_of(config)), at_once(ids_of(config)))


def test_weights_alone_make_an_empty_model_whole() -> None:
    """Tables of positions are in no checkpoint, and are there as soon as there is memory."""
    source = model_of(LLAMA)
    with torch.device("meta"):
        model = Transformer(LLAMA)
    model.to_empty(device="cpu").load_state_dict(source.state_dict())
    assert torch.equal(model(ids_of(LLAMA)), source(ids_of(LLAMA)))


def test_positions_stay_exact_in_a_narrow_model() -> None:
    model = Transformer(replace(LLAMA, context=5000))
    tables = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.bfloat16()
    assert model.embedding.weight.dtype == torch.bfloat16
    for name, buffer in model.named_buffers():
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, tables[name])
    assert model(ids_of(LLAMA)).dtype == torch.bfloat16


@pytest.mark.parametrize("config", [LLAMA, GPT2])
@pytest.mark.parametrize("chunk", [None, 8])
def test_under_autocast_the_loss_is_wide_and_near(
    config: TransformerConfig, chunk: int | None
) -> None:
    model, ids = model_of(config), ids_of(config)
    exact = model.loss(ids, ids).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(ids, ids, chunk_tokens=chunk)
        assert model(ids).dtype == torch.bfloat16
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.02)
    assert all(gradient.dtype == torch.float32 for gradient in gradients_of(model).values())


def test_a_copy_is_a_model_of_its_own() -> None:
    model = model_of(LLAMA)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.embedding.weight.zero_()
    assert model.embedding.weight.any()
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_a_sequence_beyond_the_context_is_refused() -> None:
    with pytest.raises(UsageError, match="25 tokens exceed the model's context of 24"):
        model_of(LLAMA)(ids_of(LLAMA, 1, 25))


COMPILED = """
import torch
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.transformer import Transformer
for chunk, extra in ((None, dict(kv_heads=1)), (5, dict(
    kv_heads=2, norm="layer", positions="learned", window=3, activation="gelu", has_bias=True,
    is_tied=True,
))):
    model = Transformer(TransformerConfig(
        layers=1, width=16, heads=2, ffn=32, vocabulary=20, context=8, **extra))
    ids = torch.randint(20, (2, 8))
    results = []
    for loss_of in (model.loss, torch.compile(model.loss, fullgraph=True, backend="aot_eager")):
        loss = loss_of(ids, ids, chunk_tokens=chunk)
        loss.backward()
        results.append([loss.detach()] + [p.grad for p in model.parameters()])
        model.zero_grad()
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
"""


@pytest.mark.thorough("the model compiled in a training: test_step.py")
def test_it_compiles_whole_in_a_process_without_checks() -> None:
    """With the compiler's tracing and its autograd, and no kernels: those need a C++ compiler."""
    done = subprocess.run(warm(COMPILED), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
def test_with_a_kv_cache_each_token_is_computed_once(config: TransformerConfig) -> None:
    """A prompt of 7 tokens, then 13 one by one: the hidden states of all 20 at once."""
    model, ids = model_of(config).eval(), ids_of(config)
    past = model.no_past()
    with torch.no_grad():
        parts = [model.hidden(ids[:, :7], past)]
        parts += [model.hidden(ids[:, at : at + 1], past) for at in range(7, 20)]
        torch.testing.assert_close(torch.cat(parts, 1), model.hidden(ids), rtol=1e-5, atol=1e-5)
        assert [layer.tokens for layer in past] == [20] * config.layers
        for at in range(20, 24):
            model.hidden(ids[:, :1], past)
            assert past[0].tokens == at + 1
        with pytest.raises(UsageError, match="25 tokens exceed the model's context of 24"):
            model.hidden(ids[:, :1], past)
