"""What is said of a front, typed for a point of it, and drawn."""

from dataclasses import replace
from pathlib import Path

import pytest

from torchtally.cli.destination import is_ours
from torchtally.report.front_picture import front_picture
from torchtally.report.tune import front_chart, sentences, title
from torchtally.tune.answer import TuneAnswer
from torchtally.tune.knobs import Settings, parse_knob
from torchtally.tune.points import TunePoint


def tuned() -> TuneAnswer:
    """Two chips, batches of 1 and 4, with and without a word: half the time costs three times as
    much; one setting failed.
    """
    knobs = (parse_knob("--batch={1,4}"), parse_knob("{,--fast}"))
    points = []
    for gpus, rate, factor in (("H100-SXM", 6.0, 0.5), ("RTX-4090", 1.0, 1.0)):
        for settings, step_s, share in (
            (("1", ""), 2.0, 0.1), (("4", ""), 4.0, 0.6), (("4", "--fast"), 3.6, 0.9),
        ):  # fmt: skip
            points.append(
                TunePoint(
                    gpus, settings, gpus, step_s=step_s * factor, batch=int(settings[0]),
                    peak_reserved_bytes=int(settings[0]) << 30, compute_share=share,
                    gpus_usd_per_hour=rate, watts=100.0,
                )
            )  # fmt: skip
    points.append(TunePoint("RTX-4090", ("1", "--fast"), "RTX-4090", failure="out of memory"))
    return TuneAnswer(
        script=("train.py", "--batch", "2"), knobs=knobs, points=tuple(points), amount=4000,
        length_in="tokens", deadline_s=2000.0, pruned=0, is_cut=False, was_interrupted=False,
    )  # fmt: skip


def test_the_cheapest_in_time_comes_first() -> None:
    """4,000 tokens in steps of four take 1,800 s on an H100: half an hour at six dollars."""
    answer = tuned()
    assert title(answer) == (
        "4.00 K tokens: cheapest within 33.33 min on H100-SXM with --batch=4 --fast: 30.00 min "
        "for $3.00"
    )
    late = replace(answer, deadline_s=60.0)
    assert "nothing meets the deadline of 1.00 min" in title(late)
    cheap = replace(answer, deadline_s=None)
    assert "on RTX-4090 with --batch=4 --fast: 1.00 h for $1.00" in title(cheap)
    assert any(each.startswith("Fastest: H100-SXM") for each in sentences(cheap))


def test_it_says_from_which_batch_on_a_step_is_compute_bound() -> None:
    bounds = list(tuned().compute_bounds())
    assert {(each.gpus, each.setting, each.beside) for each in bounds} == {
        ("H100-SXM", "--batch=4", "--fast"), ("RTX-4090", "--batch=4", "--fast")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "size", "per_node", "command"),
    [
        (("4", ""), 1, 1, "python train.py --batch=4"),
        (("1", "--fast"), 8, 8, "torchrun --nproc-per-node=8 train.py --batch=1 --fast"),
        (("1", ""), 16, 8, "torchrun --nnodes=2 --nproc-per-node=8 train.py --batch=1"),
    ],
)
def test_a_point_is_run_by_its_command(
    settings: Settings, size: int, per_node: int, command: str
) -> None:
    answer = tuned()
    point = next(each for each in answer.points if each.settings == settings)
    assert answer.command(point, size, per_node) == command


def test_a_picture_may_be_written_again(tmp_path: Path) -> None:
    place = tmp_path / "front.svg"
    place.write_text(front_picture(tuned()))
    assert is_ours(str(place))


def test_a_variable_stands_before_the_command() -> None:
    answer = replace(tuned(), knobs=(parse_knob("SIZE={,8}"),))
    point = TunePoint("T4", ("8",), "T4")
    assert answer.command(point, 1, 1) == "SIZE=8 python train.py --batch 2"
    unset = TunePoint("T4", ("",), "T4")
    assert answer.command(unset, 1, 1) == "python train.py --batch 2"


def test_the_picture_has_a_letter_for_each_point_of_the_front() -> None:
    answer = tuned()
    drawn, chart = front_picture(answer), front_chart(answer)
    assert chart is not None
    assert drawn.count('r="6"') == len(answer.front) + 2  # and the key, of two chips
    assert [each.letter for each in chart.series] == [*"abcd"][: len(answer.front)]
    assert "no priced points" in front_picture(replace(answer, points=()))
