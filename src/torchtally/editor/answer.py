"""What a run says of the lines of its source, without torch: from the trace alone."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchtally.brief.answer import BriefAnswer, brief_answer
from torchtally.editor.moved_lines import texts_of
from torchtally.ledger import Entry, Ledger, Line, Total, account, line_of, once_per_site
from torchtally.timing.targets import known_roofline
from torchtally.trace import FORWARD_PHASES, Call, Phase, Trace
from torchtally.trace.peers import load_peers
from torchtally.views.bottlenecks import dominant_bounds
from torchtally.views.source_text import is_what_ran, recorded_lines

MOST_CALLS = 6
"""Of a line, with the shapes of their tensors."""


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """A line of code, and what it costs in the reported period."""

    line: Line
    total: Total
    phases: Mapping[Phase, Total]
    bound: str
    """"" where no time is known."""
    calls: tuple[Call, ...]
    """Of its forward pass, or of what else it runs: each once, those of most FLOPs first."""


@dataclass(frozen=True, slots=True)
class ScriptAnswer:
    """A run of a script."""

    script: str
    """Its path, links followed."""
    brief: BriefAnswer
    is_timed: bool
    lines: Mapping[str, tuple[LineAnswer, ...]]
    """By file, links followed."""
    texts: Mapping[str, Sequence[str | None]]
    """Lines of these files when they ran, stripped, as far as they are known."""
    ran_s: float
    """When, in seconds since 1970."""


def load_answer(trace: Path, script: str) -> ScriptAnswer:
    """The answer in a trace's file. Raises TraceFileError."""
    path = str(trace)
    loaded = Trace.load(path)
    ledger = account(loaded, roofline=known_roofline(loaded.chip), peers=load_peers(loaded, path))
    return answer_of(ledger, script, trace.stat().st_mtime)


def answer_of(ledger: Ledger, script: str, ran_s: float) -> ScriptAnswer:
    """The answer of a ledger. Files are read, to know lines that ran nothing."""
    by_file: dict[str, list[LineAnswer]] = {}
    for answer in line_answers(ledger):
        by_file.setdefault(answer.line.file, []).append(answer)
    recorded = recorded_lines(ledger, by_file)
    return ScriptAnswer(
        script=script,
        brief=brief_answer(ledger),
        is_timed=ledger.is_timed,
        lines={os.path.realpath(file): tuple(lines) for file, lines in by_file.items()},
        texts={os.path.realpath(file): known_texts(file, recorded[file]) for file in by_file},
        ran_s=ran_s,
    )


def line_answers(ledger: Ledger) -> Iterator[LineAnswer]:
    """The lines that cost something, of the user's code or of a model that it delegates to."""
    key = once_per_site(line_of)
    phases: dict[Line | None, dict[Phase, Total]] = {}
    for (line, phase), total in ledger.sums(lambda each: (key(each), each.op.phase)).items():
        phases.setdefault(line, {})[phase] = total
    bounds = dominant_bounds(ledger, key) if ledger.is_timed else {}
    calls: dict[Line | None, dict[Call, Entry]] = {}
    for entry in ledger.reported:
        calls.setdefault(key(entry), {}).setdefault(entry.call, entry)
    for line, total in ledger.by_line().items():
        if line is None or not (total.seconds or total.flops or total.bytes):
            continue
        bound = str(bounds.get(line, ""))
        yield LineAnswer(line, total, phases[line], bound, dear_calls(calls[line].values()))


def dear_calls(entries: Iterable[Entry]) -> tuple[Call, ...]:
    """The calls of the forward pass, where there are some, that compute most."""
    listed = list(entries)
    forward = [entry for entry in listed if entry.op.phase in FORWARD_PHASES] or listed
    working = [entry for entry in forward if not entry.kind.is_free] or forward
    working.sort(key=lambda entry: -entry.cost.flops)
    return tuple(entry.call for entry in working[:MOST_CALLS])


def known_texts(file: str, recorded: Mapping[int, str]) -> Sequence[str | None]:
    """A file's lines when it ran: all of them where the file still is what ran."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return texts_of(recorded)
    if is_what_ran(text, recorded):
        return [line.strip() for line in text.splitlines()]
    return texts_of(recorded)
