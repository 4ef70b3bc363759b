"""A run of a changed script on the simulated GPU, and the figures that fixes are chosen by."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from torchtally.chips import chip
from torchtally.errors import ScriptError
from torchtally.fit.changes import classes_worth_checkpointing
from torchtally.fixes.fix import FileEvidence
from torchtally.fixes.patch import Patch, ScriptSources, mirror, source_of
from torchtally.ledger import Ledger, account
from torchtally.memory.workspace import context_bytes
from torchtally.timing.targets import known_roofline
from torchtally.trace import FORWARD_PHASES, Trace

LAST_LINES = 8
"""Of the output of a script that failed."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """What is run: a script, its arguments and the chip."""

    script: str
    arguments: tuple[str, ...]
    gpu: str
    steps: int
    folder: str
    """In which it runs."""
    isolation: tuple[str, ...] = ()
    """Options of `tally run` that say what it may write and send."""


@dataclass(frozen=True, slots=True)
class FixTrial:
    """A script that ran with some fixes, or failed."""

    ledger: Ledger | None
    failure: str = ""

    @property
    def step_s(self) -> float | None:
        """Seconds of a step; None where an operator has no time."""
        ledger = self.ledger
        return ledger.total.seconds if ledger is not None and ledger.is_timed else None

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the allocator takes of the device at most."""
        reserved = () if self.ledger is None else self.ledger.trace.reserved
        return max((each.bytes for each in reserved), default=0)

    @property
    def fits(self) -> bool:
        """Whether the chip holds it, by a run with its memory."""
        return self.ledger is not None and self.ledger.trace.final_refusal is None


def run(request: TrialRequest, script: str, *, is_limited: bool) -> FixTrial:
    """Run of a script by `tally run` in its own process; with `is_limited` in the chip's memory."""
    with tempfile.TemporaryDirectory(prefix="tally-") as folder:
        file = os.path.join(folder, "run.tally")
        command = [
            sys.executable, "-m", "torchtally", "run", "--quiet", "--no-advice", "-o", file,
            "--gpu", request.gpu, "--steps", str(request.steps),
            *request.isolation, *([] if is_limited else ["--no-oom"]), script, *request.arguments,
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=request.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", check=False,
            env=os.environ | {"PYTHONPATH": python_path(), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        if not os.path.exists(file):
            return FixTrial(None, "\n".join(done.stdout.splitlines()[-LAST_LINES:]))
        trace = Trace.load(file)
        # Out of memory ends the script by an exception, too: that is a result.
        if done.returncode and trace.final_refusal is None:
            return FixTrial(None, "\n".join(done.stdout.splitlines()[-LAST_LINES:]))
        return FixTrial(account(trace, roofline=known_roofline(trace.chip)))


def python_path() -> str:
    """Path to this package, then the user's own paths."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    own = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([package, *([own] if own else [])])


def try_patch(
    request: TrialRequest, sources: ScriptSources, patch: Patch, *, is_limited: bool
) -> FixTrial:
    """A run of the sources with a patch in them."""
    with mirror(sources, patch.changed) as script:
        return run(request, script, is_limited=is_limited)


def sources_of(request: TrialRequest, ledger: Ledger) -> ScriptSources:
    """The script and the modules of its folder that ran."""
    script = os.path.realpath(request.script)
    folder = os.path.dirname(script) + os.sep
    frames = [frame for site in ledger.trace.sites for frame in site.frames if frame.is_own]
    paths = {os.path.realpath(frame.file) for frame in frames} | {script}
    texts, unreadable = {}, {}
    for path in sorted(paths):
        if path.startswith(folder) and path.endswith(".py"):
            try:
                texts[path] = source_of(path)
            except ScriptError as error:
                unreadable[path] = str(error)
    recomputable = frozenset(classes_worth_checkpointing(ledger))
    peaks = frozenset(chip(request.gpu).peaks)
    forward = frozenset(forward_lines(ledger, script))
    evidence = {
        path: FileEvidence(forward if path == script else frozenset(), recomputable, peaks)
        for path in texts
    }
    return ScriptSources(script, texts, evidence, unreadable)


def forward_lines(ledger: Ledger, script: str) -> Sequence[str]:
    """Texts of the script's lines below which the forward pass calculated."""
    sites = {
        entry.op.site
        for entry in ledger.entries
        if entry.op.phase in FORWARD_PHASES and entry.cost.flops
    }
    return [
        frame.text
        for site in sites
        for frame in ledger.trace.sites[site].frames
        if os.path.realpath(frame.file) == script
    ]


def capacity_bytes(gpu: str) -> int:
    """Bytes of a chip that its allocator has."""
    device = chip(gpu)
    return device.total_memory_bytes - context_bytes(device)
