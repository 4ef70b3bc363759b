"""Making tensors on the virtual GPU, in all the ways torch has."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("gpu")

FACTORIES = {
    "zeros": (lambda device: torch.zeros(2, 3, device=device), 24),
    "ones": (lambda device: torch.ones(2, 3, device=device), 24),
    "empty": (lambda device: torch.empty(2, 3, device=device), 24),
    "empty_strided": (lambda device: torch.empty_strided((2, 3), (1, 2), device=device), 24),
    "full": (lambda device: torch.full((2, 3), 1.0, device=device), 24),
    "rand": (lambda device: torch.rand(2, 3, device=device), 24),
    "randn": (lambda device: torch.randn(2, 3, device=device), 24),
    "randint": (lambda device: torch.randint(9, (2, 3), device=device), 48),
    "randperm": (lambda device: torch.randperm(6, device=device), 48),
    "arange": (lambda device: torch.arange(6, device=device), 48),
    "arange of floats": (lambda device: torch.arange(0, 3, 0.5, device=device), 24),
    "linspace": (lambda device: torch.linspace(0, 1, 6, device=device), 24),
    "logspace": (lambda device: torch.logspace(0, 1, 6, device=device), 24),
    "eye": (lambda device: torch.eye(3, device=device), 36),
    "tril_indices": (lambda device: torch.tril_indices(3, 3, device=device), 2 * 6 * 8),
    "scalar_tensor": (lambda device: torch.scalar_tensor(3.0, device=device), 4),
    "hann_window": (lambda device: torch.hann_window(6, periodic=False, device=device), 24),
    "complex": (lambda device: torch.zeros(3, dtype=torch.complex64, device=device), 24),
    "tensor": (lambda device: torch.tensor([[1.0, 2.0, 3.0], [4, 5, 6]], device=device), 24),
    "tensor of one number": (lambda device: torch.tensor(3.0, device=device), 4),
    "tensor of numpy": (lambda device: torch.tensor(np.zeros(3), device=device), 24),
    "as_tensor": (lambda device: torch.as_tensor([1.0, 2.0, 3.0], device=device), 12),
    "as_tensor of numpy": (lambda device: torch.as_tensor(np.zeros(3), device=device), 24),
    "asarray": (lambda device: torch.asarray([1.0, 2.0, 3.0], device=device), 12),
    "nn.Parameter": (lambda device: nn.Parameter(torch.zeros(6, device=device)), 24),
    "distribution": (
        lambda device: torch.distributions.Normal(
            torch.zeros(6, device=device), torch.ones(6, device=device)
        ).sample(),
        24,
    ),
}
DEVICES = ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)]


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_makes_it_on_the_device_it_is_given(name: str):
    make, size = FACTORIES[name]
    for device in DEVICES:
        tensor = make(device)
        assert tensor.device == torch.device("cuda", 0)
        assert tensor.untyped_storage().nbytes() == size
    host = make("cpu")
    assert host.device.type == "cpu"
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (host.shape, host.stride(), host.dtype)


@pytest.mark.parametrize("name", FACTORIES)
def test_every_factory_heeds_the_device_context(name: str):
    make, _ = FACTORIES[name]
    for device in ("cuda", torch.device("cuda", 0)):
        with torch.device(device):
            assert make(None).device == torch.device("cuda", 0)
    assert make(None).device.type == "cpu"


def test_set_default_device():
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda
        assert torch.tensor([1, 2]).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
        assert torch.get_default_device() == torch.device("cuda", 0)
        assert not torch.zeros(2, device="cpu").is_cuda
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_modules_made_under_a_device_context_are_on_it():
    with torch.device("cuda"):
        model = nn.Sequential(nn.Embedding(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        assert model(torch.tensor([1, 2])).shape == (2, 2)
    assert all(p.is_cuda for p in model.parameters())


def test_values_given_are_kept():
    assert torch.tensor([1, 2, 3], device="cuda").tolist() == [1, 2, 3]
    assert torch.tensor(2.5, device="cuda").item() == 2.5
    assert torch.tensor([True, False], device="cuda").tolist() == [True, False]
    assert torch.as_tensor(np.array([1.5, 2.5]), device="cuda").tolist() == [1.5, 2.5]
    assert torch.full((2,), 7, device="cuda").tolist() == [7, 7]
    assert torch.eye(2, device="cuda").tolist() == [[1, 0], [0, 1]]
    assert torch.arange(3, device="cuda").tolist() == [0, 1, 2]


def test_dtype_and_requires_grad_are_heeded():
    tensor = torch.tensor([1, 2], dtype=torch.bfloat16, device="cuda", requires_grad=True)
    assert tensor.dtype is torch.bfloat16
    assert tensor.requires_grad
    assert tensor.is_leaf
    assert torch.tensor([1.0, 2.0], device="cuda").dtype is torch.float32
    assert torch.tensor([1, 2], device="cuda").dtype is torch.int64
    assert torch.as_tensor([1, 2], dtype=torch.float16, device="cuda").dtype is torch.float16


def test_tensor_of_a_tensor_copies_and_as_tensor_shares():
    source = torch.tensor([1.0, 2.0], device="cuda")
    with pytest.warns(UserWarning, match="copy construct"):
        copy = torch.tensor(source)
    assert copy.is_cuda
    assert copy.data_ptr() != source.data_ptr()
    assert torch.as_tensor(source) is source
    assert torch.asarray(source).data_ptr() == source.data_ptr()
    assert torch.asarray(source, copy=True).data_ptr() != source.data_ptr()


def test_tensor_of_a_list_of_device_tensors():
    """A list of scalars on the device, as people stack losses."""
    losses = [torch.tensor(1.0, device="cuda"), torch.tensor(2.0, device="cuda")]
    assert torch.tensor(losses).tolist() == [1, 2]
    assert torch.tensor(losses, device="cuda").tolist() == [1, 2]
    assert torch.stack(losses).mean().item() == 1.5


def test_the_new_family_follows_its_tensor():
    x = torch.zeros(2, dtype=torch.float16, device="cuda")
    tensors = [
        x.new_zeros(3), x.new_ones(3), x.new_empty(3), x.new_full((3,), 2.0),
        x.new_empty_strided((3,), (1,)), x.new_tensor([1, 2, 3]), x.new(3), x.new([1, 2, 3]),
        torch.zeros_like(x), torch.ones_like(x), torch.rand_like(x), torch.randn_like(x),
        torch.full_like(x, 3), torch.empty_like(x),
    ]  # fmt: skip
    assert all(t.is_cuda and t.dtype is torch.float16 for t in tensors)
    assert x.new_tensor([1, 2, 3]).tolist() == [1, 2, 3]
    assert x.new([1, 2, 3]).tolist() == [1, 2, 3]
    assert not x.new_zeros(3, device="cpu").is_cuda
    assert torch.zeros(2).new_tensor([1], device="cuda").is_cuda
    assert torch.zeros(2).new_empty(3, device=torch.cuda.current_device()).is_cuda
    assert x.new_zeros(size=[3], device=0).device == x.device


def test_the_like_family_moves_when_asked():
    host = torch.zeros(2)
    assert torch.zeros_like(host, device="cuda").is_cuda
    assert not torch.zeros_like(torch.zeros(2, device="cuda"), device="cpu").is_cuda


def test_legacy_type_names():
    x = torch.zeros(2, device="cuda")
    assert x.type() == "torch.cuda.FloatTensor"
    assert x.half().type() == "torch.cuda.HalfTensor"
    assert torch.zeros(2).type() == "torch.FloatTensor"
    assert torch.zeros(2).type("torch.cuda.HalfTensor").is_cuda
    assert torch.zeros(2).type(torch.cuda.FloatTensor).is_cuda
    assert not x.type("torch.FloatTensor").is_cuda
    assert x.type(torch.int64).dtype is torch.int64
    assert x.type(torch.int64).is_cuda
    assert x.type_as(torch.zeros(1, dtype=torch.float64)).dtype is torch.float64
    assert torch.zeros(2).type_as(x).is_cuda


def test_legacy_constructors():
    tensor = torch.cuda.FloatTensor(2, 3)
    assert tensor.is_cuda
    assert tensor.shape == (2, 3)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert isinstance(tensor, torch.cuda.FloatTensor)
    assert not isinstance(tensor, torch.cuda.LongTensor)
    assert not isinstance(torch.zeros(2), torch.cuda.FloatTensor)


@pytest.mark.parametrize("cuda", ["torch.cuda.HalfTensor", "HalfTensor"])
def test_the_default_tensor_type_is_a_device_and_a_dtype(cuda: str):
    """As scripts of old began: by the name, or by the type itself."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_tensor_type(cuda if "." in cuda else getattr(torch.cuda, cuda))
        assert torch.zeros(2).is_cuda
        assert torch.zeros(2).dtype is torch.float16
        torch.set_default_tensor_type("torch.FloatTensor")
        assert not torch.zeros(2).is_cuda
        assert torch.zeros(2).dtype is torch.float32
    finally:
        torch.set_default_dtype(before)


