"""`tally tune`: the best way to run a script, by settings and chips."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.arguments import SECONDS, ScriptOptions, price
from torchtally.cli.chip_names import gpu_or_default, say_variants
from torchtally.cli.fit import FitParser, script_of
from torchtally.cli.installation import check_simulates
from torchtally.cli.output import ReportOptions, write_bytes, write_or_emit, write_report
from torchtally.errors import UsageError, did_you_mean
from torchtally.options import CHIPS, COUNT, FILE, TIME, Form, own
from torchtally.options.simulation import IsolationOptions
from torchtally.progress import StatusLine
from torchtally.units import format_seconds

if TYPE_CHECKING:
    from torchtally.chips import Cluster
    from torchtally.fixes.fix import Fix
    from torchtally.fixes.patch import ScriptSources
    from torchtally.runs.protocol import TraceRequest
    from torchtally.tune.answer import TuneAnswer
    from torchtally.tune.knobs import Knob
    from torchtally.tune.points import TunePoint
    from torchtally.tune.running import TuneRuns
    from torchtally.tune.search import TuneSearch

SUMMARY = "search settings and chips for the fastest, cheapest and smallest way to train"

NOTHING_RAN = 1
INTERRUPTED = 130
DEFAULT_AMOUNTS = {"tokens": 10**9, "samples": 10**6, "steps": 1000}
ALL = "all"

USAGE = 'tally tune [options] --vary "--flag={1,2,4}" SCRIPT [ARGS ...]'
EPILOG = """\
Options that tally does not know go to the script; after -- all do:

examples:
  tally tune train.py --vary "--batch-size={}" --gpus H100-SXM,RTX-4090
  tally tune train.py --vary "--batch-size={4..64}" --vary "--dtype={bfloat16,float32}"
  tally tune train.py --vary "{,--compile}" --vary "OMP_NUM_THREADS={1,4}"
  tally tune train.py --vary "--batch-size={}" --with-fixes all --tokens 10B --deadline 3d
  tally tune fsdp.py --vary "--shard={full,grad}" --gpus 8xH100-SXM,8xA100-SXM
  tally tune train.py --vary "--batch-size={}" --resume points.json --svg front.svg

--vary names what is varied, with its values in braces: an argument of the script in place of
its own of that name, or a variable of the environment (capitals). {4..64} are the powers of two
between, {} all that fit; a value that is empty leaves the word out. --with-fixes adds changes of
the source, as `tally fix` makes them.

All combinations are run where there are no more than --runs; else a search goes from the best
known settings to those that differ in one of them, until none of their neighbours is better.
GPUs that run the same operators share a run; what is printed was run on its own. Settings whose
roofline cannot win on a chip are not run there.

