"""What --vary means, and what a setting is typed as."""

import pytest

from torchtally.errors import UsageError
from torchtally.tune.knobs import KnobKind, fix_knob, parse_knob, settings_text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("--batch={}", ()),
        ("--batch {1,2,4}", ("1", "2", "4")),
        ("--batch={4..32}", ("4", "8", "16", "32")),
        ("--batch={3..20}", ("3", "6", "12")),
        ("{,--compile}", ("", "--compile")),
        ("train.dtype={bf16,fp32}", ("bf16", "fp32")),
    ],
)
def test_values_are_those_in_braces(text: str, values: tuple[str, ...]) -> None:
    knob = parse_knob(text)
    assert (knob.kind, knob.values) == (KnobKind.ARGUMENT, values)


@pytest.mark.parametrize(
    "text", ["--batch", "{1}{2}", "a b {1}", "--b={8..4}", "--b={1,1}", "'{1}"]
)
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--vary"):
        parse_knob(text)


def test_an_empty_value_leaves_the_word_out() -> None:
    knobs = (
        parse_knob("{,--compile}"), parse_knob("SIZE={,8}"), parse_knob("--lr {1,2}"),
        fix_knob("TF32"),
    )  # fmt: skip
    assert [knob.kind for knob in knobs[:2]] == [KnobKind.ARGUMENT, KnobKind.VARIABLE]
    assert settings_text(knobs, ("", "", "2", "off")) == "--lr 2"
    assert settings_text(knobs, ("--compile", "8", "1", "on")) == "--compile SIZE=8 --lr 1, TF32"
    assert knobs[0].argument.among(("--lr", "1"), "") == ("--lr", "1")


def test_numbers_change_to_the_next_ones_and_names_to_all() -> None:
    assert parse_knob("--batch={}").neighbours("8") == ("16", "4")
    assert parse_knob("--batch={}").neighbours("1") == ("2",)
    assert parse_knob("--batch={1,8,4}").neighbours("4") == ("8", "1")
    assert parse_knob("--dtype={a,b,c}").neighbours("b") == ("a", "c")
