"""Every view is a group-by and a sum."""

import pytest
from hypothesis import given, settings

from tests.builders import NOWHERE, TraceBuilder, factory_call, frame, mm_call, site
from tests.strategies import traces
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.text import summary_text
from torchtally.table import Table
from torchtally.trace import Frame, Phase, Role, Trace
from torchtally.units import Unit
from torchtally.views import VIEWS, by
from torchtally.views.lines import is_behind_libraries, own_root, short_path
from torchtally.views.summary import summarise

F = 2 * 2 * 3 * 4
"""FLOPs of the product below."""
PRODUCT = mm_call(2, 3, 4)


def model() -> Ledger:
    """GPT holds h.0.mlp and h.1.mlp; each runs one product, GPT itself one, the script one."""
    own = frame("train.py", 5)
    library = frame("modeling.py", 77, is_own=False)
    builder = TraceBuilder()
    weight = builder.run(factory_call(3, 4), role=Role.PARAMETER)
    builder.end_step()
    for module, cls in (("h.0.mlp", "MLP"), ("h.1.mlp", "MLP"), ("", "GPT")):
        where = site(library, own, module=module, module_class=cls)
        out = builder.run(PRODUCT, (weight, weight), site=where)
        builder.run(PRODUCT, (out, weight), site=where, phase=Phase.BACKWARD)
    builder.run(PRODUCT, (weight, weight), site=site(own))
    builder.run(PRODUCT, (weight, weight), site=NOWHERE)
    builder.end_step()
    return account(builder.build())


def test_lines_are_the_users_own() -> None:
    table = by(model(), "line")
    assert table.column("line") == ("train.py:5", "(no line)")
    assert table.column("source") == ("line_5()", "")
    assert table.column("flops_forward") == (4 * F, F)
    assert table.column("flops_backward") == (3 * F, 0)
    assert table.total("flops_forward") == 5 * F


def test_library_lines_are_the_innermost() -> None:
    table = by(model(), "library-line")
    assert table.column("line") == ("modeling.py:77", "(no line)", "train.py:5")


TRAIN = Frame("/home/me/train.py", 9, "main", "trainer.train()", is_own=True)
LOOP = Frame("/x/site-packages/transformers/trainer.py", 2, "Trainer.train", "step()", is_own=False)
LAYER = Frame("/x/site-packages/transformers/llama.py", 3, "Layer.forward", "up(x)", is_own=False)
ROTARY = Frame("/x/site-packages/transformers/llama.py", 4, "rotary", "q * cos", is_own=False)
KERNEL = Frame("/x/site-packages/transformers/sdpa.py", 5, "sdpa", "attention(q)", is_own=False)
OWN_LAYER = Frame("/home/me/model.py", 6, "Adapter.forward", "self.down(x)", is_own=True)


