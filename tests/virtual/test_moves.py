"""Tensors between host and device, and what may be read of them."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)
TO_CUDA = {
    "name": lambda x: x.to("cuda"),
    "name and index": lambda x: x.to("cuda:0"),
    "number": lambda x: x.to(0),
    "device": lambda x: x.to(torch.device("cuda")),
    "keyword": lambda x: x.to(device="cuda"),
    "non_blocking": lambda x: x.to("cuda", non_blocking=True),
    "non_blocking by position": lambda x: x.to("cuda", torch.float32, True),
    "copy": lambda x: x.to("cuda", copy=True),
    "copy by position": lambda x: x.to("cuda", torch.float32, False, True),
    "other tensor": lambda x: x.to(torch.zeros(1, device="cuda")),
    "other by keyword": lambda x: x.to(other=torch.zeros(1, device="cuda")),
    "memory_format": lambda x: x.to("cuda", memory_format=torch.contiguous_format),
    "cuda()": lambda x: x.cuda(),
    "cuda(0)": lambda x: x.cuda(0),
    "cuda(device)": lambda x: x.cuda(torch.device("cuda:0"), non_blocking=True),
    "cuda(name)": lambda x: x.cuda("cuda"),
    "pinned": lambda x: x.pin_memory().to("cuda", non_blocking=True),
    "torch.cuda.device": lambda x: x.to(torch.cuda.current_device()),
    "accelerator": lambda x: x.to(torch.accelerator.current_accelerator()),
}


@pytest.mark.parametrize("name", TO_CUDA)
def test_every_way_to_the_device_and_back(name: str):
    x = torch.arange(6.0).view(2, 3)
    moved = TO_CUDA[name](x)
    assert moved.device == CUDA
    assert moved.dtype is torch.float32
    assert moved.cpu().device.type == "cpu"
    assert moved.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert moved.to("cpu").tolist() == x.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_moving_and_casting_at_once(dtype: torch.dtype):
    x = torch.arange(4.0)
    for moved in (
        x.to("cuda", dtype),
        x.to(device="cuda", dtype=dtype),
        x.to(torch.zeros(1, dtype=dtype, device="cuda")),
    ):
        assert moved.device == CUDA
        assert moved.dtype is dtype
        assert moved.tolist() == [0, 1, 2, 3]


def test_casting_alone_stays_where_it_is():
    x = torch.arange(4.0, device="cuda")
    for cast in (x.to(torch.float16), x.half(), x.bfloat16(), x.double(), x.long(), x.bool()):
        assert cast.device == CUDA
    assert x.to(torch.int32).tolist() == [0, 1, 2, 3]
    assert x.to(dtype=torch.float64).dtype is torch.float64
    assert x.float() is x


def test_to_where_it_is_already_is_the_tensor_itself():
    x = torch.zeros(2, device="cuda")
    assert x.to("cuda") is x
    assert x.to("cuda:0") is x
    assert x.cuda() is x
    assert x.to(torch.float32) is x
    assert x.to(x) is x
    host = torch.zeros(2)
    assert host.to("cpu") is host
    assert host.cpu() is host


def test_copy_makes_a_new_tensor():
    x = torch.ones(2, device="cuda")
    copied = x.to("cuda", copy=True)
    assert copied.data_ptr() != x.data_ptr()
    x.zero_()
    assert copied.tolist() == [1, 1]
    assert x.to(torch.float32, copy=True) is not x


def test_gradients_flow_through_moves():
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (w.to("cuda") * 3).sum().backward()
    assert w.grad is not None
    assert w.grad.device.type == "cpu"
    assert w.grad.tolist() == [3, 3]
    v = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    (v.cpu() * 4).sum().backward()
    assert v.grad is not None
    assert v.grad.device == CUDA
    assert v.grad.tolist() == [4, 4]


def test_layout_is_kept_or_changed_as_asked():
    image = torch.zeros(2, 3, 4, 5).to("cuda", memory_format=torch.channels_last)
    assert image.stride() == (60, 1, 15, 3)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert image.to(torch.float16).stride() == (60, 1, 15, 3)
    assert torch.zeros(2, 3).t().cuda().stride() == (1, 3)
    assert torch.zeros(2, 3, device="cuda").t().contiguous().stride() == (2, 1)
    assert torch.zeros(2, 3, device="cuda").t().cpu().stride() == (1, 3)


def test_to_meta_drops_the_values():
    x = torch.zeros(2, 3, device="cuda").to("meta")
    assert x.is_meta
    assert x.shape == (2, 3)


def test_moving_a_users_meta_tensor_is_pytorchs_error():
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        torch.zeros(2, device="meta").to("cuda")
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        nn.Linear(2, 2, device="meta").to("cuda")


# Reading.


def test_numpy_of_a_device_tensor_is_pytorchs_error():
    x = torch.zeros(2, device="cuda")
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        x.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        np.asarray(x)
    with pytest.raises(RuntimeError, match="requires grad"):
        torch.zeros(2, device="cuda", requires_grad=True).cpu().numpy()


def test_numpy_after_cpu_has_the_values():
    x = torch.arange(3.0, device="cuda")
    assert x.cpu().numpy().tolist() == [0, 1, 2]
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert np.asarray(x.cpu()).tolist() == [0, 1, 2]
    assert x.detach().cpu().numpy().dtype == np.float32


def test_scalars_are_read_in_every_way():
    x = torch.tensor(2.5, device="cuda")
    assert x.item() == float(x) == 2.5
    assert int(x) == 2
    assert bool(x)
    assert math.floor(x) == 2
    assert x.tolist() == 2.5
    assert f"{x:.3f}" == "2.500"
    assert f"{x}" == "2.5"
    assert f"loss {x.item():.2f}" == "loss 2.50"
    assert "%.1f" % x == "2.5"  # noqa: UP031
    index = torch.tensor(1, device="cuda")
    assert [10, 20, 30][index] == 20
    assert list(range(torch.tensor(3, device="cuda"))) == [0, 1, 2]
    assert x > 2
    assert 2.5 in torch.tensor([1.0, 2.5], device="cuda")


def test_tolist_and_iteration():
    x = torch.tensor([[1, 2], [3, 4]], device="cuda")
    assert x.tolist() == [[1, 2], [3, 4]]
    assert [row.sum().item() for row in x] == [3, 7]
    assert len(x) == 2
    a, b = x[0]
    assert (a.item(), b.item()) == (1, 2)


def test_item_of_many_is_pytorchs_error():
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        torch.zeros(3, device="cuda").item()


def test_printing():
    assert repr(torch.tensor([1, 2], device="cuda")) == "tensor([1, 2], device='cuda:0')"
    assert str(torch.tensor(1.5, device="cuda")) == "tensor(1.5000, device='cuda:0')"
    half = torch.tensor([1.0], dtype=torch.float16, device="cuda")
    assert repr(half) == "tensor([1.], device='cuda:0', dtype=torch.float16)"
    leaf = torch.tensor([1.0], device="cuda", requires_grad=True)
    assert repr(leaf) == "tensor([1.], device='cuda:0', requires_grad=True)"
    assert repr(leaf * 2) == "tensor([2.], device='cuda:0', grad_fn=<MulBackward0>)"
    assert repr(nn.Parameter(leaf.detach())) == (
        "Parameter containing:\ntensor([1.], device='cuda:0', requires_grad=True)"
    )
    assert repr(torch.zeros(100, 100, device="cuda")).startswith("tensor([[0., 0., 0.,  ..., 0.")
    big = repr(torch.randn(100, 100, device="cuda"))
    assert "size=(100, 100)" in big
    assert "device='cuda:0'" in big
    assert "meta" not in big


def test_printing_a_module_and_a_container():
    assert "Linear(in_features=2, out_features=2" in repr(nn.Linear(2, 2, device="cuda"))
    assert str({"x": torch.tensor(1, device="cuda")}) == "{'x': tensor(1, device='cuda:0')}"


# Identity and memory.


def test_data_ptrs_are_distinct_and_views_share():
    x, y = torch.zeros(4, 4, device="cuda"), torch.zeros(4, 4, device="cuda")
    assert x.data_ptr() != y.data_ptr() != 0
    assert x.t().data_ptr() == x.data_ptr() == x.view(16).data_ptr() == x.detach().data_ptr()
    assert x[1].data_ptr() == x.data_ptr() + 16
    assert x.untyped_storage().data_ptr() == x[1].untyped_storage().data_ptr() == x.data_ptr()
    assert x.data_ptr() % 512 == 0
    assert x.is_set_to(x.view(4, 4))


def test_a_write_through_a_view_shows_in_the_other():
    x = torch.zeros(2, 3, device="cuda")
    x[0].fill_(5)
    x.t()[2, 1] = 7
    assert x.tolist() == [[5, 5, 5], [0, 0, 7]]
    x.view(-1)[3:5].add_(1)
    assert x.tolist() == [[5, 5, 5], [1, 1, 7]]


def test_deepcopy_copies_once_what_is_shared():
    a = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    view = a[1:]
    first, second = copy.deepcopy([a, view])
    assert first.data_ptr() != a.data_ptr()
    assert second.data_ptr() == first.data_ptr() + 4
    first[1] = 9
    assert second.tolist() == [9, 3]
    assert a.tolist() == [1, 2, 3]


def test_deepcopy_of_a_model_keeps_tied_weights():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).cuda()
    model[1].weight = model[0].weight
    model[0].weight.grad = torch.ones(2, 2, device="cuda")
    copied = copy.deepcopy(model)
    assert copied[1].weight is copied[0].weight
    assert isinstance(copied[0].weight, nn.Parameter)
    assert copied[0].weight.requires_grad
    assert copied[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert copied[0].weight.tolist() == model[0].weight.tolist()
    assert copied[0].weight.grad is None  # as torch copies parameters: without it


def test_shallow_copies_and_clones():
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert copy.copy(x).tolist() == [1, 2]
    cloned = x.clone()
    cloned[0] = 5
    assert x.tolist() == [1, 2]


def test_data_of_a_host_tensor_may_be_set_to_a_device_tensor():
    """How modules of old move themselves."""
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    before = id(p)
    p.data = p.data.cuda()
    assert id(p) == before
    assert p.is_cuda
    assert p.requires_grad
    assert p.tolist() == [1, 2]
    p.data = p.data.cpu()
    assert not p.is_cuda
    assert p.tolist() == [1, 2]


def test_dlpack_and_the_array_interface_say_what_is_wrong():
    x = torch.zeros(2, device="cuda")
    with pytest.raises((TypeError, RuntimeError, BufferError, AttributeError)):
        _ = np.from_dlpack(x)


# Modules.


def test_modules_move_their_parameters_in_place():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    parameters = list(model.parameters())
    values = [p.tolist() for p in parameters]
    assert model.to("cuda") is model
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(p.is_cuda and p.requires_grad and p.is_leaf for p in model.parameters())
    assert all(b.is_cuda for b in model.buffers())
    assert [p.tolist() for p in model.parameters()] == values
    model.cpu()
    assert not any(p.is_cuda for p in model.parameters())
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [p.tolist() for p in model.parameters()] == values


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.cuda(),
        lambda model: model.cuda(0),
        lambda model: model.to(0),
        lambda model: model.to("cuda", torch.float32),
        lambda model: model.to(device=torch.device("cuda"), non_blocking=True),
        lambda model: model.to(torch.zeros(1, device="cuda")),
    ],
)
def test_every_way_to_move_a_module(move):
    model = move(nn.Linear(2, 2))
    assert model.weight.is_cuda
    assert isinstance(model.weight, nn.Parameter)


def test_an_optimizer_made_before_the_move_still_has_the_parameters():
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[5.0, 6.0]]))
    model.cuda()
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [[4, 5]]


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(4, 2)
            self.head = nn.Linear(2, 4, bias=False)
            self.head.weight = self.embed.weight

    before = torch.cuda.memory_allocated()
    model = Tied().to("cuda")
    assert model.head.weight is model.embed.weight
    assert len(list(model.parameters())) == 1
    assert torch.cuda.memory_allocated() - before == 512


def test_a_module_with_gradients_moves_them_too():
    model = nn.Linear(2, 1, bias=False)
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad
    model.cuda()
    assert model.weight.grad is not None
    assert model.weight.grad.is_cuda
    assert model.weight.grad.tolist() == [[1, 1]]
    assert gradient is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_casting_a_module(dtype: torch.dtype):
    model = nn.Linear(2, 2).cuda()
    weight = model.weight
    assert model.to(dtype).weight is weight
    assert weight.dtype is dtype
    assert weight.is_cuda
    assert model(torch.ones(1, 2, dtype=dtype, device="cuda")).dtype is dtype
    assert nn.Linear(2, 2).to("cuda", dtype).weight.dtype is dtype


def test_half_bfloat16_and_float():
    model = nn.Linear(2, 2).cuda()
    assert model.half().weight.dtype is torch.float16
    assert model.bfloat16().weight.dtype is torch.bfloat16
    assert model.float().weight.dtype is torch.float32
    assert model.weight.is_cuda


def test_a_meta_model_becomes_real_with_to_empty():
    with torch.device("meta"):
        model = nn.Linear(1024, 1024, bias=False)
    assert torch.cuda.memory_allocated() == 0
    model.to_empty(device="cuda")
    assert model.weight.is_cuda
    assert isinstance(model.weight, nn.Parameter)
    assert torch.cuda.memory_allocated() == 4 * 1024 * 1024
    model.reset_parameters()


@pytest.mark.parametrize("options", [{}, {"device": "cuda"}], ids=str)
def test_lazy_modules_get_their_shape_where_they_are(options: dict[str, str]):
    model = nn.Sequential(nn.LazyLinear(4, **options), nn.LazyBatchNorm1d(**options)).cuda()
    assert model(torch.ones(2, 3, device="cuda")).shape == (2, 4)
    assert model[0].weight.shape == (4, 3)
    assert type(model[0].weight) is nn.Parameter
    assert all(p.is_cuda for p in model.parameters())


def test_state_dicts_go_round():
    source, target = nn.Linear(2, 2).cuda(), nn.Linear(2, 2).cuda()
    state = source.state_dict()
    assert all(t.is_cuda for t in state.values())
    assert state["weight"].data_ptr() == source.weight.data_ptr()
    weight = target.weight
    result = target.load_state_dict(state)
    assert str(result) == "<All keys matched successfully>"
    assert target.weight is weight
    assert target.weight.tolist() == source.weight.tolist()
    assert target.weight.data_ptr() != source.weight.data_ptr()
    host = nn.Linear(2, 2)
    host.load_state_dict(state)
    assert host.weight.tolist() == source.weight.tolist()
    target.load_state_dict(nn.Linear(2, 2).state_dict())
    assert target.weight.is_cuda


def test_load_state_dict_with_assign():
    source = nn.Linear(2, 2).cuda()
    with torch.device("meta"):
        target = nn.Linear(2, 2)
    target.load_state_dict(source.state_dict(), assign=True)
    assert target.weight.is_cuda
    assert target.weight.data_ptr() == source.weight.data_ptr()


def test_a_state_dict_of_the_wrong_shape_is_pytorchs_error():
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        nn.Linear(2, 3).cuda().load_state_dict(nn.Linear(2, 2).cuda().state_dict())


def test_share_memory_and_pinning():
    host = torch.arange(3.0)
    pinned = host.pin_memory()
    assert pinned.is_pinned()
    assert not host.is_pinned()
    assert pinned.tolist() == [0, 1, 2]
    assert torch.zeros(3, pin_memory=True).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.zeros(3, device="cuda").is_pinned()


def test_resizing_and_setting_storage():
    x = torch.zeros(4, device="cuda")
    x.resize_(1024)
    assert torch.cuda.memory_allocated() == 4096
    x.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == 0
    x.untyped_storage().resize_(2048)
    assert torch.cuda.memory_allocated() == 2048


def test_big_host_models_move_without_values():
    model = nn.Linear(1024, 1024, bias=False)
    assert not model.weight.is_cuda
    weight = model.weight
    model.cuda()
    assert model.weight is weight
    assert weight.is_cuda
    assert torch.cuda.memory_allocated() == 4 * 1024 * 1024
    model.cpu()
    assert model.weight is weight
    assert not weight.is_cuda
    assert torch.cuda.memory_allocated() == 0
