"""`torch.cuda` and `torch.accelerator`, answered for the chip."""

import gc

import pytest
import torch
from torch import nn

import torchtally
from tests.traces import ops, traced
from torchtally.errors import UnknownChipError, UnsupportedError, UsageError

GIB = 1024**3


def ceil512(n: int) -> int:
    return -(-n // 512) * 512


@pytest.mark.parametrize(
    ("chip", "name", "capability", "bf16", "label_gib"),
    [
        ("H100-SXM", "NVIDIA H100 80GB HBM3", (9, 0), True, 80),
        ("A100-SXM", "NVIDIA A100-SXM4-80GB", (8, 0), True, 80),
        ("RTX-4090", "NVIDIA GeForce RTX 4090", (8, 9), True, 24),
        ("T4", "Tesla T4", (7, 5), False, 16),
    ],
)
def test_a_chip_is_what_torch_cuda_says(
    chip: str, name: str, capability: tuple[int, int], bf16: bool, label_gib: int
):
    with torchtally.virtual_gpu(chip):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == name
        assert torch.cuda.get_device_name(0) == name
        assert torch.cuda.get_device_capability() == capability
        assert torch.cuda.get_device_capability("cuda:0") == capability
        assert torch.cuda.is_bf16_supported(including_emulation=False) is bf16
        assert torch.cuda.is_tf32_supported() is (capability >= (8, 0))
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.major, properties.minor) == (name, *capability)
        assert 0.9 * label_gib * GIB < properties.total_memory <= label_gib * GIB
        free, total = torch.cuda.mem_get_info()
        assert total == properties.total_memory
        assert 0.4 * GIB < total - free < 0.9 * GIB  # the CUDA context
        assert f"sm_{capability[0]}{capability[1]}" in torch.cuda.get_arch_list()


def test_properties_that_scripts_print():
    with torchtally.virtual_gpu("H100-SXM"):
        properties = torch.cuda.get_device_properties(torch.device("cuda"))
        assert properties.multi_processor_count == 132
        assert properties.warp_size == 32
        assert properties.L2_cache_size == 50 * 1024**2
        assert str(properties) == (
            "_CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9, minor=0, "
            "total_memory=81090MB, multi_processor_count=132, L2_cache_size=50MB)"
        )


def test_a_name_nobody_has():
    with pytest.raises(UnknownChipError, match="H100"), torchtally.virtual_gpu("H100-SXN"):
        pass


def test_a_chip_without_cuda_is_refused():
    with pytest.raises(UsageError, match="not a CUDA device"), torchtally.virtual_gpu("TPU-v5p"):
        pass


def test_a_session_within_a_session_is_refused():
    with (
        torchtally.virtual_gpu("H100-SXM"),
        pytest.raises(UsageError, match="active already"),
        torchtally.virtual_gpu("A100-SXM"),
    ):
        pass
    with torchtally.virtual_gpu("A100-SXM"):
        assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"


def test_torch_accelerator():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert str(torch.accelerator.current_accelerator(check_available=True)) == "cuda"
        assert torch.accelerator.device_count() == 1
        assert torch.accelerator.current_device_index() == 0
        torch.accelerator.set_device_index(0)
        torch.accelerator.synchronize()
        x = torch.zeros(1024, device=torch.accelerator.current_accelerator())
        assert x.is_cuda
        assert torch.accelerator.memory_allocated() == 4096
        assert torch.accelerator.max_memory_allocated() == 4096
        assert torch.accelerator.current_stream().device == torch.device("cuda", 0)


def test_devices_and_ordinals():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.cuda.current_device() == 0
        torch.cuda.set_device(0)
        torch.cuda.set_device("cuda:0")
        torch.cuda.set_device(torch.device("cuda"))
        with torch.cuda.device(0), torch.cuda.device("cuda:0"), torch.cuda.device(None):
            assert torch.cuda.current_device() == 0
        with torch.cuda.device_of(torch.zeros(1, device="cuda")):
            assert torch.zeros(1, device="cuda").get_device() == 0
        with torch.cuda.device_of(torch.zeros(1)):
            pass
        for call in (
            lambda: torch.cuda.set_device(1),
            lambda: torch.cuda.get_device_properties(3),
            lambda: torch.cuda.memory_allocated("cuda:2"),
        ):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                call()
        with pytest.raises(ValueError, match="Expected a cuda device"):
            torch.cuda.memory_allocated("cpu")


