"""The names of logged values: those that others log already, so that their dashboards work.

Prefixes and the first names are Hugging Face Trainer's as TensorBoard, wandb and trackio show them
(transformers 5, `integrations/integration_utils.py:rewrite_logs`: train/loss, train/grad_norm,
train/learning_rate, train/epoch, train/global_step, train/num_input_tokens_seen, eval/loss,
eval/runtime). train/loss is nanoGPT's and nanochat's name, too. train/mfu is
nanochat's, in percent, as nanoGPT (mfu) and torchtitan (mfu(%)) log it. Where others disagree or
have nothing (torchtitan's time_metrics/end_to_end(s) and memory/max_active(GiB) carry their units),
the name is ours and ends in its unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
MEMORY = "memory/"
"""memory/CATEGORY_bytes, see `memory_name`."""


@dataclass(frozen=True, slots=True)
class Meaning:
    text: str
    unit: str


MEANINGS: Mapping[str, Meaning] = {
    STEP: Meaning("optimizer steps done, skipped ones among them", "steps"),
    LOSS: Meaning("mean loss of the step's global batch", "nats per token, of a language model"),
    GRAD_NORM: Meaning("Euclidean norm of all gradients before clipping", "loss per parameter"),
    LEARNING_RATE: Meaning("of the first parameter group, in this step", "1"),
    EPOCH: Meaning("epochs done, with their fraction", "epochs"),
    TOKENS: Meaning("tokens trained on so far, by all ranks", "tokens"),
    TOKENS_PER_S: Meaning("tokens of a step by its time, of all ranks", "tokens/s"),
    MFU: Meaning("model FLOP/s by the devices' peak; the run's line has its convention", "%"),
    STEP_S: Meaning("time from the end of the step before to the end of this one", "s"),
    WAIT_S: Meaning("part of it that the loop waited for data", "s"),
    SKIPPED_STEPS: Meaning("steps so far whose update was left out", "steps"),
    EVAL_LOSS: Meaning("mean loss over all targets looked at", "nats per token"),
    EVAL_PERPLEXITY: Meaning("e to the loss", "1"),
    EVAL_BITS_PER_BYTE: Meaning("loss of all targets by the bytes they stand for", "bits/byte"),
    EVAL_TOKENS: Meaning("targets looked at", "tokens"),
    EVAL_S: Meaning("time of the evaluation", "s"),
    f"{MEMORY}*_bytes": Meaning("device memory held for this, measured", "bytes"),
}
"""All of them. A log's first line has the units, see `units`."""


def memory_name(category: str) -> str:
    """Such as memory/optimizer_state_bytes of "optimizer state"."""
    return f"{MEMORY}{'_'.join(category.lower().split())}_bytes"


def units() -> dict[str, str]:
    """Names and units, as a log's first line has them."""
    return {name: meaning.unit for name, meaning in MEANINGS.items()}
