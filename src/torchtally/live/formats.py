"""Lines of text that name a step, as trainings print them.

A format is a pattern that its lines begin with or contain, and a pattern for each attribute of a
`StepObservation`, each with one group. Lines are those that the projects print today:

    nanoGPT        iter 10: loss 2.3456, time 135.20ms, mfu 31.02%
    nanochat       step 00010/21400 (0.05%) | loss: 9.03 | dt: 1350.32ms | tok/sec: 388,000 | ...
    llm.c          step   10/18865 | loss 7.21 (+nanz)| ... | 135.20 ms | 38.1% bf16 MFU | 388 tok/s
    torchtitan     step: 10  loss: 8.03  memory: 40.12GiB(50.67%)  tps: 5,678  ...  mfu: 34.95%
    Megatron-LM    iteration  10/ 500 | ... | elapsed time per iteration (ms): 135.2 | ...
    tally train    1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from torchtally.errors import UsageError
from torchtally.live.observation import StepObservation, positive
from torchtally.units import parse_bytes, parse_count

MOST_STEP = 10**12
CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Of a terminal: colours, and a progress bar's way to the line above."""
RANK = re.compile(r"^\s*\[(?:rank|default)(\d+)\]:\s?")
"""With which torchrun begins the lines of a rank (`--tee`, `--redirects`)."""
TIME = re.compile(r"\b(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3,6})\b")


def milliseconds(text: str) -> float:
    return float(text) / 1000


def percent(text: str) -> float:
    return float(text) / 100


def number_of(text: str) -> float:
    return float(text.replace(",", ""))


def size(text: str) -> int:
    """Size of "1.25/1.20 GiB", measured and predicted, the first."""
    number, _, unit = text.partition(" ")
    return parse_bytes(f"{number.partition('/')[0]} {unit}")


Fields = Mapping[str, tuple[str, Callable[[str], float]]]

FORMATS: Mapping[str, tuple[str, Fields]] = {
    "nanoGPT": (
        r"^\s*iter (\d{1,15}): loss ",
        {"step_s": (r"\btime ([\d.]+)ms", milliseconds), "mfu": (r"\bmfu (-?[\d.]+) ?%", percent)},
    ),
    "nanochat": (
        r"^\s*step (\d{1,15})(?:/\d+)? \([\d.]+%\) \| loss",
        {
            "step_s": (r"\bdt: ([\d.]+)ms", milliseconds),
            "tokens_per_s": (r"\btok/sec: ([\d,]+)", number_of),
            "mfu": (r"mfu: ([\d.]+)", percent),
            "peak_bytes": (r"\bpeak_mem: ([\d.]+MiB)", parse_bytes),
        },
    ),
    "llm.c": (
        r"^\s*step\s+(\d{1,15})/\s*\d+ \| loss",
        {
            "step_s": (r"\| ([\d.]+) ms\b", milliseconds),
            "tokens_per_s": (r"\| ([\d.]+) tok/s", float),
            "mfu": (r"\| ([\d.]+)% \w+ MFU", percent),
        },
    ),
    "torchtitan": (
        r"(?<!validate )\bstep:\s*(\d{1,15})\s+loss:",
        {
            "device_tokens_per_s": (r"\b(?:tps|wps): ([\d,]+)", number_of),
            "mfu": (r"\bmfu: ([\d.]+)%", percent),
            "reserved_bytes": (r"\bmemory:\s*([\d.]+GiB)", parse_bytes),
        },
    ),
    "Megatron-LM": (
        r"\biteration\s+(\d{1,15})/\s*\d+ \|",
        {"step_s": (r"elapsed time per iteration \(ms\): ([\d.]+)", milliseconds)},
    ),
    "tally train": (
        r"^(\d{1,15})/\d+  loss ",
        {
            "tokens_per_s": (r"  ([\d.]+(?: [KMBT])?) tok/s", parse_count),
            "mfu": (r"  ([\d.]+) % MFU", percent),
            "peak_bytes": (r"  ([\d.]+(?:/[\d.]+)? [KMGT]?i?B)(?:$|/| )", size),
        },
    ),
}
"""How projects print a step: its number, without which a line says nothing of one, and figures."""

KNOWN = (*FORMATS, "Hugging Face's Trainer", "log.jsonl of tally train")
"""Names, for messages."""


def observation_of(line: str) -> StepObservation | None:
    """What a line says of a step, by the first format that it is of."""
    rank = None
    if (prefix := RANK.match(line)) is not None:
        rank, line = int(prefix[1][:9]), line[prefix.end() :]
    for step, fields in FORMATS.values():
        match = re.search(step, line)
        if match is not None and match[1].isascii() and int(match[1]) <= MOST_STEP:
            figures = {name: figure(line, *field) for name, field in fields.items()}
            return StepObservation(
                step=int(match[1]), rank=rank, logged_at_s=time_of(line), **figures
            )
    return None


def figure(line: str, pattern: str, read: Callable[[str], float]) -> Any:
    """None unless it is a number above zero."""
    match = re.search(pattern, line)
    try:
        value = None if match is None else read(match[1])
    except (ValueError, OverflowError, UsageError):
        return None
    return None if positive(value) is None else value


def time_of(line: str) -> float | None:
    """Seconds of the time that the line is stamped with, in whatever time zone."""
    match = TIME.search(line)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1].replace(",", ".")).timestamp()
    except (ValueError, OverflowError):
        return None
