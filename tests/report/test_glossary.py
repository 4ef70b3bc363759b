"""Terms are explained once, are words of ours, and pages lead to them."""

import re

import pytest

from torchtally.cli import main
from torchtally.report.glossary import glossary, glossary_markdown, terms_in
from torchtally.report.page import anchor, page
from torchtally.table import Column, Table
from torchtally.units import Unit


def test_terms_are_found_as_words() -> None:
    assert list(terms_in(["12 FLOPs", "resaved", "the Peak"])) == ["FLOPs", "peak"]
    assert list(terms_in(["at 3 FLOP/s", "all-gathered", "dp 8"])) == ["FLOP/s"]


def test_the_command_prints_terms_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary", "mfu", "KV cache"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("MFU: Model FLOPs utilisation")
    assert "\nKV cache: Keys and values" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_unknown_term_is_an_error_with_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glossary", "reservd"]) == 2
    assert "Did you mean reserved" in capsys.readouterr().err


def test_a_page_explains_its_terms_and_leads_to_them() -> None:
    columns = (Column("line", "line", Unit.NAME), Column("bytes_saved", "saved", Unit.BYTES))
    table = Table(title="By line", columns=columns, rows=(("a.py:1", 4),))
    text = page("A run", facts=("backward.py",), plots=(), tables=(table,))
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links == {"term-saved"}
    assert set(re.findall(r'<dt id="([^"]+)"', text)) == {"term-saved"}


def test_a_page_without_terms_has_none() -> None:
    assert "<dl" not in page("Nothing", facts=(), plots=(), tables=())


def test_every_term_has_an_anchor_of_its_own_and_a_line() -> None:
    assert len({anchor(term) for term in glossary()}) == len(glossary())
    assert glossary_markdown().count("\n- **") == len(glossary())
