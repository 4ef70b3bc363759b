"""The progress of `tally fit`: a line for each run that has ended, and the values that run now."""

from torchtally.fit.chips import Fleet, Probe
from torchtally.progress import StatusLine, printable
from torchtally.units import format_bytes


class FitProgress:
    """Told of every run of a fleet."""

    def __init__(self, fleet: Fleet, *, is_quiet: bool) -> None:
        self._name, self._chips = fleet.argument.name or "value", len(fleet.searches)
        self._status = StatusLine(is_quiet=is_quiet)

    def __enter__(self) -> "FitProgress":
        return self

    def __exit__(self, *error: object) -> None:
        self._status.erase()

    def say(self, line: str) -> None:
        self._status.say(f"tally: {line}")

    def waiting(self, values: tuple[int, ...]) -> None:
        """Show the values that run now, on a terminal."""
        if self._status.is_redrawn and values:
            self._status.show(f"trying {self._name} {', '.join(map(str, values))}")

    def print_run(self, probe: Probe) -> None:
        """Print the run that has ended."""
        outcome = probe.outcome
        head = f"{self._name} {probe.value}"
        if self._chips > 1:
            head += f" on {probe.chip.name}"
        if outcome.failure:
            self.say(f"{head}: the script failed: {printable(outcome.failure)}")
            return
        fits = ""
        if self._chips == 1:
            fits = " fits," if outcome.verdicts[0].fits else " does not fit,"
        size = f"peak reserved {format_bytes(outcome.peak_reserved_bytes)}"
        self.say(f"{head}:{fits} {size}, {outcome.wall_s:.1f} s")
