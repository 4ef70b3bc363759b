"""Keys that move through rows and lines: of a view with the actions `move` and `page`."""

from textual.binding import Binding, BindingType

VERY_FAR = 10**9

MOVES: tuple[BindingType, ...] = (
    Binding("up,k", "move(-1)", "up", show=False),
    Binding("down,j", "move(1)", "down", show=False),
    Binding("pageup", "page(-1)", "page up", show=False),
    Binding("pagedown", "page(1)", "page down", show=False),
    Binding("home", f"move(-{VERY_FAR})", "first", show=False),
    Binding("end", f"move({VERY_FAR})", "last", show=False),
)
