"""A whole training: each closed form by hand, and beside trainings that are played."""

from math import e, exp, expm1

import pytest

from tests.plan.dimensions import check_units
from torchtally.chips import Cluster, chip
from torchtally.errors import UsageError
from torchtally.options import byte_rate
from torchtally.plan.goodput import losses
from torchtally.plan.goodput.interval import daly_interval_s, young_interval_s
from torchtally.plan.goodput.prices import ChipPrices, Prices
from torchtally.plan.goodput.rates import carbon_regions, rates
from torchtally.plan.goodput.simulation import Segments, lost_s
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions import Request, subject
from torchtally.plan.questions import whole_bill as bill
from torchtally.plan.questions import whole_training as whole
from torchtally.plan.questions.whole_forms import CheckpointInterval, power_usage, stages
from torchtally.plan.recipes import recipe
from torchtally.units import Unit


def is_near(quantity: Quantity, value: float) -> bool:
    """The quantity has this value, in a formula whose units fit."""
    check_units(quantity)
    return quantity.value == pytest.approx(value, rel=1e-9)


def test_young_s_interval() -> None:
    assert is_near(young_interval_s(2, 100), 20)


def test_daly_s_interval_adds_the_next_orders() -> None:
    """A save of 2 s, failures every 100 s: 20 (1 + 0.1 / 3 + 0.01 / 9) - 2."""
    assert is_near(daly_interval_s(2, 100), 20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert is_near(daly_interval_s(250, 100), 100)


def test_failures_of_many_chips() -> None:
    """A failure every 1000 chip-hours: 10 chips fail every 100 hours."""
    assert is_near(losses.job_mtbf_s(1000, 10), 360_000)
    assert is_near(losses.failures(720_000, 360_000), 2)
    assert is_near(losses.joint_mtbf_s(100, 50), 100 / 3)
    assert is_near(bill.reclaimed_s(50, 2), 90_000)


def test_what_failures_take() -> None:
    """Four segments of 90 s and a save of 10 s, and a failure every 100 s: M (e - 1) each."""
    assert is_near(losses.repeated_s(4, 90, 10, 100), 4 * (100 * (e - 1) - 100))
    assert is_near(losses.restarts_s(4, 90, 10, 20, 100), 4 * (e - 1) * 100 * (exp(0.2) - 1))
    assert is_near(losses.unwritten_s(4, 90, 10, 50, 100), 4 * e * (1 - exp(-0.5)) * 100)


def test_fewer_nodes_take_longer() -> None:
    """Of 8 nodes one is away for half of the time: work goes at 7.5 / 8 of its speed."""
    assert is_near(losses.slower_s(750, 50, 100, 8), 750 * 8 / 7.5 - 750)


def test_shares_of_a_training() -> None:
    assert is_near(losses.goodput(90, 100), 0.9)
    assert is_near(losses.effective_mfu(0.5, 0.9), 0.45)
    assert is_near(whole.saves(95, 10), 10)
    assert is_near(whole.between_saves_s(95, 10), 9.5)
    assert is_near(whole.saving_s(10, 3), 30)
    assert is_near(whole.evaluating_s(4, 600, 100), 8)
    assert is_near(whole.written_s(600, 100), 6)
    assert is_near(whole.copied_s(600, 2, 100), 3)
    assert is_near(bill.energy_with_cooling_joules(10, 1.2), 12)


@pytest.mark.parametrize(("spares", "share"), [(1, 1 / 3), (2, 0.125 / 1.625)])
def test_spares_that_are_in_repair(spares: int, share: float) -> None:
    """Erlang's loss of half a node in repair: 0.5 / 1.5; 0.125 / 1.625."""
    repair, between = of(50, Unit.SECONDS), of(100, Unit.SECONDS)
    assert is_near(losses.no_spare(spares, repair, between), share)


@pytest.mark.parametrize("restart_s", [0.0, 30.0, 600.0])
def test_played_trainings_take_what_the_closed_form_expects(restart_s: float) -> None:
    """1,000 trainings of 1,000 segments: within 1 % of the whole."""
    played = Segments(1000, 570.0, 30.0, restart_s, 3600.0)
    mean_s = sum(lost_s(played, 1000)) / 1000
    expected_s = (
        losses.repeated_s(1000, 570, 30, 3600).value
        + losses.restarts_s(1000, 570, 30, restart_s, 3600).value
    )
    assert 600_000 + mean_s == pytest.approx(600_000 + expected_s, rel=0.01)


def test_a_checkpoint_still_written_is_lost() -> None:
    """First order: failures much rarer than segments."""
    played = Segments(1000, 570.0, 30.0, 60.0, 36_000.0, written_s=300.0)
    mean_s = sum(lost_s(played, 1000)) / 1000
    expected_s = (
        losses.repeated_s(1000, 570, 30, 36_000).value
        + losses.restarts_s(1000, 570, 30, 60, 36_000).value
        + losses.unwritten_s(1000, 570, 30, 300, 36_000).value
    )
    assert mean_s == pytest.approx(expected_s, rel=0.05)
    assert 600_000 + mean_s == pytest.approx(600_000 + expected_s, rel=0.01)


def test_published_rates_give_the_published_times() -> None:
    """54 days over 419 interruptions of 16,384 chips."""
    assert losses.job_mtbf_s(rates()["llama-3"].failure_chip_hours, 16384).value == pytest.approx(
        54 * 86400 / 419
    )


def asked(**options: object) -> Request:
    given: dict[str, object] = {
        "subject": subject(70 * 10**9),
        "tokens": 15 * 10**12,
        "cluster": Cluster(chip("H100-SXM"), 1024),
        "mfu": 0.4,
        "recipe": recipe("mixed"),
        "checkpoint_every": CheckpointInterval(),
        "checkpoint_byte_per_s": 20 * 10**9,
        "mtbf": rates()["llama-3"],
        "restart": {"schedule": 300.0, "compile": 300.0},
    }
    return Request(**(given | options))  # type: ignore[arg-type]


def causes_of(**options: object) -> dict[str, float]:
    answer = whole.whole_training(asked(**options))
    table = answer.tables[0]
    causes = {str(row[0]): float(row[1] or 0) for row in table.rows}
    assert sum(causes.values()) == pytest.approx(answer.figures[0].value)
    for figure in answer.figures:
        check_units(figure)
    return causes


def test_every_second_has_a_cause() -> None:
    causes = causes_of()
    assert list(causes) == [
        *("training", "evaluation", "saving", "starting", "repeated", "restarts")
    ]


def test_asynchronous_saves_cost_less_and_spares_shorten_restarts() -> None:
    plain, copied = causes_of(), causes_of(checkpoints="async")
    spared = causes_of(spares=2, repair_s=3600.0)
    assert copied["saving"] < 0.1 * plain["saving"]
    assert spared["restarts"] < 0.6 * plain["restarts"]
    # One spare node in repair for ten failures' time: ten of eleven failures find none.
    failures_s = 3600 * 21233664 / 419 / 1024
    answer = whole.whole_training(asked(spares=1, repair_s=10 * failures_s))
    causes = {str(row[0]): float(row[1] or 0) for row in answer.tables[0].rows}
    restarts = [expm1((342 + 300 * share) / failures_s) for share in (1, 10 / 11)]
    assert causes["restarts"] / plain["restarts"] == pytest.approx(restarts[1] / restarts[0])
    hours = next(figure for figure in answer.figures if figure.name == "chip-hours")
    assert hours.value == pytest.approx(answer.figures[0].value / 3600 * (1024 + 8))


def test_an_elastic_training_is_slower_while_a_node_is_away() -> None:
    causes = causes_of(elastic=True, repair_s=36_000.0)
    assert 0 < causes["slower"] < 0.01 * causes["training"]
    assert causes["restarts"] < causes_of()["restarts"]


def test_llama_3_had_more_than_nine_tenths_of_its_time() -> None:
    """Its authors report an effective training time above 90 % (arXiv 2407.21783, 3.3.4)."""
    answer = whole.whole_training(
        asked(
            subject=subject(405 * 10**9),
            cluster=Cluster(chip("H100-SXM"), 16384),
            checkpoint_byte_per_s=2 * 10**12,
        )
    )
    assert 0.9 < answer.figures[1].value < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_byte_per_s": None}, "A checkpoint has 840 GB"),
        ({"mtbf": None}, "depends on failures"),
        ({"evaluate_every": 10}, "given together"),
        ({"repair_s": 60.0}, "counts with --spares or --elastic"),
        ({"spares": 1}, "--spares saves the stage"),
        ({"elastic": True}, "--elastic needs"),
        ({"checkpoints": "memory"}, "leave --checkpoint-bandwidth out"),
        ({"mtbf": 1.0, "checkpoint_every": CheckpointInterval(seconds=60.0)}, "save more often"),
        ({"mtbf": 60.0, "restart": {"restart": 3600.0}}, "1,000 tries of 1.01 h"),
        (
            {"spares": 2000, "repair_s": 3600.0, "restart": {"schedule": 60.0}},
            "--spares: at most 100 nodes",
        ),
        ({"checkpoint_every": CheckpointInterval(steps=10)}, "counts optimizer steps"),
    ],
)
def test_what_is_missing_is_asked_for(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        whole.whole_training(asked(**options))


def test_spot_nodes_are_saved_as_often_as_they_are_reclaimed() -> None:
    chips = {"H100-SXM": ChipPrices(on_demand=2.0, spot=1.0, spot_mtbf_hours=40.0)}
    table = whole.whole_training(asked(prices=Prices("2026-11-01", "made up", chips))).tables[-1]
    on_demand_s, spot_s = (float(row[2] or 0) for row in table.rows)
    save_s, mtbf_s = 840 / 20, 1 / (1 / (40 * 3600 / 128) + 1 / (3600 * 21233664 / 419 / 1024))
    restart_s = 600 + save_s
    each_s = daly_interval_s(save_s, mtbf_s).value
    slower = mtbf_s * exp(restart_s / mtbf_s) * (exp((each_s + save_s) / mtbf_s) - 1) / each_s
    assert spot_s == pytest.approx(causes_of()["training"] * slower, rel=1e-3)
    assert on_demand_s < spot_s


def test_evaluations_and_saves_by_steps_and_carbon() -> None:
    """3,750,000 steps of 4 M tokens, with an evaluation of 8 M and a save at each 1,000th."""
    steps = {"global_batch": 1024, "sequence": 4000, "tokens": 15 * 1024 * 10**9}
    options = steps | {
        "evaluate_every": 1000, "evaluation_tokens": 8_192_000, "region": "us-central1",
        "checkpoint_every": CheckpointInterval(steps=1000),
    }  # fmt: skip
    answer = whole.whole_training(asked(**options))
    causes = {str(row[0]): float(row[1] or 0) for row in answer.tables[0].rows}
    assert causes["evaluation"] == pytest.approx(
        causes["training"] * 3750 * 8_192_000 / (3 * 15 * 1024 * 10**9), rel=1e-6
    )
    assert causes["saving"] == pytest.approx(3750 * 840 / 20, rel=1e-3)
    figures = {figure.name: figure for figure in answer.figures}
    carbon = next(each for name, each in figures.items() if name.startswith("carbon"))
    energy = next(each for each in answer.figures if each.unit is Unit.JOULES)
    grams = carbon_regions()["us-central1"]
    assert carbon.value == pytest.approx(energy.value / 3.6e6 * grams / 1000)


def test_cooling_multiplies_energy_and_carbon() -> None:
    """A fifth more of the chips' energy, at a data center's 1.2."""
    alone, cooled = (
        {figure.name: figure.value for figure in whole.whole_training(asked(**options)).figures}
        for options in ({"region": "us-central1"}, {"region": "us-central1", "pue": 1.2})
    )
    for name in ("energy", "carbon in kg CO2e"):
        assert cooled[name] == pytest.approx(1.2 * alone[name])
    assert power_usage("1.2") == 1.2
    for text in ("0.9", "11", "much", "nan"):
        with pytest.raises(UsageError):
            power_usage(text)


def test_prices_are_found_by_any_name_of_a_chip() -> None:
    chips = {"h100 sxm": ChipPrices(on_demand=2.0), "H200-SMX": ChipPrices(on_demand=3.0)}
    prices = Prices("2026-11-01", "made up", chips)
    assert bill.prices_of(prices, "H100-SXM").on_demand == 2.0
    with pytest.raises(UsageError, match=r"no \[chips.H200-SXM\]. Did you mean H200-SMX"):
        bill.prices_of(prices, "H200-SXM")


def test_so_many_failures_are_not_played() -> None:
    answer = whole.whole_training(asked(checkpoint_every=CheckpointInterval(seconds=0.01)))
    assert [table.title for table in answer.tables] == ["Where the time goes"]
    assert any("percentiles: of more than 30,000 failures" in text for text in answer.unknown)


def test_forms() -> None:
    assert stages("schedule=5min,compile=30s") == {"schedule": 300.0, "compile": 30.0}
    assert byte_rate("20GB/s") == 20 * 10**9
    for read, text in ((stages, "sleep=5min"), (byte_rate, "20GB")):
        with pytest.raises(UsageError):
            read(text)
