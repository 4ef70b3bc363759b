"""Every change of a checkpoint is found, named, and the one before is taken."""

import re
import shutil
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.train.checkpoints.saving import (
    check_contents,
    described,
    names,
    refusal,
    save,
    taken,
    whole,
)
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.storage import write
from torchtally.errors import CheckpointError

FILES = ("manifest.json", "model.safetensors", "optimizer.safetensors", "random.safetensors")


@pytest.fixture
def own(in_memory: Path) -> Path:
    """Checkpoint 2 of two small ones."""
    for step in (1, 2):
        save(in_memory, step, elements=10)
    return Checkpoints(in_memory).path / "step-00000002"


@pytest.fixture
def tiny(in_memory: Path) -> Path:
    """A checkpoint of two files of three tensors, whose every byte can be changed."""
    tensors = {
        "model/weight": torch.arange(12.0).reshape(3, 4),
        "model/bias": torch.ones(3, dtype=torch.bfloat16),
        "optimizer/step": torch.tensor(2),
    }
    write(tensors, tensors, Checkpoints(in_memory), described(2))
    return Checkpoints(in_memory).path / "step-00000002"


def damage_of(path: Path, content: bytes, reason: Manifest) -> str:
    """What is said of a checkpoint of which this file has this content; it is put back."""
    former = path.read_bytes()
    path.write_bytes(content)
    checkpoints = Checkpoints(path.parent.parent.parent)
    try:
        with pytest.raises(CheckpointError) as refused:
            checkpoints.manifest(2) if path.name == FILES[0] else checkpoints.check(reason)
    finally:
        path.write_bytes(former)
    said = str(refused.value)
    assert said.startswith(str(path))
    return said


def refused(own: Path) -> str:
    return refusal(own.parent.parent, 2)


def test_what_is_whole_is_taken(own: Path) -> None:
    run = own.parent.parent
    assert sorted(path.name for path in own.iterdir()) == sorted(FILES)
    assert taken(run) == (2, [])
    check_contents(run, 2)


@pytest.mark.thorough
def test_every_byte_of_every_file(tiny: Path) -> None:
    manifest = whole(tiny.parent.parent, 2)
    for path in sorted(tiny.iterdir()):
        content = path.read_bytes()
        for at, byte in enumerate(content):
            for mask in (0x01, 0x80):
                changed = content[:at] + bytes([byte ^ mask]) + content[at + 1 :]
                said = damage_of(path, changed, manifest)
                if path.name != FILES[0]:
                    first, end = map(int, re.findall(r"bytes (\d+) to (\d+)", said)[0])
                    assert first <= at < end
    assert sum(path.stat().st_size for path in tiny.iterdir()) > 1500
    whole(tiny.parent.parent, 2)


@given(st.data())
def test_any_change_of_any_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.getbasetemp() / "any change"
    if not run.exists():
        save(run, 2, elements=2000)
    path = Checkpoints(run).path / "step-00000002" / data.draw(st.sampled_from(FILES))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content)))
    size = data.draw(st.integers(0, 40))
    put = data.draw(st.binary(max_size=40))
    changed = content[:at] + put + content[at + size :]
    path.write_bytes(changed)
    try:
        if changed == content:
            whole(run, 2)
        else:
            assert str(path) in refusal(run, 2)
    finally:
        path.write_bytes(content)


def test_every_truncation_and_more_at_the_end(tiny: Path) -> None:
    manifest = whole(tiny.parent.parent, 2)
    for path in sorted(tiny.iterdir()):
        content = path.read_bytes()
        for size in range(len(content)):
            assert str(path) in damage_of(path, content[:size], manifest)
        for more in (b"\0", b"\n", content, bytes(4096)):
            assert str(path) in damage_of(path, content + more, manifest)
    whole(tiny.parent.parent, 2)


@pytest.mark.parametrize("file", FILES)
def test_a_file_less(own: Path, file: str) -> None:
    (own / file).unlink()
    assert refused(own).startswith(f"{own / file}: cannot be read: No such file")


