"""Counting tokens while a run generates them, and stopping after enough."""

import pytest

from tests.builders import spec
from torchtally.errors import EndlessLoopError
from torchtally.trace import Call
from torchtally.tracer.tokens import TokenCounter

WORDS, PLACES, WEIGHT = 7, 8, 9
"""Numbers of storages: two tables and another weight."""


class StoppedError(Exception):
    """What ends the run of a test."""


def lookup_call(rows: int, tokens: int) -> Call:
    table = spec(rows, 4, argument="weight")
    ids = spec(2, tokens, argument="indices", dtype="int64", storage=1)
    return Call("aten.embedding", "default", (table, ids), (spec(2, tokens, 4, storage=2),))


class Run:
    """Passes of a model with two tables, of which the second has its positions."""

    def __init__(self, most: int = 100) -> None:
        self.calls: list[Call] = []
        self.counter = TokenCounter(self.calls, most)

    def run(self, call: Call, table: int) -> None:
        if call not in self.calls:
            self.calls.append(call)
        self.counter.ran(self.calls.index(call), (table, 1))

    def step(self, tokens: int) -> None:
        self.counter.root_called()
        self.run(lookup_call(50, tokens), WORDS)
        self.run(lookup_call(20, tokens), PLACES)
        self.run(Call("aten.mm", "default", (spec(4, 4),), (spec(4, 4),)), WEIGHT)


def test_passes_behind_the_prompt_are_counted() -> None:
    run = Run()
    for tokens in (5, 1, 1, 1):
        run.step(tokens)
    assert run.counter.decoded == 3


def test_without_a_cache_each_pass_is_a_token_longer() -> None:
    run = Run()
    for tokens in (5, 6, 7):
        run.step(tokens)
    assert run.counter.decoded == 2


def test_batches_and_chunks_are_no_tokens() -> None:
    run = Run()
    for tokens in (5, 5, 5, 3):
        run.step(tokens)
    assert run.counter.decoded == 0


def test_a_model_called_in_a_loop_of_another_module_is_counted() -> None:
    run = Run()
    run.counter.root_called()
    for tokens in (5, 1, 1):
        run.run(lookup_call(50, tokens), WORDS)
        run.run(lookup_call(20, tokens), PLACES)
    assert run.counter.decoded == 2


def test_the_pass_behind_the_last_one_asked_for_does_not_begin() -> None:
    def stop() -> None:
        raise StoppedError

    run = Run()
    run.counter.limit, run.counter.on_done = 2, stop
    for tokens in (5, 1, 1):
        run.step(tokens)
    with pytest.raises(StoppedError):
        run.step(1)
    assert run.counter.decoded == 2


def test_a_loop_that_waits_for_a_token_is_stopped() -> None:
    run = Run(most=3)
    for tokens in (5, 1, 1, 1, 4, 1, 1, 1):  # two prompts
        run.step(tokens)
    with pytest.raises(EndlessLoopError, match=r"3 tokens were decoded .*\n.*--tokens N"):
        run.step(1)
