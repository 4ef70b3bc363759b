"""The pages of the viewer: a table, or something drawn above one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message

from torchtally.ledger import Entry, Ledger
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.report.text import summary_lines
from torchtally.report.viewer.lines_view import LinesView
from torchtally.report.viewer.table_view import Arrangement, TableView, in_order, matches
from torchtally.report.whole_run import run_report
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views import VIEWS, by
from torchtally.views.lines import place_of, root_of, short_path
from torchtally.views.module_tree import ModuleTree, module_tree
from torchtally.views.modules import module_texts
from torchtally.views.notes import notes
from torchtally.views.row_entries import row_entries
from torchtally.views.source_lines import SourceFile, source_files, source_table
from torchtally.views.summary import summarise

DRILL_VIEWS = ("call", "op", "line", "module", "library-line", "kernel", "phase", "bound")
"""Of the operators of one row."""


class ViewerPage(Vertical):
    """What fills the screen between the tabs and the keys."""

    class Opened(Message):
        """A row's operators are to be shown by themselves."""

        def __init__(self, title: str, entries: Sequence[Entry]) -> None:
            super().__init__()
            self.title, self.entries = title, entries

    class ViewOpened(Message):
        """A view of all that this page is about is to be shown."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    DEFAULT_CSS = "ViewerPage { height: 1fr; }"

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def main(self) -> TableView | LinesView:
        """What takes keys and searches."""
        return next(iter(self.query(TableView)), None) or self.query_one(LinesView)

    def open(self, title: str, entries: Sequence[Entry] | None) -> None:
        if entries:
            self.post_message(self.Opened(title, entries))
        else:
            self.notify("No operator of the reported step ran there.", markup=False)


class OverviewPage(ViewerPage):
    """The report of `tally show`."""

    def __init__(self, ledger: Ledger, file: str) -> None:
        super().__init__(ledger)
        self.file = file

    def compose(self) -> ComposeResult:
        if self.ledger.trace.measured is not None:
            report = run_report(self.ledger, file=self.file)
            yield LinesView(
                lambda width: [
                    Text(line) for line in render(report, "text", Look(width=width)).splitlines()
                ]
            )
        else:
            summary = summarise(self.ledger)
            yield LinesView(lambda width: [*summary_lines(summary, self.file, width)])


class ViewPage(ViewerPage):
    """A view as it is; a row opens its operators where the view is of operators."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        super().__init__(ledger)
        self.view = name

    def compose(self) -> ComposeResult:
        yield TableView(by(self.ledger, self.view))

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        table = event.view.table
        self.open(
            row_title(table, event.row), row_entries(self.ledger, self.view, table, event.row)
        )


def row_title(table: Table, row: int) -> str:
    """The texts of a row."""
    texts = [
        str(cell)
        for column, cell in zip(table.columns, table.rows[row], strict=True)
        if cell and column.unit.is_text and column.unit is not Unit.BAR
    ]
    return "  ".join(texts)


