"""Scripts whose step is one line that calls a library's training loop: `trainer.train()`.

Sums by the user's own lines say nothing there. Lines are the model's instead: the innermost of the
user's own or of a module's forward, a library's too.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from torchtally.ledger.total import Line
from torchtally.trace import Frame, Site

MOST_OWN = 0.9
"""Of a step's FLOPs: a line that has more of them done by libraries' modules delegates."""


def line(frame: Frame | None) -> Line | None:
    return None if frame is None else Line(frame.file, frame.line, frame.text, frame.is_own)


def own_line(site: Site) -> Line | None:
    """The innermost line of the user's own code, else the innermost known one."""
    return line(site.line)


def model_line(site: Site) -> Line | None:
    """The innermost line of the user's own code or of the running module's file; else `own_line`.

    Functions elsewhere that a library's forward calls (an attention's kernel) are its line.
    """
    for place, frame in enumerate(site.frames):
        if frame.is_own:
            return line(frame)
        if frame.function.endswith(".forward"):
            inner = site.frames[: place + 1]
            return line(next(each for each in inner if each.file == frame.file))
    return own_line(site)


def delegating_line(flops: Sequence[tuple[Site, int]]) -> Line | None:
    """The user's line that does nearly all of a step by modules of a library; None without one."""
    delegated: Counter[Line] = Counter()
    for site, site_flops in flops:
        own, innermost = own_line(site), model_line(site)
        if own is not None and own.is_own and innermost is not None and not innermost.is_own:
            delegated[own] += site_flops
    if not delegated:
        return None
    ((most, most_flops),) = delegated.most_common(1)
    return most if most_flops > MOST_OWN * sum(site_flops for _, site_flops in flops) else None


def line_by(delegate: Line | None) -> Callable[[Site], Line | None]:
    """How lines are told: by the user's own, or where one of those delegates by the model's."""
    return own_line if delegate is None else model_line
