"""The validation loss is exact, and whoever evaluates leaves no trace in the training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.train.training import language
from torchtally.errors import UsageError
from torchtally.train.data.tokenizer import (
    byte_counts,
    byte_tokenizer_text,
    tokenizer_of,
    train_byte_pairs,
)
from torchtally.train.evaluation import Evaluation, Rows, evaluate, evaluation_mode
from torchtally.train.logs import names
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.loss import IGNORED
from torchtally.train.models.transformer import Transformer
from torchtally.train.trainer import trainer_of

CONFIG = TransformerConfig(
    layers=1, width=8, heads=2, kv_heads=1, ffn=16, vocabulary=11, context=6, dropout=0.5
)


def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(CONFIG)


def rows(*sizes: int, ignored: int = 0) -> list[Rows]:
    generator = torch.Generator().manual_seed(1)
    ids = [torch.randint(11, (size, 7), generator=generator) for size in sizes]
    for randint in ids:
        randint[0, 7 - ignored :] = IGNORED if ignored else randint[0, 7:]
    return [(randint[:, :-1].clamp(min=0), randint[:, 1:]) for randint in ids]


def test_a_loss_by_hand() -> None:
    """Two tokens at 1 nat and one at 4, in batches of different size: (2 * 1 + 4) / 3."""
    batches = [(torch.zeros(1, 2), torch.tensor([[3, 4]])), (torch.ones(1, 1), torch.tensor([[5]]))]
    mean_loss = evaluate(nn.Linear(1, 1), lambda x, _: 1 + 3 * x.mean(), batches)
    assert (mean_loss.loss_nats, mean_loss.tokens) == (2.0, 3)
    assert mean_loss.perplexity == pytest.approx(math.e**2)


def test_bits_per_byte_by_hand() -> None:
    """Three tokens of 2 nats, of 4 + 4 + 0 bytes: 6 nats are 8.66 bits, for 8 bytes."""
    batches = [(torch.zeros(1, 4), torch.tensor([[3, 3, 0, IGNORED]]))]
    counts = torch.tensor([0, 1, 2, 4])
    model = nn.Linear(1, 1)
    known = evaluate(model, lambda x, _: 2 + x.mean(), batches, byte_counts=counts)
    assert known.text_bytes == 8
    assert known.bits_per_byte == pytest.approx(6 / math.log(2) / 8)
    assert known.values()[names.EVAL_BITS_PER_BYTE] == known.bits_per_byte
    unknown = evaluate(model, lambda x, _: 2 + x.mean(), batches)
    assert names.EVAL_BITS_PER_BYTE not in unknown.values()


def test_bytes_of_tokens_are_those_that_they_were_made_of() -> None:
    """Of bytes, and of pairs of them: an id stands for as many bytes as its name has letters."""
    text = "Grüße, 世界!\n\tok ok ok".encode()
    assert byte_counts(byte_tokenizer_text()) == {**dict.fromkeys(range(256), 1), 256: 0}
    trained = train_byte_pairs([[text * 20]], 300)
    counts = byte_counts(trained)
    ids = np.concatenate(list(tokenizer_of(trained, "here").encode([text]))).tolist()
    assert counts is not None
    assert len(ids) < len(text) == sum(counts[each] for each in ids)
    assert byte_counts('{"decoder": {"type": "WordPiece"}}') is None


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 5))
def test_the_mean_is_that_of_all_tokens_however_they_are_batched(
    sizes: list[int], ignored: int
) -> None:
    decoder, batches = model(), rows(*sizes, ignored=ignored)
    mean_loss = evaluate(decoder, decoder.loss, batches)
    inputs, targets = (torch.cat(pair) for pair in zip(*batches, strict=True))
    with torch.no_grad():
        logits = decoder.eval()(inputs).double()
    whole = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    assert mean_loss.tokens == int((targets != IGNORED).sum())
    assert mean_loss.loss_nats == pytest.approx(float(whole), rel=1e-6)


def test_a_batch_without_any_target_counts_for_nothing() -> None:
    decoder = model()
    (inputs, targets), empty = rows(2)[0], torch.full((3, 6), IGNORED)
    alone = evaluate(decoder, decoder.loss, [(inputs, targets)])
    both = evaluate(decoder, decoder.loss, [(inputs, targets), (empty.clamp(min=0), empty)])
    assert (alone.loss_nats, alone.tokens) == (both.loss_nats, both.tokens)


def test_targets_that_are_no_ids_all_count() -> None:
    teacher = [(torch.ones(4, 3), torch.full((4,), -100.0))]
    mean_loss = evaluate(nn.Linear(3, 1), lambda *_: torch.tensor(5.0), teacher)
    assert (mean_loss.loss_nats, mean_loss.tokens) == (5.0, 4)


@pytest.mark.parametrize("batches", [[], [(torch.zeros(1, 1), torch.full((1, 1), IGNORED))]])
def test_nothing_to_evaluate_is_an_error(batches: list[Rows]) -> None:
    with pytest.raises(UsageError, match="no targets"):
        evaluate(nn.Linear(1, 1), lambda *_: torch.tensor(5.0), batches)


def test_nan_stays_nan_and_a_huge_loss_has_a_perplexity() -> None:
    mean_loss = evaluate(nn.Linear(1, 1), lambda *_: torch.tensor(math.nan), rows(1))
    assert math.isnan(mean_loss.loss_nats)
    assert math.isnan(mean_loss.perplexity)
    huge = Evaluation(loss_nats=1e4, tokens=1, seconds=0.0)
    assert huge.perplexity == math.inf


def test_twice_is_the_same_bit_for_bit() -> None:
    decoder = model()
    first, second = (evaluate(decoder, decoder.loss, rows(3, 2)).loss_nats for _ in range(2))
    assert first == second


def test_training_is_undisturbed_bit_for_bit() -> None:
    """Dropout after an evaluation, one that draws numbers itself, is as without it."""

    def step(decoder: Transformer) -> Tensor:
        return decoder.loss(*rows(3)[0])

    def greedy(inputs: Tensor, targets: Tensor) -> Tensor:
        return decoder.loss(inputs, targets) + torch.rand(())

    decoder = model()
    torch.manual_seed(5)
    expected = step(decoder), step(decoder)
    torch.manual_seed(5)
    first = step(decoder)
    evaluate(decoder, greedy, rows(2))
    assert (first.item(), step(decoder).item()) == tuple(tensor.item() for tensor in expected)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_states_come_back_also_when_it_raises(fails: bool) -> None:
    decoder = model()
    decoder.blocks[0].eval()  # a frozen block stays as it is
    before = [module.training for module in decoder.modules()]
    state = torch.get_rng_state()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        assert not any(module.training for module in decoder.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3)
        if fails:
            raise KeyError
        return decoder.loss(inputs, targets)

    if fails:
        with pytest.raises(KeyError):
            evaluate(decoder, loss, rows(1))
    else:
        evaluate(decoder, loss, rows(1))
    assert [module.training for module in decoder.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpus_random_state_comes_back() -> None:
    decoder = model().cuda()
    state = torch.cuda.get_rng_state()
    with evaluation_mode(decoder):
        torch.rand(3, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_the_next_training_step_can_use_what_the_model_keeps() -> None:
    """A module that keeps a tensor from its first forward pass: inference_mode would break it."""

    class Keeping(nn.Module):
        kept: Tensor | None = None

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            if self.kept is None:
                self.kept = torch.arange(2.0)
            return (self.weight * self.kept * x).mean()

    keeping = Keeping()
    x = torch.ones(2)
    evaluate(keeping, lambda *_: keeping(x), [(x, x)])
    keeping(x).backward()
    assert keeping.weight.grad is not None


def test_precision_context_is_made_for_each_batch() -> None:
    dtypes = []

    @contextmanager
    def bf16() -> Iterator[None]:
        with torch.autocast("cpu", torch.bfloat16):
            yield

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        layer = nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1))
        dtypes.append(layer.dtype)
        return layer.mean()

    evaluate(nn.Linear(1, 1), loss, rows(1, 1), precision_context=bf16)
    assert dtypes == [torch.bfloat16] * 2


def test_seconds_are_the_clocks() -> None:
    times = iter([10.0, 12.5])
    mean_loss = evaluate(
        nn.Linear(1, 1), lambda *_: torch.tensor(1.0), rows(1), clock=lambda: next(times)
    )
    assert mean_loss.values()[names.EVAL_S] == 2.5


def test_an_evaluation_takes_no_more_rows_at_once_than_a_training_step(tmp_path: Path) -> None:
    """Or it would run out of memory where the training does not; its loss is the same."""
    rows_at_once = {}
    for micro_batch in (2, None):
        trainer = trainer_of(language(tmp_path, batch=5, micro_batch=micro_batch))
        passes = list(trainer.task.validation(trainer.device))
        rows_at_once[micro_batch] = (
            [len(inputs) for inputs, _ in passes],
            trainer.evaluate(passes),
        )
    assert rows_at_once[2][0] == [2, 2, 1] * 2
    assert rows_at_once[None][0] == [5] * 2
    assert rows_at_once[2][1].tokens == rows_at_once[None][1].tokens
    assert rows_at_once[2][1].loss_nats == pytest.approx(rows_at_once[None][1].loss_nats, rel=1e-6)
