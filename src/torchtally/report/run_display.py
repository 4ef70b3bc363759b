"""What `tally run --watch` shows of a run that goes on: work, memory, the hottest lines so far."""

import shutil
from collections.abc import Callable, Iterator

from rich.text import Text

from torchtally.ledger import Line, PlaceholderKey, RunningAccount, SoFar
from torchtally.report.grid import layout_of
from torchtally.report.plain import cut_left, cut_right
from torchtally.report.terminal import join
from torchtally.table import Column, Table
from torchtally.trace import Use
from torchtally.units import Unit, format_bytes, format_flops, format_fraction, format_seconds
from torchtally.views.columns import part_of
from torchtally.views.lines import TEXTS, line_texts, root_of

MOST_LINES = 5
MOST_PLACEHOLDERS = 2
MOST_COLUMNS = 120
LEAST_COLUMNS = 20
LABEL = 14
BLOCKS = "▁▂▃▄▅▆▇█"
SAMPLES = 2000
"""Of memory at most: seven minutes of them, after which every other one is kept."""
LINE_COLUMNS = (
    Column("kernel_s", "time", Unit.SECONDS),
    Column("kernel_share", "share", Unit.FRACTION),
    Column("flops", "FLOPs", Unit.FLOPS, rank=1),
    *TEXTS,
)


class RunDisplay:
    """Lines of text about a run as it is when they are asked for."""

    def __init__(
        self,
        account: RunningAccount,
        *,
        chip: str,
        capacity_bytes: int,
        is_coloured: bool,
        is_ascii: bool = False,
    ) -> None:
        self.account, self.chip, self.capacity_bytes = account, chip, capacity_bytes
        self.is_coloured, self.is_ascii = is_coloured, is_ascii
        self.refresh: Callable[[], None] = lambda: None
        """Brings the account up to date."""
        self.now_bytes: Callable[[], int] = int
        self.peak_bytes: Callable[[], int] = int
        self._held: list[int] = []
        """Bytes at each drawing; where there was a new peak since the one before, that."""
        self._peak_bytes = 0

    def lines(self, headline: str) -> list[str]:
        """Lines, at most a terminal's, each narrower than it, with its colours."""
        columns, rows = shutil.get_terminal_size()
        width = max(min(columns - 1, MOST_COLUMNS), LEAST_COLUMNS)
        self.refresh()
        self._sample()
        lines = [Text(cut_right(headline, width), style="bold"), *self._body(width)]
        texts = join(lines[: max(rows - 1, 1)], self.is_coloured).splitlines()
        return (
            [text.encode("ascii", "replace").decode() for text in texts] if self.is_ascii else texts
        )

    def _sample(self) -> None:
        now, peak = self.now_bytes(), self.peak_bytes()
        self._held.append(peak if peak > self._peak_bytes else now)
        self._peak_bytes = peak
        if len(self._held) > SAMPLES:
            pairs = zip(self._held[::2], self._held[1::2], strict=False)
            self._held = [max(pair) for pair in pairs]

    def _body(self, width: int) -> Iterator[Text]:
        account = self.account
        total = account.total
        time = (
            f", {format_seconds(total.kernel_s)} of kernels predicted" if account.roofline else ""
        )
        uncounted = f"; {account.uncounted} operators not counted" if account.uncounted else ""
        yield self._labelled_line("work", f"{format_flops(total.flops)}{time}{uncounted}", width)
        yield from self._memory(width)
        hottest = [item for item in account.hottest(MOST_LINES) if any(item[1].heat)]
        if hottest:
            layout = layout_of(self._table(hottest), width)
            titles = layout.line([column.title for column in LINE_COLUMNS])
            yield Text(cut_right(titles, width), style="dim")
            yield from (Text(cut_right(layout.line(row), width)) for row in layout.table.rows)
        yield from self._placeholders(width)

    def _labelled_line(self, label: str, text: str, width: int, style: str = "") -> Text:
        return Text(cut_right(f"  {label:{LABEL - 2}}{text}", width), style=style)

    def _memory(self, width: int) -> Iterator[Text]:
        """A bar of what is held of the chip's memory, and its course up to now."""
        now, peak, whole = self.now_bytes(), self._peak_bytes, self.capacity_bytes
        of = f" of {format_bytes(whole)} ({format_fraction(peak / whole)})" if whole else ""
        text = f"{format_bytes(now)} now, peak {format_bytes(peak)}{of}"
        yield self._labelled_line("memory", text, width, "yellow" if whole and peak > whole else "")
        room = width - LABEL
        if whole and room > 0:
            full, most = (min(round(room * size / whole), room) for size in (now, peak))
            bar = "#" * full + "-" * max(most - full, 0)
            yield self._labelled_line(
                f"of {self.chip}"[: LABEL - 3], f"{bar:.<{room}}", width, "green"
            )
        if peak:
            yield self._labelled_line("so far", sparkline(self._held, room), width, "blue")

    def _table(self, hottest: list[tuple[Line | None, SoFar]]) -> Table:
        total_s, root = self.account.total.kernel_s, root_of(line for line, _ in hottest)
        rows = tuple(
            (
                so_far.kernel_s,
                part_of(so_far.kernel_s, total_s),
                so_far.flops,
                *line_texts(line, root),
            )
            for line, so_far in hottest
        )
        return Table("Hottest lines so far", LINE_COLUMNS, rows)

    def _placeholders(self, width: int) -> Iterator[Text]:
        """Lines that were given values that do not exist, conditions first."""
        uses = list(Use)

        def weight(item: tuple[PlaceholderKey, int]) -> tuple[int, int]:
            return uses.index(item[0][3]), -item[1]

        given = sorted(self.account.placeholders.items(), key=weight)
        for (frame, operator, value, use), count in given[:MOST_PLACEHOLDERS]:
            place = "" if frame is None else f"{frame.file}:{frame.line}"
            where = cut_left(place, max(width // 3, 10))
            text = f"{where} {operator} gave {value} ({use}, {count} times)"
            yield self._labelled_line("placeholder", text, width, "yellow")
        if len(given) > MOST_PLACEHOLDERS:
            yield self._labelled_line("", f"and {len(given) - MOST_PLACEHOLDERS} more", width)


def sparkline(values: list[int], width: int) -> str:
    """The values as blocks, at most `width`: the largest of as many as share one."""
    if not values or width <= 0:
        return ""
    count = min(len(values), width)
    cuts = [len(values) * n // count for n in range(count + 1)]
    tops = [max(values[cuts[n] : cuts[n + 1]]) for n in range(count)]
    most = max(max(tops), 1)
    return "".join(BLOCKS[min(top * len(BLOCKS) // most, len(BLOCKS) - 1)] for top in tops)