def trained(*inner: tuple[Frame, ...], own: int = 0) -> Ledger:
    """A product below `trainer.train()` for each of these frames, and so many of the script's."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(3, 4), role=Role.PARAMETER)
    builder.end_step()
    for frames in inner:
        builder.run(PRODUCT, (weight, weight), site=site(*frames, LOOP, TRAIN, module="h"))
    for _ in range(own):
        builder.run(PRODUCT, (weight, weight), site=site(frame("/home/me/train.py", 5)))
    builder.end_step()
    return account(builder.build())


def test_below_a_librarys_training_loop_lines_are_the_models() -> None:
    """Functions of the model's file have their lines; those of other files their caller's."""
    ledger = trained((LAYER,), (ROTARY, LAYER), (KERNEL, LAYER))
    table = by(ledger, "line")
    assert table.column("line") == ("transformers/llama.py:3", "transformers/llama.py:4")
    assert table.column("flops_forward") == (2 * F, F)
    assert table.title == "By line of the model, all below train.py:9 trainer.train()"
    assert "--by own-line" in str(table.note)
    assert by(ledger, "own-line").column("line") == ("train.py:9",)
    ledger.check()


def test_the_users_own_module_comes_before_the_librarys_around_it() -> None:
    ledger = trained(*10 * [(LAYER,)], (OWN_LAYER, LAYER))
    assert ledger.delegate is not None
    assert "model.py:6" in by(ledger, "line").column("line")


def test_what_the_loop_does_itself_stays_on_the_users_line() -> None:
    """The optimizer's operators run in no module's forward."""
    ledger = trained(*20 * [(LAYER,)], ())
    assert by(ledger, "line").column("line") == ("transformers/llama.py:3", "train.py:9")


def test_own_lines_stay_where_they_do_a_tenth_of_the_step() -> None:
    ledger = trained(*9 * [(LAYER,)], own=1)
    assert ledger.delegate is None
    assert by(ledger, "line").column("line") == ("train.py:9", "train.py:5")


def test_the_page_of_a_training_loop_shows_the_models_lines_first() -> None:
    summary = summarise(trained((LAYER,), (KERNEL, LAYER)))
    assert summary.lines.column("line") == ("transformers/llama.py:3",)
    assert summary.library_lines is None
    page = summary_text(summary, file="run.tally")
    assert "all below train.py:9 trainer.train()" in " ".join(page.split())
    assert "tally show run.tally --by module " in page


def test_work_behind_a_librarys_lines_is_noticed() -> None:
    ledger = model()
    assert is_behind_libraries(ledger)  # six of eight products
    assert summarise(ledger).library_lines is not None


def test_modules_have_their_own_and_their_inner_work() -> None:
    table = by(model(), "module")
    own = dict(zip(table.column("module"), table.column("flops_forward"), strict=True))
    whole = dict(zip(table.column("module"), table.column("flops_with_children"), strict=True))
    assert own == {
        "h": 0,
        "h.0": 0,
        "h.1": 0,
        "h.0.mlp": F,
        "h.1.mlp": F,
        "(the model)": F,
        "(outside any module)": 2 * F,
    }
    assert whole == {
        "h": 4 * F,
        "h.0": 2 * F,
        "h.1": 2 * F,
        "h.0.mlp": 2 * F,
        "h.1.mlp": 2 * F,
        "(the model)": 6 * F,
        "(outside any module)": 2 * F,
    }
    assert table.total("flops_forward") == 5 * F


def test_repeated_modules_are_folded() -> None:
    table = by(model(), "repeated-module")
    row = dict(zip(table.column("module"), table.column("module_count"), strict=True))
    assert row == {"h.*.mlp": 2, "(the model)": 1, "(outside any module)": 1}


def test_operators_phases_and_kinds() -> None:
    ledger = model()
    assert by(ledger, "op").column("count") == (8,)
    assert by(ledger, "phase").column("phase") == ("forward", "backward")
    assert by(ledger, "kind").column("kind") == ("product",)


def test_categories_sum_to_the_peak() -> None:
    ledger = model()
    table = by(ledger, "category")
    assert table.total("bytes") == ledger.memory.peak_bytes == sum(table.column("bytes"))
    assert table.total("bytes_share") == 1


def test_memory_at_the_peak_has_its_lines() -> None:
    table = by(model(), "peak-line")
    rows = zip(*map(table.column, ("category", "bytes", "line")), strict=True)
    assert set(rows) == {
        ("activations", 3 * 512, "train.py:5"),
        ("temporaries", 4 * 512, "train.py:5"),
        ("temporaries", 512, "(no line)"),
        ("parameters", 512, "(no line)"),
    }
    assert table.total("bytes") == 9 * 512


def test_top_keeps_the_totals() -> None:
    table = by(model(), "module").top(2)
    assert len(table.rows) == 2
    assert table.left_out == 5
    assert table.total("flops_forward") == 5 * F
    assert table.top(None) is table
    assert table.top(1).left_out == 6


def test_sorting_by_another_column() -> None:
    table = by(model(), "line")
    assert table.sorted_by("bytes_saved").column("bytes_saved") == (3 * 512, 0)
    assert table.sorted_by("saved").rows == table.sorted_by("bytes_saved").rows  # the header's word
    assert table.sorted_by("Fwd-FLOPs").rows == table.sorted_by("flops_forward").rows == table.rows
    with pytest.raises(UsageError, match=r"no column 'speed'. Choose from: flops_share, flops_for"):
        table.sorted_by("speed")
    with pytest.raises(UsageError, match="'source' is a column of text"):
        table.sorted_by("source")


def test_paths_are_shown_from_the_users_own_directory() -> None:
    root = own_root(["/home/me/proj/train.py", "/home/me/proj/net/model.py"])
    assert short_path("/home/me/proj/net/model.py", root) == "net/model.py"
    library = "/usr/lib/python3/site-packages/transformers/trainer.py"
    assert short_path(library, root) == "transformers/trainer.py"
    assert short_path("/opt/other.py", root) == "/opt/other.py"
    assert own_root([]) == own_root(["a.py", "/b.py"]) == own_root(["a.py"]) == ""


def test_an_unknown_view_is_an_error_that_lists_them() -> None:
    with pytest.raises(
        UsageError, match=r"Unknown view 'colour'.*kind, layout, library-line, line"
    ):
        by(model(), "colour")


@given(trace=traces())
@settings(deadline=None, max_examples=60)
def test_every_column_sums_to_its_total(trace: Trace) -> None:
    """Of all views of one trace: most of the time goes into making a trace and its ledger."""
    ledger = account(trace)
    for key in VIEWS:
        table = by(ledger, key)
        assert len(table.totals) == len(table.columns), key
        for column, total in zip(table.columns, table.totals, strict=True):
            if total is None:
                continue
            summed = sum(cell or 0 for cell in table.column(column.name))
            if column.unit is Unit.FRACTION:
                assert summed == pytest.approx(total), (key, column.name)
            else:
                assert summed == total, (key, column.name)


@pytest.mark.thorough
@given(trace=traces())
def test_a_module_with_its_inner_ones_costs_no_less_than_alone(trace: Trace) -> None:
    table = by(account(trace), "module")
    present = [column.name for column in table.columns]
    names = [name for name in present if name in FLOPS_COLUMNS]
    total = sum(table.total(name) for name in names)
    own = [sum(cells) for cells in zip(*map(table.column, names), strict=True)]
    for alone, whole in zip(own, table.column("flops_with_children"), strict=True):
        assert alone <= whole <= total


FLOPS_COLUMNS = (
    "flops_forward",
    "flops_backward",
    "flops_recompute",
    "flops_optimizer",
    "flops_evaluation",
)


def test_a_new_view_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtally.views import view

    monkeypatch.setattr(view, "_views", dict(view._views))

    @view.view("mine", "a view of my own", "memory")
    def mine(ledger: Ledger) -> Table:
        raise NotImplementedError

    assert view.all_views()["mine"] == view.View("mine", "a view of my own", "memory", mine)
    with pytest.raises(AssertionError, match="mine"):
        view.view("mine", "the same name again")(mine)
