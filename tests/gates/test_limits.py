"""Limits: how they are read, whether they hold, and what cannot be decided."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from tests.builders import TraceBuilder, frame, mm_call, site
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.gates import Finding, check, parse_limits
from torchtally.gates.gauges import GAUGES, GaugeReading
from torchtally.gates.limits import parse_comparison
from torchtally.ledger import Ledger, account
from torchtally.ledger.total import Uncounted
from torchtally.report.documents.limits import limits_part
from torchtally.report.gates import findings_text, sentence
from torchtally.timing.roofline import Roofline
from torchtally.units import Unit


def ledger(*, is_timed: bool = True) -> Ledger:
    """One product of 2 x 3 by 3 x 4: 48 FLOPs; storages of 512 bytes, two inputs and the output."""
    builder = TraceBuilder()
    inputs = builder.allocate(24), builder.allocate(48)
    builder.run(mm_call(2, 3, 4), inputs, site=site(frame(text="x @ w"), module="net"))
    builder.end_step()
    return account(builder.build(), roofline=Roofline(chip("H100-SXM")) if is_timed else None)


@pytest.mark.parametrize(
    ("text", "name", "relation", "amount"),
    [
        ("peak < 24GiB", "peak", "<", 24 * 2**30),
        ("peak<=80 GB", "peak", "<=", 80e9),
        (" Step > 200ms ", "step", ">", 0.2),
        ("flops < 6.3T", "flops", "<", 6.3e12),
        ("flops < 6.3 TFLOPs", "flops", "<", 6.3e12),
        ("flops < 3e12", "flops", "<", 3e12),
        ("mfu >= 40%", "mfu", ">=", 0.4),
        ("mfu > 0.4", "mfu", ">", 0.4),
        ("tokens/s > 10K", "tokens/s", ">", 10e3),
        ("parameters < 7B", "parameters", "<", 7e9),
    ],
)
def test_a_limit(text: str, name: str, relation: str, amount: float) -> None:
    (limit,) = parse_limits([text])
    assert (limit.name, limit.relation) == (name, relation)
    assert limit.amount == pytest.approx(amount)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("peak", "is not a limit. These work: 'peak < 24GiB'"),
        ("peak = 24GiB", "is not a limit"),
        ("peak == 24GiB", "is not a limit"),
        ("1GiB < peak < 24GiB", "is not a limit"),
        ("peak < ", "is not a limit"),
        ("< 24GiB", "is not a limit"),
        ("peak < 24", "'24' has no unit. These work: 24GiB, 80GB, 512B."),
        ("peak < 24Gib", "is not a size in bytes"),
        ("peak < 200ms", "is not a size in bytes"),
        ("step < 24GiB", "is not a length of time"),
        ("step < 200", "is not a length of time"),
        ("peek < 24GiB", "unknown quantity 'peek'. Did you mean peak?"),
        ("mfu > 140%", "is not between 0 and 1"),
        ("flops < 7 Gib", "is not a number of FLOPs. These work: 6.3T, 10GFLOPs, 3e12"),
        ("parameters < 1.5", "is not a whole number"),
        ("peak < " + 500 * "9", "is not a limit"),
    ],
)
def test_what_is_no_limit(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?").replace("(", r"\(")):
        parse_limits([text])


@given(st.text(max_size=30))
def test_any_text_is_a_limit_or_an_error_of_ours(text: str) -> None:
    try:
        (limit,) = parse_limits([text])
    except UsageError:
        return
    assert limit.name in GAUGES


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("flops < 49", True),
        ("flops < 48", False),
        ("flops <= 48", True),
        ("flops >= 48", True),
        ("flops > 48", False),
        ("peak < 1537B", True),
        ("peak < 1536B", False),
        ("step < 1s", True),
    ],
)
def test_whether_it_holds(text: str, holds: bool) -> None:
    (verdict,) = check(ledger(), parse_limits([text]))
    assert verdict.is_decided
    assert verdict.holds is holds


def test_what_does_not_hold_shows_its_lines() -> None:
    verdicts = check(ledger(), parse_limits(["flops < 1K", "peak < 1KiB", "step < 1us"]))
    assert [finding.holds for finding in verdicts] == [True, False, False]
    text = findings_text(verdicts)
    assert "flops < 1K: holds, 48 FLOPs" in text
    assert "peak < 1KiB: DOES NOT HOLD, peak is 1.50 KiB in step 1, forward of" in text
    assert "x @ w" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_quantity_is_undecided_and_does_not_hold() -> None:
    (verdict,) = check(ledger(is_timed=False), parse_limits(["step < 1h"]))
    assert (verdict.is_decided, verdict.holds) == (False, False)
    assert "cannot be decided, step is unknown (No time: " in sentence(verdict)


def test_what_is_not_counted_leaves_an_upper_limit_undecided() -> None:
    of = ledger()
    partial = replace(of, coverage=replace(of.coverage, uncounted=(Uncounted("my::op", 1, "no"),)))
    holding, broken = check(partial, parse_limits(["flops < 1K", "flops < 47"]))
    assert (holding.is_decided, holding.holds) == (False, False)
    assert "at least 48 FLOPs; operators without a rule are left out: my::op" in sentence(holding)
    assert (broken.is_decided, broken.holds) == (True, False)


@pytest.mark.parametrize(
    ("text", "is_most", "is_decided", "holds"),
    [
        ("flops < 11", False, False, False),  # at least 10: may be 12
        ("flops < 9", False, True, False),
        ("flops > 9", False, True, True),
        ("flops > 11", False, False, False),
        ("flops < 11", True, True, True),  # at most 10: may be 8
        ("flops < 9", True, False, False),
        ("flops > 9", True, False, False),
        ("flops > 11", True, True, False),
    ],
)
def test_what_a_bound_decides(text: str, is_most: bool, is_decided: bool, holds: bool) -> None:
    (limit,) = parse_limits([text])
    finding = Finding(limit, Unit.FLOPS, GaugeReading(10, "some are missing", is_most))
    assert (finding.is_decided, finding.holds) == (is_decided, holds)


def test_every_gauge_can_be_read() -> None:
    of = ledger()
    for gauge in GAUGES.values():
        reading = gauge.read(of)
        assert reading.value is not None or reading.doubt, gauge.name
        assert gauge.evidence(of).title


def test_a_document_has_plain_units_and_null_for_the_unknown() -> None:
    verdicts = check(ledger(is_timed=False), parse_limits(["peak < 1KiB", "step < 1h"]))
    peak, step = map(to_builtins, limits_part(verdicts))
    assert (peak["quantity"], peak["amount"], peak["value"], peak["holds"]) == (
        "peak", 1024, 1536, False,
    )  # fmt: skip
    assert (step["value"], step["holds"]) == (None, False)


def test_a_figure_whose_name_has_a_comma_is_typed_without() -> None:
    for name in ("loss-chinchilla-law", "loss, chinchilla law", "Loss chinchilla_law"):
        assert parse_comparison(f"{name} < 2").name == "loss-chinchilla-law"
