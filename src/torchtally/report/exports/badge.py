"""A badge for a README: what a training step needs and how long it takes, as a picture.

It is plain SVG without scripts, fonts of its own or links, so that pages may show it as an image.
"""

import html
from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.exports import Exported, Wanted
from torchtally.report.key_figures import period_name
from torchtally.units import format_bytes, roughly, roughly_bytes
from torchtally.views.summary import Verdict, judge

SUMMARY = "a badge (SVG) for a README: peak memory, time of a step, GPU"
SUFFIX = ".badge.svg"

LABEL = "tally"
HEIGHT = 20
PADDING = 7
LETTER = 6.4
"""Of a sans-serif font of 11 px, on average; `textLength` makes other fonts as wide."""
MOST_LETTERS = 80
COLOURS = {"fits": "#2da44e", "close": "#bf8700", "does not fit": "#cf222e"}
UNKNOWN = "#57606a"
STEP = "step"


@dataclass(frozen=True, slots=True)
class BadgeTexts:
    """What a badge says."""

    shown: str
    """Within the badge: "peak 11.7 GiB · 58 ms on H100-SXM"."""
    described: str
    """For a tooltip and for those who do not see it."""
    colour: str


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One picture of the reported period."""
    return Exported({"": svg(badge_texts(ledger))})


def badge_texts(ledger: Ledger) -> BadgeTexts:
    """Peak memory as `torch.cuda.max_memory_allocated()` has it, seconds of the reported period,
    and the GPUs. What is unknown is left out.
    """
    verdict, world = judge(ledger), ledger.trace.world
    chip = printable(verdict.chip)
    gpus = chip if world.size == 1 else f"{world.size}x{chip}"
    colour = COLOURS.get(verdict.claim, UNKNOWN) if verdict.device else UNKNOWN
    if not verdict.device:
        text = f"nothing was allocated on {gpus}"
    elif verdict.claim == "does not fit":
        text = f"does not fit {gpus}: needs {needed(verdict)}"
    else:
        figures = [f"peak {roughly_bytes(verdict.peak_bytes)}", *times(ledger)]
        text = f"{' · '.join(figures)} on {gpus}"
    return BadgeTexts(text[:MOST_LETTERS], described(ledger, verdict, gpus), colour)


def needed(verdict: Verdict) -> str:
    """Memory of the device that the run takes, at least."""
    return f"{roughly_bytes(verdict.needed_bytes)}{' or more' if verdict.is_open else ''}"


def times(ledger: Ledger) -> list[str]:
    """The time of a step, or of what else is reported, by its name; none where it is unknown."""
    if ledger.step_s is None:
        return []
    name = period_name(ledger.reported_period)
    return [roughly(ledger.step_s) if name == STEP else f"{name} {roughly(ledger.step_s)}"]


def described(ledger: Ledger, verdict: Verdict, gpus: str) -> str:
    """Sentence with the script and where the numbers come from."""
    how = "measured" if ledger.is_measured else "predicted"
    time = f", time {how}" if ledger.step_s is not None else ""
    reserved = f"{format_bytes(verdict.reserved_bytes)} reserved" if verdict.device else "no memory"
    return f"{printable(ledger.trace.script)} on {gpus}: {reserved}{time}"


def svg(texts: BadgeTexts) -> str:
    """The badge: the name of the tool, and the text on the verdict's colour."""
    label_width, text_width = width_of(LABEL), width_of(texts.shown)
    width = label_width + text_width
    shown, described = html.escape(texts.shown), html.escape(texts.described)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        f'width="{width}" height="{HEIGHT}" role="img">',
        "<!-- torchtally -->",
        f"<title>{described}</title>",
        f'<rect width="{width}" height="{HEIGHT}" rx="3" fill="{texts.colour}"/>',
        f'<rect width="{label_width}" height="{HEIGHT}" rx="3" fill="#24292f"/>',
        f'<rect x="{label_width - 3}" width="3" height="{HEIGHT}" fill="#24292f"/>',
        '<g fill="#ffffff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">',
        text_svg(LABEL, 0, label_width),
        text_svg(shown, label_width, text_width, letters=len(texts.shown)),
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def width_of(text: str) -> int:
    """Width of a text with room on both sides, in pixels."""
    return round(LETTER * len(text)) + 2 * PADDING


def text_svg(text: str, x: int, width: int, letters: int | None = None) -> str:
    """An escaped text in the middle of a box, stretched to its room where it has letters."""
    length = width - 2 * PADDING
    fitted = f' textLength="{length}"' if (len(text) if letters is None else letters) else ""
    return f'<text x="{x + PADDING}" y="14"{fitted}>{text}</text>'
