"""Sizes that begin rows off 16 bytes, and what the next size would save."""

import json

import pytest

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, spec
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.report.documents.run import run_document
from torchtally.report.keys import dumps
from torchtally.report.odd_sizes import odd_size_sentences
from torchtally.timing.roofline import Roofline
from torchtally.trace import Call
from torchtally.views.odd_sizes import candidates, odd_sizes, resized_strides, with_size
from torchtally.work import cost_of

A100 = "A100-SXM"


def spare(recorder: TraceBuilder, call: Call) -> tuple[int, ...]:
    """A storage for each operand."""
    return tuple(recorder.run(factory_call(4)) for _ in call.inputs)


def ledger_of(*calls: Call, on: str = A100) -> Ledger:
    builder = TraceBuilder()
    for number, call in enumerate(calls, 1):
        builder.run(call, spare(builder, call), site=site(frame(line=number)))
    return account(builder.build(), roofline=Roofline(chip(on)))


def seconds(call: Call) -> float:
    return Roofline(chip(A100)).kernel(call, *cost_of(call)).seconds


VOCABULARY, PADDED = (mm_call(8192, 768, N, "bfloat16") for N in (50257, 50264))


def test_a_vocabulary_is_named_with_what_the_next_size_saves() -> None:
    ledger = ledger_of(mm_call(8192, 768, 768, "bfloat16"), VOCABULARY)
    (odd,) = odd_sizes(ledger)
    assert (odd.size, odd.next_size) == (50257, 50264)
    assert odd.saved_s == pytest.approx(seconds(VOCABULARY) - seconds(PADDED))
    assert odd.line is not None
    assert odd.line.line == 2


def test_it_says_so_in_a_sentence() -> None:
    ledger = ledger_of(VOCABULARY)
    (sentence,) = odd_size_sentences(odd_sizes(ledger), ledger.total.seconds, "")
    assert sentence.startswith("Rows of 50257 elements (")
    assert ": 50264 would save " in sentence


def test_others_that_have_the_size_count_as_well() -> None:
    """A softmax over the same rows reads them once where they are aligned; a sum takes longer."""
    scores = Call(
        "aten._softmax",
        "default",
        (spec(8192, 50257, argument="self", dtype="bfloat16"),),
        (spec(8192, 50257, dtype="bfloat16", storage=1),),
        (("dim", -1),),
    )
    (alone,), (both,) = odd_sizes(ledger_of(VOCABULARY)), odd_sizes(ledger_of(VOCABULARY, scores))
    saved_s = seconds(scores) - seconds(with_size(scores, 50257, 50264))
    assert both.saved_s == pytest.approx(alone.saved_s + saved_s)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (PADDED, A100),  # aligned
        (mm_call(8192, 768, 50257), A100),  # float32 without tensor cores
        (mm_call(1, 768, 50257, "bfloat16"), A100),  # bound by memory
        (VOCABULARY, "RTX-3090"),  # whose halved rate waits for no rows
    ],
)
def test_what_saves_nothing_is_not_named(call: Call, name: str) -> None:
    assert odd_sizes(ledger_of(call, on=name)) == ()


def test_rows_of_two_sizes_need_multiples_of_their_own_dtype() -> None:
    ledger = ledger_of(mm_call(64, 100, 99, "bfloat16"), mm_call(64, 98, 64, allow_tf32=True))
    assert candidates(ledger) == {100: 8, 99: 8, 98: 4}


def test_strides_follow_the_sizes() -> None:
    heads = spec(2, 3, 5, 7)
    assert resized_strides(heads, (2, 3, 8, 7)) == (168, 56, 7, 1)


def test_no_time_has_no_sizes() -> None:
    builder = TraceBuilder()
    builder.run(VOCABULARY, spare(builder, VOCABULARY))
    assert odd_sizes(account(builder.build())) == ()


def test_the_document_has_all_of_them() -> None:
    time = json.loads(dumps(run_document(ledger_of(VOCABULARY))))["time"]
    assert [(odd["size"], odd["next_size"], odd["line"]) for odd in time["odd_sizes"]] == [
        (50257, 50264, 1)
    ]