# Memory, to the byte.


def test_two_32_by_32_tensors_take_8192_bytes():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.cuda.memory_allocated() == 0
        x = torch.zeros(32, 32, device="cuda")
        y = torch.zeros(32, 32).to("cuda")
        assert torch.cuda.memory_allocated() == 2 * 32 * 32 * 4
        del x
        assert torch.cuda.memory_allocated() == 4096
        assert y.shape == (32, 32)


@pytest.mark.parametrize("elements", [0, 1, 127, 128, 129, 1000, 12345])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.complex128])
def test_every_storage_is_rounded_up_to_512_bytes(elements: int, dtype: torch.dtype):
    with torchtally.virtual_gpu("H100-SXM"):
        kept = torch.empty(elements, dtype=dtype, device="cuda")
        assert torch.cuda.memory_allocated() == ceil512(elements * dtype.itemsize)
        assert kept.numel() == elements


def test_views_take_nothing_and_keep_everything():
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.zeros(1024, device="cuda")
        views = [x[:1], x.view(32, 32), x.view(32, 32).t(), x.expand(5, 1024), x.detach()]
        assert torch.cuda.memory_allocated() == 4096
        del x, views[1:]
        assert torch.cuda.memory_allocated() == 4096  # one element holds them all
        del views
        assert torch.cuda.memory_allocated() == 0


def test_the_peak_remembers_and_is_reset():
    with torchtally.virtual_gpu("H100-SXM") as gpu:
        x = torch.zeros(1024, device="cuda")
        y = x + 1
        assert torch.cuda.max_memory_allocated() == 8192
        del y
        assert torch.cuda.memory_allocated() == 4096
        assert torch.cuda.max_memory_allocated() == 8192
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 4096
        z = x * x + x  # two at once beside x, then one
        assert torch.cuda.max_memory_allocated() == 3 * 4096
        assert torch.cuda.memory_allocated() == 2 * 4096
        assert z.numel() == 1024
        assert gpu.allocated_bytes == 8192
        assert gpu.peak_allocated_bytes == 12288


def test_in_place_operators_take_nothing():
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.zeros(1024, device="cuda")
        x.add_(1).mul_(2).clamp_(max=1).relu_()
        x += 1
        torch.add(x, 1, out=x)
        assert torch.cuda.max_memory_allocated() == 4096