class SourcePage(ViewerPage):
    """A file of the user's with what each line costs; `f` shows the next file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "file(1)", "next file"),
        Binding("F", "file(-1)", "previous file", show=False),
        Binding("h", "hottest", "hottest line"),
    ]

    def __init__(self, ledger: Ledger, sources: Mapping[str, str]) -> None:
        super().__init__(ledger)
        self.sources = sources
        self.files: Sequence[SourceFile] = source_files(ledger)
        self.root = root_of(ledger.by_line())
        self.number = 0

    def compose(self) -> ComposeResult:
        yield TableView(self._table(), is_faint=self._is_faint)

    def on_mount(self) -> None:
        self.call_after_refresh(self.action_hottest)

    def _table(self) -> Table:
        if not self.files:
            return source_table(self.ledger, "", None)
        path = self.files[self.number].path
        table = source_table(self.ledger, path, self.sources.get(path))
        name = short_path(path, self.root)
        note = f"{name}, file {self.number + 1} of {len(self.files)}"
        if path not in self.sources:
            note += ", lines that ran"
        return Table(name, table.columns, table.rows, table.totals, note=note)

    def _is_faint(self, row: int) -> bool:
        count = self.query_one(TableView).table
        return count.rows[row][_place(count, "count")] is None

    def action_file(self, by: int) -> None:
        if self.files:
            self.number = (self.number + by) % len(self.files)
            self.query_one(TableView).show_table(self._table())
            self.action_hottest()

    def action_hottest(self) -> None:
        """Goes to the line that takes most of the time, or of the FLOPs."""
        view = self.query_one(TableView)
        names = [column.name for column in view.table.columns]
        place = names.index("seconds" if "seconds" in names else "flops_forward")
        rows = view.table.rows
        if rows:
            view.go_to(max(range(len(rows)), key=lambda row: float(rows[row][place] or 0)))

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        table, path = event.view.table, self.files[self.number].path
        number = table.rows[event.row][_place(table, "line_number")]
        entries = [
            entry
            for entry in self.ledger.reported
            if entry.line is not None and (entry.line.file, entry.line.line) == (path, number)
        ]
        text = str(table.rows[event.row][_place(table, "source")]).strip()
        self.open(f"{short_path(path, self.root)}:{number}  {text}", entries)


def _place(table: Table, name: str) -> int:
    return next(n for n, column in enumerate(table.columns) if column.name == name)


class ModulesPage(ViewerPage):
    """The tree of modules; left and right close and open a branch."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right,plus", "expand", "branch", key_display="←→"),
        Binding("left,minus", "collapse", "close", show=False),
        Binding("space", "toggle_branch", "toggle", show=False),
        Binding("e", "expand_all", "all"),
    ]
    MOST_ROWS = 40
    """Levels are open at first while there are at most so many rows."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.tree_of: ModuleTree = module_tree(ledger)
        rows = self.tree_of.rows
        counts = [sum(row.level <= level for row in rows) for level in range(64)]
        level = max((n for n, count in enumerate(counts) if count <= self.MOST_ROWS), default=0)
        self.expanded = {n for n, row in enumerate(rows) if row.level < level and not row.is_leaf}
        self.holders = _holders(self.tree_of)

    def compose(self) -> ComposeResult:
        yield TableView(self.tree_of.table, order_rows=self._arrange, mark_of=self._mark)

    def _mark(self, row: int) -> str:
        if self.tree_of.rows[row].is_leaf:
            return " "
        return "-" if row in self.expanded else "+"

    def _arrange(self, table: Table, arrangement: Arrangement) -> list[int]:
        """Modules below the one that holds them, sorted among their like; of a search all that
        match, with what holds them.
        """
        rows = range(len(table.rows))
        kept, opened = set(rows), self.expanded
        if arrangement.search:
            kept = {row for row in rows if matches(table, row, arrangement.search)}
            kept |= {holder for row in kept for holder in self._around(row)}
            opened = kept
        children: dict[int, list[int]] = {}
        for row in rows:
            if row in kept:
                children.setdefault(self.holders[row], []).append(row)

        def below(holder: int) -> Iterable[int]:
            for row in in_order(table, children.get(holder, ()), arrangement):
                yield row
                if row in opened:
                    yield from below(row)

        return list(below(-1))

    def _around(self, row: int) -> Iterable[int]:
        while (row := self.holders[row]) >= 0:
            yield row

    def _redraw(self, row: int) -> None:
        self.query_one(TableView).rearrange(row=row)

    def action_expand(self) -> None:
        row = self.query_one(TableView).row
        if row is not None and not self.tree_of.rows[row].is_leaf:
            self.expanded.add(row)
            self._redraw(row)

    def action_collapse(self) -> None:
        """The branch; of a closed one or a leaf, the one that holds it."""
        row = self.query_one(TableView).row
        if row is None:
            return
        if row not in self.expanded:
            row = max(self.holders[row], 0)
        self.expanded.discard(row)
        self._redraw(row)

    def action_toggle_branch(self) -> None:
        row = self.query_one(TableView).row
        if row is not None:
            self.action_collapse() if row in self.expanded else self.action_expand()

    def action_expand_all(self) -> None:
        row = self.query_one(TableView).row or 0
        inner = {n for n, each in enumerate(self.tree_of.rows) if not each.is_leaf}
        self.expanded = set() if self.expanded == inner else inner
        self._redraw(row)

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        chosen = self.tree_of.rows[event.row]
        entries = [
            entry
            for entry in self.ledger.reported
            if chosen.holds(type(chosen.path)(entry.site.module, entry.site.module_class))
        ]
        self.open("  ".join(filter(None, module_texts(chosen.path))), entries)


def _holders(tree: ModuleTree) -> list[int]:
    """The row that holds each row; -1 for those at the top."""
    holders, around = [], list[int]()
    for number, row in enumerate(tree.rows):
        del around[row.level :]
        holders.append(around[-1] if around else -1)
        around += [number] * (row.level + 1 - len(around))
    return holders


class NotesPage(ViewerPage):
    """What is not counted, placeholders, differences."""

    def compose(self) -> ComposeResult:
        yield TableView(notes(self.ledger))

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        table = event.view.table
        place = table.rows[event.row][_place(table, "line")]
        root = root_of(self.ledger.by_line())
        entries = [
            entry
            for entry in self.ledger.reported
            if entry.line is not None and place_of(entry.line.file, entry.line.line, root) == place
        ]
        self.open(row_title(table, event.row), entries)


class ViewsPage(ViewerPage):
    """Every view by its name; a row opens it."""

    def compose(self) -> ComposeResult:
        yield TableView(
            Table(
                title="Views",
                columns=(
                    Column("view", "view", Unit.NAME),
                    Column("subject", "of", Unit.WORD),
                    Column("summary", "what it shows", Unit.TEXT),
                ),
                rows=tuple((view.name, view.subject, view.summary) for view in VIEWS.values()),
            )
        )

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        self.post_message(self.ViewOpened(str(event.view.table.rows[event.row][0])))


PageMaker = tuple[str, Callable[[], ViewerPage]]
"""A page's title, and what makes it when it is first shown."""


def view_pages(ledger: Ledger, names: Iterable[str]) -> list[PageMaker]:
    return [(name, partial(ViewPage, ledger, name)) for name in names]
