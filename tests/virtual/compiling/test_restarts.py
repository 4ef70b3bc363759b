"""A graph that Dynamo traces again is compiled; one that inductor fails on runs, and is said to."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.traces import traced
from tests.truth.compiled.cases import Block
from torchtally.virtual.compiling import events


class RestartError(Exception):
    pass


def compile_fx(error: Exception, notes: list[str]) -> Any:
    def native(module: Any, inputs: Any) -> Any:
        raise error

    owner = SimpleNamespace(compile_fx=native)
    compiler = SimpleNamespace(COMPILE=(owner, "compile_fx"), Restart=RestartError)
    return events.compile_or_run(notes.append, compiler)


def test_a_wish_to_trace_again_reaches_dynamo_and_a_failure_is_noted() -> None:
    notes: list[str] = []
    module = SimpleNamespace(forward=object())
    with pytest.raises(RestartError):
        compile_fx(RestartError(), notes)(module, ())
    assert notes == []
    assert compile_fx(ValueError("odd"), notes)(module, ()) is module.forward
    assert notes == [
        "torch.compile ran a part eagerly: inductor failed with a graph: ValueError: odd"
    ]


def test_a_break_is_told_by_its_cause_and_not_by_where_dynamo_was() -> None:
    reason = """Encountered graph break when attempting to trace CALL: a call, e.g. f(x):

Unsupported Tensor.backward() call
  Explanation: Dynamo does not trace it.
  Hint: another
"""
    told = "Unsupported Tensor.backward() call: Dynamo does not trace it."
    assert events.cause_of_break(reason) == told
    skipped = "Failed to handle graph break gracefully. Graph break encountered:\n\n"
    assert events.cause_of_break(skipped + reason) == told
    assert events.cause_of_break("") == "no reason given"


@pytest.mark.thorough("test_compiled.py compiles dynamic shapes")
def test_sizes_that_are_symbols_from_the_first_compile() -> None:
    """Dynamo makes tensors of the block's float numbers, too, and traces again without."""

    def script() -> None:
        run = torch.compile(Block(64, 2).cuda(), dynamic=True)
        for tokens in (48, 32):
            run(torch.zeros(2, tokens, 64, device="cuda")).sum().backward()

    notes = [note.text for note in traced(script).notes]
    assert any("a graph compiled by the inductor" in text for text in notes)
    assert not any("eagerly" in text for text in notes)
