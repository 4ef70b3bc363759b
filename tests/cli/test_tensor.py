"""`tally tensor`: sentences, steps and the drawing of a storage; JSON and other formats."""

import json

import pytest

from torchtally.cli import main

TRANSPOSED = "torch.arange(12).view(3, 4).transpose(0, 1)[1:]"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["tensor", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_window_on_a_storage_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, TRANSPOSED)
    assert "Element [i, j] is at place 1 + i + 4 j of storage A." in out
    assert "For 72 B of the storage it keeps all 96 B alive." in " ".join(out.split())
    lines = out.splitlines()
    used = next(line.split()[1:] for line in lines if line.startswith("  used"))
    assert used == list(".###.###.###")
    assert [line for line in lines if line.startswith("  [")] == [
        "  [0, :]  1  5  9",
        "  [1, :]  2  6 10",
        "  [2, :]  3  7 11",
    ]


def test_a_repeated_element_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "x.expand(3, 2)", "--let", "x=2:bfloat16")
    assert "  used  3 3" in out
    assert "there are 2 different ones" in " ".join(out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (TRANSPOSED,),
        ("q.view(8, 1024, 16, 64).transpose(1, 2)", "--let", "q=8x1024x1024:bfloat16"),
        ("torch.linspace(0, 1, 100).view(5, 20)",),
        ("torch.tensor(3.5)",),
        ("x[:, :0]", "--let", "x=2x2"),
    ],
)
def test_everything_fits_80_columns(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, *arguments)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_json_has_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(printed(capsys, "x.T.contiguous()", "--let", "x=2x3", "--json"))
    assert document["places"] == [0, 1, 2, 3, 4, 5]
    assert document["storage_values"] == [0, 3, 1, 4, 2, 5]
    assert [step["origin"] for step in document["operations"]] == ["new", "view", "copy"]
    assert [step["storage"] for step in document["operations"]] == ["A", "A", "B"]
    assert document["result"]["strides"] == [2, 1]
    large = json.loads(printed(capsys, "x / 0", "--let", "x=1000000", "--json"))
    assert large["places"] is None
    small = json.loads(printed(capsys, "x / 0", "--let", "x=2", "--json"))
    assert small["storage_values"] == ["nan", "inf"]


@pytest.mark.parametrize("name", ["markdown", "html", "csv"])
def test_other_formats_have_the_steps_and_the_elements(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, TRANSPOSED, "--format", name)
    assert ".transpose" in out.replace("\\", "")
    assert "[2, 2]" in out.replace("\\", "")


def test_markup_in_an_expression_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "x < 3", "--let", "x=2x3", "--format", "html")
    assert "x &lt; 3" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x",), "'x' is not defined"),
        (("x", "--let", "x"), "does not define a tensor"),
        (("x.view(7)", "--let", "x=2x3"), "x.view(7): shape '[7]' is invalid"),
    ],
)
def test_errors_are_one_line_and_a_remedy(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["tensor", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    err = capsys.readouterr().err
    assert err.startswith("tally: error: ")
    assert message in err