def test_generators_say_where_they_are_and_repeat_themselves():
    generator = torch.Generator(device="cuda")
    assert generator.device.type == "cuda"
    assert isinstance(generator, torch.Generator)
    assert generator.manual_seed(5) is generator
    assert generator.initial_seed() == 5
    first = torch.rand(3, device="cuda", generator=generator).tolist()
    assert torch.rand(3, device="cuda", generator=generator).tolist() != first
    generator.manual_seed(5)
    assert torch.rand(3, device="cuda", generator=generator).tolist() == first
    state = generator.get_state()
    following = torch.rand(3, device="cuda", generator=generator).tolist()
    generator.set_state(state)
    assert torch.rand(3, device="cuda", generator=generator).tolist() == following
    assert torch.Generator().device.type == "cpu"


def test_a_host_generator_on_the_device_is_pytorchs_error():
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.rand(3, device="cuda", generator=torch.Generator())


def test_host_random_numbers_do_not_depend_on_the_devices():
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    torch.rand(5, device="cuda")
    assert torch.rand(3).tolist() == expected


def test_manual_seed_seeds_the_device_too():
    def draw() -> list[float]:
        drawn: list[float] = torch.rand(3, device="cuda").tolist()
        return drawn

    torch.manual_seed(1)
    first = draw()
    assert draw() != first
    torch.manual_seed(1)
    assert draw() == first
    torch.cuda.manual_seed(2)
    second = draw()
    torch.cuda.manual_seed_all(2)
    assert draw() == second


def test_initialisers_work_in_place():
    weight = torch.empty(8, 8, device="cuda")
    assert nn.init.ones_(weight).sum().item() == 64
    assert nn.init.constant_(weight, 2.0)[3, 3].item() == 2
    assert nn.init.eye_(weight).sum().item() == 8
    for init in (nn.init.xavier_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_):
        assert init(weight) is weight
    nn.init.trunc_normal_(weight, std=0.02, a=-0.01, b=0.01)
    assert weight.abs().max().item() <= 0.01


def test_from_numpy_is_on_the_host_until_moved():
    array = np.arange(4)
    assert not torch.from_numpy(array).is_cuda
    assert torch.from_numpy(array).cuda().tolist() == [0, 1, 2, 3]


def test_an_ordinal_that_is_not_there_is_cudas_error():
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.zeros(2).to("cuda:7")
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.tensor([1], device=1)


def test_big_host_tensors_cost_no_memory():
    huge = torch.empty(2**20, 2**20)  # 4 TiB
    assert huge.numel() == 2**40
    assert huge.to(torch.bfloat16).untyped_storage().nbytes() == 2**41
    assert isinstance(huge, Tensor)
