"""Generation within training, told from samples between steps by the length trained on.

B: sequences.  P: tokens given.  N: tokens generated.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ledger.steps.test_generation import KEYS, B, Model, N, P, accounted, prompt
from tests.traces import traced
from torchtally.ledger.steps import course_of
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.views.generation import generation_figures
from torchtally.views.throughput import throughput

STEPS = 3


def on_the_host(model: Model, ids: Tensor) -> Tensor:
    """Ids come back as lists, as TRL's trainers have them."""
    cache: dict[str, Tensor] = {}
    sequences, given = ids.tolist(), ids
    with torch.no_grad():
        for _ in range(N):
            given = model(given, cache)[:, -1:].argmax(-1)
            sequences = [[*old, *new] for old, new in zip(sequences, given.tolist(), strict=True)]
    return torch.tensor(sequences).cuda()


def on_the_device(model: Model, ids: Tensor) -> Tensor:
    cache: dict[str, Tensor] = {}
    parts = [ids]
    with torch.no_grad():
        for _ in range(N):
            parts.append(model(parts[-1], cache)[:, -1:].argmax(-1))
    return torch.cat(parts, 1)


def training(generate: Callable[[Model, Tensor], Tensor], *, is_learnt: bool = True) -> None:
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(STEPS):
        ids = generate(model, prompt())
        if not is_learnt:
            ids = prompt(P + N + 3)
        model(ids).logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("generate", [on_the_host, on_the_device])
def test_what_is_generated_to_train_on_is_a_part_of_its_step(
    generate: Callable[[Model, Tensor], Tensor],
) -> None:
    ledger = accounted(lambda: training(generate))
    rollouts = ledger.course.rollouts
    assert len(rollouts) == STEPS
    assert not ledger.course.generations
    assert {entry.op.phase for entry in ledger.reported} == {
        Phase.PREFILL, Phase.DECODE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    }  # fmt: skip
    assert not any(entry.op.phase is Phase.EVALUATION for entry in ledger.entries)
    step = ledger.course.representative
    assert step is not None
    assert ledger.course.is_steady(step)
    figures = generation_figures(ledger)
    assert figures is not None
    assert figures.is_trained_on
    assert (figures.sequences, figures.prefill_tokens, figures.decoded) == (B, P, N - 1)
    assert figures.cache_bytes == B * (P + N - 1) * KEYS
    assert any(category is Category.KV_CACHE for category in ledger.memory.categories)
    rates = throughput(ledger)
    assert rates is not None
    assert rates.tokens is not None
    assert rates.tokens.size == B * (P + N)  # trained, each once


def test_samples_of_another_length_are_evaluation() -> None:
    course = course_of(traced(lambda: training(on_the_host, is_learnt=False)))
    assert not course.rollouts
    assert {op.phase for op in course.trace.ops} == {
        Phase.EVALUATION, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    }  # fmt: skip
