"""Recurrent networks: steps come one after the other."""

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given, spec
from torchtally.chips import chip
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.launches import steps_and_sequences
from torchtally.timing.roofline.recurrent import matrices
from torchtally.trace import Call

V100 = chip("V100-SXM-16GB")


def lstm(steps: int, sequences: int = 16, hidden: int = 512, *, batch_first: bool = False) -> Call:
    shape = (sequences, steps) if batch_first else (steps, sequences)
    inputs = [
        given("input", *shape, hidden, dtype="float16"),
        given("weight", 4 * hidden, hidden, dtype="float16"),
        given("weight", 4 * hidden, hidden, dtype="float16"),
        given("weight", 4 * hidden, dtype="float16"),
        given("weight", 4 * hidden, dtype="float16"),
    ]
    result = spec(*shape, hidden, dtype="float16")
    return call("aten._cudnn_rnn", inputs, result, weight_stride0=4, batch_first=batch_first)


def test_twice_the_steps_take_about_twice_as_long() -> None:
    once, twice = (kernel_of(lstm(steps), V100).seconds for steps in (100, 200))
    assert twice / once == pytest.approx(2, rel=0.05)


def test_every_step_launches_two_kernels() -> None:
    assert kernel_of(lstm(100, 1, 8), V100).seconds > 100 * 2 * KERNEL_S


def test_time_comes_first_or_second() -> None:
    assert steps_and_sequences(lstm(7)) == (7, 16)
    assert steps_and_sequences(lstm(7, batch_first=True)) == (7, 16)


def test_packed_sequences_have_a_size_for_each_step() -> None:
    inputs = [given("input", 10, 8), given("weight", 32, 8), given("weight", 32, 8)]
    packed = call("aten._cudnn_rnn", inputs, (10, 8), batch_sizes=(4, 3, 2, 1))
    assert steps_and_sequences(packed) == (4, 3)


def test_the_second_matrix_multiplies_the_hidden_state() -> None:
    assert [is_hidden for _, is_hidden in matrices(lstm(2))] == [False, True]


def test_weights_gradients_take_longer() -> None:
    forward = lstm(50)
    masks = ((True, True, True, False), (True, True, True, True))
    without, with_weights = (
        kernel_of(
            call(
                "aten._cudnn_rnn_backward",
                forward.inputs,
                spec(50, 16, 512, dtype="float16"),
                weight_stride0=4,
                output_mask=mask,
            ),
            toy(),
        ).seconds
        for mask in masks
    )
    assert with_weights > without
