"""The names of logged values, chosen so that existing dashboards work.

Prefixes and the first names are Hugging Face Trainer's (transformers 5,
`integrations/integration_utils.py:rewrite_logs`), train/mfu is nanochat's, in percent as in nanoGPT
and torchtitan. Where others disagree or have no name, the name is our own and ends in its unit.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from torchtally.progress import StepRecord
from torchtally.train.logs.log import LogValue

STEP = "train/global_step"
LOSS = "train/loss"
GRAD_NORM = "train/grad_norm"
LEARNING_RATE = "train/learning_rate"
EPOCH = "train/epoch"
TOKENS = "train/num_input_tokens_seen"
TOKENS_PER_S = "train/tokens_per_second"
MFU = "train/mfu"
STEP_S = "train/step_s"
WAIT_S = "train/wait_s"
SKIPPED_STEPS = "train/skipped_steps"
EVAL_LOSS = "eval/loss"
EVAL_PERPLEXITY = "eval/perplexity"
EVAL_BITS_PER_BYTE = "eval/bits_per_byte"
EVAL_TOKENS = "eval/tokens"
EVAL_S = "eval/runtime"
FP16_UNDERFLOW_SHARE = "numbers/fp16_underflow_share"
FP8_UNDERFLOW_SHARE = "numbers/fp8_underflow_share"
LOST_UPDATE_SHARE = "numbers/lost_update_share"
LARGEST_GRADIENT = "numbers/largest_gradient"
FP16_HEADROOM = "numbers/fp16_headroom"
COST_SHARE = "numbers/cost_share"
MEMORY = "memory/"
"""memory/CATEGORY_bytes, see `memory_name`."""


MEANINGS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
)
"""All names. The header of a log has the units."""


def memory_name(category: str) -> str:
    """memory/optimizer_state_bytes for "optimizer state"."""
    return f"{MEMORY}{'_'.join(category.lower().split())}_bytes"


def units() -> dict[str, str]:
    """Units by name, as in the header of a log."""
    return {name: meaning["unit"] for name, meaning in MEANINGS.items()}


def values_of(record: StepRecord) -> dict[str, LogValue]:
    """What is known of a step."""
    fields = {name: meaning.get("field") for name, meaning in MEANINGS.items()}
    values = {name: getattr(record, field) for name, field in fields.items() if field}
    values[MFU] = None if record.mfu is None else 100 * record.mfu
    memory = {**record.memory_bytes, "peak allocated": record.peak_bytes}
    values |= {memory_name(category): size for category, size in memory.items()}
    return {name: value for name, value in values.items() if value is not None}
