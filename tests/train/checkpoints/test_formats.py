"""Files that safetensors' own library and the planner's header reader read, for every dtype."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from tests.train.checkpoints.saving import contents, described, names, save, whole
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import ELEMENT_BYTES
from torchtally.checkpoints.storage import write
from torchtally.errors import CheckpointError
from torchtally.plan.architecture.checkpoint import read_checkpoint

SHAPES: tuple[tuple[int, ...], ...] = ((3, 4), (5,), (), (0, 7), (2, 0, 3))


def any_bytes(dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers of any bits, as far as the dtype has them."""
    count = torch.Size(shape).numel()
    if dtype == "bool":
        return torch.randint(2, shape, dtype=torch.bool)
    numbers = torch.randint(256, (count * ELEMENT_BYTES[dtype],), dtype=torch.uint8)
    return numbers.view(getattr(torch, dtype)).reshape(shape)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def all_dtypes() -> dict[str, Tensor]:
    return {
        f"model/{dtype}.{len(shape)}.{shape.count(0)}": any_bytes(dtype, shape)
        for dtype in ELEMENT_BYTES
        for shape in SHAPES
    }


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    tensors = all_dtypes()
    write(tensors, tensors, Checkpoints(tmp_path), described(1))
    return tmp_path, tensors


def test_all_that_torch_and_safetensors_have_in_common() -> None:
    assert len(ELEMENT_BYTES) == 19
    for name, element_bytes in ELEMENT_BYTES.items():
        dtype = getattr(torch, name)
        assert isinstance(dtype, torch.dtype)
        assert dtype.itemsize == element_bytes


def test_bits_come_back(saved: tuple[Path, dict[str, Tensor]]) -> None:
    run, tensors = saved
    content = contents(run, whole(run, 1))
    assert content.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (content[name].dtype, content[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(content[name]) == bits(tensor)


def test_safetensors_reads_them(saved: tuple[Path, dict[str, Tensor]]) -> None:
    run, tensors = saved
    path = Checkpoints(run).path / "step-00000001" / "model.safetensors"
    with safe_open(path, framework="pt") as opened:
        assert {f"model/{value}" for value in opened.keys()} == tensors.keys()  # noqa: SIM118
        for name, tensor in tensors.items():
            read_back = opened.get_tensor(name.removeprefix("model/"))
            assert (read_back.dtype, read_back.shape) == (tensor.dtype, tensor.shape)
            assert bits(read_back) == bits(tensor)


def test_the_planner_reads_their_headers(saved: tuple[Path, dict[str, Tensor]]) -> None:
    run, tensors = saved
    checkpoint = read_checkpoint(Checkpoints(run).path / "step-00000001" / "model.safetensors")
    assert {
        (f"model/{tensor.name}", tensor.dtype, tensor.shape) for tensor in checkpoint.tensors
    } == {
        (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for name, tensor in tensors.items()
    }


def test_what_training_keeps_is_not_made_contiguous_before(tmp_path: Path) -> None:
    whole_tensor = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "model/t": whole_tensor.T,
        "model/s": whole_tensor[1:, ::2],
        "model/e": torch.ones(1).expand(3),
    }
    write(tensors, tensors, Checkpoints(tmp_path), described(1))
    content = contents(tmp_path, whole(tmp_path, 1))
    assert all(torch.equal(content[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("dtype", [torch.complex128, torch.float4_e2m1fn_x2])
def test_a_dtype_that_safetensors_has_not(tmp_path: Path, dtype: torch.dtype) -> None:
    save(tmp_path, 1)
    tensors = {"model/odd": torch.empty(4, dtype=dtype)}
    with pytest.raises(CheckpointError, match="odd: safetensors does not support dtype"):
        write(tensors, tensors, Checkpoints(tmp_path), described(2))
    assert names(tmp_path) == ["step-00000001"]
