"""Prefill, decode and the KV cache, told by what operators read.

B: sequences.  P: tokens given.  N: tokens generated.  D: width.  V: vocabulary.
"""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from tests.traces import traced
from torchtally.ledger import Ledger, account
from torchtally.ledger.steps import TokenGeneration, course_of
from torchtally.memory import Category
from torchtally.timing.targets import roofline
from torchtally.trace import Ending, Phase, Trace
from torchtally.views import by
from torchtally.views.generation import generation_figures

B, P, N, D, V = 2, 5, 4, 16, 32
KEYS = 2 * D * 4
"""Bytes of a token's key and value in float32."""


class Attention(nn.Module):
    """One head, and a cache as its caller keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False)

    def forward(self, x: Tensor, cache: dict[str, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x).split(D, dim=-1)
        if cache is not None:
            k = cache["k"] = torch.cat([cache["k"], k], 1) if "k" in cache else k.contiguous()
            v = cache["v"] = torch.cat([cache["v"], v], 1) if "v" in cache else v.contiguous()
        return functional.softmax(q @ k.transpose(1, 2), -1) @ v


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, D), nn.Embedding(64, D)
        self.attention, self.head = Attention(), nn.Linear(D, V, bias=False)

    def forward(self, ids: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        places = torch.arange(ids.shape[-1], device=ids.device)
        x = self.tokens(ids) + self.places(places)
        return self.head(self.attention(x, cache))  # type: ignore[no-any-return]


class Loop(nn.Module):
    """A model within a module that generates."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, ids: Tensor) -> Tensor:
        cache: dict[str, Tensor] = {}
        for _ in range(N):
            ids = self.model(ids, cache)[:, -1:].argmax(-1)
        return ids


def prompt(tokens: int = P) -> Tensor:
    return torch.randint(0, V, (B, tokens), device="cuda")


def greedy(model: nn.Module, ids: Tensor, tokens: int = N) -> None:
    cache: dict[str, Tensor] = {}
    for _ in range(tokens):
        ids = model(ids, cache)[:, -1:].argmax(-1)


def with_cache() -> None:
    with torch.no_grad():
        greedy(Model().cuda(), prompt())


def over_the_host() -> None:
    """Each next token is a number of Python's, as a list of ids that grows."""
    model, cache = Model().cuda(), dict[str, Tensor]()
    ids = [[1] * P] * B
    with torch.no_grad():
        for _ in range(N):
            logits = model(torch.tensor(ids).cuda(), cache)
            ids = [[token] for token in logits[:, -1].argmax(-1).tolist()]


def within_a_module() -> None:
    with torch.no_grad():
        Loop().cuda()(prompt())


def without_cache() -> None:
    model, ids = Model().cuda(), prompt()
    with torch.no_grad():
        for _ in range(N):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)


def in_chunks() -> None:
    """The prompt in two parts; then a token each."""
    model, cache, ids = Model().cuda(), dict[str, Tensor](), prompt(2 * P)
    with torch.no_grad():
        model(ids[:, :P], cache)
        ids = model(ids[:, P:], cache)[:, -1:].argmax(-1)
        for _ in range(N - 1):
            ids = model(ids, cache)[:, -1:].argmax(-1)


def generations(script: Callable[[], None]) -> tuple[TokenGeneration, ...]:
    return course_of(traced(script)).generations


def accounted(script: Callable[[], None]) -> Ledger:
    ledger = account(traced(script), roofline=roofline("H100-SXM"))
    ledger.check()
    return ledger


@pytest.mark.parametrize("script", [with_cache, over_the_host, within_a_module])
def test_the_first_pass_prefills_and_the_others_decode(script: Callable[[], None]) -> None:
    (generation,) = generations(script)
    assert [(each.sequences, each.tokens) for each in generation.prefills] == [(B, P)]
    assert [(each.sequences, each.tokens) for each in generation.decodes] == [(B, 1)] * (N - 1)


@pytest.mark.parametrize("script", [with_cache, over_the_host, within_a_module])
def test_the_cache_has_a_key_and_a_value_of_each_token(script: Callable[[], None]) -> None:
    (generation,) = generations(script)
    held = [each.cache_bytes for each in generation.passes]
    assert held == [B * (P + n) * KEYS for n in range(N)]


def test_a_prompt_in_chunks_is_prefilled_in_several_passes() -> None:
    (generation,) = generations(in_chunks)
    assert [each.tokens for each in generation.prefills] == [P, P]
    assert len(generation.decodes) == N - 1
    assert generation.passes[-1].cache_bytes == B * (2 * P + N - 1) * KEYS


def test_without_a_cache_each_pass_is_a_token_longer() -> None:
    (generation,) = generations(without_cache)
    assert not generation.has_cache
    assert [each.tokens for each in generation.decodes] == [P + n for n in range(1, N)]


def test_forward_passes_over_batches_generate_nothing() -> None:
    def evaluate() -> None:
        model = Model().cuda()
        with torch.no_grad():
            for _ in range(3):
                print(model(prompt()).mean().item())

    assert generations(evaluate) == ()


