"""An AMD GPU is "cuda", too, in PyTorch's build for ROCm, and says so by ROCm's names."""

import re

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import torchtally
from tests.traces import names, traced
from torchtally.chips import chip, known_chips

MIB = 1 << 20
AMD = [one for one in known_chips() if one.vendor == "AMD"]


def test_an_mi300x_by_its_names():
    """As the real one prints itself, https://github.com/pytorch/ao/pull/2853."""
    with torchtally.virtual_gpu("MI300X"):
        facts = torch.cuda.get_device_properties(0)
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_name() == facts.name == "AMD Instinct MI300X"
        assert (facts.major, facts.minor) == torch.cuda.get_device_capability() == (9, 4)
        assert facts.gcnArchName == "gfx942:sramecc+:xnack-"
        assert facts.total_memory == 196592 * MIB
        assert facts.multi_processor_count == 304
        assert facts.warp_size == 64
        assert torch.cuda.get_arch_list() == ["gfx942"]
        assert torch.cuda.is_bf16_supported()


def test_a_build_is_for_cuda_or_for_rocm():
    before = torch.version.cuda, torch.version.hip
    with torchtally.virtual_gpu("MI300X"):
        assert torch.version.cuda is None
        assert re.match(r"7\.", torch.version.hip)
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.version.cuda is not None
        assert torch.version.hip is None
    assert (torch.version.cuda, torch.version.hip) == before


def test_the_versions_of_torch_are_those_of_the_targets():
    versions = {one.name: one.device_version for one in AMD}
    assert versions["MI250X-GCD"] == (9, 0)
    assert versions["MI325X"] == (9, 4)
    assert versions["MI350X"] == versions["MI355X"] == (9, 5)
    assert chip("H100-SXM").device_version == chip("H100-SXM").compute_capability == (9, 0)
    assert chip("TPU-v5p").device_version is None


def test_attention_is_flash_where_hopper_takes_cudnns():
    def attend() -> None:
        x = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
        scaled_dot_product_attention(x, x, x, is_causal=True)

    assert "aten._scaled_dot_product_flash_attention" in names(traced(attend, gpu="MI300X"))
    assert "aten._scaled_dot_product_cudnn_attention" in names(traced(attend, gpu="H100-SXM"))


def test_products_take_no_workspace_that_no_source_gives():
    with torchtally.virtual_gpu("MI300X"):
        x = torch.zeros(256, 256, device="cuda")
        y = x @ x
        assert torch.cuda.memory_allocated() == 2 * 256 * 256 * 4
        del x, y


@pytest.mark.parametrize("one", AMD, ids=lambda one: one.name)
def test_every_one_trains(one):
    with torchtally.virtual_gpu(one):
        model = torch.nn.Linear(8, 8).cuda()
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        assert model.weight.grad.shape == (8, 8)
