"""Named inputs of an expression: "4x6:float32" is a tensor whose elements are numbered from 0."""

import math
import re

import torch

from torchtally.errors import UsageError, did_you_mean

SHAPE = re.compile(r"(?P<sizes>\d+(x\d+)*)(:(torch\.)?(?P<dtype>\w+))?", re.A)
DTYPES = {
    name: value
    for name, value in vars(torch).items()
    if isinstance(value, torch.dtype) and not name.startswith("q")
}
MOST_ELEMENTS = 1 << 62


def named_input(text: str, most_real: int) -> torch.Tensor | None:
    """The tensor of this shape, on the meta device where it has more than `most_real` elements.

    None for a text that is no shape. Raises UsageError for an unknown dtype.
    """
    match = SHAPE.fullmatch(text.strip())
    if match is None:
        return None
    name = match["dtype"] or "float32"
    if name not in DTYPES:
        raise UsageError(f"Unknown dtype {name!r}. {did_you_mean(name, sorted(DTYPES))}")
    dtype = DTYPES[name]
    sizes = [int(size[:20]) for size in match["sizes"].split("x")]
    count = math.prod(sizes)
    if count * dtype.itemsize > MOST_ELEMENTS:
        raise UsageError(f"{text[:60]} has more than 2**62 bytes.")
    if count > most_real:
        return torch.empty(sizes, dtype=dtype, device="meta")
    numbers = torch.arange(count)
    return (numbers % 2 if dtype is torch.bool else numbers).to(dtype).reshape(sizes)
