"""Manifests of strangers: of the right checksum, and with anything in them."""

import hashlib
import json
import os
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.train.checkpoints.saving import contents, save, taken, whole
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import (
    ELEMENT_BYTES,
    FORMAT_VERSION,
    OtherFormatError,
    read_manifest,
)
from torchtally.errors import CheckpointError

WEIGHT = "model/blocks.0.weight"
Change = Callable[[dict[str, Any]], Any]


def sealed(body: bytes) -> bytes:
    """As a manifest is written, by the description alone."""
    return b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode() + body


def document_of(own: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((own / "manifest.json").read_bytes().partition(b"\n")[2])
    return document


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("hostile")
    save(run, 2, elements=20)
    return Checkpoints(run).path / "step-00000002"


def test_the_seal_is_right(own: Path) -> None:
    manifest = read_manifest(sealed(json.dumps(document_of(own)).encode()), "here")
    assert manifest == whole(own.parent.parent, 2)


def put(*path: Any, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


def in_weight(*path: Any, value: Any) -> Change:
    return put("tensors", WEIGHT, *path, value=value)


def named(name: str) -> Change:
    """Another name of the file of the weights, everywhere."""

    def change(document: dict[str, Any]) -> None:
        document["files"][name] = document["files"].pop("model.safetensors")
        for tensor in document["tensors"].values():
            for piece in tensor["pieces"]:
                if piece["file"] == "model.safetensors":
                    piece["file"] = name

    return change


def twice(document: dict[str, Any]) -> None:
    document["tensors"][WEIGHT]["pieces"] *= 2


HOSTILE: list[Change] = [
    *(
        named(name)
        for name in (
            "../model.safetensors",
            "/etc/passwd",
            "/model.safetensors",
            "a/b.safetensors",
            "a\0.safetensors",
            "..",
            ".",
            "",
            "manifest.json",
            "model.safetensors\n",
            "mödel.safetensors",
        )
    ),
    *(
        in_weight("dtype", value=name)
        for name in ("__class__", "load", "float4_e2m1fn", "complex128", "", "float64", 3, None)
    ),
    *(
        in_weight("shape", value=name)
        for name in (
            [], [2], [20], [-2, -10], [2**40, 2**40], [2**70, 0], [0, 10], [2, 10, 0],
            [1] * 100_000, [2.0, 10], "2", None, [2, 10, 2**62],
        )
    ),
    *(
        in_weight("pieces", 0, key, value=value)
        for key in ("first_byte", "size_bytes", "crc32")
        for value in (-1, -80, 2**31, 2**63, 2**64, 2**200, 1.5, "1", None)
    ),
    *(
        in_weight("pieces", 0, key, value=extent)
        for key in ("offsets", "sizes")
        for extent in ([], [0], [-1, 0], [1, 0], [0, 2**62], [2**64, 0], [2, 10, 1], [1, 10])
    ),
    in_weight("pieces", value=[]),
    in_weight("pieces", 0, "file", value="other.safetensors"),
    in_weight("pieces", 0, "file", value="optimizer.safetensors"),
    twice,
    *(
        put("files", "model.safetensors", key, value=value)
        for key in ("size_bytes", "header_bytes", "header_crc32")
        for value in (-1, 0, 8, 2**40, 2**64)
    ),
    put("files", value={}),
    put("files", "more.safetensors", value={"size_bytes": 9, "header_bytes": 9, "header_crc32": 0}),
    put("tensors", value=[]),
    *(put("step", value=value) for value in (-2, 3, 2**64, "2", None)),
    *(put("format_version", value=number) for number in (0, -1, None, "1", 0.5)),
    put("ranks", value=0),
    put("unknown", value=1),
    in_weight("unknown", value=1),
    in_weight("pieces", 0, "unknown", value=1),
    put("versions", value={"torch": 2}),
]  # fmt: skip


def answer(own: Path, content: bytes) -> str:
    """What is said of it; "" where it is read as if it was the checkpoint."""
    former = (own / "manifest.json").read_bytes()
    (own / "manifest.json").write_bytes(content)
    try:
        manifest = whole(own.parent.parent, 2)
        said = {tensor.nbytes for tensor in contents(own.parent.parent, manifest).values()}
        assert sum(said) <= sum(path.stat().st_size for path in own.iterdir())
    except CheckpointError as error:
        return str(error)
    finally:
        (own / "manifest.json").write_bytes(former)
    return ""


@pytest.mark.parametrize("change", HOSTILE, ids=range(len(HOSTILE)))
def test_what_cannot_be_is_refused(
    own: Path, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = document_of(own)
    change(document)
    opened: list[str] = []
    native = os.open

    def watched(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> int:
        if dir_fd is not None:
            opened.append(str(path))
        return native(path, *args, dir_fd=dir_fd, **options)

    monkeypatch.setattr(os, "open", watched)
    assert answer(own, sealed(json.dumps(document).encode())).startswith(str(own))
    assert {name for name in opened if "/" in name or ".." in name} == set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'{"format_version": 1}',
        b"[" * 200_000,
        b'{"format_version": 1, "config": ' + b'{"a":' * 100_000,
        b'{"config": ' + b"[" * 100_000 + b"]" * 100_000 + b', "format_version": 1}',
        b'{"format_version": 1, "step": "\xff\xfe"}',
        b'{"format_version": 1e999}',
        b"\0" * 100,
        b'{"format_version": NaN}',
    ],
    ids=range(11),
)
def test_what_is_no_manifest_is_refused(own: Path, body: bytes) -> None:
    assert answer(own, sealed(body)).startswith(str(own))


def test_a_key_that_stands_twice_hides_nothing(own: Path) -> None:
    text = json.dumps(document_of(own))
    for double in (text.replace('"step"', '"step": 7, "step"'), text[:-1] + ', "step": 7}'):
        said = answer(own, sealed(double.encode()))
        assert said == "" or "belongs to step 7" in said


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["..", "/etc/passwd", "__class__", *ELEMENT_BYTES]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    places = []
    for key, item in items:
        places.append((*before, key))
        if isinstance(item, dict | list):
            places += paths(item, (*before, key))
    return places


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_anything_in_any_place(own: Path, data: st.DataObject) -> None:
    """It is refused, or no more is read than its files have."""
    document = document_of(own)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(paths(document)))
        put(*path, value=data.draw(VALUES))(document)
    try:
        manifest = read_manifest(sealed(json.dumps(document).encode()), str(own))
    except CheckpointError:
        return
    saved_bytes = sum(
        prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype] for tensor in manifest.tensors.values()
    )
    assert saved_bytes <= sum(file.size_bytes for file in manifest.files.values())
    answer(own, sealed(json.dumps(document).encode()))


