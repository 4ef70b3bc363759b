"""Predictions for one GPU beside public measurements: no worse than docs/accuracy.md says."""

from statistics import median

import pytest

from benchmarks.deep_learning_examples import waiting_s
from benchmarks.halves import ninth_decile
from benchmarks.published_compiled import pairs
from benchmarks.published_models import FILES, Row, predict, rows, vectors_of_8_bytes
from benchmarks.published_times import call, tensor
from benchmarks.single_gpu_tables import (
    OPERATOR_LIMIT,
    Ratio,
    error,
    is_counted,
    memory,
    operators,
    times,
)
from torchtally.chips import chip
from torchtally.timing.roofline import Roofline
from torchtally.views.time_range import ERRORS
from torchtally.work import cost_of


def test_operators_are_within_ten_percent_in_the_median() -> None:
    medians = {key: median(error(row.now) for row in ratios) for key, ratios in operators().items()}
    assert len(medians) == 20
    beyond = {key: middle for key, middle in medians.items() if middle > OPERATOR_LIMIT}
    assert not beyond


def test_memory_is_right_outside_of_what_is_called_close() -> None:
    chip_memory = memory()
    assert max(error(row.now) for row in chip_memory.allocated) < 0.01
    assert not chip_memory.wrong
    assert chip_memory.in_range >= 0.9 * chip_memory.ranges


@pytest.mark.parametrize("basis", ["fitted", "data sheet"])
def test_the_errors_that_a_report_states_are_those_of_the_rows(basis: str) -> None:
    all_ratios: list[Ratio] = []
    for kind in ("forward", "step"):
        for (_, on), ratios in times(kind).items():
            if chip(on).is_measured == (basis == "fitted"):
                all_ratios += ratios
    errors = [error(row.now) for row in all_ratios]
    assert ERRORS[basis].median == pytest.approx(median(errors), abs=0.0006)
    assert ERRORS[basis].ninth == pytest.approx(ninth_decile(errors), abs=0.0006)


def test_compiling_gains_what_others_measured() -> None:
    """Of every pair the direction, and in the median within ten percent."""
    measured = [pair for pair in pairs() if pair.predicted_compiled_ms]
    assert len(measured) >= 12
    assert all((pair.predicted_gain > 1) == (pair.gain > 1) for pair in measured)
    assert median(abs(pair.error) for pair in measured) < 0.10


def row_of(file: str = FILES[0], **wanted: object) -> Row:
    (match,) = (
        row
        for row in rows(file)
        if all(getattr(row, name) == value for name, value in wanted.items())
    )
    return match


def test_a_row_is_predicted_as_the_file_says() -> None:
    """BERT-large in float32, two sequences of 512, forward and backward on a V100."""
    row = row_of(source="neusight", chip="V100-PCIe-32GB", model="bert_large", batch=2, size=512)
    assert predict(row).cell("ms") == row.predicted
    assert error(float(row.predicted) / float(row.measured)) < 0.1


def test_a_run_that_died_is_not_counted() -> None:
    """It takes less by nvidia-smi than its tensors alone; of another, all of the card."""
    died = row_of(source="gpumemnet", model="eva02_enormous_patch14_clip_224")
    full = row_of(source="gpumemnet", model="efficientformer_l7")
    assert not is_counted(died)
    assert not is_counted(full)
    assert is_counted(row_of(source="gpumemnet", model="tnt_s_patch16_224"))


def test_lambdas_bert_waits_for_its_loader() -> None:
    """768 sequences of 9 us; nobody else's BERT, and nothing that makes its images once."""
    assert waiting_s(row_of(FILES[1], chip="B200", model="bert_base")) == pytest.approx(6.912e-3)
    assert waiting_s(row_of(FILES[1], chip="B200", model="resnet50")) == 0
    assert waiting_s(row_of(source="neusight", chip="V100-PCIe-32GB", model="bert_large",
                            run="forward", batch=8)) == 0  # fmt: skip


@pytest.mark.parametrize(("dtype", "slower"), [("float16", True), ("float32", False)])
def test_a_h200_streams_less_with_loads_of_8_bytes(dtype: str, slower: bool) -> None:
    """Three times 2 GiB by 132 multiprocessors at 25 GB/s each; four bytes were in fours before."""
    sides = [tensor(1 << 30, argument=name, dtype=dtype) for name in ("self", "other")]
    added = call("aten.add", tuple(sides), (tensor(1 << 30, dtype=dtype),))
    now = Roofline(chip("H200-SXM")).kernel(added, *cost_of(added)).seconds
    with vectors_of_8_bytes():
        before = Roofline(chip("H200-SXM")).kernel(added, *cost_of(added)).seconds
    if slower:
        assert before == pytest.approx(3 * (2 << 30) / (132 * 25e9), rel=0.01)
        assert now < 0.85 * before
    else:
        assert now == before
