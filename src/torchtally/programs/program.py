"""A run as a program: its trace with every whole number known as an expression of sizes."""

from collections.abc import Iterator, Sequence
from itertools import repeat

import msgspec

from torchtally.programs.parts import LAYERS
from torchtally.programs.sizes import Size, Symbols, value, with_shares
from torchtally.trace import Call, Trace
from torchtally.trace.record import Index


class RunProgram(msgspec.Struct, frozen=True):
    """A recorded run that can be written out at any sizes and number of layers (`written.write`).

    Cost, memory and time are not in it: they follow from the trace that it writes, by the code that
    accounts for a run's. What holds in one regime alone (sizes of one, which other operators serve;
    the chip, which chooses kernels) is no symbol but another program.
    """

    trace: Trace
    """Recorded with `LAYERS` layers, without temporaries; a call of it is a template."""
    units: dict[str, int]
    """Of each symbol, what its values are multiples of: operators pad others."""
    fixed: dict[str, int]
    """Sizes that every recording had alike."""
    sizes: tuple[Size, ...]
    """The distinct expressions."""
    call_sizes: tuple[tuple[Index, ...], ...]
    """Of each call of the trace: the expression of each of its whole numbers, in order."""
    storage_sizes: tuple[Index, ...]
    """Of each storage: the expression of its requested bytes."""
    host_ops_per_layer: int
    whole_sizes: dict[Index, Size] = {}
    """Of each storage that is a rank's share: the elements of the whole."""
    reads_per_layer: tuple[int, ...] = ()
    """Of each entry of the trace's placeholders: values read in a layer."""
    modules: int = LAYERS
    """Recorded ones, in the list of layers."""
    period: int = 1
    """Of them, in a layer (`parts.LayerLists`)."""
    lead: int = 1
    """Of them, in the first layer."""

    def numbers(self, symbols: Symbols) -> list[int]:
        """What each expression is at these sizes."""
        known = with_shares(symbols)
        return [value(size, known) for size in self.sizes]

    def call(self, number: Index, numbers: Sequence[int]) -> Call:
        """A call where the expressions are these numbers."""
        return filled(
            self.trace.calls[number], (numbers[place] for place in self.call_sizes[number])
        )


def whole_numbers(call: Call) -> list[int]:
    """Every whole number of a call, in order."""
    numbers: list[int] = []
    collect(msgspec.to_builtins(call), numbers)
    return numbers


def collect(each: object, numbers: list[int]) -> None:
    if type(each) is int:
        numbers.append(each)
    elif isinstance(each, (list, tuple)):
        for inner in each:
            collect(inner, numbers)


def filled(call: Call, numbers: Iterator[int]) -> Call:
    """The call with other whole numbers, in the order of `whole_numbers`."""
    return msgspec.convert(put(msgspec.to_builtins(call), numbers), Call)


def put(each: object, numbers: Iterator[int]) -> object:
    if type(each) is int:
        return next(numbers)
    if isinstance(each, (list, tuple)):
        return [put(inner, numbers) for inner in each]
    return each


def structure(call: Call) -> str:
    """A call without its whole numbers."""
    return repr(put(msgspec.to_builtins(call), repeat(0)))
