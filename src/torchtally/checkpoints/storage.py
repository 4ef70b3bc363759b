"""The storage writer and reader of torch.distributed.checkpoint, over our files.

It plans which rank writes what, and which reads what, on any number of ranks. Its own file format
pickles the metadata, and unpickling executes code; here the manifest holds it.

Tensor names begin with the kind of their file: "model/blocks.0.norm.weight".
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from torchtally.checkpoints.disk import Directory
from torchtally.checkpoints.folder import Checkpoints, name_of
from torchtally.checkpoints.manifest import Manifest, Piece, SavedFile, SavedTensor
from torchtally.checkpoints.shard import Box, read_piece, write_shard
from torchtally.errors import CheckpointError, TallyError

# Warned on every save by a single process.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")


class CopyPlanner(DefaultSavePlanner):
    """Plans with the live tensors but writes their copies, so that training can continue."""

    def __init__(self, copies: Mapping[str, Tensor]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._copies = copies

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return self._copies[index.fqn]


class _InFolder:
    """What torch asks of a storage with paths of its own; the folder is known already."""

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan


class Writer(_InFolder, StorageWriter):
    """Writes a checkpoint, which counts once the coordinator's `finish` has committed it."""

    def __init__(self, checkpoints: Checkpoints, described: Manifest, rank: int = 0) -> None:
        self._checkpoints, self._described, self._rank = checkpoints, described, rank
        self._is_coordinator = True
        self._new: str | None = None
        self.path: Path | None = None
        """Of the finished checkpoint, on the coordinator."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._is_coordinator = is_coordinator

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: create the directory and send its name to every rank."""
        with self._checkpoints.begin(self._described.step) as new:
            self._new = new.path.name
        return [SavePlan(plan.items, self._new, plan.planner_data, plan.usable) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        kinds: dict[str, list[WriteItem]] = defaultdict(list)
        for item in plan.items:
            kinds[item.index.fqn.partition("/")[0]].append(item)
        results: list[WriteResult] = []
        with self._checkpoints.join(plan.storage_data) as new:
            for kind, items in sorted(kinds.items()):
                results += self._write_kind(new, kind, items, planner)
            if not self._is_coordinator:  # `commit` syncs for the coordinator
                new.sync()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        assert self._new is not None
        pieces: dict[str, list[Piece]] = defaultdict(list)
        files: dict[str, SavedFile] = {}
        for result in chain(*results):
            piece, saved = result.storage_data
            files[piece.file] = saved
            pieces[result.index.fqn].append(piece)
        manifest = msgspec.structs.replace(
            self._described,
            unix_s=round(time.time(), 3),
            files=dict(sorted(files.items())),
            tensors={
                name: _saved_tensor(metadata.state_dict_metadata[name], pieces[name])
                for name in sorted(pieces)
            },
        )
        self.path = self._checkpoints.commit(self._new, manifest)
        self._new = None

    def discard(self) -> None:
        """After a failure: remove the directory that was begun."""
        if self._new is not None:
            new, self._new = self._new, None
            self._checkpoints.discard(new)

    def storage_meta(self) -> StorageMeta | None:
        return None

    def _write_kind(
        self, new: Directory, kind: str, items: list[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        is_alone = self._described.ranks == 1
        file = f"{kind}.safetensors" if is_alone else f"{kind}-{self._rank:05}.safetensors"
        saved, pieces = write_shard(new, file, [_box(item, planner) for item in items])
        return [
            WriteResult(item.index, piece.size_bytes, (piece, saved))
            for item in items
            for piece in [pieces[_key(item.index.fqn)]]
        ]


def _saved_tensor(whole: Any, pieces: list[Piece]) -> SavedTensor:
    assert isinstance(whole, TensorStorageMetadata)
    dtype = str(whole.properties.dtype).removeprefix("torch.")
    in_order = sorted(pieces, key=lambda piece: piece.offsets)
    return SavedTensor(dtype, tuple(whole.size), tuple(in_order))


def _key(name: str) -> str:
    """The name of a tensor within its file."""
    return name.partition("/")[2]


def _box(item: WriteItem, planner: SavePlanner) -> Box:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, Tensor)
    assert item.tensor_data is not None
    return Box(_key(item.index.fqn), tensor, tuple(item.tensor_data.chunk.offsets))


class Reader(_InFolder, StorageReader):
    """Reads the tensors of a verified checkpoint."""

    def __init__(self, checkpoints: Checkpoints, manifest: Manifest) -> None:
        self._checkpoints, self._manifest = checkpoints, manifest

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return Metadata(
            {name: _metadata(tensor) for name, tensor in self._manifest.tensors.items()}
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        pass

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_piece: dict[Piece, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_piece[self._piece(item.storage_index)].append(item)
        with self._checkpoints.join(name_of(self._manifest.step)) as inner:
            for piece, items in by_piece.items():
                name = items[0].storage_index.fqn
                numbers = read_piece(inner, piece, torch_dtype(self._manifest.tensors[name]))
                for item in items:
                    box = tuple(
                        slice(start, start + length)
                        for start, length in zip(item.storage_offsets, item.lengths, strict=True)
                    )
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(numbers[box])
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _piece(self, index: MetadataIndex) -> Piece:
        pieces = self._manifest.tensors[index.fqn].pieces
        if index.offset is None:
            return pieces[0]
        return next(piece for piece in pieces if piece.offsets == tuple(index.offset))


def torch_dtype(saved: SavedTensor) -> torch.dtype:
    """The dtype of a saved tensor; `read_manifest` accepts torch's names only."""
    dtype = getattr(torch, saved.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _metadata(saved: SavedTensor) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(dtype=torch_dtype(saved)),
        torch.Size(saved.shape),
        [
            ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes))
            for piece in saved.pieces
        ],
    )


def write(
    tensors: Mapping[str, Tensor],
    copies: Mapping[str, Tensor],
    checkpoints: Checkpoints,
    described: Manifest,
    group: Any = None,
) -> Path | None:
    """Write a checkpoint of these tensors, of all ranks of the group; its path on rank 0.

    `described` is its manifest but for time, files and tensors. The values written are `copies`:
    each tensor, or this rank's shard of it, on the host. On failure nothing is left behind, and
    every rank raises the first failing rank's error.
    """
    rank = dist.get_rank(group) if described.ranks > 1 else 0
    writer = Writer(checkpoints, described, rank)
    try:
        with _first_failure():
            save(
                dict(tensors),
                storage_writer=writer,
                planner=CopyPlanner(copies),
                process_group=group,
                no_dist=described.ranks == 1,
            )
    except BaseException:
        with suppress(CheckpointError):  # report the first failure
            writer.discard()
        raise
    return writer.path


def read(
    targets: Mapping[str, Tensor],
    checkpoints: Checkpoints,
    manifest: Manifest,
    *,
    ranks: int = 1,
    group: Any = None,
) -> None:
    """Fill these tensors, or this rank's shards of them, from a verified checkpoint.

    Raises CheckpointError for a tensor that is missing, or has another shape or dtype.
    """
    _check_targets(targets, manifest)
    with _first_failure():
        load(
            dict(targets),
            storage_reader=Reader(checkpoints, manifest),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            process_group=group,
            no_dist=ranks == 1,
        )


@contextmanager
def _first_failure() -> Iterator[None]:
    """Raise the error of the first failing rank, not its consequences on the others."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        if isinstance(cause, TallyError) or not isinstance(cause, Exception):
            raise cause from None
        raise CheckpointError(f"Rank {rank}: {type(cause).__name__}: {cause}") from cause


def _check_targets(targets: Mapping[str, Tensor], manifest: Manifest) -> None:
    for name, target in targets.items():
        saved = manifest.tensors.get(name)
        if saved is None:
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} lacks {name}. Resume with the saved "
                "config."
            )
        dtype = str(target.dtype).removeprefix("torch.")
        if (saved.dtype, saved.shape) != (dtype, tuple(target.shape)):
            raise CheckpointError(
                f"{name}: is {saved.dtype} of shape {saved.shape} in the checkpoint of step "
                f"{manifest.step}, but {dtype} of {tuple(target.shape)} here. Resume with the "
                "saved config and precision."
            )
