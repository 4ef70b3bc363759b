"""Counting the tokens that a run generates while it goes on, and stopping after enough of them.

What decodes is told for good later, from the whole trace (`steps/generation.py`). Counted here are
passes over one token of each sequence, or over one more than the pass before, that follow another
pass of the same model.
"""

from collections.abc import Callable, Sequence

from torchtally.errors import EndlessLoopError
from torchtally.trace import Call
from torchtally.trace.lookup import Lookup, lookup_of


def ignore() -> None:
    """Nothing is to be done when enough tokens are decoded."""


class TokenCounter:
    """Told of every operator's call, and of every call of an outermost module."""

    def __init__(self, calls: Sequence[Call], most: int) -> None:
        self.decoded = 0
        """Passes, in all."""
        self.limit: int | None = None
        self.on_done: Callable[[], None] = ignore
        """Called before the pass that follows the last one asked for; raises what ends the run."""
        self._calls = calls
        self._most = most
        """Passes that decode for one prompt, until they are taken for an endless loop."""
        self._in_a_row = 0
        self._lookups: dict[int, Lookup] = {}
        """By the number of the call."""
        self._known = 0
        """Calls that were looked at."""
        self._is_new = True
        """An outermost module was called since the last pass began."""
        self._seen: set[object] = set()
        """Tables of the pass."""
        self._tokens: dict[object, int] = {}
        """Of the latest pass, by its table."""

    def root_called(self) -> None:
        self._is_new = True

    def ran(self, call: int, inputs: Sequence[int]) -> None:
        """Told before an operator is recorded. Raises EndlessLoopError where the end of a loop
        seems to depend on a token, which has no value.
        """
        if call >= self._known:
            self._look_at(call)
        if call in self._lookups:
            self._looked_up(self._lookups[call], inputs)

    def _look_at(self, call: int) -> None:
        for number in range(self._known, call + 1):
            lookup = lookup_of(self._calls[number])
            if lookup is not None:
                self._lookups[number] = lookup
        self._known = call + 1

    def _looked_up(self, lookup: Lookup, inputs: Sequence[int]) -> None:
        # Which table a compiled kernel reads is not recorded: tables of a shape are taken for one.
        table = (lookup.table.shape, lookup.table.dtype)
        own = table if lookup.is_fused else (table, inputs[0])
        is_again = own in self._seen and not lookup.is_fused
        if self._is_new or is_again:
            self._seen.clear()
            self._is_new = False
            self._pass_begins(table, lookup.tokens)
        self._seen.add(own)

    def _pass_begins(self, table: object, tokens: int) -> None:
        before = self._tokens.get(table)
        if before is None or tokens not in (1, before + 1):
            self._in_a_row = 0
        elif self.decoded == self.limit:
            self.on_done()
        else:
            self.decoded += 1
            self._in_a_row += 1
        if self._in_a_row > self._most:
            raise EndlessLoopError(
                f"{self._most:,} tokens were decoded for one prompt. A loop that waits for the "
                "token that ends a text may never end: tokens have no values here.\nLimit it by a "
                "number (max_new_tokens, range), stop the run by --tokens N, or allow more: "
                "--placeholder-limit N."
            )
        self._tokens[table] = tokens
