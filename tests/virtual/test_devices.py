"""What Python sees of a tensor on the virtual GPU, wherever Python looks from."""

import copy
import io
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("gpu")

CUDA = torch.device("cuda", 0)


def is_on_cuda(tensor: Tensor) -> bool:
    """Every way to ask agrees that it is."""
    return (
        tensor.device == CUDA
        and tensor.is_cuda is True
        and tensor.is_cpu is False
        and tensor.is_meta is False
        and tensor.get_device() == 0
    )


def is_on_host(tensor: Tensor) -> bool:
    return (
        tensor.device == torch.device("cpu")
        and tensor.is_cuda is False
        and tensor.is_cpu is True
        and tensor.is_meta is False
        and tensor.get_device() == -1
    )


def test_tensors_parameters_and_views_are_on_cuda():
    x = torch.zeros(4, 4, device="cuda")
    model = nn.Linear(4, 4, device="cuda")
    tensors = [
        x, x.t(), x[0], x[1, 2], x.view(16), x[::2, 1:], x.detach(), x.expand(2, 4, 4), x + 1,
        x.to(torch.bfloat16), x.grad_fn or x, model.weight, model.bias, model.weight.data,
        model(x), nn.Parameter(x), x.diagonal(), x.unsqueeze(0), x.as_strided((2,), (3,)),
        *x.split(2), *x.unbind(), torch.empty_like(x), x.new_zeros(3),
    ]  # fmt: skip
    assert all(map(is_on_cuda, tensors))


def test_host_tensors_stay_on_the_host():
    model = nn.Linear(4, 4)
    tensors = [torch.zeros(2), torch.tensor([1, 2]), model.weight, model(torch.zeros(1, 4))]
    assert all(map(is_on_host, tensors))


def test_a_big_float_tensor_made_on_the_host_says_that_it_is_there():
    big = torch.randn(1024, 1024)  # 4 MiB: virtual, like a 70B model built on the CPU
    assert is_on_host(big)
    assert is_on_host(big + 1)
    assert is_on_host(big[:2, :2])
    assert is_on_cuda(big.cuda())
    assert is_on_host(big.cuda().cpu())


def test_the_storage_says_the_same_as_the_tensor():
    x = torch.zeros(4, device="cuda")
    assert x.untyped_storage().device == CUDA
    assert x.untyped_storage().is_cuda
    assert x.untyped_storage().nbytes() == 16
    assert torch.zeros(4).untyped_storage().device == torch.device("cpu")


def test_the_users_own_meta_tensors_stay_meta():
    x = torch.zeros(4, device="meta")
    assert (x.device.type, x.is_meta, x.is_cuda, x.get_device()) == ("meta", True, False, -1)
    assert (x + 1).is_meta
    with torch.device("meta"):
        model = nn.Linear(4, 4)
        assert torch.zeros(2).is_meta
    assert model.weight.is_meta
    assert model(x).is_meta
    assert torch.cuda.memory_allocated() == 0


def test_inside_vmap_and_grad_of_torch_func():
    seen: list[bool] = []

    def square(x: Tensor) -> Tensor:
        seen.append(is_on_cuda(x))
        return (x * x).sum()

    x = torch.arange(6.0, device="cuda").view(2, 3)
    assert torch.func.vmap(square)(x).tolist() == [0 + 1 + 4, 9 + 16 + 25]
    assert torch.func.grad(square)(x).tolist() == [[0, 2, 4], [6, 8, 10]]
    per_sample = torch.func.vmap(torch.func.grad(square))(x)
    assert per_sample.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert seen == [True, True, True]
    assert is_on_cuda(per_sample)


def test_inside_jacobian_transforms():
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    seen: list[bool] = []

    def cube(x: Tensor) -> Tensor:
        seen.append(is_on_cuda(x))
        return x**3

    assert torch.func.jacrev(cube)(x).diagonal().tolist() == [3, 12, 27]
    assert torch.func.jacfwd(cube)(x).diagonal().tolist() == [3, 12, 27]
    assert all(seen)


