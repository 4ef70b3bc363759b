"""`tally diff`: what changed between two traces, or two commits."""

import argparse
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtally.cli.arguments import RunParser
from torchtally.cli.chip_names import say_variants
from torchtally.cli.output import PageOptions, TableOptions, write_report
from torchtally.cli.streams import say
from torchtally.errors import ScriptError, UsageError
from torchtally.options import CHIP, Form, one_of, own

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtally.ledger import Ledger
    from torchtally.runs.checkouts import RepositoryState
    from torchtally.trace import Frame, Trace

SUMMARY = "what changed between two traces or commits: time, FLOPs, memory, by line or module"

USAGE = """\
tally diff [options] BEFORE AFTER
       tally diff [options] --commits A..B SCRIPT [ARGS ...]"""
EPILOG = """\
examples:
  tally run train.py -o before.tally            then edit train.py, and
  tally run train.py -o after.tally
  tally diff before.tally after.tally           the whole, memory, lines and modules that differ
  tally diff before.tally after.tally --by line --top 20
  tally diff before.tally after.tally --by line --filter "flops_change>1e9"
  tally diff before.tally after.tally --format markdown      for a pull request
  tally diff before.tally after.tally --by op --json | jq '.rows[0]'
  tally diff --commits main..HEAD --gpu H100-SXM train.py --batch 8
  tally diff --commits HEAD.. train.py          what the uncommitted changes do

A line is the same where its text is, wherever it moved to. The traces may be of different
chips. --commits runs SCRIPT at both commits (worktrees of git in a temporary
folder, which is removed; A.. is A and the working tree as it is).
"""
LAST_LINES = 12
"""Of a script that failed."""


class DiffParser(RunParser):
    """Parser of `tally diff`: with --commits a script and its arguments follow, as for `tally
    run`.
    """

    HAS_SCRIPT = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(args if args is not None else sys.argv[1:])
        if any(word.partition("=")[0] == "--commits" for word in words):
            return super().parse_known_args(words, namespace)
        return argparse.ArgumentParser.parse_known_args(self, words, namespace)


def names() -> "Iterable[str]":
    from torchtally.views.difference import DIFFERENCES

    return DIFFERENCES


@dataclass(frozen=True, kw_only=True)
class DiffOptions(TableOptions, PageOptions):
    """Compare two traces, or a script at two commits: a step of each, and the memory of both
    runs.
    """

    before: str = own(
        "BEFORE", "a trace, as `tally run -o FILE` wrote it", Form("BEFORE"), nargs="?", default=""
    )
    after: str = own(
        "AFTER", "another, of the changed script", Form("AFTER"), nargs="?", default=""
    )
    script: str = ""
    """What --commits runs, and its arguments."""
    script_arguments: tuple[str, ...] = ()
    commits: str = own(
        "--commits",
        "run SCRIPT at these two commits; A..: the working tree",
        Form("A..B"),
        default="",
    )
    gpu: str | None = own("--gpu", "with --commits: the chip of both runs", CHIP)
    steps: str | None = own("--steps", "with --commits: as `tally run --steps` takes it", Form("N"))
    by: str | None = own(
        "--by",
        "one table in full: line, module, op, phase or category",
        Form("VIEW", one_of(names)),
    )


PARSER = DiffParser


def command(options: DiffOptions) -> int:
    """Show the changes. Raises TraceFileError for a file that is not a whole trace, and ScriptError
    for a script that fails at a commit.
    """
    from torchtally.report.difference import difference_report
    from torchtally.report.report import table_report
    from torchtally.views.difference import DIFFERENCES

    check(options)
    if not options.commits:
        before, after = ledger_of(options.before), ledger_of(options.after)
    else:
        before, after = ledgers_of_commits(options)
    if options.by is None:
        write_report(difference_report(before, after, options.top), options)
    else:
        table = options.chosen(DIFFERENCES[options.by](before, after))
        write_report(table_report(table), options)
    return 0


