"""`tally fit`: the largest batch size, or whatever else, that fits a GPU."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import RunParser, fraction, positive_count, seconds
from torchtally.errors import ScriptError, UsageError

if TYPE_CHECKING:
    from torchtally.fit.chips import ChipSearch, Fleet, Margin, Probe
    from torchtally.fit.survey import Survey

NAME = "fit"
SUMMARY = "find the largest batch size (or any other number) that fits a GPU"

NOTHING_FITS = 1

EPILOG = """\
Everything tally does not know goes to the script; after -- everything does:

examples:
  tally fit train.py --vary "--batch_size={}" --gpu H100-SXM
  tally fit train.py --vary "--seq-len {}" --multiple-of 64 --gpu A100-SXM
  tally fit train.py --config a.yaml --vary "train.batch={}" --gpu all
  tally fit -m mypackage.train --vary "--layers={}" --margin 2GiB --gpu H200

The script is really executed, once for each value that is tried and several at
a time: it reads its files, and writes what it writes, logs and checkpoints too.
It has no stdin, and what it prints is shown only when it fails. Memory is taken
to grow with the value.

For one GPU the answer is seen: that value was run and fits, and the next one
was run and does not. For several GPUs it is computed, from two runs at small
values on one of those that run the same operators: where all allocations grow
linearly, those at any other value are known, and the model of the allocator
says what fits each chip. A third run, at the largest of the answers, must
allocate what was computed for it, byte for byte; else the answers are seen,
too. --verify has all of them seen.

Passes of a model in evaluation mode that are like the two before them take the
same memory and are not run again; --no-folding runs them all.

Exit code: 0 when there is a value that fits, 1 when not even the smallest does
or the script fails, 2 for a wrong command line, 130 on Ctrl-C.
"""


class FitParser(RunParser):
    """`--gpu` may come several times, and what is varied looks like an option itself."""

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        ours, theirs = super().split(args)
        while "--vary" in ours[:-1]:
            place = ours.index("--vary")
            ours[place : place + 2] = [f"--vary={ours[place + 1]}"]
        return ours, theirs

    def check_once(self, option: str, seen: set[str]) -> None:
        if option != "--gpu":
            super().check_once(option, seen)


def add_parser(subparsers: "argparse._SubParsersAction[RunParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage='tally fit [options] --vary "--flag={}" --gpu NAME SCRIPT [ARGS ...]',
        description="Find the largest value of one of a script's arguments at which a training\n"
        "step fits the memory of a GPU, by running the script on a simulated one.",
        epilog=EPILOG,
    )
    parser.__class__ = FitParser
    add = parser.add_argument
    add("--vary", metavar="ARG", required=True,
        help='the argument of the script, with {} for the number: "--batch_size={}"; in place of '
        "the script's own of that name, if there is one")  # fmt: skip
    add("--gpu", metavar="NAME", required=True, action="append",
        help="the chip; several, or `all`, for a table (`tally gpus` lists them)")  # fmt: skip
    add("--from", dest="low", type=positive_count, default=1, metavar="N",
        help="the smallest value (default 1)")  # fmt: skip
    add("--to", dest="high", type=positive_count, default=1 << 20, metavar="N",
        help="the largest value (default 2**20)")  # fmt: skip
    add("--multiple-of", type=positive_count, default=1, metavar="N",
        help="only multiples of N (default 1)")  # fmt: skip
    add("--margin", default="3%", metavar="M",
        help="what stays free: a share of the chip's memory (3%%, the default) or a size "
        "(1GiB)")  # fmt: skip
    add("--steps", type=positive_count, default=2, metavar="N",
        help="judge by N training steps (default 2: the first one makes the "
        "optimizer's state)")  # fmt: skip
    add("--jobs", type=positive_count, default=None, metavar="N",
        help="runs at a time (default: one for each core)")  # fmt: skip
    add("--max-seconds", type=seconds, metavar="S",
        help="a run that takes longer counts as failed")  # fmt: skip
    add("-m", dest="module", metavar="MODULE", help="run a module, as `python -m` does")
    add("--nonzero-fraction", type=fraction, default=1.0, metavar="F",
        help="as for `tally run`")  # fmt: skip
    add("--no-folding", action="store_true",
        help="run every pass of the model, also those like the ones before")  # fmt: skip
    add("--verify", action="store_true",
        help="of several GPUs: run both sides of each answer, compute none")  # fmt: skip
    add("--json", metavar="FILE", help="the result as JSON to FILE, or to stdout for -")
    add("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Search, and print the answer."""
    from torchtally.cli.output import emit, width, write_or_emit
    from torchtally.fit.argument import parse
    from torchtally.fit.chips import Fleet, parse_margin, search_of
    from torchtally.fit.search import Values
    from torchtally.fit.survey import Survey
    from torchtally.runs.probes import Probes
    from torchtally.runs.protocol import ProbeRequest

    if args.script is None and args.module is None:
        raise UsageError(
            'which script?\nGive one: `tally fit train.py --vary "--batch_size={}" --gpu NAME`, '
            "or -m MODULE."
        )
    if args.module is None and not os.path.exists(args.script):
        raise ScriptError(f"{args.script}: no such file.\nGive the path of the training script.")
    argument = parse(args.vary)
    margin = parse_margin(args.margin)
    values = Values(args.low, args.high, args.multiple_of)
    searches = [search_of(chip, values, margin) for chip in chips_named(args.gpu)]
    searches.sort(key=lambda search: search.chip.total_memory_bytes)
    ours = ProbeRequest(
        script=args.module or args.script,
        arguments=tuple(args.script_arguments),
        is_module=args.module is not None,
        gpu="",
        steps=args.steps,
        max_seconds=args.max_seconds,
        nonzero_fraction=args.nonzero_fraction,
        folds=not args.no_folding,
    )
    fleet = Fleet(searches, argument, ours)
    progress = Progress(argument.name, searches, is_quiet=args.quiet)
    place, length = argument.own(ours.arguments)
    if length:
        own = " ".join(ours.arguments[place : place + length])
        progress.say(f"{' '.join(argument.words)} takes the place of {own}")
    survey = Survey(fleet) if len(searches) > 1 and not args.verify else None
    jobs = args.jobs or os.cpu_count() or 1
    with Probes() as runs, progress:
        if survey is not None:
            survey.run(runs, jobs, progress.done, progress.waiting)
        fleet.run(runs, jobs, progress.done, progress.waiting)
    if args.json is not None:
        import json

        write_or_emit(json.dumps(document(fleet, survey, args, margin), indent=2) + "\n", args.json)
    if args.json != "-":
        emit(text(fleet, survey, margin, width()))
    return 0 if any(search.found and search.found.largest for search in searches) else NOTHING_FITS


