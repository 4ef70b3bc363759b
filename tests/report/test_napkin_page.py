"""The napkin: its formulas give in a browser what they give in Python."""

import json
from collections.abc import Iterator
from math import isnan, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.report.browser import CHROMIUM, MISSING, Browser, Page, browser
from torchtally.plan.architecture.known import known_model
from torchtally.plan.flops import token_flops
from torchtally.plan.kv_cache import kv_cache_bytes
from torchtally.plan.quantity import FUNCTIONS
from torchtally.plan.questions.napkin import BY_SIZE, LONGEST, Napkin, models_by_name, napkin
from torchtally.report.browser.napkin import OPERATORS, napkin_document, napkin_page, tree_of
from torchtally.units import Unit, format_number

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason=MISSING)


def figures_of(of: Napkin) -> dict[str, float]:
    return {
        f"{card.title}: {figure.name}": figure.value for card in of.cards for figure in card.figures
    }


def test_the_lectures_figures() -> None:
    """70B on 15T tokens, 1,024 H100 at half of their peak; and D = 4, L = 2, B = 2 by hand."""
    figures = figures_of(napkin())
    assert figures["How long does it train, at what cost?: training time"] / 86400 == pytest.approx(
        143.94, abs=0.01
    )
    assert figures["The deep linear model of the lecture: training"] == 496
    assert figures["The deep linear model of the lecture: training step"] == 432 - 2 * 2 * 4 * 4


def test_a_tree_says_what_its_formula_says() -> None:
    assert tree_of("2 * a**2 - min(b, 3) / 4") == [
        "-", ["*", 2, ["**", "a", 2]], ["/", ["min", "b", 3], 4]
    ]  # fmt: skip
    assert tree_of("a if b > 0 else -1") == ["if", [">", "b", 0], "a", ["neg", 1]]
    with pytest.raises(AssertionError, match="cannot compute"):
        tree_of("[a]")


def test_every_operator_is_computed_in_the_page() -> None:
    script = Path(__file__).parents[2] / "src/torchtally/report/browser/static/napkin/formulas.js"
    text = script.read_text()
    for word in (*OPERATORS.values(), "neg", "if", *FUNCTIONS):
        assert f'"{word}":' in text or f" {word}:" in text or f" {word}," in text or word in (
            "ceil", "floor",
        ), word  # fmt: skip


