"""FSDP's shards of one parameter: there are as many as ranks, and it looks at two of them."""

from collections.abc import Sequence
from types import ModuleType
from typing import overload

from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn


def stand_ins(module: ModuleType) -> list[StandIn]:
    return [StandIn(module, private.CHUNK, Chunks)]


class Chunks(Sequence[Tensor]):
    """What `_chunk_with_empty` lists, each made when it is asked for.

    torch makes all of them, which on 8,192 ranks was 99 % of a run's operators: views, and empty
    tensors behind the last row.
    """

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, num_chunks, dim

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> list[Tensor]: ...
    def __getitem__(self, number: int | slice) -> Tensor | list[Tensor]:
        places = range(self._count)[number]
        if isinstance(places, range):
            return [self._chunk(place) for place in places]
        return self._chunk(places)

    def _chunk(self, place: int) -> Tensor:
        """Chunk as `torch.chunk` cuts: equal lengths, rounded up, until there are no rows left."""
        rows = self._tensor.size(self._dim)
        length = -(-rows // self._count)
        start = place * length
        if place and start >= rows:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(length, rows - start))
