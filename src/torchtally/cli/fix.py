"""`tally fix`: changes of a script that make it fit, or faster, each proved by a run."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchtally.cli.arguments import SIZE, RunParser, ScriptOptions, check_script
from torchtally.cli.chip_names import gpu_or_default, say_variants
from torchtally.cli.installation import check_simulates
from torchtally.cli.output import ReportOptions, emit, write_report
from torchtally.cli.streams import say
from torchtally.errors import OutputError, ScriptError, UsageError
from torchtally.options import CHIP, COUNT, own
from torchtally.options.simulation import IsolationOptions
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from torchtally.fixes.choosing import ChosenFixes, FixGoal
    from torchtally.fixes.fix import Fix
    from torchtally.fixes.patch import Patch, ScriptSources
    from torchtally.fixes.trial import FixTrial, TrialRequest

SUMMARY = "change a script so that it fits a GPU, or trains faster: a patch, and its proof"

NOTHING_HELPS = 1

USAGE = "tally fix [options] SCRIPT [ARGS ...]"
EPILOG = """\
Options that tally does not know go to the script; after -- all do:

examples:
  tally fix --fit --gpu RTX-4090 train.py           make it fit
  tally fix --faster --gpu H100-SXM --apply train.py --batch 8
  tally fix --faster --gpu A100-SXM --change-values train.py    with bfloat16, TF32
  tally fix --memory-budget 20GiB --gpu RTX-4090 train.py    recompute least
  tally fix --fit train.py > fix.patch && git apply fix.patch

Every change is one that a person would write, in the script or in a module of
its folder. The changed script is run on the simulated GPU: alone with each
change, then with those that help together. What saves less than 1 % is not
kept; with --fit the one that saves most, and others only as far as they are
needed. Without --apply nothing is written. Paths of the patch are those from
the current folder.

By default the training computes what it did: the same operators, or the same
sums in another order. --change-values allows numbers of fewer bits.