def test_a_training_steps_memory_by_hand():
    """A 1024 x 1024 layer: 4 MiB of weights; then its gradient; then momentum.

    Each product's thread has a cuBLAS handle with a workspace: 32 MiB on Hopper.
    """
    mib = 1024**2
    forward, both = 32 * mib, 64 * mib
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Linear(1024, 1024, bias=False, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        assert torch.cuda.memory_allocated() == 4 * mib
        x = torch.randn(256, 1024, device="cuda")
        assert torch.cuda.memory_allocated() == 5 * mib
        loss = model(x).sum()
        assert torch.cuda.memory_allocated() == 5 * mib + 512 + forward
        loss.backward()
        del loss
        assert torch.cuda.memory_allocated() == 9 * mib + both
        optimizer.step()
        assert torch.cuda.memory_allocated() == 13 * mib + both
        optimizer.zero_grad(set_to_none=True)
        assert torch.cuda.memory_allocated() == 9 * mib + both
        optimizer.zero_grad(set_to_none=False)
        del x, optimizer, model
        gc.collect()
        assert torch.cuda.memory_allocated() == both
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == 0


def test_free_memory_shrinks_as_segments_are_made():
    with torchtally.virtual_gpu("H100-SXM"):
        free, total = torch.cuda.mem_get_info()
        x = torch.zeros(1024, device="cuda")
        assert torch.cuda.mem_get_info() == (free - 2 * 1024**2, total)
        assert x.numel() == 1024


def test_memory_stats_and_summary():
    with torchtally.virtual_gpu("H100-SXM"):
        x = torch.zeros(100, device="cuda")
        stats = torch.cuda.memory_stats()
        assert stats["allocated_bytes.all.current"] == 512
        assert stats["allocated_bytes.all.peak"] == 512
        assert stats["num_ooms"] == 0
        assert torch.cuda.memory_reserved() >= 512
        assert torch.cuda.max_memory_reserved() >= 512
        assert "512" in torch.cuda.memory_summary()
        assert x.numel() == 100
        torch.cuda.empty_cache()
        torch.cuda.ipc_collect()
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.memory_allocated() == 512


# Random numbers.


def test_random_state_is_read_and_put_back():
    with torchtally.virtual_gpu("H100-SXM"):
        torch.cuda.manual_seed(3)
        assert torch.cuda.initial_seed() == 3
        state = torch.cuda.get_rng_state()
        assert state.dtype is torch.uint8
        assert not state.is_cuda
        first = torch.rand(3, device="cuda").tolist()
        torch.cuda.set_rng_state(state)
        assert torch.rand(3, device="cuda").tolist() == first
        states = torch.cuda.get_rng_state_all()
        following = torch.rand(3, device="cuda").tolist()
        torch.cuda.set_rng_state_all(states)
        assert torch.rand(3, device="cuda").tolist() == following
        with torch.random.fork_rng():
            torch.rand(3, device="cuda")
        torch.cuda.seed()
        torch.cuda.seed_all()


def test_a_forked_random_state_changes_nothing_outside():
    with torchtally.virtual_gpu("H100-SXM"):
        torch.manual_seed(7)
        expected = torch.rand(2, device="cuda").tolist()
        torch.manual_seed(7)
        with torch.random.fork_rng(devices=[0]):
            torch.manual_seed(1)
            torch.rand(5, device="cuda")
        assert torch.rand(2, device="cuda").tolist() == expected


# Streams, events and what only matters on a device.


def test_streams_and_events():
    with torchtally.virtual_gpu("H100-SXM"):
        default = torch.cuda.current_stream()
        assert default == torch.cuda.default_stream()
        side = torch.cuda.Stream()
        assert isinstance(side, torch.cuda.Stream)
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            with torch.cuda.stream(None):
                assert torch.cuda.current_stream() == side
            x = torch.zeros(2, device="cuda")
        assert torch.cuda.current_stream() == default
        x.record_stream(side)
        default.wait_stream(side)
        event = side.record_event()
        assert event.query()
        default.wait_event(event)
        side.synchronize()
        event.synchronize()
        torch.cuda.set_stream(side)
        assert torch.cuda.current_stream() == side
        torch.cuda.set_stream(default)
        torch.cuda.synchronize()
        torch.cuda.synchronize("cuda:0")


def test_the_stream_current_again_after_an_error():
    with torchtally.virtual_gpu("H100-SXM"):
        before = torch.cuda.current_stream()
        with pytest.raises(ValueError, match="mine"), torch.cuda.stream(torch.cuda.Stream()):
            raise ValueError("mine")
        assert torch.cuda.current_stream() == before


def test_one_stream_may_be_entered_twice():
    with torchtally.virtual_gpu("H100-SXM"):
        default, side = torch.cuda.current_stream(), torch.cuda.Stream()
        with torch.cuda.stream(side), torch.cuda.stream(side):
            pass
        assert torch.cuda.current_stream() == default


def test_nvtx_and_profiler_ranges_do_nothing():
    with torchtally.virtual_gpu("H100-SXM"):
        torch.cuda.nvtx.range_push("step")
        torch.cuda.nvtx.mark("here")
        torch.cuda.nvtx.range_pop()
        with torch.cuda.nvtx.range("block"):
            pass
        with torch.profiler.record_function("block"):
            torch.zeros(2, device="cuda")
        assert torch.cuda.max_memory_allocated() == 512  # and nothing else happened


def test_what_has_no_answer_says_so():
    with torchtally.virtual_gpu("H100-SXM"):
        for call in (torch.cuda.utilization, torch.cuda.temperature, torch.cuda.power_draw):
            with pytest.raises(UnsupportedError, match="not available on tally's simulated GPU"):
                call()
        with pytest.raises(UnsupportedError, match="CUDAGraph"):
            torch.cuda.CUDAGraph().raw_cuda_graph()


def test_backends_may_be_asked_and_set():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.backends.cudnn.is_available()
        assert torch.backends.cudnn.version() >= 90000
        assert torch.backends.cuda.is_built()
        assert torch.version.cuda is not None
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = False
        torch.backends.cuda.matmul.allow_tf32 = before
        torch.set_float32_matmul_precision("highest")


def test_nothing_of_it_is_true_outside():
    available = torch.cuda.is_available()
    with torchtally.virtual_gpu("H100-SXM"):
        pass
    assert torch.cuda.is_available() is available
    assert torch.cuda.device_count() == 0 or available


def test_a_profiled_step_runs_and_the_report_says_what_was_not_seen():
    def script() -> None:
        model = nn.Linear(4, 4).cuda()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            for _ in range(2):
                with torch.profiler.record_function("forward"):
                    model(torch.zeros(2, 4, device="cuda"))
                profile.step()
        assert "forward" in profile.key_averages().table(sort_by="cuda_time_total")
        with torch.autograd.profiler.emit_nvtx(), torch.cuda.profiler.profile():
            model(torch.zeros(2, 4, device="cuda"))
        torch.cuda.cudart().cudaProfilerStart()

    trace = traced(script)
    assert len(ops(trace, "aten.addmm")) == 3
    assert [note.text for note in trace.notes] == [
        "torch.profiler saw the host only: no kernel ran on a device"
    ]


def test_data_parallel_on_one_gpu_is_the_module():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.DataParallel(nn.Linear(4, 2).cuda())
        out = model(torch.ones(3, 4))  # scattered to the device, as on a real one
        assert out.is_cuda
        assert out.shape == (3, 2)
        out.sum().backward()
        assert model.module.weight.grad is not None
        assert list(model.state_dict()) == ["module.weight", "module.bias"]


def test_modules_and_numbers_of_devices():
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.get_device_module() is torch.cuda
        assert torch.get_device_module("cuda") is torch.cuda
        assert torch.get_device(torch.zeros(1, device="cuda")) == 0
        assert torch.get_device(torch.zeros(1)) == -1


def test_the_random_state_is_a_seed_and_an_offset_as_cudas():
    """DTensor moves the offset, so that ranks draw what differs."""
    with torchtally.virtual_gpu("H100-SXM"):
        torch.cuda.manual_seed(7)
        start = torch.cuda.get_rng_state()
        assert start.view(torch.int64).tolist() == [7, 0]
        first = torch.rand(3, device="cuda").tolist()
        assert torch.cuda.get_rng_state().view(torch.int64).tolist()[1] > 0
        moved = start.clone()
        moved[8:] = torch.tensor([400]).view(torch.uint8)
        draws = []
        for state in (start, moved, start):
            torch.cuda.set_rng_state(state)
            draws.append(torch.rand(3, device="cuda").tolist())
        assert draws[0] == draws[2] == first != draws[1]
        generator = torch.Generator("cuda").manual_seed(7)
        assert generator.get_state().shape == start.shape
        own = generator.get_state()
        again = [torch.rand(2, device="cuda", generator=generator).tolist()]
        generator.set_state(own)
        assert torch.rand(2, device="cuda", generator=generator).tolist() == again[0]
        with pytest.raises(RuntimeError, match="wrong size"):
            torch.cuda.set_rng_state(torch.get_rng_state())