Exit code: 0 when something ran (with --deadline: in time), 1 when nothing did, 2 for a wrong
command line, 130 on Ctrl-C, which prints what is known.
"""

PARSER = FitParser


@dataclass(frozen=True, kw_only=True)
class TuneOptions(ScriptOptions, IsolationOptions, ReportOptions):
    """Search a script's settings and chips for the Pareto front of time, cost, energy and memory,
    by running it on simulated GPUs.
    """

    vary: tuple[str, ...] = own(
        "--vary",
        'a setting with its values in braces: "--batch-size={}", "NAME={a,b}" (repeatable)',
        Form("ARG"),
        is_repeated=True,
    )
    with_fixes: str | None = own(
        "--with-fixes",
        "changes of the source to try, as `tally fix` names them (fused-optimizer,TF32), or all "
        "that keep values",
        Form("A,B"),
    )
    gpu: tuple[str, ...] = own(
        "--gpu",
        "chips, or clusters of them: H100-SXM,8xA100-SXM (`tally gpus` lists them); default: "
        "TALLY_GPU, else H100-SXM",
        CHIPS,
        is_repeated=True,
    )
    tokens: int | None = own("--tokens", "tokens to train on: whole time and cost", COUNT)
    deadline_s: float | None = own("--deadline", "30d, 24h: the cheapest in time", TIME)
    price: tuple[tuple[str, float], ...] = own(
        "--price", "your own price of a GPU per hour: H200=2.49 (repeatable)", Form("USD", price),
        is_repeated=True,
    )  # fmt: skip
    runs: int = own(
        "--runs", "at most N runs (default 100), and those of the front", COUNT, default=100
    )
    steps: int = own("--steps", "training steps of each run (default 2)", COUNT, default=2)
    jobs: int | None = own("--jobs", "runs at a time (default: one for each core)", COUNT)
    max_seconds: float | None = own(
        "--max-seconds", "a run that takes longer counts as failed", SECONDS
    )
    resume: str | None = own(
        "--resume",
        "keep points in FILE, and go on with those that are there",
        FILE,
        is_written=True,
    )
    svg: str | None = own("--svg", "a picture of the front, to FILE", FILE, is_written=True)
    quiet: bool = own("--quiet", "no progress on stderr")


def command(options: TuneOptions) -> int:
    """Search, and print the front."""
    from torchtally.report.front_picture import front_picture
    from torchtally.report.tune import tune_report
    from torchtally.tune.running import first_sources
    from torchtally.tune.search import TuneSearch, groups_of

    check_simulates()
    gpus = gpus_named(options)
    knobs, fixes = knobs_of(options)
    groups = groups_of(gpus.items())
    runs = runs_of(options, gpus, fixes)
    sources = None
    with StatusLine(is_quiet=options.quiet) as status:
        if fixes:
            status.show("running the first settings", at_once=True)
            first = TuneSearch(knobs, groups, 1, 1, {})
            sources = first_sources(first, runs, groups[0].simulated)
            knobs = useful_knobs(knobs, fixes, sources, status)
        amount = options.tokens or DEFAULT_AMOUNTS["tokens"]
        search = TuneSearch(knobs, groups, options.runs, amount, rates_of(options, gpus))
        digest = digest_of(runs, knobs)
        if options.resume is not None:
            recall(search, options.resume, digest)
        was_interrupted = searched(options, search, runs, sources, status, digest)
    answer = answer_of(options, search, runs, sources, was_interrupted=was_interrupted)
    keep(options, answer, digest)
    commands = {
        point.key: answer.command(point, *_ranks(runs.requests[point.gpus], gpus[point.gpus]))
        for point in answer.front
    }
    if options.svg is not None:
        write_or_emit(front_picture(answer), options.svg)
    if options.svg != "-":
        write_report(tune_report(answer, commands, digest), options, is_beside_files=True)
    if was_interrupted:
        return INTERRUPTED
    is_late = options.deadline_s is not None and answer.cheapest is None
    return NOTHING_RAN if not answer.front or is_late else 0


def searched(
    options: TuneOptions,
    search: "TuneSearch",
    runs: "TuneRuns",
    sources: "ScriptSources | None",
    status: StatusLine,
    digest: str,
) -> bool:
    """Whether Ctrl-C ended the search, which has learnt what it could."""
    from torchtally.tune.knobs import settings_text
    from torchtally.tune.points import TOKENS
    from torchtally.tune.running import run_search

    def told(points: "Sequence[TunePoint]") -> None:
        point = points[0]
        if options.tokens is not None and not point.failure and point.length_in != TOKENS:
            raise UsageError(
                "The tokens per step of this script are unknown: leave out --tokens, and costs "
                f"are those of {DEFAULT_AMOUNTS[point.length_in]:,} {point.length_in}."
            )
        figure = point.failure or f"step {format_seconds(point.step_s or 0.0)}"
        text = f"{point.gpus}, {settings_text(search.knobs, point.settings)}: {figure}"
        if status.is_redrawn:
            status.show(text, share=search.share, at_once=True)
        else:
            status.say(f"tally: {text}")
        if options.resume is not None:
            keep(options, answer_of(options, search, runs, None, was_interrupted=True), digest)

    try:
        run_search(search, runs, sources, told)
    except KeyboardInterrupt:
        return True
    return False


def gpus_named(options: TuneOptions) -> "dict[str, Cluster]":
    """GPUs by their own names, each once."""
    from torchtally.chips import cluster
    from torchtally.fit.chips import Margin, search_of
    from torchtally.fit.search import Values

    names = [name for each in options.gpu for name in each.split(",") if name.strip()]
    names = names or [gpu_or_default(None, is_quiet=options.quiet)]
    say_variants(names, is_quiet=options.quiet)
    gpus = {}
    for name in names:
        each = cluster(name)
        search_of(each.chip, Values(), Margin())  # raises for what runs no CUDA script
        count = "" if each.count == 1 else f"{each.count}x"
        if each.gpus_per_node is not None:
            count = f"{each.count // each.gpus_per_node}x{each.gpus_per_node}x"
        gpus[f"{count}{each.chip.name}"] = each
    return gpus


def knobs_of(options: TuneOptions) -> "tuple[tuple[Knob, ...], dict[str, Fix]]":
    """What is varied, and the fixes among it. Raises UsageError."""
    from torchtally.tune.knobs import fix_knob, parse_knob

    knobs = [parse_knob(text) for text in options.vary]
    names = [knob.argument.name or knob.argument.words[0] for knob in knobs]
    if len(set(names)) < len(names):
        raise UsageError("--vary: one setting is varied twice.")
    fixes = {} if options.with_fixes is None else fixes_named(options.with_fixes)
    if fixes and options.module is not None:
        raise UsageError("--with-fixes changes a script by its file: give that instead of -m.")
    if not knobs and not fixes and len(options.gpu) < 2 and "," not in "".join(options.gpu):
        raise UsageError(
            'nothing to choose from: give --vary "--batch-size={}", --with-fixes all, or several '
            "--gpus."
        )
    return (*knobs, *map(fix_knob, fixes)), fixes


def fixes_named(text: str) -> "dict[str, Fix]":
    """Fixes by name. Raises UsageError."""
    try:
        from torchtally.fixes.fix import ValueChange, fixes
    except ImportError:
        raise UsageError(
            "--with-fixes edits source with libcst, which is not installed: "
            "pip install 'torchtally[fix]'"
        ) from None
    catalogue = {fix.name.replace(" ", "-"): fix for fix in fixes()}
    if text == ALL:
        chosen = [fix for fix in catalogue.values() if fix.values is not ValueChange.CHANGED]
        return {fix.name: fix for fix in chosen}
    named = {}
    for name in text.split(","):
        fix = catalogue.get(name.strip().replace(" ", "-"))
        if fix is None:
            raise UsageError(f"--with-fixes {name}: unknown. {did_you_mean(name, catalogue)}")
        named[fix.name] = fix
    return named


def useful_knobs(
    knobs: "tuple[Knob, ...]",
    fixes: "Mapping[str, Fix]",
    sources: "ScriptSources",
    status: StatusLine,
) -> "tuple[Knob, ...]":
    """The knobs without the fixes that find nothing to change."""
    from torchtally.tune.running import changes_something

    idle = {name for name, fix in fixes.items() if not changes_something(sources, fix)}
    if idle:
        status.say(f"tally: nothing to change for {', '.join(sorted(idle))}")
    return tuple(knob for knob in knobs if knob.argument.name not in idle or not _is_fix(knob))


def _is_fix(knob: "Knob") -> bool:
    from torchtally.tune.knobs import KnobKind

    return knob.kind is KnobKind.FIX


def runs_of(
    options: TuneOptions, gpus: "Mapping[str, Cluster]", fixes: "Mapping[str, Fix]"
) -> "TuneRuns":
    """How the script is run on each."""
    from torchtally.runs.protocol import TraceRequest
    from torchtally.tune.running import TuneRuns

    requests = {
        name: TraceRequest(
            **script_of(options, each),
            gpu=name,
            steps=options.steps,
            place="",
            max_seconds=options.max_seconds,
            writes=options.writes,
            network=options.network,
        )
        for name, each in gpus.items()
    }
    return TuneRuns(requests, fixes, os.getcwd(), options.jobs or os.cpu_count() or 1)


def _ranks(request: "TraceRequest", gpus: "Cluster") -> tuple[int, int]:
    """(all, those of a node) that a run has."""
    size = request.world.size
    return size, 1 if size == 1 else min(gpus.node_size, size)


def rates_of(options: TuneOptions, gpus: "Mapping[str, Cluster]") -> dict[str, float | None]:
    """USD per hour of all GPUs, by their name."""
    from torchtally.cli.show import own_prices

    own = own_prices(options.price, [each.chip.name for each in gpus.values()])
    rates: dict[str, float | None] = {}
    for name, each in gpus.items():
        known = each.chip.price.usd_per_hour if each.chip.price else None
        rate = own.get(each.chip.name, known)
        rates[name] = None if rate is None else each.count * rate
    return rates


def answer_of(
    options: TuneOptions,
    search: "TuneSearch",
    runs: "TuneRuns",
    sources: "ScriptSources | None",
    *,
    was_interrupted: bool,
) -> "TuneAnswer":
    """What the search knows, with the patches of its front."""
    from dataclasses import replace

    from torchtally.fixes.patch import unified
    from torchtally.tune.answer import TuneAnswer
    from torchtally.tune.points import TOKENS
    from torchtally.tune.running import patch_of

    order = list(runs.requests)
    points = sorted(
        search.points.values(), key=lambda each: (order.index(each.gpus), each.settings)
    )
    length_in = next((point.length_in for point in points if not point.failure), TOKENS)
    amount = options.tokens or DEFAULT_AMOUNTS[length_in]
    alike = tuple(
        point
        if point.failure or point.length_in == length_in
        else replace(point, failure=f"of {point.length_in}, others of {length_in}", step_s=None)
        for point in points
    )
    first = next(iter(runs.requests.values()))
    answer = TuneAnswer(
        script=(first.script, *first.arguments),
        knobs=search.knobs,
        points=alike,
        amount=amount,
        length_in=length_in,
        deadline_s=options.deadline_s,
        pruned=len(search.pruned),
        is_cut=search.is_cut,
        was_interrupted=was_interrupted,
    )
    if sources is None:
        return answer
    patches = {}
    for point in answer.front:
        changed = patch_of(sources, search.knobs, point.settings, runs.fixes)
        if changed is not None:
            patches[point.settings] = unified(sources, changed, runs.folder)
    return replace(answer, patches=patches)


# A file of points --------------------------------------------------------------------------------


def digest_of(runs: "TuneRuns", knobs: "tuple[Knob, ...]") -> str:
    """Digest of what a file of points is of: the script's text, its arguments, what is varied."""
    first = next(iter(runs.requests.values()))
    parts = [first.script, *first.arguments, str(first.steps)]
    parts += [f"{knob.kind} {' '.join(knob.argument.words)}" for knob in knobs]
    known = hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8)
    if not first.is_module:
        with open(first.script, "rb") as file:
            known.update(file.read())
    return known.hexdigest()