Exit code: 0 when something helps (with --fit: when it fits), 1 when nothing
does, 2 for a wrong command line or a script that fails, 130 on Ctrl-C.
"""

PARSER = RunParser


@dataclass(frozen=True, kw_only=True)
class FixOptions(IsolationOptions, ScriptOptions, ReportOptions):
    """Patch a script so that it fits a GPU or trains faster, and prove each change by a run on a
    simulated one.
    """

    gpu: str | None = own(
        "--gpu", "the chip (`tally gpus` lists them); default: TALLY_GPU, else H100-SXM", CHIP
    )
    fit: bool = own("--fit", "save memory until it fits (default where it does not)")
    faster: bool = own("--faster", "shorten the step (default where it fits)")
    memory_budget: int | None = own(
        "--memory-budget",
        "checkpoint blocks, and keep what least is recomputed with, in so much reserved memory",
        SIZE,
    )
    change_values: bool = own(
        "--change-values", "also changes that compute with fewer bits: bfloat16, TF32"
    )
    apply: bool = own("--apply", "write the changes; what a file was is kept as FILE.orig")
    steps: int = own("--steps", "training steps of each run (default 2)", COUNT, default=2)
    jobs: int | None = own("--jobs", "runs at a time (default: one for each core)", COUNT)
    quiet: bool = own("--quiet", "no progress on stderr")


def command(options: FixOptions) -> int:
    """Try the fixes, and print what is kept and its patch."""
    from torchtally.fixes.choosing import FixGoal
    from torchtally.fixes.patch import unified
    from torchtally.fixes.trial import TrialRequest, capacity_bytes, sources_of
    from torchtally.report.fixes import fixes_report
    from torchtally.runs.checkouts import interrupting

    check(options)
    gpu = gpu_or_default(options.gpu, is_quiet=options.quiet)
    say_variants([gpu], is_quiet=options.quiet)
    request = TrialRequest(
        options.script, options.script_arguments, gpu, options.steps, os.getcwd(),
        ("--writes", options.writes, "--network", options.network),
    )  # fmt: skip
    capacity = capacity_bytes(gpu)
    with interrupting():  # folders of changed sources go, however it ends
        before = run_before(request, is_quiet=options.quiet)
        assert before.ledger is not None
        sources = sources_of(request, before.ledger)
        find = choice_of
        if options.memory_budget is not None:
            capacity, find = options.memory_budget, policy_of
        choice = find(options, request, before, sources, capacity)
    patch = "" if choice.kept is None else unified(sources, choice.kept.patch, os.getcwd())
    write_report(fixes_report(choice, gpu, capacity, patch), options, is_beside_files=True)
    if choice.kept is None:
        is_fitting = choice.goal is not FixGoal.FASTER and before.reserved_bytes <= capacity
        return 0 if is_fitting else NOTHING_HELPS
    if options.format == "text" and options.json != "-":
        emit(patch)
    if options.apply:
        write(sources, choice.kept.patch)
    is_out_of_memory = choice.proof is not None and not choice.proof.fits
    return NOTHING_HELPS if is_out_of_memory else 0


def check(options: FixOptions) -> None:
    """Raises UsageError for options that contradict, or a script whose source is not known."""
    check_simulates()
    if options.fit and options.faster:
        raise UsageError("--fit and --faster are two goals: give one of them.")
    if options.memory_budget is not None:
        if options.faster or options.change_values:
            raise UsageError("--memory-budget solves what is recomputed: it tries no other change.")
        check_solves()
    if options.module is not None:
        raise UsageError("tally fix changes a script by its file: give that instead of -m.")
    script = options.script_named("tally fix train.py --fit", takes_module=False)
    check_script(script)
    if not script.target.endswith(".py"):
        raise UsageError(f"{script.target}: tally fix changes Python files (.py) alone.")
    try:
        import libcst  # noqa: F401 (asked for before a run is waited for)
    except ImportError:
        raise UsageError(
            "tally fix edits source with libcst, which is not installed: "
            "pip install 'torchtally[fix]'"
        ) from None


def check_solves() -> None:
    """Raises UsageError where the solver is not installed."""
    if find_spec("scipy") is None:
        raise UsageError(
            "--memory-budget solves an integer problem with scipy, which is not installed: "
            "pip install 'torchtally[fix]'"
        )


def run_before(request: "TrialRequest", *, is_quiet: bool) -> "FixTrial":
    """A run of the script as it is. Raises ScriptError where it fails."""
    from torchtally.fixes.trial import run

    with StatusLine(is_quiet=is_quiet) as status:
        status.show("running the script as it is", at_once=True)
        before = run(request, request.script, is_limited=False)
    if before.ledger is None:
        last = "".join(f"\n  {line}" for line in before.failure.splitlines())
        raise ScriptError(f"{request.script} fails as it is. Its last output:{last}")
    if not before.ledger.trace.step_ends:
        raise ScriptError(
            f"{request.script} ends before an optimizer's step: there is no training to change."
        )
    return before


def goal_of(options: FixOptions, before: "FixTrial", capacity: int) -> "FixGoal":
    """The goal that is asked for; else to fit, where the script does not."""
    from torchtally.fixes.choosing import FixGoal

    if options.fit or options.faster:
        return FixGoal.FIT if options.fit else FixGoal.FASTER
    return FixGoal.FASTER if before.reserved_bytes <= capacity else FixGoal.FIT


def choice_of(
    options: FixOptions,
    request: "TrialRequest",
    before: "FixTrial",
    sources: "ScriptSources",
    capacity: int,
) -> "ChosenFixes":
    """What is kept of all fixes that are allowed."""
    from torchtally.fixes.choosing import FixGoal, SkippedFix, choose
    from torchtally.fixes.fix import ValueChange, fixes
    from torchtally.fixes.trial import try_patch

    def is_allowed(fix: "Fix") -> bool:
        return options.change_values or fix.values is not ValueChange.CHANGED

    with StatusLine(is_quiet=options.quiet) as status:

        def run_with(patch: "Patch") -> "FixTrial":
            status.show(f"trying {' + '.join(fix.name for fix in patch.fixes)}", at_once=True)
            return try_patch(request, sources, patch, is_limited=False)

        goal = goal_of(options, before, capacity)
        choice = choose(
            before, sources, filter(is_allowed, fixes()), goal, run_with,
            capacity_bytes=capacity, jobs=options.jobs or os.cpu_count() or 1,
        )  # fmt: skip
        if choice.alone or choice.skipped:
            choice.skipped += [
                SkippedFix(fix.name, "changes values: needs --change-values")
                for fix in fixes()
                if not is_allowed(fix)
            ]
            choice.skipped += [
                SkippedFix(os.path.relpath(path), f"left alone: {reason}")
                for path, reason in sources.unreadable.items()
            ]
        if choice.kept is not None and choice.goal is FixGoal.FIT:
            status.show("running what is kept in the memory of the chip", at_once=True)
            choice.proof = try_patch(request, sources, choice.kept.patch, is_limited=True)
        return choice


def policy_of(
    options: FixOptions,
    request: "TrialRequest",
    before: "FixTrial",
    sources: "ScriptSources",
    capacity: int,
) -> "ChosenFixes":
    """Checkpoints that keep what fits the budget."""
    from torchtally.fixes.policy_search import choose_policy
    from torchtally.fixes.trial import try_patch

    with StatusLine(is_quiet=options.quiet) as status:

        def run_with(patch: "Patch") -> "FixTrial":
            status.show(f"running it with a {patch.fixes[0].name}", at_once=True)
            return try_patch(request, sources, patch, is_limited=False)

        return choose_policy(before, sources, capacity, run_with)


def write(sources: "ScriptSources", patch: "Patch") -> None:
    """The patch into the user's files. Raises OutputError where one cannot be written."""
    from torchtally.fixes.patch import apply

    try:
        kept = apply(sources, patch)
    except OSError as error:
        raise OutputError(f"{error.filename}: cannot be written ({error.strerror}).") from error
    say(f"tally: written; as it was: {', '.join(os.path.relpath(path) for path in kept)}")