def test_models_are_spelled_as_tally_plan_takes_them() -> None:
    for name in models_by_name():
        assert known_model(name.lower().replace(" ", "-")).name == name


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture
def page(chromium: Browser, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "napkin.html"
    file.write_text(napkin_page(napkin()))
    opened = chromium.open(file)
    opened.wait_for("document.documentElement.dataset.readyMs")
    yield opened
    assert opened.complaints == []
    assert opened.requests == []


def put(page: Page, selector: str, value: str, event: str = "change") -> None:
    page.evaluate(
        f"(() => {{ const node = document.querySelector({json.dumps(selector)});"
        f"node.value = {json.dumps(value)}; node.dispatchEvent(new Event('{event}')); }})()"
    )


def random_values(chance: Random) -> dict[str, float]:
    """Of every input, anywhere between its bounds."""
    values: dict[str, float] = {}
    for row in napkin().inputs:
        share = chance.random()
        low, high = row.least, row.most
        value = low * (high / low) ** share if row.is_logarithmic else low + share * (high - low)
        values[row.word] = round(value) if row.quantity.unit.is_whole else value
    return values


@needs_chromium
def test_the_page_computes_what_the_planner_computes(page: Page) -> None:
    chance = Random(7)
    document = napkin_document(napkin())
    for _ in range(8):
        values = random_values(chance)
        expected = napkin(values)
        sheet = (
            f"new tally.Sheet(tally.page.data.nodes, {json.dumps(values)}, {{model: '{BY_SIZE}'}})"
        )
        for card, shown in zip(expected.cards, document["cards"], strict=True):
            numbers = page.evaluate(
                f"(() => {{ const sheet = {sheet};"
                f"return {json.dumps(shown['figures'])}.map((n) => sheet.value(n)); }})()"
            )
            for figure, number in zip(card.figures, numbers, strict=True):
                if figure.name == "KV cache":
                    assert number is None or isnan(number)
                    continue
                assert number == pytest.approx(figure.value, rel=1e-9, abs=1), figure.name


@pytest.mark.thorough
@needs_chromium
def test_every_models_own_formulas_hold_at_every_length(page: Page) -> None:
    """Windows and chunks shorter and longer than the sequence."""
    document = napkin_document(napkin())
    (per_token, cache) = document["cards"][2]["figures"]
    chance = Random(3)
    for name, model in models_by_name().items():
        length = round(2 ** chance.uniform(4, 20))
        inputs = json.dumps({"sequence": length, "sequences": 3})
        flops, held = page.evaluate(
            f"(() => {{ const sheet = new tally.Sheet(tally.page.data.nodes, {inputs},"
            f"{{model: {json.dumps(name)}}});"
            f"return [sheet.value({per_token}), sheet.value({cache})]; }})()"
        )
        assert flops == pytest.approx(token_flops(model, length).model.value, rel=1e-12), name
        assert held == kv_cache_bytes(model, length, 3).value, name
        assert length < LONGEST


@pytest.mark.thorough
@needs_chromium
def test_numbers_are_written_and_read_as_the_planner_does(page: Page) -> None:
    numbers: dict[Unit, tuple[float, ...]] = {
        Unit.FLOPS: (432, 10**15, 63 * 10**23), Unit.SECONDS: (12436514.5, 0.05, 3600.0),
        Unit.HOURS: (3.5e6, 1.5), Unit.JOULES: (8.9e12, 3600.0), Unit.WATTS: (700.0,),
        Unit.CHIPS: (1024, 7), Unit.FLOPS_PER_TOKEN: (420 * 10**9,), Unit.NUMBER: (1.86285, 3.0),
        Unit.BYTES_PER_PARAMETER: (2, 0.5), Unit.USD: (15.2e6, 2.49), Unit.USD_PER_HOUR: (4.29,),
        Unit.PARAMETERS: (70 * 10**9, 4096), Unit.TOKENS: (15 * 10**12, 8192),
        Unit.FRACTION: (0.5,), Unit.TOKEN_PER_S: (1206125.7,),
    }  # fmt: skip
    for unit, values in numbers.items():
        for value in values:
            shown = page.evaluate(
                f"tally.formatProse({json.dumps(value)}, {json.dumps(str(unit))})"
            )
            assert shown == format_number(value, unit), (unit, value)
    amounts: dict[tuple[str, str, bool], float | None] = {
        ("70B", "parameters", False): 70e9, ("128K", "tokens", True): 131072,
        ("128K", "tokens", False): 128000, ("40%", "fraction", False): 0.4,
        ("80GB", "bytes", False): 80e9, ("80 GiB", "bytes", False): 80 * 2**30,
        ("989.4 TFLOP/s", "FLOP/s", False): 989.4e12, ("$2.49/h", "USD/h", False): 2.49,
        ("6.3e24", "FLOPs", False): 6.3e24, ("many", "tokens", False): None,
        ("-3", "tokens", False): None, ("", "tokens", False): None,
    }  # fmt: skip
    for (text, unit, is_length), amount in amounts.items():
        read = page.evaluate(
            f"tally.parseAmount({json.dumps(text)}, '{unit}', {str(is_length).lower()})"
        )
        assert read == (None if amount is None else pytest.approx(amount)), text


@pytest.mark.thorough
@needs_chromium
def test_a_changed_number_changes_what_follows_and_the_address(page: Page) -> None:
    def days() -> str:
        return str(page.evaluate("document.querySelector('#card-0 .figure').textContent"))

    assert days().startswith("143.94 days")
    put(page, "#input-chips", "2048")
    assert days().startswith("71.97 days")
    put(page, "#slider-mfu", "1000", "input")
    assert days().startswith("35.99 days")
    put(page, "#choice-model", "Llama 3 8B")
    command = page.evaluate("document.querySelector('#command').textContent")
    assert command.startswith("tally plan llama-3-8b --tokens 15T --gpus 2048xH100-SXM --mfu 1 ")
    assert "unknown" not in page.evaluate("document.querySelector('#card-2').textContent")
    address = page.evaluate("location.hash")
    assert "model=Llama+3+8B" in address
    assert "n.chips=2048" in address
    before = days()
    page.evaluate("document.querySelector('#reset').click()")
    assert days().startswith("143.94 days")
    page.evaluate(f"location.hash = {json.dumps(address)}")
    page.wait_for(f"document.querySelector('#card-0 .figure').textContent === {json.dumps(before)}")


@needs_chromium
def test_what_is_no_amount_is_marked_and_changes_nothing(page: Page) -> None:
    put(page, "#input-tokens", "a few")
    assert (
        page.evaluate("document.querySelector('#input-tokens').getAttribute('aria-invalid')")
        == "true"
    )
    assert page.evaluate("document.querySelector('#card-0 .figure').textContent").startswith(
        "143.94"
    )


@pytest.mark.thorough
@needs_chromium
def test_an_unknown_price_is_an_unknown_cost(page: Page) -> None:
    name = next(
        name
        for name, values in napkin().choices[1].options.items()
        if isnan(values.get("price", nan))
    )
    put(page, "#choice-chip", name)
    figures = page.evaluate("document.querySelector('#card-0').textContent")
    assert "costunknown" in figures


@pytest.mark.thorough
@needs_chromium
def test_the_working_shows_each_formula_with_its_numbers(page: Page) -> None:
    page.evaluate("document.querySelector('#card-5 details').open = true")
    page.settle()
    text: Any = page.evaluate("document.querySelector('#card-5 details').textContent")
    assert "parameters = width D * width D * layers L + width D" in text
    assert "4 * 4 * 2 + 4" in text
