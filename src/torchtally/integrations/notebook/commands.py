"""Commands of `tally` within Python: what they report is an object that a notebook shows."""

import os
import shlex
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO

from torchtally.cli import COMMANDS, collection_kept, parser
from torchtally.cli.output import reports_collected
from torchtally.errors import ScriptError, UsageError, did_you_mean
from torchtally.report.report import Report

PROCESSES = frozenset({"run", "fit", "train", "sweep", "sample", "audit", "bench", "watch", "view"})
"""Commands that run a script or a training: each in a process of its own, which can be interrupted
and ends with what it has started."""


def tally(line: str | Sequence[str]) -> Report:
    """Run a command of `tally` and return what it reports: `tally("plan llama-3-8b")`.

    `line` is what stands behind `tally` on a command line, or a list of its words. Commands that
    run a script or a training do so in a process of their own, and what they print appears as it
    comes; the others work in this process.

    Raises TallyError where the command would print an error, and UsageError for words that it does
    not take.
    """
    words = words_of(line) if isinstance(line, str) else list(line)
    command_line = line if isinstance(line, str) else shlex.join(line)
    if not words or words[0] not in COMMANDS:
        name = words[0] if words else ""
        raise UsageError(f"tally has no command {name!r}. {did_you_mean(name, COMMANDS)}")
    return in_process(command_line, words) if words[0] in PROCESSES else here(command_line, words)


def words_of(line: str) -> list[str]:
    """Words as a shell splits a line. Raises UsageError for a quotation without an end."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line}: {error}.") from None


def here(line: str, words: list[str]) -> Report:
    """The command in this process, whose settings stay as they are."""
    printed = StringIO()
    with (
        collection_kept(),
        redirect_stdout(printed),
        redirect_stderr(printed),
        reports_collected() as reports,
    ):
        args = parse(parser(words), words)
        if args is not None:
            args.command(args)
    return report_of(line, reports, printed.getvalue())


def parse(parser: ArgumentParser, words: Sequence[str]) -> Namespace | None:
    """The arguments; None where they ask for help, which is printed.

    Raises UsageError for words that it does not take.
    """
    complaint = StringIO()
    try:
        with redirect_stderr(complaint):
            return parser.parse_args(words, Namespace(argv=list(words)))
    except SystemExit as exit_:
        if exit_.code:
            raise UsageError(complaint.getvalue().removeprefix("tally: error: ").strip()) from None
        return None


def report_of(line: str, reports: Sequence[Report], printed: str) -> Report:
    """What the command reported, with what it printed besides; or that alone."""
    if not reports:
        return Report(title=f"tally {line}", text=lambda look: printed)
    (report,) = reports
    lines = [text for text in printed.splitlines() if text.strip()]
    return replace(report, remarks=(*report.remarks, *lines))


def in_process(line: str, words: list[str]) -> Report:
    """The command in a process of its own. Ctrl-C reaches it as it would in a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torchtally", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        # Its own session: the notebook interrupts this process's group, and we pass that on once.
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    is_interrupted = False
    try:
        while True:
            try:
                for text in process.stdout:
                    print(text, end="", flush=True)
                break
            except KeyboardInterrupt:
                if is_interrupted:
                    raise
                is_interrupted = True
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
    finally:
        if process.poll() is None and not is_interrupted:
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if is_interrupted:
        raise KeyboardInterrupt
    if code:
        raise ScriptError(f"`tally {line}` ended with exit code {code}.")
    return Report(title=f"`tally {line}` has ended.")