def recall(search: "TuneSearch", path: str, digest: str) -> None:
    """Learn the points of a file, where it is there. Raises UsageError for another search's."""
    import msgspec

    from torchtally.report.documents.tune import TuneDocument
    from torchtally.tune.points import TunePoint

    if not os.path.exists(path):
        return
    try:
        with open(path, "rb") as file:
            document = msgspec.json.decode(file.read(), type=TuneDocument)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"--resume {path}: not a file of points ({error}). Name another, or remove it."
        ) from error
    if document.search != digest:
        raise UsageError(
            f"--resume {path}: its points are of another script, other arguments or other "
            "settings than these. Name another file, or remove it."
        )
    others = {part.gpus for part in document.points} - set(search.rates)
    if others:
        raise UsageError(
            f"--resume {path}: it has points of {', '.join(sorted(others))}, which are not among "
            "--gpus: name them too, or another file."
        )
    for part in document.points:
        search.recall(msgspec.convert(part, TunePoint, from_attributes=True))


def keep(options: TuneOptions, answer: "TuneAnswer", digest: str) -> None:
    """Write the points to the file of --resume. Raises OutputError where it cannot be written."""
    from torchtally.report.documents.tune import tune_document
    from torchtally.report.keys import dumps

    if options.resume is not None:
        write_bytes(dumps(tune_document(answer, digest)).encode(), options.resume)
