"""Recordings that are no program are refused, with what is wrong."""

from functools import cache

import pytest
from msgspec.structs import replace

from tests.programs.families import FAMILIES, GPU
from torchtally.chips import chip
from torchtally.errors import ProgramError
from torchtally.models.config_symbols import symbols_of
from torchtally.models.recorded import CHECK_LAYERS, record
from torchtally.programs import LAYERS, LabelledRun, program_of
from torchtally.programs.labels import Plan, recordings_for

FAMILY = FAMILIES["llama"]


@cache
def plan() -> Plan:
    return recordings_for({**symbols_of(FAMILY.configuration).sizes, **FAMILY.asked})


@cache
def recordings() -> tuple[LabelledRun, ...]:
    points = [*((point, LAYERS) for point in plan().points), (plan().check, CHECK_LAYERS)]
    symbols = symbols_of(FAMILY.configuration)
    return tuple(
        record(FAMILY.on_meta, symbols, point, {}, layers, FAMILY.mode, chip(GPU))
        for point, layers in points
    )


def fitted(*chosen: LabelledRun) -> None:
    *fits, check = chosen
    program_of(fits, check, plan().units, plan().fixed)


def without_last_op(recording: LabelledRun) -> LabelledRun:
    trace = recording.trace
    return replace_trace(recording, ops=trace.ops[:-1])


def replace_trace(recording: LabelledRun, **changes: object) -> LabelledRun:
    return LabelledRun(recording.point, recording.modules, replace(recording.trace, **changes))


def test_another_number_of_operators_is_another_run() -> None:
    first, second, third, check = recordings()
    with pytest.raises(ProgramError, match="at other sizes"):
        fitted(first, without_last_op(second), third, check)


def test_a_number_that_no_sizes_give_is_named() -> None:
    first, second, third, check = recordings()
    storage = second.trace.storages[0]
    odd = replace(storage, requested_bytes=storage.requested_bytes + 2)
    changed = replace_trace(second, storages=(odd, *second.trace.storages[1:]))
    with pytest.raises(ProgramError, match="follow from no product of the sizes"):
        fitted(first, changed, third, check)


def test_the_recording_that_takes_no_part_must_be_what_is_written() -> None:
    first, second, third, check = recordings()
    storages = check.trace.storages
    later = replace(storages[40], died=(storages[40].died or 0) + 1)
    changed = replace_trace(check, storages=(*storages[:40], later, *storages[41:]))
    with pytest.raises(ProgramError, match=r"another run: Storage\(number=40"):
        fitted(first, second, third, changed)


def test_layers_of_kinds_that_do_not_come_again_are_named() -> None:
    import transformers

    kinds = ["full_attention"] * 5 + ["sliding_attention"]
    config = transformers.Gemma2Config(num_hidden_layers=6, layer_types=kinds)
    with pytest.raises(ProgramError, match=r"do not come again .*sliding_attention"):
        symbols_of(config)


def test_two_kinds_in_turn_are_a_period_of_two() -> None:
    import transformers

    symbols = symbols_of(transformers.Gemma2Config(num_hidden_layers=9))
    assert (symbols.period, symbols.lead) == (2, 2)
    assert symbols.modules(3) == 7  # the last one has what is left of nine


def test_dense_layers_before_a_mixture_are_the_first_layer() -> None:
    import transformers

    symbols = symbols_of(transformers.DeepseekV3Config(num_hidden_layers=61))
    assert (symbols.period, symbols.lead) == (1, 3)
    assert symbols.modules(3) == 5