def test_what_a_training_generates_is_no_generation_of_its_own() -> None:
    def train() -> None:
        model = Model().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(prompt()).sum().backward()
        optimizer.step()
        with torch.no_grad():
            greedy(model, prompt())

    course = course_of(traced(train))
    assert course.generations == ()
    assert not {op.phase for op in course.trace.ops} & {Phase.PREFILL, Phase.DECODE}


def test_the_longest_generation_is_reported() -> None:
    def warmed_up() -> None:
        model = Model().cuda()
        with torch.no_grad():
            greedy(model, prompt(), 2)
            greedy(model, prompt(), N)

    ledger = accounted(warmed_up)
    assert [len(each.decodes) for each in ledger.course.generations] == [1, N - 1]
    assert ledger.period == "the generation 2 of 2"


def test_a_model_that_drafts_belongs_to_the_generation_of_the_one_that_checks() -> None:
    """The drafts: two tokens a pass of the large model, which checks them in one."""

    def speculate() -> None:
        small, large = Model().cuda(), Model().cuda()
        large.tokens = nn.Embedding(2 * V, D).cuda()  # the larger one is the main one
        kept, cache, ids = dict[str, Tensor](), dict[str, Tensor](), prompt()
        with torch.no_grad():
            draft = small(ids, kept)[:, -1:].argmax(-1)
            token = large(torch.cat([ids, draft], 1), cache)[:, -1:].argmax(-1)
            for _ in range(2):
                draft = small(token, kept)[:, -1:].argmax(-1)
                token = large(torch.cat([token, draft], 1), cache)[:, -1:].argmax(-1)

    (generation,) = generations(speculate)
    assert [each.tokens for each in generation.decodes] == [2, 2]
    assert [each.is_main for each in generation.passes] == [False, True] * 3


def test_prefill_and_decode_sum_to_the_generation() -> None:
    """Prefill multiplies B * P tokens with weights, each decoding pass B."""
    ledger = accounted(with_cache)
    weights = 2 * (3 * D * D + D * V)
    figures = generation_figures(ledger)
    assert figures is not None
    attention = 2 * 2 * B * D
    assert figures.prefill.flops_matmul == B * P * weights + attention * P * P
    lengths = range(P + 1, P + N)
    assert figures.decode.flops_matmul == (N - 1) * B * weights + attention * sum(lengths)
    both = figures.prefill + figures.decode
    assert (both.count, both.flops, both.bytes) == (
        ledger.total.count,
        ledger.total.flops,
        ledger.total.bytes,
    )


def test_time_is_shared_by_the_passes() -> None:
    ledger = accounted(with_cache)
    figures, table = generation_figures(ledger), by(ledger, "token")
    assert figures is not None
    assert figures.token_s is not None
    assert figures.first_token_s is not None
    whole_s = figures.first_token_s + sum(figures.pass_s)
    assert min(figures.pass_s) <= figures.token_s <= max(figures.pass_s)
    assert whole_s == pytest.approx(ledger.step_s)
    assert figures.tokens_per_s == pytest.approx(B / figures.token_s)
    assert table.column("cache_bytes") == tuple(B * (P + n) * KEYS for n in range(N))


def test_the_cache_is_a_category_of_memory() -> None:
    ledger = accounted(with_cache)
    cache = ledger.memory.by_category()[Category.KV_CACHE]
    last = ledger.reported_period.generation
    assert last is not None
    held = cache.at(last.passes[-1].inner_end - 1)
    storages = 2
    assert held == storages * -(-last.passes[-1].cache_bytes // storages // 512) * 512


def test_a_cache_written_in_place_is_one() -> None:
    """Static: as long as the longest sequence from the start."""

    class Static(Model):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(B, P + N, D))

        def forward(self, ids: Tensor, start: int = 0) -> Tensor:  # type: ignore[override]
            x = self.tokens(ids)
            self.kept[:, start : start + ids.shape[1]] = x  # type: ignore[index]
            return self.head(torch.softmax(x @ self.kept.transpose(1, 2), -1) @ self.kept)

    def generate() -> None:
        model, ids, start = Static().cuda(), prompt(), 0
        with torch.no_grad():
            for _ in range(N):
                logits = model(ids, start)
                start += ids.shape[1]
                ids = logits[:, -1:].argmax(-1)

    (generation,) = generations(generate)
    assert {each.cache_bytes for each in generation.passes} == {B * (P + N) * D * 4}


def broken_off(trace: Trace, operators: int) -> Trace:
    """Interrupted so many operators before its end."""
    ops = trace.ops[:-operators]
    return replace(trace, ops=ops, ending=Ending("interrupted", "SIGINT"))


def test_a_pass_that_was_interrupted_is_left_out() -> None:
    trace = traced(with_cache)
    (whole,) = course_of(trace).generations
    (cut,) = course_of(broken_off(trace, 8)).generations
    assert len(cut.decodes) == len(whole.decodes) - 1
    (kept,) = course_of(replace(trace, ending=Ending("interrupted", "SIGINT"))).generations
    assert len(kept.decodes) == len(whole.decodes)
