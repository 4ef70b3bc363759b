"""Named dimensions: what a script calls them, and the sizes that they have in a run."""

from pathlib import Path

import pytest

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site
from torchtally.ledger import account
from torchtally.trace import Frame
from torchtally.tracer.dimension_names import dimension_names
from torchtally.views import by
from torchtally.views.dimensions import sized_dimensions

SCRIPT = """\
import torch
from einops import einsum, rearrange
from jaxtyping import Float
from typing import Literal
x: Float[torch.Tensor, "batch  seq"] = torch.ones(
    2, 3)
mode: Literal["a", "b"] = "b"
y = rearrange(x, "b (h d) -> b h d", h=3)
z = torch.einsum("ij,jk->ik", x, x)
def f(x: Float[torch.Tensor, "a b"]) -> Float[torch.Tensor, "b a"]:
    t = x.T
    return t
def g(x):
    return einsum(x, x, "a b, c b -> a c")
words = "einsum -> not a call"
"""
NAMES = {5: "batch seq", 6: "batch seq", 8: "b h d", 9: "ik", 12: "b a", 14: "a c"}


def test_names_are_those_of_annotations_and_patterns(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    lines = range(1, len(SCRIPT.splitlines()) + 1)
    assert {line: names for line in lines if (names := dimension_names(str(file), line))} == NAMES


@pytest.mark.parametrize(
    ("names", "shape", "text"),
    [
        ("batch seq", (8, 4), "batch=8 seq=4"),
        ("batch (heads hidden)", (8, 4), "batch=8 (heads hidden)=4"),
        ("... seq", (2, 8, 4), "...=2x8 seq=4"),
        ("*batch 3", (2, 3), "*batch=2 3"),
        ("... seq", (4,), "seq=4"),
        ("ik", (2, 5), "i=2 k=5"),
        ("batch seq", (8,), ""),
        ("a b ... c", (1,), ""),
        ("seq", (8,), "seq=8"),
        ("", (), ""),
    ],
)
def test_names_have_the_sizes_of_the_shape(names: str, shape: tuple[int, ...], text: str) -> None:
    assert sized_dimensions(names, shape) == text


def test_a_line_makes_what_its_last_operator_gives() -> None:
    """A loop through a factory and a product on one line: the product is 2 x 4 floats."""
    named = Frame("/train.py", 3, "f", "y = x @ w", is_own=True, dimensions="batch out")
    builder = TraceBuilder()
    for _ in range(2):
        x = builder.run(factory_call(2, 3), site=site(named))
        builder.run(mm_call(2, 3, 4), (x, x), site=site(named))
        builder.run(mm_call(2, 3, 4), (x, x), site=site(frame("train.py", 4, "z")))
    table = by(account(builder.build()), "dimension")
    assert table.column("dimensions") == ("batch=2 out=4",)
    assert table.column("bytes") == (2 * 4 * 4,)
    assert table.totals[0] == 32


def test_a_run_without_names_says_how_to_name() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(2, 3), site=site(frame("train.py", 4, "z")))
    table = by(account(builder.build()), "dimension")
    assert table.rows == ()
    assert "jaxtyping" in str(table.note)