def check(options: DiffOptions) -> None:
    """Raises UsageError for what is missing, or asks for nothing."""
    if options.by is None and (options.filter or options.sort or options.columns):
        raise UsageError(
            "--filter, --sort and --columns need one table: add --by line, for example."
        )
    if not options.commits:
        if not options.after:
            raise UsageError(
                "expected two traces, or two commits of a script: tally diff before.tally "
                "after.tally, or\n"
                "tally diff --commits A..B SCRIPT"
            )
        if options.gpu or options.steps:
            raise UsageError("--gpu and --steps apply to --commits only.")
    elif not options.script:
        raise UsageError(f"--commits {options.commits}: missing script: give it after the options.")


def ledger_of(file: str) -> "Ledger":
    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.trace.peers import load_peers

    trace = Trace.load(file)
    return account(trace, roofline=known_roofline(trace.chip), peers=load_peers(trace, file))


# Commits ------------------------------------------------------------------------------------------


def ledgers_of_commits(options: DiffOptions) -> "tuple[Ledger, Ledger]":
    """Ledgers of the script at both commits. Raises UsageError for commits that there are not."""
    from torchtally.ledger import account
    from torchtally.runs.checkouts import repository
    from torchtally.timing.targets import known_roofline

    if options.gpu is not None:
        say_variants([options.gpu])
    ours = repository()
    first, _, second = options.commits.partition("..")
    if not first or second.startswith("."):
        raise UsageError(
            f"--commits {options.commits}: give two as A..B, or A.. for the working tree."
        )
    is_of_working_tree = not second
    for name in (first, second) if second else (first,):
        ours.commit(name)
    with ours.state(first) as state:
        before = trace_at(state, ours.top, options)
    if is_of_working_tree:
        after = trace_at(ours.working_tree, ours.top, options)
    else:
        with ours.state(second) as state:
            after = trace_at(state, ours.top, options)
    ledgers = [account(trace, roofline=known_roofline(trace.chip)) for trace in (before, after)]
    return ledgers[0], ledgers[1]


def trace_at(state: "RepositoryState", top: str, options: DiffOptions) -> "Trace":
    """Trace of a run there, whose files are called as those of the user's repository.

    Raises ScriptError where the script is not there, or fails.
    """
    import tempfile

    from torchtally.trace import Trace

    if not os.path.exists(os.path.join(state.folder, options.script)):
        raise ScriptError(f"{options.script}: no such file at {state.name}. Choose other commits.")
    say(f"tally: {state.name}: {options.script}")
    with tempfile.TemporaryDirectory(prefix="tally-") as folder:
        file = os.path.join(folder, "run.tally")
        run_there(state, top, file, options)
        return with_files_in(Trace.load(file), state.top, top)


def run_there(state: "RepositoryState", top: str, file: str, options: DiffOptions) -> None:
    """`tally run` in that folder, as a process of its own."""
    import subprocess

    flags = [f"--{name}={value}" for name in ("gpu", "steps") if (value := getattr(options, name))]
    command = [sys.executable, "-m", "torchtally", "run", "--quiet", "--no-advice", "-o", file,
               *flags, options.script, *options.script_arguments]  # fmt: skip
    done = subprocess.run(
        command, cwd=state.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", check=False,
        env=os.environ | environment_there(state, top),
    )  # fmt: skip
    if done.returncode:
        how = f"fails at {state.name} (exit code {done.returncode})"
        last = "".join(f"\n  {line}" for line in done.stdout.splitlines()[-LAST_LINES:])
        raise ScriptError(f"{options.script}: {how}. Its last output:{last}")


def environment_there(state: "RepositoryState", top: str) -> dict[str, str]:
    """Environment of a child in another folder: where this package lies, then the user's own paths,
    those of the repository as they are in that state. No bytecode is written into the working tree.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [os.path.abspath(place) for place in own if place]
    path = [package, *(relocate(place, top, state.top) for place in places)]
    return {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def with_files_in(trace: "Trace", place: str, top: str) -> "Trace":
    """The trace with files below `place` called as those below `top`."""
    from msgspec.structs import replace

    def rename(frame: "Frame") -> "Frame":
        return replace(frame, file=relocate(frame.file, place, top))

    sites = tuple(replace(site, frames=tuple(map(rename, site.frames))) for site in trace.sites)
    return replace(trace, sites=sites)


def relocate(path: str, place: str, to: str) -> str:
    """A path in `place` as it is in `to`; others as they are."""
    is_inside = path == place or path.startswith(f"{place}{os.sep}")
    return to + path[len(place) :] if is_inside else path
