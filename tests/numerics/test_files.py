"""Files of tensors, read in parts: the numbers that were written, of every format of files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchtally.cli import main
from torchtally.errors import UsageError
from torchtally.number_formats.losses import ScaleKind
from torchtally.numerics import file_numbers
from torchtally.numerics.files import stored_tensors
from torchtally.numerics.files.stored import PART_ELEMENTS, spans

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn,
          torch.float8_e5m2)  # fmt: skip


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    numbers = torch.randn(7, 40) * 1e-3
    named = {str(dtype).removeprefix("torch."): numbers.to(dtype) for dtype in DTYPES}
    return {**named, "ids": torch.arange(5), "scalar": torch.tensor(2.5)}


def as_safetensors(path: Path) -> Path:
    save_file(weights(), path / "w.safetensors")
    return path / "w.safetensors"


def as_torch(path: Path) -> Path:
    torch.save({"model": weights(), "step": 3}, path / "w.pt")
    return path / "w.pt"


def as_old_torch(path: Path) -> Path:
    held = {name: tensor for name, tensor in weights().items() if "float8" not in name}
    torch.save([held], path / "w.bin", _use_new_zipfile_serialization=False)  # it has no float8
    return path / "w.bin"


@pytest.mark.parametrize("write", [as_safetensors, as_torch, as_old_torch])
def test_numbers_are_those_that_were_written(write: Callable[[Path], Path], tmp_path: Path) -> None:
    tensors = {each.name.split(".")[-1]: each for each in stored_tensors(write(tmp_path))}
    assert {name for name in weights() if "float8" not in name} <= tensors.keys()
    for name, tensor in weights().items():
        if name not in tensors or not tensor.is_floating_point():
            continue
        parts = [part.astype(np.float64).ravel() for part in tensors[name].parts()]
        assert np.concatenate(parts).tolist() == tensor.double().ravel().tolist()
        assert tensors[name].dtype == str(tensor.dtype).removeprefix("torch.")


def test_npy_is_mapped(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal((3, PART_ELEMENTS + 5)).astype("float32")
    np.save(tmp_path / "x.npy", numbers)
    (tensor,) = stored_tensors(tmp_path / "x.npy")
    assert np.array_equal(
        np.concatenate([part.ravel() for part in tensor.parts()]), numbers.ravel()
    )
    assert max(part.size for part in tensor.parts()) == PART_ELEMENTS


def test_gguf_blocks_are_multiplied_by_their_scales(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    numbers = np.random.default_rng(0).standard_normal((8, 64)).astype("float32")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    kind = gguf.GGMLQuantizationType.Q8_0
    packed = gguf.quants.quantize(numbers, kind)
    writer.add_tensor("blk.0.w", packed, raw_dtype=kind)
    writer.add_tensor("norm", numbers[0].astype("float16"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    block, norm = stored_tensors(tmp_path / "m.gguf")
    assert (block.dtype, norm.dtype) == ("Q8_0", "float16")
    assert np.array_equal(np.concatenate(list(block.parts())), gguf.quants.dequantize(packed, kind))
    assert next(norm.parts()).ravel().tolist() == numbers[0].astype("float16").tolist()


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 7), (2, PART_ELEMENTS + 96), (9, 2, 4096)])
def test_parts_are_all_elements_in_whole_rows(shape: tuple[int, ...]) -> None:
    places = list(spans(shape))
    covered = [element for first, last, _ in places for element in (first, last)]
    assert covered[1:-1:2] == covered[2::2]
    assert (covered[-1] if covered else 0) == np.prod(shape, dtype=int)
    assert all((last - first) % width == 0 for first, last, width in places)


def test_a_folder_is_all_of_its_files(tmp_path: Path) -> None:
    as_safetensors(tmp_path)
    (tmp_path / "more").mkdir()
    np.save(tmp_path / "more" / "x.npy", np.ones(3))
    numbers = file_numbers(tmp_path, ["fp16"])
    assert len(numbers.tensors) == len(DTYPES) + 2
    assert numbers.left_out == {"int64": 1}
    assert numbers["x"].exponents == {0: 3}


def test_the_command_lists_the_worst_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1e-9 is zero in fp16; of 1 and 70000 a half is too large."""
    held = {"fine": torch.ones(4), "small": torch.full((4,), 1e-9),
            "large": torch.tensor([1.0, 70000.0])}  # fmt: skip
    save_file(held, tmp_path / "w.safetensors")
    place = str(tmp_path / "w.safetensors")
    picture = tmp_path / "w.svg"
    assert main(["dtypes", place, "--of", "fp16", "--top", "2", "--svg", str(picture)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("10 numbers in 3 tensors of ")
    rows = [line.split() for line in out.partition("Tensors, by")[2].splitlines()[2:4]]
    assert [row[-1] for row in rows] == ["small", "large"]
    assert "100.0" in rows[0]
    assert "50.0" in rows[1]
    assert "fine" not in out
    assert picture.read_text().startswith("<svg xmlns=")
    assert "fp16" in picture.read_text()
    assert main(["dtypes", place, "--of", "fp16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "tensor_numbers/1"
    assert [tensor["tensor_name"] for tensor in document["tensor_numbers"]] == [
        "small", "large", "fine",
    ]  # fmt: skip
    assert document["total_numbers"]["losses"][0]["underflow_share"] == 0.4
    assert document["total_numbers"]["exponents"] == {"-30": 4, "0": 5, "16": 1}


def test_losses_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([1.0, 2.0**-25, 1e5], np.float32))
    loss = file_numbers(tmp_path / "x.npy", ["fp16"])["x"].loss("fp16", ScaleKind.NONE)
    assert (loss.underflows, loss.overflows) == (1, 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.txt", b"", "its name ends in none of"),
        ("w.npy", b"nonsense", "cannot be read as a .npy file"),
        ("w.pt", b"nonsense", "cannot be read as torch.save's file"),
        ("w.safetensors", b"nonsense", "w.safetensors"),
    ],
)
def test_what_is_no_file_of_tensors_says_so(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        file_numbers(tmp_path / name)


@pytest.mark.parametrize(("name", "needs_torch"), [("w.safetensors", False), ("w.pt", True)])
def test_torch_is_for_its_own_files(name: str, needs_torch: bool, tmp_path: Path) -> None:
    as_safetensors(tmp_path)
    as_torch(tmp_path)
    code = (
        "import sys; from torchtally.cli import main; "
        "main(['dtypes', sys.argv[1], '--of', 'fp16']); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / name], capture_output=True, check=False
    )
    assert done.returncode == needs_torch, done.stderr


def test_mistakes_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    for arguments, message in (
        (["missing.safetensors"], "there is no such file"),
        ([str(tmp_path / "ids.npy")], "contains no floating-point numbers (int64)"),
        ([str(tmp_path / "ids.npy"), "0.1"], "name one file"),
        (["0.1", "--svg", "x.svg"], "--svg is of a file"),
        ([str(tmp_path / "ids.npy"), "--of", "int8"], "floating-point"),
    ):
        assert main(["dtypes", *arguments]) == 2
        assert message in capsys.readouterr().err
