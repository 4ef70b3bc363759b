"""Speculative decoding: a small model guesses a few tokens, the large one checks all at once.

Leviathan, Kalman and Matias 2022, arXiv 2211.17192: of so many guesses, each accepted with the same
probability, a round keeps those before the first that is refused, and one token of its own.
"""

from dataclasses import dataclass

from torchtally.plan.closed_form import Count, Fraction, Number, Seconds, closed_form
from torchtally.plan.inference.forward import Generator, NewTokens
from torchtally.plan.quantity import Quantity
from torchtally.units import Unit

LEVIATHAN = "Leviathan et al. 2022, arXiv 2211.17192"


@dataclass(frozen=True, slots=True)
class Draft:
    """Who guesses, how much, and how often that is right."""

    generator: Generator
    guesses: int
    """In a round."""
    acceptance: float
    """Of one guess, the probability; below 1."""
    is_own: bool = False
    """The generator is the model itself, and its prediction modules guess."""

    def guess(self, tokens: NewTokens) -> Quantity:
        """Seconds of one guess for every sequence."""
        by = self.generator.guess if self.is_own else self.generator.forward
        return by(tokens).total


def drafted_s(draft: Draft, generator: Generator, sequences: int, context: int) -> Quantity:
    """Seconds between two tokens of a sequence, on average: a round over the tokens that it
    keeps.
    """
    guess = draft.guess(NewTokens(sequences, 1, context))
    check = generator.forward(NewTokens(sequences, draft.guesses + 1, context)).total
    kept = kept_of_round(draft.acceptance, draft.guesses)
    return round_token_s(draft.guesses, guess, check, kept)


@closed_form("tokens of a round", Unit.NUMBER, f"{LEVIATHAN}, equation 1")
def kept_of_round(acceptance: Fraction, guesses: Count) -> str:
    return "(1 - acceptance ** (guesses + 1)) / (1 - acceptance)"


@closed_form("time per token", Unit.SECONDS, f"{LEVIATHAN}, theorem 3.8")
def round_token_s(guesses: Count, guess_s: Seconds, check_s: Seconds, kept: Number) -> str:
    return "(guesses * guess_s + check_s) / kept"
