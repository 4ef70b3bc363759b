"""Lines of text that name a step, as trainings print them.

A format is a pattern that its lines begin with or contain, and a pattern for each quantity, each
with one group. Lines are those that the projects print today:

    nanoGPT        iter 10: loss 2.3456, time 135.20ms, mfu 31.02%
    nanochat       step 00010/21400 (0.05%) | loss: 9.03 | dt: 1350.32ms | tok/sec: 388,000 | ...
    llm.c          step   10/18865 | loss 7.21 (+nanz)| ... | 135.20 ms | 38.1% bf16 MFU | 388 tok/s
    torchtitan     step: 10  loss: 8.03  memory: 40.12GiB(50.67%)  tps: 5,678  ...  mfu: 34.95%
    Megatron-LM    iteration  10/ 500 | ... | elapsed time per iteration (ms): 135.2 | ...
    tally train    1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from torchtally.errors import UsageError
from torchtally.units import parse_bytes, parse_count
from torchtally.watch.observation import StepObservation

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


def count(text: str) -> float:
    return float(parse_count(text))


def size(text: str) -> float:
    """Size of "1.25/1.20 GiB", measured and predicted, the first."""
    number, _, unit = text.partition(" ")
    return float(parse_bytes(f"{number.partition('/')[0]} {unit}"))


Field = tuple[re.Pattern[str], Callable[[str], float]]


@dataclass(frozen=True, slots=True)
class LogFormat:
    """How a project prints a step."""

    name: str
    step: re.Pattern[str]
    """One group: its number. A line without it says nothing of a step."""
    fields: Mapping[str, Field]
    """By the attribute of a `StepObservation`."""

    def observation(self, line: str, rank: int | None) -> StepObservation | None:
        """None for another line."""
        match = self.step.search(line)
        if match is None or not match[1].isascii() or int(match[1]) > MOST_STEP:
            return None
        values: dict[str, float] = {}
        for name, (pattern, read) in self.fields.items():
            figure = pattern.search(line)
            value = None if figure is None else positive(read, figure[1])
            if value is not None:
                values[name] = value
        return StepObservation(
            step=int(match[1]),
            rank=rank,
            step_s=values.get("step_s"),
            tokens_per_s=values.get("tokens_per_s"),
            device_tokens_per_s=values.get("device_tokens_per_s"),
            mfu=values.get("mfu"),
            peak_bytes=whole(values.get("peak_bytes")),
            reserved_bytes=whole(values.get("reserved_bytes")),
            logged_at_s=time_of(line),
        )


def positive(read: Callable[[str], float], text: str) -> float | None:
    """None unless it is a number above zero: nanoGPT's MFU is -100 % before it is known."""
    try:
        value = read(text)
    except (ValueError, OverflowError, UsageError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def time_of(line: str) -> float | None:
    """Seconds of the time that the line is stamped with, in whatever time zone."""
    match = TIME.search(line)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match[1].replace(",", ".")).timestamp()
    except (ValueError, OverflowError):
        return None


def field(pattern: str, read: Callable[[str], float]) -> Field:
    return re.compile(pattern), read


FORMATS: tuple[LogFormat, ...] = (
    LogFormat(
        "nanoGPT",
        re.compile(r"^\s*iter (\d{1,15}): loss "),
        {
            "step_s": field(r"\btime ([\d.]+)ms", milliseconds),
            "mfu": field(r"\bmfu (-?[\d.]+) ?%", percent),
        },
    ),
    LogFormat(
        "nanochat",
        re.compile(r"^\s*step (\d{1,15})(?:/\d+)? \([\d.]+%\) \| loss"),
        {
            "step_s": field(r"\bdt: ([\d.]+)ms", milliseconds),
            "tokens_per_s": field(r"\btok/sec: ([\d,]+)", number_of),
            "mfu": field(r"mfu: ([\d.]+)", percent),
            "peak_bytes": field(r"\bpeak_mem: ([\d.]+MiB)", lambda text: float(parse_bytes(text))),
        },
    ),
    LogFormat(
        "llm.c",
        re.compile(r"^\s*step\s+(\d{1,15})/\s*\d+ \| loss"),
        {
            "step_s": field(r"\| ([\d.]+) ms\b", milliseconds),
            "tokens_per_s": field(r"\| ([\d.]+) tok/s", float),
            "mfu": field(r"\| ([\d.]+)% \w+ MFU", percent),
        },
    ),
    LogFormat(
        "torchtitan",
        re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s+loss:"),
        {
            "device_tokens_per_s": field(r"\b(?:tps|wps): ([\d,]+)", number_of),
            "mfu": field(r"\bmfu: ([\d.]+)%", percent),
            "reserved_bytes": field(
                r"\bmemory:\s*([\d.]+GiB)", lambda text: float(parse_bytes(text))
            ),
        },
    ),
    LogFormat(
        "Megatron-LM",
        re.compile(r"\biteration\s+(\d{1,15})/\s*\d+ \|"),
        {"step_s": field(r"elapsed time per iteration \(ms\): ([\d.]+)", milliseconds)},
    ),
    LogFormat(
        "tally train",
        re.compile(r"^(\d{1,15})/\d+  loss "),
        {
            "tokens_per_s": field(r"  ([\d.]+(?: [KMBT])?) tok/s", count),
            "mfu": field(r"  ([\d.]+) % MFU", percent),
            "peak_bytes": field(r"  ([\d.]+(?:/[\d.]+)? [KMGT]?i?B)(?:$|/| )", size),
        },
    ),
)
KNOWN = (*(format.name for format in FORMATS), "Hugging Face's Trainer", "log.jsonl of tally train")
"""Names, for messages."""


def observation_of(line: str) -> StepObservation | None:
    """What a line says of a step, by the first format that it is of."""
    match = RANK.match(line)
    rank = None
    if match is not None:
        rank, line = int(match[1][:9]), line[match.end() :]
    for format in FORMATS:
        observation = format.observation(line, rank)
        if observation is not None:
            return observation
    return None
