"""A training step as named values."""

from torchtally.progress import StepRecord
from torchtally.train.logs import names
from torchtally.train.logs.log import LogValue


def values_of(record: StepRecord) -> dict[str, LogValue]:
    """What is known of the step, under the names of its log."""
    values: dict[str, LogValue | None] = {
        names.LOSS: record.loss,
        names.GRAD_NORM: record.grad_norm,
        names.LEARNING_RATE: record.learning_rate,
        names.EPOCH: record.epoch,
        names.TOKENS: record.tokens,
        names.TOKENS_PER_S: record.tokens_per_s,
        names.MFU: None if record.mfu is None else 100 * record.mfu,
        names.STEP_S: record.step_s,
        names.WAIT_S: record.wait_s,
        names.SKIPPED_STEPS: record.skipped_steps,
        **{names.memory_name(category): size for category, size in record.memory_bytes.items()},
    }
    return {name: value for name, value in values.items() if value is not None}
