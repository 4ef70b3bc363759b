"""What libraries ask torch's C++ and NCCL for, beside `torch.cuda`."""

import re
from inspect import isfunction as is_function
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torchtally
from torchtally.errors import UnsupportedError

ROOT = Path(torch.__file__).parent
CALL = r"_(?:cuda|nccl)_\w+"


def names_of_a_cuda_build() -> set[str]:
    """Functions that torch declares for its C++, and those that its Python calls."""
    declared = re.findall(rf"^def ({CALL})\(", (ROOT / "_C" / "__init__.pyi").read_text(), re.M)
    called = [
        name
        for path in ROOT.rglob("*.py")
        for name in re.findall(rf"torch\._C\.({CALL})\(", path.read_text(errors="ignore"))
    ]
    return {*declared, *called}


def test_every_name_of_a_cuda_build_is_there_and_asks_no_driver():
    names = names_of_a_cuda_build()
    assert len(names) > 80
    names |= {name for name in dir(torch._C) if re.fullmatch(CALL, name)}
    before = {name: vars(torch._C).get(name) for name in names}
    native = {name for name in names if not isinstance(before[name], type)}
    with torchtally.virtual_gpu("H100-SXM"):
        during = {name: getattr(torch._C, name, None) for name in native}
        assert [name for name in sorted(native) if not is_function(during[name])] == []
    assert {name: vars(torch._C).get(name) for name in names} == before


@pytest.mark.usefixtures("gpu")
def test_streams_by_their_numbers():
    from torch._C import _cuda_getCurrentRawStream as current_raw_stream  # as bitsandbytes imports

    assert current_raw_stream(0) == 0
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert current_raw_stream(0) == stream.cuda_stream != 0
        described = torch._C._cuda_getCurrentStream(0)
        assert described == (stream.stream_id, 0, 1)
    number, device, kind = described
    torch._C._cuda_setStream(stream_id=number, device_index=device, device_type=kind)
    assert current_raw_stream(0) == stream.cuda_stream
    number, device, kind = torch._C._cuda_getDefaultStream(0)
    torch._C._cuda_setStream(stream_id=number, device_index=device, device_type=kind)
    assert current_raw_stream(0) == 0


@pytest.mark.usefixtures("gpu")
def test_devices_and_versions_by_their_numbers():
    assert torch._C._cuda_getDeviceCount() == 1
    assert torch._C._cuda_exchangeDevice(0) == 0
    assert torch._C._cuda_getArchFlags() == "sm_90"
    major, minor = map(int, (torch.version.cuda or "").split("."))
    assert torch._C._cuda_getCompiledVersion() == 1000 * major + 10 * minor >= 13000
    assert torch.cuda._is_compiled()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("gpu")
def test_settings_are_kept():
    torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.backends.cudnn.benchmark_limit = 3
    assert torch.backends.cudnn.benchmark_limit == 3


@pytest.mark.usefixtures("gpu")
def test_a_call_without_an_answer_refuses_by_its_name():
    with pytest.raises(UnsupportedError, match=r"_cuda_tunableop_enable .* tally's simulated GPU"):
        torch.cuda.tunable.enable()


@pytest.mark.usefixtures("gpu")
def test_default_generators():
    (generator,) = torch.cuda.default_generators
    generator.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    state = generator.get_state()
    first = torch.rand(2, device="cuda").tolist()
    generator.set_state(state)
    assert torch.rand(2, device="cuda").tolist() == first


@pytest.mark.usefixtures("gpu")
def test_nccl_is_there_and_has_a_version():
    """torchtune asks for both before it allows bfloat16."""
    assert dist.is_nccl_available()
    assert torch.cuda.nccl.version() >= (2, 10)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl", None])
def test_a_group_of_processes_over_nccl_starts(backend: str | None, tmp_path: Path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        assert x.tolist() == [1.0] * 4
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("gpu")
def test_a_group_of_processes_on_the_host_still_starts(tmp_path: Path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()
