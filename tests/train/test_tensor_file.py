"""A safetensors file of tensors."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from torchtally.train.tensor_file import write_tensors


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_file_has_the_mode_of_the_users_other_files(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_tensors({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask
    assert load_file(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_what_a_killed_write_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors.unfinished").write_bytes(b"half")
    write_tensors({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == ["a.safetensors"]
