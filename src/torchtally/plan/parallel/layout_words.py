"""A layout as somebody writes it: "dp 16/z2, tp 8, pp 8x5, cp 2, ep 64, mb 1x8, full".

The words are those that tables of layouts print (`degrees.py`), and longer ones for the same:
"zero-2", "fsdp", "interleaved x5", "zb-h1". Commas and spaces are alike.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.activations.modules import MODULES
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding

EXAMPLE = "dp 16/z2, tp 8, pp 8x5, cp 2, ep 64, mb 1x8, full"

FIELDS = {"dp": "data", "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert",
          "etp": "expert_tensor", "mb": "micro_batch", "micro-batch": "micro_batch",
          "offload": "offloaded"}  # fmt: skip
"""Of `Layout`, by the word before a number."""
MODULE_WORDS = frozenset(MODULES)
TIMES = {"pp": "virtual_stages", "mb": "micro_batches", "micro-batch": "micro_batches"}
"""Of what stands behind an x."""

SHARDINGS = {
    "ddp": Sharding.NONE, "z1": Sharding.ZERO1, "z2": Sharding.ZERO2, "z3": Sharding.ZERO3,
    "zero-1": Sharding.ZERO1, "zero-2": Sharding.ZERO2, "zero-3": Sharding.ZERO3,
    "zero1": Sharding.ZERO1, "zero2": Sharding.ZERO2, "zero3": Sharding.ZERO3,
    "fsdp": Sharding.ZERO3,
}  # fmt: skip
SCHEDULES = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "gpipe": Schedule.GPIPE,
    "zb1": Schedule.ZB_H1,
    "zb2": Schedule.ZB_H2,
    "zb-h1": Schedule.ZB_H1,
    "zb-h2": Schedule.ZB_H2,
    "interleaved": Schedule.INTERLEAVED,
}
RECOMPUTES = {str(kind): kind for kind in Recompute}
SEQUENCE_PARALLEL = {"sp": True, "no-sp": False}
SILENT = ("with", "recompute")
"""Words of a layout in words that say nothing by themselves."""

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "shard": SHARDINGS,
    "schedule": SCHEDULES,
    "recompute": RECOMPUTES,
    "is_sequence_parallel": SEQUENCE_PARALLEL,
}
"""Words for the values of the layout's other fields."""
NUMBERED = re.compile(r"(micro-batch|etp|offload|[a-z]{2})(\d+)(?:x(\d+))?")
GROUPED = re.compile(r"(z3|zero-?3|fsdp):(\d+)")


def parse_layout(
    text: str,
    chips: int,
    global_batch: int | None,
    base: Layout,
    *,
    is_sequence_parallel: bool = True,
) -> Layout:
    """`base` with what the text says; beside tensor parallelism, sequence parallelism as here.
    Replicas that it does not say are all chips that remain, and micro-batches those of the step.
    Experts that do not spread over dp and cp are spread over tp, too, each of them whole. Raises
    UsageError for words that it does not know.
    """
    fields: dict[str, Any] = {}
    modules = tuple(dict.fromkeys(word for word in _words(text) if word in MODULE_WORDS))
    if modules:
        fields["modules"] = modules
    for word in _words(text):
        if word in MODULE_WORDS:
            continue
        for name, value in _fields_of(word).items():
            if fields.setdefault(name, value) != value:
                raise UsageError(f"--layout gives {name.replace('_', ' ')} twice: {text!r}.")
    is_split = is_sequence_parallel and fields.get("tensor", 1) > 1
    fields.setdefault("is_sequence_parallel", is_split)
    if fields.get("virtual_stages", 1) > 1:
        fields.setdefault("schedule", Schedule.INTERLEAVED)
    layout = replace(base, **fields)
    if "data" not in fields:
        layout = replace(layout, data=max(1, chips // (layout.chips // layout.data)))
    is_across = layout.replicas % layout.expert > 0 and layout.is_sequence_parallel
    each = fields.get("expert_tensor", 1 if is_across else None)
    layout = replace(layout, expert_tensor=None if each == layout.tensor else each)
    if "micro_batches" not in fields and global_batch is not None:
        each = max(1, global_batch // (layout.data * layout.micro_batch))
        layout = replace(layout, micro_batches=each)
    return layout


def _words(text: str) -> list[str]:
    """Each with its number: "dp 16/z2" is "dp16" and "z2", "interleaved x5" is one word."""
    joined = re.sub(r"\b(micro-batch|etp|offload|[a-z]{2})[ =]+(?=\d)", r"\1", text.lower().strip())
    joined = re.sub(r"(?<=[\da-z]) +x *(?=\d)", "x", joined)
    return [word for word in re.split(r"[\s,/]+", joined) if word and word not in SILENT]


def _fields_of(word: str) -> dict[str, Any]:
    """What one word says of a layout."""
    if match := NUMBERED.fullmatch(word):
        name, number, times = match.groups()
        if name in FIELDS and (times is None or name in TIMES):
            fields = {FIELDS[name]: _positive(number)}
            return fields if times is None else fields | {TIMES[name]: _positive(times)}
    if match := GROUPED.fullmatch(word):
        return {"shard": Sharding.ZERO3, "shard_group": _positive(match[2])}
    if match := re.fullmatch(r"interleavedx(\d+)", word):
        return {"schedule": Schedule.INTERLEAVED, "virtual_stages": _positive(match[1])}
    for name, values in FLAGS.items():
        if word in values:
            return {name: values[word]}
    known = [*FIELDS, *MODULES, *(flag for values in FLAGS.values() for flag in values)]
    near = did_you_mean(word, known)
    raise UsageError(f"--layout: {word!r} is unknown. {near} Written as: {EXAMPLE!r}.")


def _positive(number: str) -> int:
    if not int(number):
        raise UsageError(f"--layout: expected at least 1 of everything, as in {EXAMPLE!r}.")
    return int(number)
