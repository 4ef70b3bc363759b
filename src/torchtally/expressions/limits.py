"""What an expression must not do: numbers and lists without a bound, a tensor for each element."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchtally.errors import UsageError

MOST_CHARACTERS = 2000
MOST_ITEMS = 4096
"""Of a list, and of tensors that one is cut into: they are objects, also on the meta device."""
MOST_NUMBER = 1 << 64
MOST_POWER = 64
SHOWN = 60
"""Characters of code in a message."""

OF_EACH = frozenset({"unbind", "list()", "tuple()", "sum()", "max()", "min()"})
BY_SIZE = frozenset({"split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"})
BY_COUNT = frozenset({"chunk", "tensor_split", "hsplit", "vsplit", "dsplit", "unsafe_chunk"})


def check_pieces(name: str, arguments: Sequence[Any], named: Mapping[str, Any], code: str) -> None:
    """Raises UsageError where a tensor would be cut into too many: each of them is an object."""
    if not arguments or not isinstance(tensor := arguments[0], torch.Tensor) or not tensor.ndim:
        return
    rest = [*arguments[1:], *named.values()]
    whole = [value for value in rest if type(value) is int]
    if name in OF_EACH:
        pieces = (
            tensor.shape[whole[0]] if whole and abs(whole[0]) < tensor.ndim else tensor.shape[0]
        )
    elif name in BY_SIZE and whole and whole[0] > 0:
        dim = whole[1] if len(whole) > 1 and abs(whole[1]) < tensor.ndim else 0
        pieces = tensor.shape[dim] // whole[0]
    elif name in BY_COUNT and whole:
        pieces = whole[0]
    else:
        return
    if pieces > MOST_ITEMS:
        raise UsageError(
            f"{shorten(code)} would make {pieces} tensors, expected at most {MOST_ITEMS}."
        )


def check_arithmetic(op: ast.operator, left: Any, right: Any, code: str) -> None:
    """Numbers stay those of 64 bits, lists stay short. Tensors may do what they do."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return
    lists = [value for value in (left, right) if isinstance(value, str | list | tuple)]
    numbers = [value for value in (left, right) if isinstance(value, int | float | complex)]
    if isinstance(op, ast.Mult) and lists and numbers:
        items, count = len(lists[0]), numbers[0]
        if not isinstance(count, int) or items * count > MOST_ITEMS:
            raise UsageError(f"{shorten(code)} has more than {MOST_ITEMS} items.")
    is_power = isinstance(op, ast.Pow) and isinstance(right, int) and abs(right) > MOST_POWER
    if is_power or any(abs(number) > MOST_NUMBER for number in numbers):
        raise UsageError(f"{shorten(code)}: a number is too large.")


def statements_of(text: str) -> list[ast.stmt]:
    """The statements of a text. Raises UsageError where it is not Python, or too long."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(
            f"The expression has {len(text)} characters, expected at most {MOST_CHARACTERS}."
        )
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{shorten(text)} is not an expression: {reason}.") from None
    if not statements:
        raise UsageError('Empty expression. One is "torch.arange(12).view(3, 4).T".')
    return statements


def shorten(text: str) -> str:
    """Code within a message."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
