"""Time to the first token, per token, tokens per second: what a user of a served model sees.

In the steady state sequences come and go: while each of b sequences is given its next token again
and again, prompts of new ones are read in between. So b sequences take the time of all their tokens
and of b prompts (continuous batching: Yu et al. 2022, Orca, OSDI 22, section 3.1).
"""

from dataclasses import dataclass, replace
from functools import cached_property

from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.closed_form import (
    BytePerS,
    Bytes,
    Count,
    FlopPerS,
    ParameterCount,
    Seconds,
    TokenPerS,
    Tokens,
    closed_form,
)
from torchtally.plan.inference.draft import Draft, drafted_s
from torchtally.plan.inference.engines import at_best
from torchtally.plan.inference.forward import Forward, Generator, NewTokens
from torchtally.plan.inference.memory import TOKENS_AT_ONCE
from torchtally.plan.inference.weights import weight_bytes
from torchtally.plan.parallel.delays import slow_s
from torchtally.plan.quantity import Amount, Quantity
from torchtally.plan.training import chip_hours
from torchtally.timing.roofline.rates import achieved_flop_per_s
from torchtally.units import Unit


@dataclass(frozen=True)
class Serving:
    """Sequences of one kind: prompts of so many tokens, and so many written for each."""

    generator: Generator
    sequences: int
    """At once, of one replica."""
    prompt: int
    output: int
    draft: Draft | None = None

    @property
    def context(self) -> int:
        """Context of one sequence at last."""
        return self.prompt + self.output

    @cached_property
    def best(self) -> "Serving":
        """The same with everything at its best."""
        engine = at_best(self.generator.engine)
        draft = self.draft
        if draft is not None:
            draft = replace(draft, generator=replace(draft.generator, engine=engine))
        return replace(self, generator=replace(self.generator, engine=engine), draft=draft)

    @cached_property
    def prefill(self) -> Forward:
        """A forward pass of one prompt; a long one goes in pieces, which take as long together."""
        return self.generator.forward(NewTokens(1, self.prompt, self.prompt))

    @cached_property
    def prefill_among_others(self) -> Quantity:
        """Seconds of one prompt where short ones are read together, weights once for all."""
        together = max(1, min(self.sequences, TOKENS_AT_ONCE // self.prompt))
        if together == 1:
            return self.prefill.total
        whole = self.generator.forward(NewTokens(together, self.prompt, self.prompt)).total
        return each_s(whole, together)

    @cached_property
    def decode(self) -> Forward:
        """One token of every sequence, half of the output written."""
        middle = self.prompt + max(1, self.output // 2)
        return self.generator.forward(NewTokens(self.sequences, 1, middle))

    @cached_property
    def token_s(self) -> Quantity:
        """Seconds between two tokens of one sequence."""
        if self.draft is None:
            return self.decode.total.with_name("time per token")
        middle = self.prompt + max(1, self.output // 2)
        return drafted_s(self.draft, self.generator, self.sequences, middle)

    @property
    def first_token_s(self) -> Quantity:
        """Seconds to the first token of a prompt that waits for no other."""
        return self.prefill.total.with_name("time to first token")

    @cached_property
    def tokens_per_s(self) -> Quantity:
        """Written, of all replicas together, prompts of newcomers read in between."""
        replicas = self.generator.placement.replicas
        return steady_tokens_per_s(
            replicas, self.sequences, self.output, self.token_s, self.prefill_among_others
        )

    @property
    def decode_tokens_per_s(self) -> Quantity:
        """Written, where prompts are read elsewhere."""
        return decode_tokens_per_s(self.generator.placement.replicas, self.sequences, self.token_s)

    @property
    def prompt_tokens_per_s(self) -> Quantity:
        """Read, where nothing is written."""
        replicas = self.generator.placement.replicas
        return prompt_tokens_per_s(replicas, self.prompt, self.prefill_among_others)

    def slow(self, seconds: Quantity) -> Quantity:
        """What nine of ten published figures took at most, of so many seconds."""
        return slow_s(seconds, self.generator.engine.slower).with_note("")


@closed_form("time of one prompt", Unit.SECONDS)
def each_s(together_s: Seconds, prompts: Count) -> str:
    return "together_s / prompts"


@closed_form("tokens/s", Unit.TOKEN_PER_S, "Yu et al. 2022, Orca, OSDI 22, section 3.1")
def steady_tokens_per_s(
    replicas: Count, sequences: Count, output: Tokens, token_s: Seconds, prompt_s: Seconds
) -> str:
    return "replicas * sequences * output / (output * token_s + sequences * prompt_s)"


@closed_form("tokens/s of decode", Unit.TOKEN_PER_S)
def decode_tokens_per_s(replicas: Count, sequences: Count, token_s: Seconds) -> str:
    return "replicas * sequences / token_s"


@closed_form("prompt tokens/s", Unit.TOKEN_PER_S)
def prompt_tokens_per_s(replicas: Count, prompt: Tokens, prompt_s: Seconds) -> str:
    return "replicas * prompt / prompt_s"


# Money and energy ---------------------------------------------------------------------------------


@closed_form("time of the tokens", Unit.SECONDS)
def tokens_s(tokens: Tokens, tokens_per_s: TokenPerS) -> str:
    return "tokens / tokens_per_s"


def hours_of_tokens(chips: Amount, tokens: int, tokens_per_s: Amount) -> Quantity:
    """Chip-hours that so many tokens take: what they cost is a training's formula."""
    return chip_hours(chips, tokens_s(tokens, tokens_per_s))


# Where decode turns compute-bound -----------------------------------------------------------------


def compute_bound_sequences(generator: Generator) -> Quantity:
    """Sequences at which products of a token take as long as reading the weights: all experts,
    since so many tokens meet them all.
    """
    model, chip, engine = generator.model, generator.chip, generator.engine
    met = [weight for weight in weights_of(model) if weight.uses]
    size = sum(weight_bytes(weight, model, generator.weights) for weight in met)
    active = round(sum(weight.active_elements for weight in met))
    rate = achieved_flop_per_s(generator.dtype, chip) * engine.pace.products_of(chip)
    return balanced_sequences(size, rate, active, generator.intake_bytes_per_s)


@closed_form(
    "compute-bound batch",
    Unit.COUNT,
    "Pope et al. 2022, arXiv 2211.05102, section 2.1",
    "of decode: of the weights' products, caches aside",
)
def balanced_sequences(
    weights: Bytes,
    flop_per_s: FlopPerS,
    active_parameters: ParameterCount,
    bandwidth_bytes_per_s: BytePerS,
) -> str:
    return "ceil(weights * flop_per_s / (2 * active_parameters * bandwidth_bytes_per_s))"
