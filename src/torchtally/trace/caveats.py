"""Notes on which a whole report rests: the run was not the one that was asked for."""

from collections.abc import Iterable

from torchtally.trace.trace import Note

NOT_COMPILED = "torch.compile ran eagerly: "
PARTLY_EAGER = "torch.compile ran a part eagerly: "
MEANINGS = {
    NOT_COMPILED: "All figures are of eager code; --compile eager says that it is meant.",
    PARTLY_EAGER: "Figures of that part are of eager code; --compile eager runs all of it so.",
}
"""What such a note begins with, and what it means."""


def caveats(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence or two for each of them."""
    return tuple(
        f"{note.text}. {meaning}"
        for note in notes
        for beginning, meaning in MEANINGS.items()
        if note.text.startswith(beginning)
    )
