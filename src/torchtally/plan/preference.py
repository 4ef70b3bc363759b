"""FLOPs of training on preferences (DPO) and on rewards of one's own answers (GRPO).

P: tokens of a prompt.  C: of an answer.  S = P + C.

DPO (Rafailov et al. 2023, arXiv 2305.18290) trains on pairs of answers, GRPO (Shao et al. 2024,
arXiv 2402.03300) on groups of answers that the model has just generated. Both need
log-probabilities of answers alone, and those of a reference model where they hold on to one: the
model as it was, or with its adapters off. TRL multiplies by the head answers' tokens alone, and
does so once more in the backward pass instead of keeping logits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torchtally.plan.adapters import Adapter, adapted_flops
from torchtally.plan.architecture.model import Model
from torchtally.plan.closed_form import Count, FlopsPerToken, Tokens, closed_form
from torchtally.plan.flops import attention_flops, head_flops, recurrence_flops, weight_flops
from torchtally.plan.quantity import Quantity, derive, of, total
from torchtally.units import Unit
from torchtally.work.convention import Convention

DPO = "Rafailov et al. 2023, arXiv 2305.18290"
GRPO = "Shao et al. 2024, arXiv 2402.03300"


class Method(StrEnum):
    """What a step learns from."""

    DPO = "dpo"
    """Pairs of answers, of which one is preferred."""
    GRPO = "grpo"
    """Groups of answers to a prompt, generated in the step, each with a reward."""

    @property
    def source(self) -> str:
        """The paper."""
        return DPO if self is Method.DPO else GRPO


@dataclass(frozen=True, slots=True)
class Answers:
    """Sequences of a step: prompts of one length, and answers to them."""

    sequences: int
    prompt: int
    output: int

    @property
    def tokens(self) -> int:
        """Tokens of one sequence."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class PreferenceFlops:
    """FLOPs of one step. Nothing that is recomputed is in it but the head's products."""

    generation: Quantity
    reference: Quantity
    training: Quantity
    total: Quantity


def preference_flops(
    model: Model,
    answers: Answers,
    attention: Convention = Convention.FULL,
    *,
    generates: bool,
    has_reference: bool,
    adapter: Adapter | None = None,
    passes: int = 1,
) -> PreferenceFlops:
    """`passes`: micro-batches that the sequences are trained in."""
    nothing = of(0, Unit.FLOPS)
    generation = generation_flops(model, answers, attention) if generates else nothing
    reference = reference_flops(model, answers, attention) if has_reference else nothing
    training = learning_flops(model, answers, attention, adapter, passes)
    parts = {"generation": generation, "reference": reference, "training": training}
    whole = total("FLOPs of a step", Unit.FLOPS, parts)
    return PreferenceFlops(generation, reference, training, whole)


def generation_flops(
    model: Model, answers: Answers, attention: Convention = Convention.FULL
) -> Quantity:
    """Prompts read, the head for the last token of each; then a pass for each further token, which
    attends to all before it.
    """
    prompt = _layers(model, answers.prompt, attention)
    passes = answers.output - 1
    return derive(
        "generation",
        Unit.FLOPS,
        "sequences * (prompt_tokens * prompt + passes * weights + scores + (passes + 1) * head)",
        sequences=of(answers.sequences, Unit.COUNT),
        prompt_tokens=of(answers.prompt, Unit.TOKENS),
        prompt=prompt,
        passes=of(passes, Unit.COUNT),
        weights=weight_flops(model),
        scores=of(sum(_decode_flops(model, answers, attention)), Unit.FLOPS_PER_TOKEN, "scores"),
        head=head_flops(model),
    )


def _decode_flops(model: Model, answers: Answers, attention: Convention) -> Iterator[int]:
    """Attention and scans of each token that a pass writes."""
    for context in range(answers.prompt + 1, answers.tokens):
        scores, scans = attention_flops(model, context, attention), recurrence_flops(model, 1)
        yield round(scores.value + scans.value)


def reference_flops(
    model: Model, answers: Answers, attention: Convention = Convention.FULL
) -> Quantity:
    """A forward pass over all tokens, the head of answers alone."""
    return _over(
        answers.sequences,
        answers.tokens,
        _layers(model, answers.tokens, attention),
        answers.output,
        head_flops(model),
    ).with_name("reference")


def learning_flops(
    model: Model,
    answers: Answers,
    attention: Convention = Convention.FULL,
    adapter: Adapter | None = None,
    passes: int = 1,
) -> Quantity:
    """Forward and backward, with the head's product once more in the backward pass. A frozen head
    has no gradient.
    """
    head = head_flops(model)
    if adapter is None:
        layers = _layers(model, answers.tokens, attention)
        each, heads = _times(3, layers), _times(4, head)
        return _over(answers.sequences, answers.tokens, each, answers.output, heads).with_name(
            "training"
        )
    adapted = adapted_flops(model, adapter, answers.tokens, attention)
    each = derive(
        "layers of adapters",
        Unit.FLOPS_PER_TOKEN,
        "adapted - 2 * head",
        adapted=adapted.total,
        head=head,
    )
    learnt = _over(answers.sequences, answers.tokens, each, answers.output, _times(3, head))
    return derive(
        "training",
        Unit.FLOPS,
        "learnt + passes * each_pass",
        learnt=learnt,
        passes=of(passes, Unit.COUNT),
        each_pass=adapted.each_pass,
    )


def _layers(model: Model, sequence: int, attention: Convention) -> Quantity:
    """Forward FLOPs of a token without the head."""
    scores, scans = attention_flops(model, sequence, attention), recurrence_flops(model, sequence)
    return total(
        "layers",
        Unit.FLOPS_PER_TOKEN,
        {"weights": weight_flops(model), "attention": scores, "recurrence": scans},
    )


@closed_form("FLOPs", Unit.FLOPS)
def _over(
    sequences: Count, tokens: Tokens, each: FlopsPerToken, scored: Tokens, head: FlopsPerToken
) -> str:
    return "sequences * (tokens * each + scored * head)"


@closed_form("FLOPs of a token", Unit.FLOPS_PER_TOKEN)
def _times(times: Count, each: FlopsPerToken) -> str:
    return "times * each"