def test_a_manifest_that_is_too_large_is_not_read(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtally.checkpoints.folder.MOST_BYTES", 1000)
    with pytest.raises(CheckpointError, match="too large to be a manifest"):
        whole(own.parent.parent, 2)


# Versions ----------------------------------------------------------------------------------------


def test_a_newer_format_is_refused_and_no_older_checkpoint_is_taken(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    own = Checkpoints(tmp_path).path / "step-00000002"
    document = {**document_of(own), "format_version": FORMAT_VERSION + 1, "more": [1]}
    (own / "manifest.json").write_bytes(sealed(json.dumps(document).encode()))
    with pytest.raises(OtherFormatError) as refused:
        taken(tmp_path)
    assert f"has format version {FORMAT_VERSION + 1}; this torchtally reads " in str(refused.value)
    assert own.exists()


# Between check and read --------------------------------------------------------------------------


def test_a_file_that_changes_after_it_was_checked(tmp_path: Path) -> None:
    save(tmp_path, 2)
    manifest = whole(tmp_path, 2)
    path = Checkpoints(tmp_path).path / "step-00000002" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="are damaged"):
        contents(tmp_path, manifest)
    path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="ends at byte"):
        contents(tmp_path, manifest)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(CheckpointError, match="symbolic link"):
        contents(tmp_path, manifest)
