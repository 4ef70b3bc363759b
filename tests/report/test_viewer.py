"""The full-screen viewer: pages, keys, sizes and hostile names, by Textual's own pilot."""

import asyncio

import pytest
from msgspec import structs
from rich.cells import cell_len

from tests.builders import TraceBuilder, big_trace, factory_call, frame, mm_call, site, unknown_call
from tests.report.test_text import HOSTILE, realistic
from torchtally.chips import chip
from torchtally.ledger import account
from torchtally.report.viewer.app import TraceViewer
from torchtally.report.viewer.table_view import TableView
from torchtally.timing.roofline import Roofline
from torchtally.timing.targets import known_roofline
from torchtally.trace import Ending, Phase, Role, Trace
from torchtally.views import VIEWS

pytestmark = pytest.mark.one_case_in(3)

SIZES = ((80, 24), (160, 50), (40, 10))
PAGES = "12345678"
SOURCE = "import torch\n\nx = first(x)\ny = second(x)\n"


def model() -> Trace:
    """Two steps of two blocks: line 3 multiplies 8 times as much as line 4."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(64, 64), role=Role.PARAMETER, name="h.0.weight")
    for _ in range(2):
        for number, size in ((0, 512), (1, 64)):
            where = site(
                frame("model.py", 3 + number, ("x = first(x)", "y = second(x)")[number]),
                module=f"h.{number}",
                module_class="Block",
            )
            out = builder.run(mm_call(size, 64, 64), (weight, weight), site=where)
            builder.run(mm_call(size, 64, 64), (out, weight), site=where, phase=Phase.BACKWARD)
            builder.free(out)
        builder.end_step()
    return builder.build(script="model.py")


def screens(
    trace: Trace,
    *keys: str,
    size: tuple[int, int] = (80, 24),
    sources: dict[str, str] | None = None,
    roofline: Roofline | None = Roofline(chip("H100-SXM")),  # noqa: B008 (frozen)
) -> list[list[str]]:
    """What is on the screen at first and after each key, line by line; "@WxH" resizes."""

    async def walk() -> list[list[str]]:
        app = TraceViewer(
            account(trace, roofline=roofline), lambda: sources or {}, file="run.tally"
        )
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            shown = [lines_of(app)]
            for key in keys:
                if key.startswith("@"):
                    await pilot.resize_terminal(*map(int, key[1:].split("x")))
                else:
                    await pilot.press(key)
                await pilot.pause(0.15 if key in ("left", "right", "p", "g") else None)
                shown.append(lines_of(app))
            return shown

    return asyncio.run(walk())


def screenshot(file: str, *keys: str, size: tuple[int, int]) -> str:
    """The screen as SVG after these keys."""

    async def walk() -> str:
        trace = Trace.load(file)
        app = TraceViewer(
            account(trace, roofline=known_roofline(trace.chip)), dict, file="run.tally"
        )
        async with app.run_test(size=size) as pilot:
            await pilot.press(*keys)
            await pilot.pause()
            return app.export_screenshot(title="tally view run.tally")

    return asyncio.run(walk())


def lines_of(app: TraceViewer) -> list[str]:
    return [strip.text for strip in app.screen._compositor.render_strips()]


def last(trace: Trace, *keys: str, size: tuple[int, int] = (80, 24), **given: object) -> str:
    return "\n".join(screens(trace, *keys, size=size, **given)[-1])  # type: ignore[arg-type]


def cursor_row(screen: str) -> str:
    return next(line for line in screen.splitlines() if line.startswith("> "))


def test_the_first_page_is_the_report_of_show() -> None:
    screen = last(model())
    assert screen.startswith("model.py: fits H100-SXM: peak ")
    assert "fits H100-SXM" in screen.splitlines()[2]
    assert "search" in screen.splitlines()[-1]
    assert "quit" in screen.splitlines()[-1]


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_page_fills_every_size_exactly(size: tuple[int, int]) -> None:
    for screen in screens(realistic(), *PAGES, size=size):
        assert len(screen) == size[1]
        assert {cell_len(line) for line in screen} == {size[0]}


@pytest.mark.thorough
def test_source_has_every_line_of_the_file_and_the_hottest_under_the_cursor() -> None:
    screen = last(model(), "2", sources={"model.py": SOURCE})
    assert "1  import torch" in screen
    row = cursor_row(screen)
    assert "3  x = first(x)" in row
    assert "4.19 M" in row  # 2 * 512 * 64 * 64 FLOPs forward


def test_without_the_file_the_lines_that_ran_are_shown() -> None:
    screen = last(model(), "2")
    assert "x = first(x)" in screen
    assert "import torch" not in screen
    assert "lines that ran" in screen


def test_enter_on_a_line_shows_its_operators_then_its_modules_and_escape_comes_back() -> None:
    source, part, modules, back = screens(model(), "2", "enter", "4", "escape")[1:]
    assert part[0].startswith("model.py:3  x = first(x)")
    assert "float32[512, 64]" in "\n".join(part)
    assert any("8.39 M  128.00 KiB  total" in line for line in part)  # forward and backward
    assert any("h.0" in line for line in modules)
    assert not any("h.1" in line for line in modules)
    assert back == source


@pytest.mark.thorough
def test_the_tree_opens_and_closes_and_sorts_within_a_branch() -> None:
    opened, closed, again = (
        "\n".join(lines) for lines in screens(model(), "3", "left", "right")[1:]
    )
    assert cursor_row(opened).split()[1] == "-"
    assert cursor_row(opened).rstrip().endswith("h")
    assert "Block" not in closed or "    0" not in closed
    assert cursor_row(closed).split()[1] == "+"
    assert again == opened


@pytest.mark.thorough
def test_a_module_holds_what_is_inside_it() -> None:
    screen = last(model(), "3", "enter")
    assert screen.startswith("h ")
    assert "9.44 M" in screen  # both blocks, forward and backward: 2 * 2 * (512 + 64) * 64 * 64


@pytest.mark.thorough
def test_a_question_mark_lists_all_keys_and_hides_them_again() -> None:
    before, shown, after = screens(model(), "question_mark", "question_mark", size=(120, 40))
    assert "? keys" in before[-1]
    for key in ("previous page", "search", "quit"):
        assert any(key in line for line in shown), key
    assert after == before


def test_search_keeps_matching_rows_and_escape_brings_all_back() -> None:
    matches, kept, all_again = screens(
        model(), "8", "slash", *"timeline", "enter", "escape", size=(160, 50)
    )[-3:]
    assert cursor_row("\n".join(matches)).split()[1] == "timeline"
    assert any("row 1 of 1" in line for line in kept)
    assert any(f"of {len(VIEWS)}" in line for line in all_again)


@pytest.mark.thorough
def test_s_sorts_by_each_column_in_turn_and_r_reverses() -> None:
    shown = screens(model(), "2", "s", "s", "r", size=(120, 24), sources={"model.py": SOURCE})
    unsorted, _by_bound, by_bar, reversed_ = ("\n".join(lines) for lines in shown[1:])
    assert "by " not in unsorted.splitlines()[-2].replace("by bound", "")
    assert "; by " in by_bar
    assert by_bar != reversed_
    numbers = last(model(), "4", "s")
    assert "by time, largest first" in numbers


@pytest.mark.thorough
def test_memory_begins_at_the_peak_and_arrows_move_through_the_run() -> None:
    peak, earlier, back = ("\n".join(lines) for lines in screens(model(), "5", "left", "p")[1:])
    assert ", the peak" in peak
    assert ", the peak" not in earlier
    assert ", the peak" in back
    assert "parameters" in back
    assert "at tick" not in back


@pytest.mark.thorough
def test_memory_lists_lines_modules_and_storages() -> None:
    titles = ("storages", "module", "times", "tensor")
    for title, lines in zip(titles, screens(model(), "5", "g", "g", "g")[1:], strict=True):
        assert any(title in line.split() for line in lines), title


@pytest.mark.thorough
def test_zooming_keeps_the_cursor_in_sight() -> None:
    shown = screens(big_trace(2000), "5", "plus", "plus", "plus", "minus")
    for lines in shown[1:]:
        assert any("^" in line for line in lines)


@pytest.mark.thorough
def test_streams_show_what_runs_at_the_cursor() -> None:
    screen = last(model(), "6")
    assert "H100-SXM, stream 0" in screen
    assert "aten.mm" in screen


@pytest.mark.thorough
def test_a_chip_without_times_says_so() -> None:
    screen = last(structs.replace(model(), chip="no such chip"), "6", roofline=None)
    assert "The times of this chip are unknown" in screen


def test_notes_list_all_that_is_left_out_and_replaced() -> None:
    screen = last(realistic(), "7", size=(160, 50))
    assert "not counted" in screen
    assert "placeholder, number" in screen
    assert "difference" in screen


@pytest.mark.thorough
def test_views_open_by_name() -> None:
    screen = last(model(), "8", "end", "enter")
    assert " 1 timeline" in screen or " 1 workspace" in screen


@pytest.mark.thorough
def test_a_resize_keeps_the_cursor_in_sight() -> None:
    shown = screens(model(), "8", "end", "@80x12", "@160x50", size=(80, 24))
    for lines in shown[2:]:
        assert any(line.startswith("> workspace") for line in lines)


@pytest.mark.thorough("the screens beside it")
def test_hostile_names_are_shown_as_text() -> None:
    builder = TraceBuilder()
    for hostile in HOSTILE:
        where = site(frame("train.py", 1 + len(hostile), hostile), frame(hostile, 1, hostile),
                     module=hostile, module_class=hostile[:50])  # fmt: skip
        builder.run(mm_call(64, 64, 64), (-1, -1), site=where)
        builder.run(unknown_call(hostile or "op"), (), site=where)
    builder.end_step()
    trace = builder.build(script=HOSTILE[0], ending=Ending("exception", HOSTILE[1]))
    for screen in screens(trace, "2", "3", "e", "4", "5", "7", "2", "enter", size=(100, 40)):
        assert {cell_len(line) for line in screen} == {100}
        assert all(char.isprintable() for line in screen for char in line)


@pytest.mark.thorough
def test_markup_is_text() -> None:
    assert "[/x][bold red]boo[/]" in last(
        realistic(text="[/x][bold red]boo[/]"), "2", size=(160, 24)
    )


@pytest.mark.thorough
def test_wide_characters_take_two_columns() -> None:
    screen = last(realistic(text="漢字" * 50), "2", size=(120, 24))
    assert "漢字漢" in screen


@pytest.mark.thorough("the screens beside it")
def test_rows_that_are_not_seen_are_not_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    native = TableView._row

    def counted(view: TableView, layout: object, place: int, width: int) -> object:
        rendered.append(place)
        return native(view, layout, place, width)  # type: ignore[arg-type]

    monkeypatch.setattr(TableView, "_row", counted)
    screens(big_trace(20_000), "5", "g", "g", "g")
    assert len(set(rendered)) < 100


@pytest.mark.thorough("the screens beside it")
def test_an_empty_run_has_every_page() -> None:
    empty = TraceBuilder().build(script="empty.py")
    shown = screens(empty, *PAGES)
    assert "nothing was allocated" in "\n".join(shown[0])
    assert "Nothing was put on the device." in "\n".join(shown[5])