def test_files_of_others_are_ignored(own: Path) -> None:
    """What a desktop, a backup or a network file system leaves in a folder."""
    for name in (".DS_Store", "._model.safetensors", ".nfs0000000000000001", "notes.txt"):
        (own / name).write_bytes(b"another's")
    (own / "folder" / "inner").mkdir(parents=True)
    (own / "folder" / "inner" / "file").write_bytes(b"another's")
    (own / "link").symlink_to(own.parent.parent)
    run = own.parent.parent
    assert taken(run) == (2, [])
    Checkpoints(run).prune(keep_last=0, keep_every=None)
    assert names(run) == []
    assert run.exists()


@pytest.mark.parametrize(("one", "other"), list(combinations(FILES, 2)))
def test_two_files_swapped(own: Path, one: str, other: str) -> None:
    (own / one).rename(own / "third")
    (own / other).rename(own / one)
    (own / "third").rename(own / other)
    assert str(own) in refused(own)


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_another_step(own: Path, file: str) -> None:
    shutil.copy(own.with_name("step-00000001") / file, own / file)
    assert str(own / file) in refused(own)


def test_the_bytes_of_two_tensors_swapped(tmp_path: Path) -> None:
    tensors = {"model/a": torch.arange(8.0), "model/b": torch.arange(8.0) + 1}
    write(tensors, tensors, Checkpoints(tmp_path), described(2))
    a, b = (whole(tmp_path, 2).tensors[name].pieces[0] for name in tensors)
    path = Checkpoints(tmp_path).path / "step-00000002" / a.file
    content = bytearray(path.read_bytes())
    spans = [slice(piece.first_byte, piece.first_byte + piece.size_bytes) for piece in (a, b)]
    content[spans[0]], content[spans[1]] = content[spans[1]], content[spans[0]]
    path.write_bytes(content)
    assert f"bytes {spans[0].start} to {spans[0].stop} are damaged" in refusal(tmp_path, 2)


# What is not committed ---------------------------------------------------------------------------


@pytest.mark.parametrize("files", range(1, 4))
def test_files_without_a_manifest(own: Path, files: int) -> None:
    """Under the name of a checkpoint, which they never have."""
    for file in (FILES[0], *FILES[1 + files :]):
        (own / file).unlink()
    step, said = taken(own.parent.parent)
    assert step == 1
    assert "manifest.json: cannot be read: No such file" in said[0]


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 500])
def test_a_manifest_that_says_nothing(own: Path, content: bytes) -> None:
    (own / FILES[0]).write_bytes(content)
    step, said = taken(own.parent.parent)
    assert step == 1
    assert "is damaged, or is not a manifest" in said[0]


def test_a_manifest_of_another_step(own: Path) -> None:
    own.rename(own.with_name("step-00000003"))
    step, said = taken(own.parent.parent)
    assert step == 1
    assert "belongs to step 2" in said[0]


def test_what_was_begun_is_not_found(own: Path) -> None:
    run = own.parent.parent
    shutil.copytree(own, own.with_name(".new-3-0123456789abcdef"))
    shutil.copytree(own, own.with_name(".old-4-0123456789abcdef"))
    shutil.copytree(own, own.with_name("step-000000005"))
    shutil.copytree(own, own.with_name("step-5"))
    assert taken(run) == (2, [])
    Checkpoints(run).clean()
    assert names(run) == ["step-000000005", "step-00000001", "step-00000002", "step-5"]


# Falling back ------------------------------------------------------------------------------------


def test_the_one_before_is_taken_loudly(own: Path) -> None:
    path = own / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    step, said = taken(own.parent.parent)
    assert step == 1
    (text,) = said
    assert text.startswith(f"{path}: has ")
    aside = re.search(r"It is kept as (damaged-00000002-[0-9a-f]{8}); trying the ", text)
    assert aside is not None
    assert (own.with_name(aside[1]) / "model.safetensors").exists()
    assert taken(own.parent.parent) == (1, [])


def test_no_checkpoint_is_whole(own: Path) -> None:
    for path in own.parent.iterdir():
        (path / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        taken(own.parent.parent)
    assert "step-00000001" in names(own.parent.parent)


def test_no_step_is_saved_twice(own: Path) -> None:
    run = own.parent.parent
    tensors = {"model/other": torch.ones(3)}
    with pytest.raises(CheckpointError, match="step-00000002: cannot be put in place"):
        write(tensors, tensors, Checkpoints(run), described(2))
    check_contents(run, 2)
    assert names(run) == ["step-00000001", "step-00000002"]
