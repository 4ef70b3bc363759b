"""Small checkpoints whose every number says of which step it is, written and read as a run does."""

from pathlib import Path

import torch
from torch import Tensor

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import FORMAT_VERSION, Manifest
from torchtally.checkpoints.newest import newest_whole
from torchtally.checkpoints.ranks import ALONE
from torchtally.checkpoints.storage import read, torch_dtype, write
from torchtally.errors import CheckpointError

KEEP_LAST = 2


def tensors_of(step: int, elements: int = 300) -> dict[str, Tensor]:
    """Three files of tensors: of several dtypes, without axes, without elements."""
    weight = torch.arange(elements, dtype=torch.float32).reshape(-1, 10) + step
    return {
        "model/blocks.0.weight": weight,
        "model/norm.weight": torch.full((7,), step % 256, dtype=torch.bfloat16),
        "model/mask": torch.tensor([[True, False, step % 2 == 0]]),
        "optimizer/blocks.0.weight/exp_avg": -weight,
        "optimizer/blocks.0.weight/step": torch.tensor(float(step)),
        "random/00000/torch": torch.full((41,), step % 256, dtype=torch.uint8),
        "random/00000/none": torch.empty(0, 4, dtype=torch.int64),
    }


def described(step: int, ranks: int = 1) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        unix_s=0.0,
        files={},
        tensors={},
        step=step,
        ranks=ranks,
        versions={"torch": str(torch.__version__)},
        config={"seed": 1, "model": {"layers": 2}},
        state={"loop": {"step": step}},
    )


def save(run: Path, step: int, elements: int = 300, keep_last: int = KEEP_LAST) -> None:
    """As `Saver` does it."""
    checkpoints, tensors = Checkpoints(run), tensors_of(step, elements)
    write(tensors, tensors, checkpoints, described(step))
    checkpoints.prune(keep_last, None)


def whole(run: Path, step: int) -> Manifest:
    """The manifest of a checkpoint of which every byte is as it was written."""
    checkpoints = Checkpoints(run)
    read_back = checkpoints.manifest(step)
    checkpoints.check(read_back)
    return read_back


def contents(run: Path, manifest: Manifest) -> dict[str, Tensor]:
    tensors = {
        name: torch.empty(saved_tensor.shape, dtype=torch_dtype(saved_tensor))
        for name, saved_tensor in manifest.tensors.items()
    }
    read(tensors, Checkpoints(run), manifest)
    return tensors


def check_contents(run: Path, step: int) -> None:
    """It is whole, and all its numbers are its step's."""
    content = contents(run, whole(run, step))
    elements = content["model/blocks.0.weight"].numel()
    expected = tensors_of(step, elements)
    assert content.keys() == expected.keys()
    for name, tensor in expected.items():
        assert content[name].dtype == tensor.dtype
        assert torch.equal(content[name], tensor), name


def check_all_whole(run: Path) -> list[int]:
    """Steps, the newest first. Each that has a checkpoint's name is one."""
    steps = Checkpoints(run).steps()
    for step in steps:
        check_contents(run, step)
    return steps


def names(run: Path) -> list[str]:
    """Of all that is in the checkpoints' folder."""
    return sorted(path.name for path in Checkpoints(run).path.iterdir())


def taken(run: Path) -> tuple[int | None, list[str]]:
    """The step that a resumed training begins with, and what is said on the way to it."""
    said: list[str] = []
    newest = newest_whole(Checkpoints(run), ALONE, said.append)
    return (None if newest is None else newest.step), said


def refusal(run: Path, step: int) -> str:
    """Why this one is not taken; fails the test where it is."""
    try:
        whole(run, step)
    except CheckpointError as error:
        return str(error)
    raise AssertionError(f"step {step} of {run} is taken for whole")
