"""What the script did outside of its GPU, as lines of a report."""

from collections.abc import Iterator, Sequence

from torchtally.report.placeholders import times_text
from torchtally.report.plain import cut_left, cut_right
from torchtally.trace import Effect, EffectKind, Frame
from torchtally.units import format_bytes
from torchtally.views.lines import short_path
from torchtally.views.summary import Surroundings

MOST_LISTED = 3
"""Of each kind; the rest are numbered."""
NAME_WIDTH = 48

SOURCE_WIDTH = 40

Section = tuple[str, list[str]]
"""A sentence, and what it is about, one line each."""


def sections(surroundings: Surroundings, own_root: str) -> Iterator[Section]:
    """Nothing of a kind that did not happen."""
    by_kind = {
        kind: [effect for effect in surroundings.effects if effect.kind is kind]
        for kind in EffectKind
    }
    yield from written_section(by_kind[EffectKind.WRITTEN], surroundings)
    refused = by_kind[EffectKind.REFUSED_WRITE]
    if refused:
        yield REFUSED_WRITES, shorten(list(_at_lines(refused, own_root, surroundings.cwd)))
    gone = [*by_kind[EffectKind.REMOVED], *by_kind[EffectKind.RENAMED]]
    if gone:
        names = [_path(effect.name, surroundings.cwd) for effect in gone]
        yield (
            "Removed or renamed for the script only; the original is still in place:",
            shorten(names),
        )
    processes = by_kind[EffectKind.PROCESS]
    if processes:
        programs = PROGRAMS.get(surroundings.files_kept_by, "what they write is real")
        names = [f"{effect.name[:NAME_WIDTH]} ({times_text(effect.count)})" for effect in processes]
        yield f"Programs that the script started; {programs}:", shorten(names)
    if surroundings.network.startswith("off"):
        yield f"Network: {surroundings.network}", []
    for kind, sentence in SENTENCES.items():
        lines = list(_at_lines(by_kind[kind], own_root))
        if lines:
            yield sentence, shorten(lines)


REFUSED_WRITES = "Refused, since it bypasses the run's own files (--writes real: allow it):"
SENTENCES = {
    EffectKind.WITHHELD: "Withheld, since a simulated run would publish placeholders:",
    EffectKind.SENT: "Sent for real to these hosts:",
    EffectKind.REFUSED: "Refused, since the run has --network off:",
    EffectKind.CLOCK: "Clocks that read predicted time (--host-clock: host time):",
}


def written_section(effects: Sequence[Effect], surroundings: Surroundings) -> Iterator[Section]:
    if not effects:
        return
    total_bytes = sum(effect.bytes for effect in effects)
    count = f"{len(effects)} file{'s' * (len(effects) > 1)}"
    largest = sorted(effects, key=lambda effect: -effect.bytes)
    lines = [_file(effect, surroundings.cwd) for effect in largest]
    if surroundings.files == "real":
        yield f"Written for real, with placeholders in place of values: {count}", shorten(lines)
        return
    place = f"in {surroundings.files}"
    if surroundings.files in ("", "dropped"):
        place = "deleted after the run"
    yield (
        f"Written: {count}, {format_bytes(total_bytes)} in a real run; {place}"
        + UNCHANGED.get(surroundings.files_kept_by, ""),
        shorten(lines),
    )


KERNEL = "kernel"
"""As `isolation.run` calls it."""
UNCHANGED = {
    KERNEL: ", and the kernel let no other file be changed",
    "python": ", and Python's own functions changed no file that existed before",
}
PROGRAMS = {KERNEL: "the kernel let them change none but the run's own files"}


def _file(effect: Effect, cwd: str) -> str:
    text = f"{_path(effect.name, cwd)}  {format_bytes(effect.bytes)}"
    if effect.placeholder_bytes:
        text += " (shapes only: the values are placeholders)"
    return text


def _path(name: str, cwd: str) -> str:
    """Path from the directory that the script was run in."""
    prefix = f"{cwd.rstrip('/')}/"
    return " -> ".join(
        cut_left(part.removeprefix(prefix) if cwd else part, NAME_WIDTH)
        for part in name.split(" -> ")
    )


def _at_lines(effects: Sequence[Effect], own_root: str, cwd: str = "") -> Iterator[str]:
    """One line of text for each line of code, with all that was called there."""
    by_frame: dict[Frame | None, list[Effect]] = {}
    for effect in effects:
        by_frame.setdefault(effect.frame, []).append(effect)
    for frame, calls in by_frame.items():
        what = _calls(calls, cwd)
        if frame is None:
            yield what
            continue
        place = cut_left(f"{short_path(frame.file, own_root)}:{frame.line}", NAME_WIDTH)
        yield f"{place}  {cut_right(frame.text, SOURCE_WIDTH)}  ({what})"


def _calls(calls: Sequence[Effect], cwd: str) -> str:
    if calls[0].kind is EffectKind.SENT:
        return ", ".join(f"{call.name[:80]}, {times_text(call.count)}" for call in calls)
    names = ", ".join(_path(call.name, cwd) if cwd else call.name[:80] for call in calls)
    return f"{names}, {times_text(max(call.count for call in calls))}"


def shorten(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LISTED:
        return lines
    return [*lines[:MOST_LISTED], f"and {len(lines) - MOST_LISTED} more: --json lists all"]
