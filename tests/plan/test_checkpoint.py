"""Headers of .safetensors files: what they hold, and that no hostile one does any harm."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from torchtally.errors import UsageError
from torchtally.plan.architecture.checkpoint import (
    DTYPES,
    MOST_HEADER_BYTES,
    Checkpoint,
    Tensor,
    read_checkpoint,
)
from torchtally.plan.architecture.lookup import model

Header = dict[str, Any]
ONE: Header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}


def packed(header: Header | bytes, data_bytes: int = 24) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def read(folder: Path, content: bytes) -> Checkpoint:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return read_checkpoint(path)


def error_of(folder: Path, content: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        read(folder, content)
    message = str(caught.value)
    assert message.startswith(str(folder / "model.safetensors"))
    return message.removeprefix(str(folder / "model.safetensors") + ": ")


# What is there.


def test_one_tensor(tmp_path: Path) -> None:
    checkpoint = read(tmp_path, packed(ONE))
    assert checkpoint.tensors == (Tensor("a", "float32", (2, 3), 24, checkpoint.place),)
    assert (checkpoint.parameters, checkpoint.data_bytes) == (6, 24)
    assert checkpoint.elements_by_dtype == (("float32", 6),)


def test_what_the_library_writes_is_read_as_it_reads_it(tmp_path: Path) -> None:
    """Every dtype that this torch and the library share, an empty tensor, a scalar, metadata."""
    path = tmp_path / "model.safetensors"
    tensors = {
        name: torch.zeros(3, 5).to(getattr(torch, name))
        for name, _ in DTYPES.values()
        if hasattr(torch, name) and name not in ("float4_e2m1fn",)
    }
    tensors |= {"empty": torch.zeros(0, 7), "scalar": torch.zeros(())}
    save_file(tensors, path, metadata={"format": "pt"})
    ours = read_checkpoint(path)
    with safe_open(path, "pt") as theirs:
        assert {tensor.name for tensor in ours.tensors} == set(theirs.keys())
    for part in ours.tensors:
        tensor = tensors[part.name]
        assert (part.shape, part.data_bytes) == (tuple(tensor.shape), tensor.nbytes)
        assert part.dtype == str(tensor.dtype).removeprefix("torch.")


def test_integers_are_no_parameters(tmp_path: Path) -> None:
    header = ONE | {"b": {"dtype": "I32", "shape": [4], "data_offsets": [24, 40]}}
    checkpoint = read(tmp_path, packed(header, 40))
    assert checkpoint.parameters == 6
    assert checkpoint.elements_by_dtype == (("float32", 6), ("int32", 4))


def test_four_bits_an_element(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F4", "shape": [4, 3], "data_offsets": [0, 6]}}
    assert read(tmp_path, packed(header, 6)).parameters == 12
    header["a"] |= {"shape": [3]}
    assert "6 bytes cannot be 3 elements of 4 bits" in error_of(tmp_path, packed(header, 6))


def test_spaces_behind_the_header(tmp_path: Path) -> None:
    assert read(tmp_path, packed(json.dumps(ONE).encode() + b"   ")).parameters == 6


def test_weights_are_never_read(tmp_path: Path) -> None:
    """A terabyte that is not there is told of in no time."""
    size = 10**12
    header = {"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(packed(header, 0))
        file.truncate(file.tell() + size)
    assert read_checkpoint(path).data_bytes == size


# What is refused.


def entry(**changes: Any) -> Header:
    return {"a": ONE["a"] | changes}


BIG = 2**63


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes are not a .safetensors file"),
        (b"\1\0\0", "truncated: 3 bytes"),
        ((MOST_HEADER_BYTES + 1).to_bytes(8, "little"), "offset 0: a header of 100000001 bytes"),
        (b"\xff" * 8, "offset 0: a header of 18446744073709551615 bytes"),
        ((99).to_bytes(8, "little") + b"{}", "offset 10: truncated within the header of 99 bytes"),
        (packed(b""), "offset 8: the header does not begin with '{'"),
        (packed(b' {"a": 1}'), "offset 8: the header does not begin with '{'"),
        (packed(b"[]"), "offset 8: the header does not begin"),
        (packed(b'{"\xff": 1}'), "the header is not JSON: 'utf-8' codec"),
        (packed(b"{"), "the header is not JSON"),
        (packed(b'{"a": NaN}'), "NaN is not JSON"),
        (packed(b'{"a": -Infinity}'), "-Infinity is not JSON"),
        (packed(b'{"a":' * 100_000), "the header is not JSON"),
        (packed(b'{"a": ' + b"9" * 5000 + b"}"), "the header is not JSON"),
        (packed(b'{"a": 1, "a": 2}'), "duplicate key 'a'"),
        (packed(b'{"a": {"shape": [], "shape": []}}'), "duplicate key 'shape'"),
        (packed({"__metadata__": {"a": 1}}), "__metadata__: expected strings by name"),
        (packed({"__metadata__": []}), "__metadata__: expected strings by name"),
        (packed({"a": 1}), "tensor 'a': entry: expected dtype, shape and data_offsets, found 1"),
        (packed(entry(dtype="F3")), "tensor 'a': dtype: expected one of BOOL, F4"),
        (packed(entry(dtype=["F32"])), "tensor 'a': dtype: expected"),
        (packed(entry(shape=[2, -3])), "shape: expected a list of whole numbers, found [2, -3]"),
        (packed(entry(shape=[2, 3.0])), "shape: expected"),
        (packed(entry(shape=[2, True])), "shape: expected"),
        (packed(entry(shape="6")), "shape: expected"),
        (packed(entry(shape=None)), "shape: expected"),
        (packed(entry(shape=[2**64])), "shape: expected"),
        (packed(entry(shape=[BIG, 2])), "has too many elements"),
        (packed(entry(shape=[BIG] * 10_000)), "has too many elements"),
        (packed(entry(data_offsets=[0])), "data_offsets: expected first and last of its bytes"),
        (packed(entry(data_offsets=[24, 0])), "data_offsets: expected first and last"),
        (packed(entry(data_offsets=[-24, 0])), "data_offsets: expected first and last"),
        (packed(entry(data_offsets={"0": 24})), "data_offsets: expected first and last"),
        (packed(entry(shape=[2, 4])), "24 bytes cannot be 8 elements of 32 bits"),
        (packed(ONE, 23), "the header describes 24 bytes of weights, the file has 23: it is trunc"),
        (packed(ONE, 25), "the file has 25: it is truncated, or has trailing data"),
        (packed({}, 1), "the header describes 0 bytes"),
        (packed(ONE | {"b": ONE["a"]}), "tensor 'b': data_offsets: begins at 0, expected 24"),
        (packed(entry(data_offsets=[8, 32]), 32), "begins at 8, expected 0: it leaves a gap"),
        (packed({"\x1b[2J\ud800": 1}), r"tensor '\x1b[2J\ud800': entry"),
    ],
)
def test_a_bad_header_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    text = error_of(tmp_path, content)
    assert message in text
    assert len(text) < 400
    assert text.isascii()
    assert text.isprintable()


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    """A pipe would never answer, so it is not opened."""
    pipe = tmp_path / "model.safetensors"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="there is no such file"):
        read_checkpoint(pipe)
    with pytest.raises(UsageError, match="there is no such file"):
        read_checkpoint(tmp_path / "other.safetensors")


# Never anything but a UsageError.

NUMBERS = st.one_of(
    st.integers(-3, 30), st.integers(), st.sampled_from([2**63, 2**64 - 1, 2**64, 10**30])
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*DTYPES, "F3"]) | ANYTHING,
        "shape": st.lists(NUMBERS, max_size=4) | ANYTHING,
        "data_offsets": st.lists(NUMBERS, min_size=2, max_size=2) | ANYTHING,
    },
)
HEADERS = st.dictionaries(
    st.text(max_size=5) | st.just("__metadata__"), ENTRIES | ANYTHING, max_size=4
)
QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read_or_refuse(folder: Path, content: bytes) -> Checkpoint | None:
    try:
        return read(folder, content)
    except UsageError:
        return None


@QUICK
@given(HEADERS, st.integers(0, 40))
def test_hostile_headers(tmp_path: Path, header: Header, data_bytes: int) -> None:
    checkpoint = read_or_refuse(tmp_path, packed(header, data_bytes))
    assert checkpoint is None or checkpoint.data_bytes == data_bytes


@QUICK
@given(st.binary(max_size=64))
def test_hostile_bytes(tmp_path: Path, content: bytes) -> None:
    for damaged in (content, packed(b"{" + content)):
        checkpoint = read_or_refuse(tmp_path, damaged)
        assert checkpoint is None or checkpoint.data_bytes <= len(damaged)


@QUICK
@given(st.integers(0, 1000), st.integers(0, 255))
def test_one_byte_changed(tmp_path: Path, at: int, value: int) -> None:
    content = bytearray(
        packed(ONE | {"b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}}, 32)
    )
    content[at % len(content)] = value
    checkpoint = read_or_refuse(tmp_path, bytes(content))
    assert checkpoint is None or checkpoint.data_bytes == 32


@QUICK
@given(
    st.dictionaries(
        st.text(max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(
            st.sampled_from([dtype for dtype in DTYPES if "6" not in dtype[:2] and dtype != "F4"]),
            st.lists(st.integers(0, 4), max_size=3),
        ),
        max_size=5,
    )
)
def test_whatever_is_well_formed_is_read_whole(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]]
) -> None:
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = torch.Size(shape).numel() * DTYPES[dtype][1] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    calibration = read(tmp_path, packed(header, at))
    assert {tensor.name: list(tensor.shape) for tensor in calibration.tensors} == {
        name: shape for name, (_, shape) in tensors.items()
    }
    assert calibration.data_bytes == at


# Shards.


def shards(folder: Path, weight_map: Any = None) -> Path:
    save_file({"a": torch.zeros(2, 3)}, folder / "model-1-of-2.safetensors")
    save_file({"b": torch.zeros(4).bfloat16()}, folder / "model-2-of-2.safetensors")
    index = {
        "metadata": {"total_size": 32},
        "weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
        if weight_map is None
        else weight_map,
    }
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path


def test_shards_by_their_index_or_their_folder(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(shards(tmp_path))
    assert checkpoint.elements_by_dtype == (("float32", 6), ("bfloat16", 4))
    assert (checkpoint.parameters, checkpoint.data_bytes) == (10, 32)
    assert read_checkpoint(tmp_path) == checkpoint


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ([], "weight_map: expected tensors and files"),
        ({"a": 1}, "'a': expected the name of a .safetensors file beside the index, found 1"),
        ({"a": "../model-1-of-2.safetensors"}, "expected the name of a .safetensors file beside"),
        ({"a": "/etc/passwd"}, "expected the name of a .safetensors file beside"),
        ({"a": "..\\x.safetensors"}, "expected the name of a .safetensors file beside"),
        ({"a": "other.safetensors"}, "other.safetensors: there is no such file"),
        ({"c": "model-1-of-2.safetensors"}, "is in only one of the index and model-1-of-2"),
    ],
)
def test_an_index_that_does_not_fit(tmp_path: Path, weight_map: Any, message: str) -> None:
    path = shards(tmp_path, weight_map)
    with pytest.raises(UsageError) as caught:
        read_checkpoint(path)
    assert message in str(caught.value)


def test_a_folder_without_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no \.safetensors files"):
        read_checkpoint(tmp_path)
    for name in ("a", "b"):
        save_file({"a": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(UsageError, match=r"holds 2 \.safetensors files"):
        read_checkpoint(tmp_path)


# Beside a config.json.

LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": 101,
}


def test_weights_without_a_config_say_how_many_and_not_how(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(
            UsageError, match=r"holds 6 of float32, but not the architecture"
        ) as caught:
            model(str(path))
        assert "--parameters 6" in str(caught.value)


def test_a_config_beside_weights_gives_the_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    path = shards(tmp_path)
    shape = model(str(tmp_path))
    assert shape.width == 48
    assert shape.notes[0].startswith(
        "the weights beside it hold 6 of float32, 4 of bfloat16; its shape has "
    )
    assert model(str(path)) == shape


def test_weights_that_transformers_saved_are_as_many_as_counted(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(**LLAMA)).save_pretrained(tmp_path)
    shape = model(str(tmp_path))
    counted = read_checkpoint(tmp_path).parameters
    assert shape.notes == (f"the weights beside it hold {counted} of float32",)
