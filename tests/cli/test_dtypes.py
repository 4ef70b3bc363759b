"""`tally dtypes`: the page, the pictures of bits, JSON, a notebook, chips from the table."""

import json

import pytest

import torchtally
from torchtally.chips import chip, known_chips
from torchtally.cli import main
from torchtally.number_formats import FORMATS


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["dtypes", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def rows(out: str, name: str) -> list[list[str]]:
    """The cells of each line that begins with this format."""
    return [line.split() for line in out.splitlines() if line.split()[:1] == [name]]


def test_all_formats_on_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys)
    assert max(map(len, out.splitlines())) <= 80
    bits, ranges, values = rows(out, "bf16")
    assert bits == ["bf16", "s", "eeeeeeee", "mmmmmmm"]
    assert ranges[1:3] == ["16", "1+8+7"]
    assert values == ["bf16", "1.00117177e-08", "0.100097656", "0.333984375", "65536"]
    assert "Hidden columns" not in out


def test_what_a_value_becomes_and_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "0.1", "--of", "float16,mxfp8_e5m2")
    assert rows(out, "fp16") == [
        ["fp16", "0.0999755859", "0.000244", "6.10352e-05", "-", "rounded"],
        ["fp16", "0", "01011", "1001100110"],
    ]
    assert rows(out, "mxfp8_e5m2")[1] == ["mxfp8_e5m2", "0", "11110", "10", "x", "01101100"]
    assert not rows(out, "bf16")


def test_numbers_with_a_minus_are_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "-1e-8", "-inf", "-.5", "--of", "fp16")
    assert rows(out, "fp16")[0] == ["fp16", "-0", "-inf", "-0.5"]
    assert [row[-1] for row in rows(out, "fp16")[1::2]] == ["underflow", "exact", "exact"]


def test_the_widest_bits_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "-1e-300", "1/3", "65504")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_json_has_it_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "1e-8", "inf", "--of", "fp16,bf16", "--json"))
    small, infinite = document["values"]
    assert small["text"] == "1e-8"
    assert small["becomes"]["fp16"]["outcome"] == "underflow"
    assert small["becomes"]["bf16"]["value"] == 0b10101100 * 2.0**-34
    assert infinite["becomes"]["bf16"]["value"] == "inf"
    half = document["formats"][0]
    assert (half["largest"], half["smallest_subnormal"], half["bias"]) == (65504, 2.0**-24, 15)


@pytest.mark.parametrize("name", ["markdown", "html", "csv"])
def test_other_formats_have_the_same_values(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0.10009765" in printed(capsys, "0.1", "--of", "bf16", "--format", name)


def test_an_unknown_format_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dtypes", "--of", "fp17"]) == 2
    assert "Did you mean fp16" in capsys.readouterr().err


def test_a_notebook_shows_the_same() -> None:
    comparison = torchtally.dtypes("0.1", formats=["bf16"])
    assert "0.100097656" in str(comparison)
    assert '<td class="number">0.100097656</td>' in comparison._repr_html_()
    assert repr(comparison) == "<FormatComparison: 0.1 in 1 formats>"
    assert comparison["bfloat16"][0].bits == "0 01111011 1001101"


def computing(name: str) -> set[str]:
    return {chip.name for chip in known_chips() if FORMATS[name].is_computed_by(chip)}


def test_chips_that_compute_in_a_format() -> None:
    assert {"H100-SXM", "RTX-4090", "B200"} <= computing("fp8_e4m3")
    assert {"A100-SXM", "V100-SXM-16GB"}.isdisjoint(computing("fp8_e5m2"))
    assert {"MI300X"}.isdisjoint(computing("fp8_e4m3"))  # it has e4m3fnuz
    assert {"B200", "RTX-5090"} <= computing("nvfp4") <= computing("mxfp4")
    assert {"T4", "A100-SXM", "RTX-4090"} <= computing("int4")
    assert "H100-SXM" not in computing("int4")
    assert "V100-SXM-16GB" not in computing("bf16") | computing("tf32")
    assert "T4" in computing("fp64")
    assert chip("MI355X").name in computing("mxfp6_e3m2") - computing("nvfp4")
