"""What is known of the software that runs a training: its host, kernels, attention, overlap.

A fact is read in the software's code or learnt from one half of a published table, and says which.
What no fact says is as without a stack.
"""

import csv
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.parallel.degrees import DEGREES

TABLE = Path(__file__).with_name("stacks.toml")
RECIPES = Path(__file__).with_name("megatron_bridge.csv")
MEMORY = Path(__file__).with_name("megatron_bridge_memory.csv")
OVERLAPS = tuple(f"overlap.{degree.name}" for degree in DEGREES)
KNOBS = (
    "recipe", "gradients", "fp8-weights", "kernels", "attention", "loss", "host",
    "recompute-modules", "offload", "sequence-parallel", *OVERLAPS,
)  # fmt: skip
"""What a stack may decide, by the option or the word of a layout that replaces it."""
OF_LAYOUTS = ("recompute-modules", "offload", "sequence-parallel")
"""What is a layout's: a search tries its own, and a plain layout has none."""
MIXTURE = "mixture"
"""Of a stack's row: facts of mixtures of experts."""


@dataclass(frozen=True, slots=True)
class SoftwareFact:
    """A value of a knob, and how it is known."""

    value: Any
    origin: str
    """"read in PATH" or "learnt from half A of TABLE"."""


@dataclass(frozen=True, slots=True)
class Software:
    """One stack, and its facts for one model, chip and recipe."""

    key: str
    title: str
    repository: str
    """With the commit that was read."""
    facts: Mapping[str, SoftwareFact]
    """By `KNOBS`."""
    release: str = ""
    """The one asked for; "" for the newest that is known."""
    why: str = ""
    """Where it was not asked for: what it follows from."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """What the user's configuration or options say instead."""

    def value(self, knob: str) -> Any:
        """The knob's value; None where nothing is known of it."""
        if knob in self.said:
            return self.said[knob]
        fact = self.facts.get(knob)
        return None if fact is None else fact.value

    @property
    def overlap(self) -> dict[str, float]:
        """Shares that are known, by degree of parallelism."""
        shares = {degree.name: self.value(f"overlap.{degree.name}") for degree in DEGREES}
        return {name: share for name, share in shares.items() if share is not None}

    @property
    def options(self) -> frozenset[str]:
        """Options of `tally plan` whose place its facts take."""
        return frozenset(
            knob.partition(".")[0].replace("-", "_") for knob in (*self.facts, *self.said)
        )

    @property
    def name(self) -> str:
        """Title, with the release: "Megatron-Bridge 26.06"."""
        return f"{self.title} {self.release}".rstrip()

    def in_words(self, replaced: Collection[str]) -> str:
        """One sentence: each fact with its origin, and what is as by default. `replaced` by
        options, which the rest of an answer says.
        """
        known = [
            f"{knob} {_spelled(fact.value)} ({fact.origin})"
            for knob, fact in self.facts.items()
            if knob not in replaced and knob not in self.said
        ]
        said = [
            f"{knob} {_spelled(value)} (its file)"
            for knob, value in self.said.items()
            if knob not in replaced
        ]
        absent = [
            knob
            for knob in KNOBS
            if knob not in self.facts and knob not in self.said and knob not in replaced
        ]
        parts = [f"Stack: {self.name} ({self.repository})", *([self.why] if self.why else [])]
        rest = f"; by default: {', '.join(absent)}" if absent else ""
        return f"{', '.join(parts)}: {', '.join(known + said) or 'nothing is known of it'}{rest}."


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def stack(
    text: str, *, model: str = "", is_mixture: bool = False, chip: str = "", recipe: str = ""
) -> Software:
    """The stack that "megatron-bridge" or "megatron-bridge:26.06" names, with what its table says
    of this model on this chip. Raises UsageError for one that is not known.
    """
    key, colon, release = text.strip().lower().partition(":")
    rows = _rows()
    if key not in rows:
        raise UsageError(f"--stack: {key!r} is unknown. {did_you_mean(key, rows)}")
    row = rows[key]
    if colon:
        _check_release(key, row, release)
    facts = dict(_facts(row))
    if key == "megatron-bridge":
        facts |= _memory_facts(model, chip, recipe, release)
    if is_mixture:
        facts |= dict(_facts(row.get(MIXTURE, {})))
        if key == "megatron-bridge":
            beside = dict(_facts(row["overlapping"]))
            facts |= _recipe_facts(model, chip, recipe, release, beside)
    for since in row.get("releases", ()):
        if not release or since["since"] <= release:
            facts |= dict(_facts(since))
    ordered = {knob: facts[knob] for knob in KNOBS if knob in facts}
    return Software(key, row["title"], row["repository"], ordered, release)


