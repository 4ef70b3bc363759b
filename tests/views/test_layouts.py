"""Views and copies with their strides, by hand and of a run."""

from msgspec.structs import replace

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, spec
from torchtally.ledger import Ledger, account
from torchtally.trace import Call, Phase, TensorSpec
from torchtally.views import by

HERE, THERE = site(frame("train.py", 5, "y = x.T")), site(frame("train.py", 6, "z = y + 0"))
X = spec(2, 3, argument="self")
TRANSPOSED = replace(spec(3, 2), stride=(1, 3))


def unary(name: str, given: TensorSpec, result: TensorSpec) -> Call:
    return Call(name, "default", (replace(given, argument="self"),), (result,))


def model() -> Ledger:
    """A transposed view in two lines, a copy of it in the second, and the same in a backward."""
    builder = TraceBuilder()
    x = builder.run(factory_call(2, 3))
    view = unary("aten.t", X, TRANSPOSED)
    copy = unary("aten.clone", TRANSPOSED, spec(3, 2, storage=1))
    builder.run(view, (x,), site=HERE, outputs=(x,))
    builder.run(view, (x,), site=THERE, outputs=(x,))
    for _ in range(2):
        builder.run(copy, (x,), site=THERE)
    builder.run(view, (x,), site=HERE, outputs=(x,), phase=Phase.BACKWARD)
    builder.run(mm_call(2, 3, 4), (x, x), site=HERE)
    builder.end_step()
    return account(builder.build())


def test_what_moves_most_is_first_and_views_move_nothing() -> None:
    """A copy of 6 floats reads 24 bytes and writes 24."""
    table = by(model(), "layout")
    assert table.column("views") == (0, 1, 1)
    assert table.column("copies") == (2, 0, 0)
    assert table.column("bytes_moved") == (2 * (24 + 24), 0, 0)
    assert table.column("operator") == ("clone", "t", "t")
    assert table.column("line") == ("train.py:6", "train.py:5", "train.py:6")
    assert table.totals[:3] == (2, 2, 96)


def test_strides_are_those_before_and_after() -> None:
    table = by(model(), "layout")
    assert table.column("strides") == ("(2, 1)", "(1, 3)", "(1, 3)")
    assert table.column("shape") == ("(3, 2)",) * 3
    assert table.column("from_strides") == ("(1, 3)", "(3, 1)", "(3, 1)")
    assert table.column("from_shape") == ("(3, 2)", "(2, 3)", "(2, 3)")


def test_totals_are_those_of_the_ledger() -> None:
    ledger = model()
    views, copies, *_ = by(ledger, "layout").totals
    assert (views, copies) == (ledger.total.views, ledger.total.copies)