def chips_named(names: Sequence[str]) -> list[Any]:
    """Each chip once; "all" are those on which CUDA scripts run."""
    from torchtally.chips import chip, known_chips

    if any(name.lower() == "all" for name in names):
        return [gpu for gpu in known_chips() if gpu.compute_capability is not None]
    return list({gpu.name: gpu for gpu in map(chip, names)}.values())


# Progress -----------------------------------------------------------------------------------------


class Progress:
    """On stderr: a line for each run, and on a terminal one that moves while they go on."""

    def __init__(self, name: str, searches: "Sequence[ChipSearch]", *, is_quiet: bool) -> None:
        self._name = name or "value"
        self._searches = searches
        self._is_quiet = is_quiet
        self._moves = not is_quiet and sys.stderr.isatty()
        self._started_s = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._erase()

    def say(self, line: str) -> None:
        if not self._is_quiet:
            self._erase()
            self._put(f"tally: {line}\n")

    def waiting(self, values: tuple[int, ...]) -> None:
        if self._moves and values:
            elapsed_s = time.monotonic() - self._started_s
            listed = ", ".join(map(str, values))
            self._put(f"\r\x1b[Ktally: trying {self._name} {listed} ({elapsed_s:.0f} s)"[:100])

    def done(self, probe: "Probe") -> None:
        from torchtally.units import format_bytes

        outcome = probe.outcome
        head = f"{self._name} {probe.value}"
        if len(self._searches) > 1:
            head += f" on {probe.chip.name}"
        if outcome.failure:
            self.say(f"{head}: the script failed: {plain(outcome.failure)}")
            return
        size = f"peak reserved {format_bytes(outcome.peak_reserved_bytes)}"
        fits = ""
        if len(self._searches) == 1:
            fits = " fits," if outcome.verdicts[0].fits else " does not fit,"
        self.say(f"{head}:{fits} {size}, {outcome.wall_s:.1f} s")

    def _erase(self) -> None:
        if self._moves:
            self._put("\r\x1b[K")

    def _put(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads it
            return


def plain(message: str) -> str:
    from torchtally.progress import printable

    return printable(message)


# The answer ---------------------------------------------------------------------------------------


def text(fleet: "Fleet", survey: "Survey | None", margin: "Margin", width: int) -> str:
    """The answer first, then what was tried."""
    from torchtally.report.grid import wrapped

    if len(fleet.searches) > 1:
        lines = many(fleet, survey, margin, width)
    else:
        lines = one(fleet, fleet.searches[0], margin, width)
    for failed in failures(fleet):
        lines += wrapped(failed, width)
    shown = next((probe for probe in fleet.probes.values() if probe.outcome.failure), None)
    if shown is not None and shown.outcome.output:
        lines.append(f"  The last lines of the script's output at {shown.value}:")
        lines += [f"    {plain(line)}" for line in shown.outcome.output.splitlines()]
    lines += wrapped(remarks(fleet), width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def one(fleet: "Fleet", each: "ChipSearch", margin: "Margin", width: int) -> list[str]:
    from torchtally.report.grid import wrapped
    from torchtally.units import format_bytes

    name, chip = fleet.argument.name or "value", each.chip
    found, values = each.found, each.search.values
    assert found is not None
    kept = (
        f"{format_bytes(each.context_bytes)} are the CUDA context's, {margin_text(each, margin)} "
        "are kept."
    )
    total = format_bytes(chip.total_memory_bytes)
    if found.largest is None and found.too_large is None:
        return [f"the script fails at every {name} that was tried"]
    if found.largest is None:
        assert found.too_large is not None
        over_bytes = each.verdicts[found.too_large].peak_reserved_bytes - each.capacity_bytes
        lines = [f"no {name} fits {chip.name}: {found.too_large} is too large"]
        lines += wrapped(
            f"It would reserve {format_bytes(over_bytes)} more than the "
            f"{format_bytes(each.capacity_bytes)} there are; of {total}, {kept}",
            width,
        )
    else:
        lines = [f"largest {name} that fits {chip.name}: {found.largest}"]
        peak = format_bytes(each.verdicts[found.largest].peak_reserved_bytes)
        beyond = (
            f"{found.too_large} does not fit."
            if found.too_large is not None
            else f"It is the last one tried: --to {values.last} is the end of the range."
        )
        lines += wrapped(f"Peak reserved {peak} of {total}; {kept} {beyond}", width)
    if found.gave_up:
        lines += wrapped("The script failed too often to go on: larger ones may fit.", width)
    return [*lines, *tried(name, each)]


def tried(name: str, each: "ChipSearch") -> list[str]:
    from torchtally.units import format_bytes

    rows = [("value", "peak allocated", "peak reserved", "fits", "free")]
    for value, verdict in sorted(each.verdicts.items()):
        free_bytes = each.capacity_bytes - verdict.peak_reserved_bytes
        rows.append((
            str(value), format_bytes(verdict.peak_allocated_bytes),
            format_bytes(verdict.peak_reserved_bytes), "yes" if verdict.fits else "no",
            format_bytes(free_bytes) if verdict.fits else "-",
        ))  # fmt: skip
    return grid(rows)


def many(fleet: "Fleet", survey: "Survey | None", margin: "Margin", width: int) -> list[str]:
    from torchtally.report.grid import wrapped
    from torchtally.units import format_bytes, format_fraction

    name = fleet.argument.name or "value"
    rows = [("memory", "largest", "peak reserved", "of memory", "chip")]
    for each in fleet.searches:
        found, total = each.found, each.chip.total_memory_bytes
        assert found is not None
        if found.largest is None:
            reason = "none" if found.too_large is not None else "fails"
            rows.append((format_bytes(total), reason, "-", "-", each.chip.name))
            continue
        peak = each.verdicts[found.largest].peak_reserved_bytes
        largest = f"{'>= ' * (found.too_large is None)}{found.largest}"
        if survey is not None and survey.computed:
            largest += "*" if survey.was_run(each) else " "
        rows.append((format_bytes(total), largest, format_bytes(peak),
                     format_fraction(peak / total), each.chip.name))  # fmt: skip
    kept = margin.text or format_bytes(margin.bytes)
    note = f"Kept on each: {kept} and what the CUDA context takes (0.5 to 0.6 GiB)."
    lines = [f"largest {name} that fits, by chip", *grid(rows), *wrapped(note, width)]
    for said in basis(survey):
        lines += wrapped(said, width)
    return lines


def basis(survey: "Survey | None") -> list[str]:
    """Where the answers for several chips come from."""
    if survey is None:
        return []
    said = []
    for family in survey.computed:
        first = ", ".join(map(str, sorted(family.values)))
        chips = f"{len(family.chips)} chips" if len(family.chips) > 1 else family.chips[0].chip.name
        said.append(
            f"{chips}: computed from runs at {first} and {family.check_value} on "
            f"{family.simulated.chip.name}, whose allocations grow linearly: checked at "
            f"{family.check_value}, byte for byte."
        )
    if said:
        said.append("* was run. --verify runs both sides for every chip.")
    said += [
        f"{family.simulated.chip.name}: by runs alone, since {family.why_not}."
        for family in survey.given_up
    ]
    asked = dict.fromkeys(question for family in survey.computed for question in family.questions)
    if asked:
        said.append(
            f"The script calls {', '.join(asked)}: chips of one compute capability are taken to "
            "make no difference to it."
        )
    return said


def grid(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers to the right; the last column of names to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if rows[0][-1] == "chip":
            cells[-1] = row[-1]
        lines.append("  " + "  ".join(cells))
    return lines


def margin_text(each: "ChipSearch", margin: "Margin") -> str:
    from torchtally.units import format_bytes

    kept = format_bytes(each.margin_bytes)
    return f"a margin of {margin.text} = {kept}" if margin.text else f"a margin of {kept}"


def failures(fleet: "Fleet") -> list[str]:
    return [
        f"The script failed at {probe.value}, which says nothing of memory: {probe.outcome.failure}"
        for probe in sorted(fleet.probes.values(), key=lambda probe: probe.value)
        if probe.outcome.failure
    ]


def remarks(fleet: "Fleet") -> str:
    """What a reader has to know beside the numbers."""
    outcomes = [probe.outcome for probe in fleet.probes.values() if not probe.outcome.failure]
    found = []
    if any(not search.search.is_monotone for search in fleet.searches):
        found.append("Some value fits that is larger than one that does not.")
    if any(outcome.steps < fleet.request.steps for outcome in outcomes):
        least = min(outcome.steps for outcome in outcomes)
        found.append(f"The script ended by itself after {least} training steps.")
    folded = max((outcome.folded for outcome in outcomes), default=0)
    if folded:
        found.append(
            f"Up to {folded} evaluation passes a run were like those before them and not run "
            "again (--no-folding runs them)."
        )
    return " ".join(found)


def document(
    fleet: "Fleet", survey: "Survey | None", args: argparse.Namespace, margin: "Margin"
) -> dict[str, Any]:
    """For programs."""
    families = survey.computed if survey is not None else []
    computed = {each.chip.name: at for at, family in enumerate(families) for each in family.chips}
    return {
        "version": 1,
        "vary": args.vary,
        "steps": args.steps,
        "chips": [
            {
                "chip": search.chip.name,
                "total_memory_bytes": search.chip.total_memory_bytes,
                "context_bytes": search.context_bytes,
                "margin_bytes": search.margin_bytes,
                "capacity_bytes": search.capacity_bytes,
                "largest": search.found and search.found.largest,
                "too_large": search.found and search.found.too_large,
                "gave_up": bool(search.found and search.found.gave_up),
                "is_monotone": search.search.is_monotone,
                "computed_from": computed.get(search.chip.name),
                "tried": [
                    {
                        "value": value,
                        "fits": verdict.fits,
                        "peak_allocated_bytes": verdict.peak_allocated_bytes,
                        "peak_reserved_bytes": verdict.peak_reserved_bytes,
                    }
                    for value, verdict in sorted(search.verdicts.items())
                ],
            }
            for search in fleet.searches
        ],
        "computations": [
            {
                "simulated": family.simulated.chip.name,
                "values": sorted(family.values),
                "checked_at": family.check_value,
                "asked": list(family.questions),
            }
            for family in families
        ],
        "runs": [
            {
                "simulated": probe.chip.name,
                "value": probe.value,
                "failure": probe.outcome.failure,
                "steps": probe.outcome.steps,
                "folded": probe.outcome.folded,
                "wall_s": round(probe.outcome.wall_s, 3),
            }
            for probe in fleet.probes.values()
        ],
    }
