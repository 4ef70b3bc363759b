"""The names of logged values, chosen so that existing dashboards work.

Prefixes and the first names are Hugging Face Trainer's (transformers 5,
`integrations/integration_utils.py:rewrite_logs`), train/mfu is nanochat's, in percent as in nanoGPT
and torchtitan. Where others disagree or have no name, the name is our own and ends in its unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
EVAL_TOKENS = "eval/tokens"
EVAL_S = "eval/runtime"
MEMORY = "memory/"
"""memory/CATEGORY_bytes, see `memory_name`."""


@dataclass(frozen=True, slots=True)
class Meaning:
    text: str
    unit: str
    field: str = ""
    """Of a `StepRecord`, which has it."""


MEANINGS: Mapping[str, Meaning] = {
    STEP: Meaning("optimizer steps done, including skipped ones", "steps"),
    LOSS: Meaning("mean loss of the step's global batch", "nats per token, of a language model",
                  "loss"),
    GRAD_NORM: Meaning("Euclidean norm of all gradients before clipping", "loss per parameter",
                       "grad_norm"),
    LEARNING_RATE: Meaning("learning rate of the first parameter group", "1", "learning_rate"),
    EPOCH: Meaning("epochs done, fractional", "epochs", "epoch"),
    TOKENS: Meaning("tokens trained on so far, by all ranks", "tokens", "tokens"),
    TOKENS_PER_S: Meaning("tokens of a step divided by its time, over all ranks", "tokens/s",
                          "tokens_per_s"),
    MFU: Meaning("model FLOP/s divided by the devices' peak; the header has its convention", "%",
                 "mfu"),
    STEP_S: Meaning("time from the end of the previous step to the end of this one", "s",
                    "step_s"),
    WAIT_S: Meaning("part of the step spent waiting for data", "s", "wait_s"),
    SKIPPED_STEPS: Meaning("steps so far whose update was skipped", "steps", "skipped_steps"),
    EVAL_LOSS: Meaning("mean loss over all validation targets", "nats per token"),
    EVAL_PERPLEXITY: Meaning("exp(validation loss)", "1"),
    EVAL_TOKENS: Meaning("validation targets", "tokens"),
    EVAL_S: Meaning("time of the evaluation", "s"),
    f"{MEMORY}*_bytes": Meaning("measured device memory of the category", "bytes"),
}  # fmt: skip
"""All names. The header of a log has the units."""


def memory_name(category: str) -> str:
    """memory/optimizer_state_bytes for "optimizer state"."""
    return f"{MEMORY}{'_'.join(category.lower().split())}_bytes"


def units() -> dict[str, str]:
    """Units by name, as in the header of a log."""
    return {name: meaning.unit for name, meaning in MEANINGS.items()}


def values_of(record: StepRecord) -> dict[str, LogValue]:
    """What is known of a step."""
    values = {n: getattr(record, meaning.field) for n, meaning in MEANINGS.items() if meaning.field}
    values[MFU] = None if record.mfu is None else 100 * record.mfu
    memory = {**record.memory_bytes, "peak allocated": record.peak_bytes}
    values |= {memory_name(category): size for category, size in memory.items()}
    return {name: value for name, value in values.items() if value is not None}