def _check_release(key: str, row: Mapping[str, Any], release: str) -> None:
    """Raises UsageError for a release that cannot be put in the order of those that are known."""
    if key == "megatron-bridge":
        known = min(run[0] for runs in _recipes().values() for run in runs)
    elif "releases" in row:
        known = row["releases"][0]["since"]
    else:
        raise UsageError(f"--stack: no release of {row['title']} is known apart: give {key}.")
    year, _, _ = known.partition(".")
    if not re.fullmatch(rf"\d{{{len(year)}}}\.\d\d(\.\d\d)?", release):
        raise UsageError(
            f"--stack: {release!r} cannot be a release of {row['title']}: they are written as "
            f"{key}:{known}."
        )


def names() -> tuple[str, ...]:
    """Names of all stacks, as `--stack` takes them."""
    return tuple(_rows())


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def _facts(row: Mapping[str, Any]) -> Iterator[tuple[str, SoftwareFact]]:
    for knob in KNOBS:
        fact = row.get(knob)
        if fact is not None:
            is_read = "read" in fact
            origin = f"read in {fact['read']}" if is_read else f"learnt from {fact['learnt']}"
            yield knob, SoftwareFact(fact["is"], origin)


HOSTS = {"none": "eager", "dense": "dense-graphs", "all": "graphs"}
"""By the scope of a recipe's CUDA graphs."""


@cache
def _recipes() -> Mapping[tuple[str, str, str], list[tuple[str, str, bool]]]:
    """(release, host, whether experts' exchange overlaps with another micro-batch) by model, chip
    and recipe, the oldest first. As the repository's tags v0.2.0 to v0.5.1 have it in
    scripts/performance/configs (`cuda_graph_scope`, `moe_a2a_overlap`).
    """
    runs: dict[tuple[str, str, str], list[tuple[str, str, bool]]] = {}
    with RECIPES.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            run = (row["since"], HOSTS[row["graphs"]], row["overlap"] == "yes")
            runs.setdefault((row["model"], row["chip"], row["recipe"]), []).append(run)
    return runs


def _recipe_facts(
    model: str, chip: str, recipe: str, release: str, beside: Mapping[str, SoftwareFact]
) -> dict[str, SoftwareFact]:
    """Facts of Megatron-Bridge's own recipe of a mixture; `beside`, what holds where it
    overlaps experts' exchange with another micro-batch.
    """
    of_model = _recipes().get((model, chip, recipe), ())
    run = next((run for run in reversed(of_model) if not release or run[0] <= release), None)
    if run is None:
        return {}
    since, host, is_overlapped = run
    origin = f"read in scripts/performance/configs of {since}"
    apart = {"overlap.expert": SoftwareFact(0.0, origin)}
    return {"host": SoftwareFact(host, origin), **(beside if is_overlapped else apart)}


@cache
def _memory() -> Mapping[tuple[str, str, str], list[tuple[str, str, int]]]:
    """(release, modules that are recomputed, layers that wait in the host's memory) by model, chip
    and recipe, the oldest first: scripts/performance/configs of tags v0.2.0 to v0.5.0
    (`recompute_modules`, `cpu_offloading_num_layers`).
    """
    runs: dict[tuple[str, str, str], list[tuple[str, str, int]]] = {}
    with MEMORY.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            run = (row["since"], row["recompute"], int(row["offload"]))
            runs.setdefault((row["model"], row["chip"], row["recipe"]), []).append(run)
    return runs


def _memory_facts(model: str, chip: str, recipe: str, release: str) -> dict[str, SoftwareFact]:
    """What Megatron-Bridge's own recipe of a model spares of its activations; of a release before
    the oldest one that is known, what that spares.
    """
    of_model = _memory().get((model, chip, recipe), ())
    if not of_model:
        return {}
    known = [run for run in of_model if not release or run[0] <= release]
    since, modules, offloaded = known[-1] if known else of_model[0]
    origin = f"read in scripts/performance/configs of {since}"
    facts: dict[str, str | int] = {"recompute-modules": modules, "offload": offloaded}
    return {knob: SoftwareFact(value, origin) for knob, value in facts.items() if value}
