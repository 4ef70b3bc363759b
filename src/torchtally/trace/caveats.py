"""Notes on which a whole report rests: the run was not the one that was asked for."""

from collections.abc import Iterable

from torchtally.trace.trace import Note

NOT_COMPILED = "torch.compile ran eagerly: "
"""What such a note begins with."""
MEANING = "All figures are of eager code; --compile eager says that it is meant."


def caveats(notes: Iterable[Note]) -> tuple[str, ...]:
    """A sentence or two for each of them."""
    return tuple(f"{note.text}. {MEANING}" for note in notes if note.text.startswith(NOT_COMPILED))
