"""Notes on which a whole report rests: the run was not the one that was asked for."""

from collections.abc import Iterable

from torchtally.trace.trace import Note

NOT_COMPILED = "torch.compile ran eagerly: "
FAILED = "torchtally itself failed: "
BEGINNINGS = {
    NOT_COMPILED: "All figures are of eager code; --compile eager says that it is meant.",
    FAILED: "Figures may lack what came after.",
}
"""What such notes begin with, and what follows from them."""


def caveats(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence or two for each of them."""
    return tuple(
        f"{note.text}. {meaning}"
        for note in notes
        for beginning, meaning in BEGINNINGS.items()
        if note.text.startswith(beginning)
    )