def test_inside_every_kind_of_hook():
    seen: dict[str, bool] = {}

    def note(name: str):
        def hook(*args):
            tensors = [a for a in args if isinstance(a, Tensor)]
            for arg in args:
                if isinstance(arg, tuple):
                    tensors += [item for item in arg if isinstance(item, Tensor)]
            seen[name] = bool(tensors) and all(map(is_on_cuda, tensors))

        return hook

    model = nn.Linear(3, 2, device="cuda")
    model.register_forward_pre_hook(note("forward_pre"))
    model.register_forward_hook(note("forward"))
    model.register_full_backward_pre_hook(note("backward_pre"))
    model.register_full_backward_hook(note("backward"))
    model.weight.register_hook(note("tensor"))
    model.bias.register_post_accumulate_grad_hook(note("accumulated"))
    x = torch.ones(1, 3, device="cuda", requires_grad=True)
    model(x).sum().backward()
    assert seen == dict.fromkeys(
        ["forward_pre", "forward", "backward_pre", "tensor", "accumulated", "backward"], True
    )


def test_inside_a_custom_functions_forward_and_backward():
    seen: list[bool] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(is_on_cuda(x))
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.extend([is_on_cuda(x), is_on_cuda(grad)])
            fresh = torch.full_like(grad, 2)
            seen.append(is_on_cuda(fresh))
            return grad * fresh

    x = torch.ones(3, device="cuda", requires_grad=True)
    Double.apply(x).sum().backward()
    assert seen == [True] * 4
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_in_threads_of_the_users():
    devices: list[object] = []

    def work() -> None:
        x = torch.ones(2, device="cuda")
        devices.extend([is_on_cuda(x), torch.cuda.is_available(), (x + x).tolist()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert devices == [True, True, [2, 2]]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: is_on_cuda(torch.zeros(2, device="cuda"))).result()


def test_a_thread_started_inside_may_train():
    """The backward pass runs on the thread that calls it, hooks included."""
    gradients: list[object] = []

    def work() -> None:
        w = torch.ones(3, device="cuda", requires_grad=True)
        w.register_hook(lambda g: gradients.append(is_on_cuda(g)))
        (w * 5).sum().backward()
        assert w.grad is not None
        gradients.append(w.grad.tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert gradients == [True, [5, 5, 5]]


class Tagged(Tensor):
    """A user's own subclass."""


def test_subclasses_see_it_too():
    x = torch.ones(3, device="cuda").as_subclass(Tagged)
    assert type(x + 1) is Tagged
    assert is_on_cuda(x)
    assert is_on_cuda(x + 1)


# Tensors of two devices.


def on_both() -> tuple[Tensor, Tensor]:
    return torch.ones(3, 3, device="cuda"), torch.ones(3, 3)


MIXED = {
    "mm": lambda gpu, cpu: gpu @ cpu,
    "mm, host first": lambda gpu, cpu: cpu @ gpu,
    "add": lambda gpu, cpu: gpu + cpu,
    "add, host first": lambda gpu, cpu: cpu + gpu,
    "add_": lambda gpu, cpu: gpu.add_(cpu),
    "add_ into the host": lambda gpu, cpu: cpu.add_(gpu),
    "linear": lambda gpu, cpu: nn.functional.linear(gpu, cpu),
    "linear's bias": lambda gpu, cpu: nn.functional.linear(gpu, gpu, cpu[0]),
    "a module on the host": lambda gpu, cpu: nn.Linear(3, 3)(gpu),
    "embedding": lambda gpu, cpu: nn.functional.embedding(torch.tensor([1]), gpu),
    "embedding on the host": lambda gpu, cpu: nn.functional.embedding(
        torch.tensor([1], device="cuda"), cpu
    ),
    "cat": lambda gpu, cpu: torch.cat([gpu, cpu]),
    "stack": lambda gpu, cpu: torch.stack([cpu, gpu]),
    "where": lambda gpu, cpu: torch.where(gpu > 0, gpu, cpu),
    "bmm": lambda gpu, cpu: torch.bmm(gpu[None], cpu[None]),
    "addmm": lambda gpu, cpu: torch.addmm(cpu, gpu, gpu),
    "conv": lambda gpu, cpu: nn.functional.conv1d(gpu[None], cpu[:, :, None]),
    "layer_norm": lambda gpu, cpu: nn.functional.layer_norm(gpu, (3,), cpu[0]),
    "loss": lambda gpu, cpu: nn.functional.mse_loss(gpu, cpu),
    "cross entropy": lambda gpu, cpu: nn.functional.cross_entropy(gpu, torch.tensor([0, 1, 2])),
    "attention": lambda gpu, cpu: nn.functional.scaled_dot_product_attention(
        gpu[None, None], cpu[None, None], gpu[None, None]
    ),
    "a device scalar into a host tensor": lambda gpu, cpu: cpu + gpu.sum(),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixing_devices_is_pytorchs_error(name: str):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        MIXED[name](*on_both())


def test_the_error_names_both_devices():
    gpu, cpu = on_both()
    with pytest.raises(RuntimeError, match=r"cuda:0 and cpu!"):
        gpu + cpu


def test_a_host_tensor_cannot_be_indexed_by_a_device_tensor():
    gpu, cpu = on_both()
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        cpu[gpu[0].long()]


def test_host_scalars_and_indices_may_be_mixed_in():
    gpu, _ = on_both()
    two = torch.tensor(2.0)
    assert (gpu + two).tolist() == [[3] * 3] * 3
    assert (two * gpu).tolist() == [[2] * 3] * 3
    assert is_on_cuda(two * gpu)
    assert torch.where(gpu > 0, gpu, two).tolist() == [[1] * 3] * 3
    assert gpu.masked_fill(gpu > 0, two).tolist() == [[2] * 3] * 3
    assert gpu[torch.tensor([0, 2])].shape == (2, 3)
    assert gpu[torch.tensor([True, False, True])].shape == (2, 3)
    gpu[torch.tensor([0])] = 7.0
    assert gpu.tolist() == [[7] * 3, [1] * 3, [1] * 3]
    gpu.copy_(torch.zeros(3, 3))
    assert gpu.tolist() == [[0] * 3] * 3


def test_a_host_scalar_times_a_device_scalar_is_on_the_device():
    assert is_on_cuda(torch.tensor(2.0) * torch.tensor(3.0, device="cuda"))


def test_torch_equal_across_devices_is_pytorchs_error():
    gpu, cpu = on_both()
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.equal(gpu, cpu)


def test_set_data_of_the_same_device_only_changes_the_data():
    x = torch.ones(3, device="cuda", requires_grad=True)
    y = torch.full((3,), 5.0, device="cuda")
    x.data = y
    assert x.tolist() == [5, 5, 5]
    assert x.data_ptr() == y.data_ptr()
    assert x.requires_grad


def test_a_number_is_a_cuda_device():
    """As Hugging Face's `device_map` loads: `torch.device(0)`."""
    assert torch.device(0) == CUDA
    assert torch.device(device=0) == CUDA
    assert is_on_cuda(torch.zeros(2, device=torch.device(0)))
    assert is_on_cuda(torch.zeros(2).to(torch.device(0)))
    with torch.device(0):
        assert is_on_cuda(torch.zeros(2))
    with pytest.raises(RuntimeError, match="index must not be negative"):
        torch.device(-1)


def test_devices_are_what_they_were():
    for device in (torch.device("cuda:0"), torch.device("cuda", 0), torch.device(type="cuda")):
        assert isinstance(device, torch.device)
        assert type(device) == torch.device  # noqa: E721 (as libraries ask)
        assert pickle.loads(pickle.dumps(device)) == copy.deepcopy(device) == device
    match CUDA:
        case torch.device():
            pass
        case _:
            pytest.fail("not matched by its class")
    assert isinstance(CUDA, torch.device | None)


def test_a_checkpoint_with_a_device_in_it_loads_safely():
    buffer = io.BytesIO()
    torch.save({"device": CUDA}, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == {"device": CUDA}


def test_devices_annotate_operators():
    @torch.library.custom_op("tally_tests::on", mutates_args=())
    def on(x: Tensor, device: torch.device) -> Tensor:
        return x.clone()

    on.register_fake(lambda x, device: torch.empty_like(x))
    assert is_on_cuda(on(torch.zeros(2, device="cuda"), CUDA))
