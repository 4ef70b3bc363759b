"""Values that the simulated GPU does not have, in sentences: what the script got, and where."""

from collections.abc import Sequence

from torchtally.report.plain import cut_left
from torchtally.trace import Placeholder, Use
from torchtally.views.lines import short_path

MOST_LISTED = 3
NAME_WIDTH = 48

Listed = tuple[list[str], int]
"""The first of them as text, and how many more there are."""


def departure_sentences(placeholders: Sequence[Placeholder], root: str) -> Listed:
    """List loops, functions and scripts that were left because of such a value."""
    left = [each for each in placeholders if each.use is Use.EXIT]
    return [departure_sentence(each, root) for each in left[:MOST_LISTED]], len(left) - MOST_LISTED


def departure_sentence(left: Placeholder, root: str) -> str:
    source = left.frame.text[:200] if left.frame else ""
    times = f", {times_text(left.count)}" if left.count > 1 else ""
    return (
        f"{place_of(left, root)} {left.given[:400]}{times}, by a value that does not exist on the "
        f"simulated GPU: {source} A real run may go on for longer."
    )


def placeholder_lines(placeholders: Sequence[Placeholder], root: str) -> Listed:
    """List the others: branches first, which may have taken another way than on the device."""
    others = [each for each in placeholders if each.use is not Use.EXIT]
    uses = list(Use)
    others.sort(key=lambda each: (uses.index(each.use), -each.count))
    return [placeholder_line(each, root) for each in others[:MOST_LISTED]], len(
        others
    ) - MOST_LISTED


def placeholder_line(placeholder: Placeholder, root: str) -> str:
    """Name the line, its source, what the operator gave, and whether a branch depends on it."""
    source = placeholder.frame.text[:200] if placeholder.frame else ""
    verb = "" if placeholder.is_assumption else "gave "
    branch = "branch: " if placeholder.use is Use.BRANCH else ""
    what = f"{branch}{placeholder.op[:80]} {verb}{placeholder.given[:80]}"
    place = cut_left(place_of(placeholder, root), NAME_WIDTH)
    return f"{place}  {source}  ({what}, {times_text(placeholder.count)})"


def place_of(placeholder: Placeholder, root: str) -> str:
    frame = placeholder.frame
    return "(no line)" if frame is None else f"{short_path(frame.file, root)}:{frame.line}"


def times_text(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
