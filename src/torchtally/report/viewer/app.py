"""The viewer's screens: tabs, a page, a search and the keys."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from rich.style import Style
from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Footer, HelpPanel, Input

from torchtally.ledger import Ledger, narrow
from torchtally.report.text import verdict
from torchtally.report.viewer.memory_page import MemoryPage
from torchtally.report.viewer.page import (
    DRILL_VIEWS,
    ModulesPage,
    NotesPage,
    OverviewPage,
    PageMaker,
    SourcePage,
    ViewerPage,
    ViewPage,
    ViewsPage,
    view_pages,
)
from torchtally.report.viewer.segments import BOLD, DIM, REVERSED, strip
from torchtally.report.viewer.streams_page import StreamsPage
from torchtally.report.viewer.table_view import TableView
from torchtally.units import format_seconds
from torchtally.views.summary import judge


class Heading(Widget):
    """One line: what is shown."""

    DEFAULT_CSS = "Heading { height: 1; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def render_line(self, y: int) -> Strip:
        return strip([(self.text, BOLD)], self.size.width)


class PageTabs(Widget):
    """One line with the pages and their digits; a click shows one."""

    DEFAULT_CSS = "PageTabs { height: 1; }"

    def __init__(self, titles: Sequence[str]) -> None:
        super().__init__()
        self.titles, self.current = titles, 0

    def parts(self) -> list[tuple[str, Style]]:
        return [
            (f" {number + 1} {title}", REVERSED if number == self.current else DIM)
            for number, title in enumerate(self.titles)
        ]

    def render_line(self, y: int) -> Strip:
        return strip(self.parts(), self.size.width)

    async def on_click(self, event: events.Click) -> None:
        right = 0
        for number, (text, _) in enumerate(self.parts()):
            right += len(text)
            if event.x < right:
                await self.screen.run_action(f"show_page({number})")
                return


class PagesScreen(Screen[None]):
    """Pages about one ledger, one at a time. A page is made when it is first shown."""

    CSS = """
    PagesScreen Input { dock: bottom; height: 1; border: none; padding: 0 1; display: none; }
    PagesScreen Input:focus { border: none; }
    PagesScreen Container { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(n), f"show_page({n - 1})", f"page {n}", show=False) for n in range(1, 10)),
        Binding("tab", "turn(1)", "next page", show=False, priority=True),
        Binding("shift+tab", "turn(-1)", "previous page", show=False, priority=True),
        Binding("slash", "search", "search"),
        Binding("escape", "back", "back"),
        Binding("question_mark", "help", "keys"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, heading: str, ledger: Ledger, pages: Sequence[PageMaker]) -> None:
        super().__init__()
        self.heading, self.ledger, self.pages = heading, ledger, pages
        self.mounted: dict[int, ViewerPage] = {}
        self.current = -1

    def compose(self) -> ComposeResult:
        yield Heading(self.heading)
        yield PageTabs([title for title, _ in self.pages])
        yield Container()
        yield Input(placeholder="search (enter: keep, escape: all)", id="search")
        yield Footer(show_command_palette=False, compact=True)

    async def on_mount(self) -> None:
        await self.action_show_page(0)

    @property
    def page(self) -> ViewerPage:
        return self.mounted[self.current]

    async def action_show_page(self, number: int) -> None:
        if number >= len(self.pages) or number == self.current:
            return
        if self.current >= 0:
            self.page.display = False
        if number not in self.mounted:
            self.mounted[number] = self.pages[number][1]()
            await self.query_one(Container).mount(self.mounted[number])
        self.current = number
        self.page.display = True
        self.page.main().focus()
        tabs = self.query_one(PageTabs)
        tabs.current = number
        tabs.refresh()

    async def action_turn(self, by: int) -> None:
        await self.action_show_page((self.current + by) % len(self.pages))

    def action_search(self) -> None:
        search = self.query_one(Input)
        search.display = True
        search.focus()

    @on(Input.Changed)
    def search_changed(self, event: Input.Changed) -> None:
        self.page.main().search(event.value)

    @on(Input.Submitted)
    def search_submitted(self) -> None:
        self.query_one(Input).display = False
        self.page.main().focus()

    def action_help(self) -> None:
        """Show every key and what it does here, beside the page; hide it again."""
        if self.query(HelpPanel):
            self.app.action_hide_help_panel()
        else:
            self.app.action_show_help_panel()

    def action_back(self) -> None:
        """End a search, or leave for what was shown before."""
        search, main = self.query_one(Input), self.page.main()
        searched = main.arrangement.search if isinstance(main, TableView) else main.searched
        if search.display or searched:
            search.display = False
            search.value = ""
            main.search("")
            main.focus()
        elif len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def on_viewer_page_opened(self, event: ViewerPage.Opened) -> None:
        """The operators of one row, by themselves."""
        part = narrow(self.ledger, event.entries)
        heading = f"{self.heading} > {event.title}" if self.is_part else event.title
        self.app.push_screen(PartScreen(heading, part, view_pages(part, DRILL_VIEWS)))

    @property
    def is_part(self) -> bool:
        """Whether these are pages of a part of the run."""
        return False

    def on_viewer_page_view_opened(self, event: ViewerPage.ViewOpened) -> None:
        pages: list[PageMaker] = [(event.name, partial(ViewPage, self.ledger, event.name))]
        self.app.push_screen(PagesScreen(self.heading, self.ledger, pages))


class PartScreen(PagesScreen):
    """Pages about the operators of one row."""

    @property
    def is_part(self) -> bool:
        return True


class TraceViewer(App[None]):
    """A run to walk through. `sources` gives texts of files that ran, by their path, when
    they are first shown.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { background: ansi_default; color: ansi_default; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", show=False)]

    def __init__(
        self,
        ledger: Ledger,
        sources: Callable[[], Mapping[str, str]],
        *,
        file: str = "",
        has_colours: bool = True,
    ) -> None:
        super().__init__(ansi_color=True)
        self.ledger, self.file, self.sources = ledger, file, sources
        self.has_colours = has_colours

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.push_screen(PagesScreen(heading(self.ledger), self.ledger, self.pages()))

    def pages(self) -> list[PageMaker]:
        ledger = self.ledger
        return [
            ("Overview", partial(OverviewPage, ledger, self.file)),
            ("Source", lambda: SourcePage(ledger, self.sources())),
            ("Modules", partial(ModulesPage, ledger)),
            ("Operators", partial(ViewPage, ledger, "op")),
            ("Memory", partial(MemoryPage, ledger, has_colours=self.has_colours)),
            ("Streams", partial(StreamsPage, ledger, has_colours=self.has_colours)),
            ("Notes", partial(NotesPage, ledger)),
            ("Views", partial(ViewsPage, ledger)),
        ]


def heading(ledger: Ledger) -> str:
    """The script, and the verdict."""
    script = ledger.trace.script.rpartition("/")[2]
    step = "" if not ledger.step_s else f"; step {format_seconds(ledger.step_s)}"
    return f"{script}: {verdict(judge(ledger))}{step}"
