"""Tensors of all ranks written as one checkpoint, and read by any number of ranks.

Each rank writes its shards of DTensors. A tensor that several ranks have whole is written by one of
them, chosen by its name. The manifest says where each piece is, so a reader takes the parts of
pieces that its own shards cover.

Tensor names begin with the kind of their file: "model/blocks.0.norm.weight".
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
import torch
from torch import Tensor

from torchtally.checkpoints.folder import Checkpoints, name_of
from torchtally.checkpoints.manifest import Manifest, SavedFile, SavedTensor
from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.checkpoints.shard import Box, read_piece, write_shard
from torchtally.checkpoints.shards import is_shard, local_part
from torchtally.errors import CheckpointError, TallyError


class _Written(msgspec.Struct):
    """What one rank wrote: each tensor with one piece."""

    files: dict[str, SavedFile] = {}
    tensors: dict[str, SavedTensor] = {}


def torch_dtype(saved: SavedTensor) -> torch.dtype:
    """The dtype of a saved tensor; `read_manifest` accepts torch's names only."""
    dtype = getattr(torch, saved.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def write(
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    checkpoints: Checkpoints,
    described: Manifest,
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint of these tensors, of all ranks.

    `described` is its manifest but for time, files and tensors. The values written are `copies`:
    each tensor, or this rank's shard of it, on the host. On failure nothing is left behind, and
    every rank raises the first failing rank's error.
    """

    def begin() -> str | None:
        if not ranks.is_first:
            return None
        with checkpoints.begin(described.step) as new:
            return new.path.name

    def commit() -> None:
        if ranks.is_first:
            checkpoints.commit(new, _complete(described, written))

    new = _together(begin, ranks)[0]
    try:
        own = _together(lambda: _write_own(tensors, copies, checkpoints, new, ranks), ranks)
        written = [msgspec.convert(part, _Written) for part in own]
        _together(commit, ranks)
    except BaseException:
        if ranks.is_first:
            with suppress(CheckpointError):  # report the first failure
                checkpoints.discard(new)
        raise


def _write_own(
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    checkpoints: Checkpoints,
    new: str,
    ranks: Ranks,
) -> _Written:
    """Write this rank's files, one for each kind."""
    kinds: dict[str, list[Box]] = defaultdict(list)
    for name in _own_names(tensors, ranks):
        kind, _, key = name.partition("/")
        kinds[kind].append(Box(key, copies[name], _offsets(tensors[name])))
    written = _Written()
    with checkpoints.join(new) as folder:
        for kind, boxes in sorted(kinds.items()):
            of_rank = "" if ranks.size == 1 else f"-{ranks.rank:05}"
            file = f"{kind}{of_rank}.safetensors"
            written.files[file], pieces = write_shard(folder, file, boxes)
            for key, piece in pieces.items():
                tensor = tensors[f"{kind}/{key}"]
                saved = SavedTensor(_dtype_name(tensor), tuple(tensor.shape), (piece,))
                written.tensors[f"{kind}/{key}"] = saved
        if not ranks.is_first:  # `commit` syncs for the first
            folder.sync()
    return written


def _own_names(tensors: Mapping[str, Tensor], ranks: Ranks) -> list[str]:
    """The tensors that this rank writes."""
    whole = [name for name, tensor in tensors.items() if not is_shard(tensor)]
    owners: dict[str, list[int]] = defaultdict(list)
    for rank, names in enumerate(ranks.gather_values(whole)):
        for name in names:
            owners[name].append(rank)
    chosen = {
        name
        for name, of_name in owners.items()
        if of_name[crc32(name.encode()) % len(of_name)] == ranks.rank
    }
    return [
        name
        for name, tensor in tensors.items()
        if (_is_first_replica(tensor) if is_shard(tensor) else name in chosen)
    ]


def _is_first_replica(tensor: Any) -> bool:
    """Whether this rank is the first of those that have the same shard."""
    place = tensor.device_mesh.get_coordinate()
    return place is not None and not any(
        at
        for at, placement in zip(place, tensor.placements, strict=True)
        if placement.is_replicate()
    )


def _offsets(tensor: Any) -> tuple[int, ...]:
    """Offsets at which this rank's part begins in the whole, on each axis."""
    if not is_shard(tensor):
        return (0,) * int(tensor.ndim)
    (chunk,) = tensor.__create_chunk_list__()
    return tuple(map(int, chunk.offsets))


def _complete(described: Manifest, written: list[_Written]) -> Manifest:
    files: dict[str, SavedFile] = {}
    tensors: dict[str, SavedTensor] = {}
    for part in written:
        files |= part.files
        for name, saved in part.tensors.items():
            pieces = (*tensors[name].pieces, *saved.pieces) if name in tensors else saved.pieces
            in_order = tuple(sorted(pieces, key=lambda piece: piece.offsets))
            tensors[name] = msgspec.structs.replace(saved, pieces=in_order)
    return msgspec.structs.replace(
        described,
        unix_s=round(time.time(), 3),
        files=dict(sorted(files.items())),
        tensors={name: tensors[name] for name in sorted(tensors)},
    )


def read(
    targets: Mapping[str, Tensor],
    checkpoints: Checkpoints,
    manifest: Manifest,
    ranks: Ranks = ALONE,
) -> None:
    """Fill these tensors, or this rank's shards of them, from a verified checkpoint.

    Raises CheckpointError for a tensor that is missing, or has another shape or dtype; on every
    rank, that of the first failing one.
    """

    def read_own() -> None:
        with checkpoints.join(name_of(manifest.step)) as folder:
            for name, target in targets.items():
                saved = manifest.tensors[name]
                part, offsets = local_part(target.detach()), _offsets(target)
                for piece in saved.pieces:
                    spans = [
                        (max(here, there), min(here + size, there + saved_size))
                        for here, size, there, saved_size in zip(
                            offsets, part.shape, piece.offsets, piece.sizes, strict=True
                        )
                    ]
                    if all(begin < end for begin, end in spans):
                        numbers = read_piece(folder, piece, torch_dtype(saved))
                        part[_box(spans, offsets)].copy_(numbers[_box(spans, piece.offsets)])

    _check_targets(targets, manifest)
    _together(read_own, ranks)


def _box(spans: list[tuple[int, int]], offsets: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(a - at, b - at) for (a, b), at in zip(spans, offsets, strict=True))


def _together(work: Callable[[], Any], ranks: Ranks) -> list[Any]:
    """Every rank's result as plain data. All raise the error of the first failing rank, not its
    consequences on the others.
    """
    if ranks.size == 1:
        return [work()]
    result, failure, text = None, None, ""
    try:
        result = work()
    except BaseException as error:
        failure, text = error, str(error)
        if not isinstance(error, TallyError):
            text = f"Rank {ranks.rank}: {type(error).__name__}: {error}"
    every = ranks.gather_values([result, text])
    for rank, (_, message) in enumerate(every):
        if message:
            if rank == ranks.rank and isinstance(failure, TallyError):
                raise failure
            raise CheckpointError(message) from (failure if rank == ranks.rank else None)
    return [of_rank for of_rank, _ in every]


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_targets(targets: Mapping[str, Tensor], manifest: Manifest) -> None:
    for name, target in targets.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} lacks {name}. Resume with the saved "
                "config."
            )
        if (saved.dtype, saved.shape) != (_dtype_name(target), tuple(target.shape)):
            raise CheckpointError(
                f"{name}: is {saved.dtype} of shape {saved.shape} in the checkpoint of step "
                f"{manifest.step}, but {_dtype_name(target)} of {tuple(target.shape)} here. Resume "
                "with the saved config and precision."
            )
