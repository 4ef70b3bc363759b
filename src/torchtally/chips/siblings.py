"""What a chip takes over from a sibling that was measured, where nobody measured it.

A row of `chips.toml` names the sibling and says why, `measured_as`, and another one for its memory
where that is nearer, `memory_as`. What is missing is then the sibling's, scaled by what both data
sheets say:

    rate of products = min(share of the promise there * promise here,
                           rate there * power here / power there)
                       unless a product was measured here
    bandwidth        = share of the promise there * promise here
    L2 cache, multiprocessors: as there

What a FLOP takes is a matter of the design, as in `timing/roofline/sustained.py`. Clocks are not
taken over: each chip has its own, which a busy one does not keep. What a row itself says stays, and
what a sibling took over comes from the one that was measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtally.chips.chip import Chip, Peak
from torchtally.chips.power import power_ratio

BANDWIDTH = "achieved_bandwidth_bytes_per_s"
AS_THERE = ("multiprocessors", "l2_cache_bytes")


def with_siblings(chips: Sequence[Chip], others: Sequence[Chip] = ()) -> tuple[Chip, ...]:
    """Each chip with what it takes over of these, or else of others."""
    known = {chip.name: chip for chip in (*others, *chips)}
    return tuple(_complete(chip, known) for chip in chips)


def _complete(chip: Chip, known: Mapping[str, Chip]) -> Chip:
    """The table has no circle of siblings."""
    taken = _Taken(chip)
    if chip.memory_as is not None:
        taken.memory_of(_complete(known[chip.memory_as.chip], known))
    if chip.measured_as is not None:
        sibling = _complete(known[chip.measured_as.chip], known)
        taken.memory_of(sibling)
        taken.silicon_of(sibling)
        taken.products_of(sibling, known)
    return taken.chip


@dataclass(slots=True)
class _Taken:
    """A chip on its way to be complete."""

    chip: Chip
    inherited: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, value: float, sibling: Chip) -> None:
        owner = sibling.inherited.get(name, sibling.name)
        source = sibling.source_of(name)
        self.inherited[name] = owner
        sources = {**self.chip.sources, name: _source(owner, source)}
        given = {name: value, "sources": sources, "inherited": self.inherited}
        self.chip = replace(self.chip, **given)  # type: ignore[arg-type]

    def memory_of(self, sibling: Chip) -> None:
        there = sibling.achieved_bandwidth_bytes_per_s
        if there is not None and self.chip.achieved_bandwidth_bytes_per_s is None:
            promised = sibling.memory_bandwidth_bytes_per_s
            rate = there / promised * self.chip.memory_bandwidth_bytes_per_s
            self.take(BANDWIDTH, rate, sibling)

    def silicon_of(self, sibling: Chip) -> None:
        for name in AS_THERE:
            there = getattr(sibling, name)
            if there is not None and getattr(self.chip, name) is None:
                self.take(name, there, sibling)

    def products_of(self, sibling: Chip, known: Mapping[str, Chip]) -> None:
        peaks = dict(self.chip.peaks)
        if any(peak.achieved_flop_per_s for peak in peaks.values()):
            return  # its own share says more of its other dtypes
        for dtype, peak in self.chip.peaks.items():
            # By the measured one itself: power may have limited a sibling between.
            owner = known[sibling.inherited.get(dtype, sibling.name)]
            there = owner.peaks.get(dtype)
            if there is not None and there.achieved_flop_per_s and not peak.achieved_flop_per_s:
                self.inherited[dtype] = owner.name
                peaks[dtype] = replace(
                    peak,
                    achieved_flop_per_s=_rate(peak, there, self.chip, owner),
                    achieved_source=_source(owner.name, there.achieved_source),
                )
        self.chip = replace(self.chip, peaks=peaks, inherited=self.inherited)


def _rate(peak: Peak, there: Peak, chip: Chip, sibling: Chip) -> float:
    assert there.achieved_flop_per_s is not None
    reached = there.achieved_flop_per_s / there.flop_per_s * peak.flop_per_s
    power = power_ratio(chip, sibling)
    return reached if power is None else min(reached, there.achieved_flop_per_s * power)


def _source(name: str, source: str) -> str:
    return source if source.startswith("by ") else f"by {name}'s: {source}"
