"""What an optimizer keeps for every parameter, tensor by tensor.

State is counted as PyTorch and the optimizers' authors keep it on the device. Adam's step counters,
4 bytes for each tensor, are on the host, but for `fused=True`, where they are on the device.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod

from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.architecture.weights import Group, Weight
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.units import Unit

QUANTISED_FROM_ELEMENTS = 4096
"""Smaller tensors keep their state in float32: bitsandbytes, `min_8bit_size`."""
DETTMERS = "Dettmers et al. 2021, arXiv 2110.02861"
BLOCK_ELEMENTS = 256
"""Of block-wise 8-bit state in bitsandbytes from 0.44 on; the paper has blocks of 2048."""
MUON = "Jordan et al. 2024 (kellerjordan.github.io/posts/muon); AdamW for all but inner matrices"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer: how many bytes it keeps for a tensor."""

    name: str
    moments: int | None
    """Numbers of state for each parameter, in the recipe's state dtype; None: it depends on shapes,
    or has a dtype of its own."""
    tensor_bytes: Callable[[Weight, int], int]
    """(a weight, bytes of the recipe's state dtype) to the bytes of state of one such tensor."""
    source: str = ""

    def state_bytes(self, weights: Iterable[Weight], itemsize_bytes: int) -> int:
        """Bytes of state for all of these tensors."""
        return sum(weight.count * self.tensor_bytes(weight, itemsize_bytes) for weight in weights)


def optimizer_state_bytes(
    optimizer: Optimizer, weights: Iterable[Weight], itemsize_bytes: int
) -> Quantity:
    """Optimizer state of a model, whose weights are known one by one."""
    tensors = tuple(weights)
    parameters = of(sum(weight.elements for weight in tensors), Unit.PARAMETERS)
    if optimizer.moments is not None:
        return uniform_state_bytes(optimizer, parameters, itemsize_bytes)
    size = optimizer.state_bytes(tensors, itemsize_bytes)
    each = f"{size / max(parameters.value, 1):.4g} bytes a parameter"
    return derive(
        "optimizer state",
        Unit.BYTES,
        "state_bytes",
        optimizer.source,
        f"{optimizer.name}, tensor by tensor: {each}",
        state_bytes=of(size, Unit.BYTES),
    )


def uniform_state_bytes(optimizer: Optimizer, parameters: Amount, itemsize_bytes: int) -> Quantity:
    """Optimizer state of so many parameters, where all of them are treated alike.

    Raises UsageError for an optimizer whose state depends on the tensors' shapes.
    """
    if optimizer.moments is None:
        raise UsageError(
            f"The state of {optimizer.name} depends on the weights' shapes, not only on their "
            "number: give a model by its name, its config.json, or --layers, --width and "
            "--vocabulary."
        )
    return moments_bytes(parameters, optimizer.moments, itemsize_bytes, optimizer.source)


def moments_bytes(
    parameters: Amount, moments: Amount, state_bytes: Amount, source: str = ""
) -> Quantity:
    """Optimizer state of so many numbers for each parameter, of so many bytes each."""
    return derive(
        "optimizer state",
        Unit.BYTES,
        "parameters * moments * state_bytes",
        source,
        parameters=of(parameters, Unit.PARAMETERS),
        moments=of(moments, Unit.NUMBER),
        state_bytes=of(state_bytes, Unit.BYTES_PER_PARAMETER),
    )


def _moment_bytes(count: int) -> Callable[[Weight, int], int]:
    return lambda weight, itemsize_bytes: count * itemsize_bytes * prod(weight.shape)


def _factored_bytes(weight: Weight, itemsize_bytes: int) -> int:
    """A row and a column of second moments for each matrix; of a vector, all."""
    *stacked, rows, columns = (1, *weight.shape)
    if len(weight.shape) < 2:
        return itemsize_bytes * prod(weight.shape)
    return itemsize_bytes * prod(stacked) * (rows + columns)


def _orthogonal_bytes(weight: Weight, itemsize_bytes: int) -> int:
    """A momentum for each matrix within the layers; two moments, AdamW's, for all else."""
    is_outside = weight.group in (Group.EMBEDDING, Group.HEAD)
    moments = 2 if is_outside or len(weight.shape) < 2 else 1
    return moments * itemsize_bytes * prod(weight.shape)


def _block_bytes(moments: int) -> Callable[[Weight, int], int]:
    """A byte for each number of a moment, and a float32 scale for each block of them."""

    def tensor_bytes(weight: Weight, itemsize_bytes: int) -> int:
        size = prod(weight.shape)
        if size < QUANTISED_FROM_ELEMENTS:
            return 4 * moments * size
        return moments * (size + 4 * ceil(size / BLOCK_ELEMENTS))

    return tensor_bytes


_LISTED = (
    Optimizer("sgd", 0, _moment_bytes(0)),
    Optimizer("momentum", 1, _moment_bytes(1), "torch.optim.SGD with momentum: the running mean"),
    Optimizer("adagrad", 1, _moment_bytes(1), "Duchi et al. 2011: the sum of squares"),
    Optimizer("rmsprop", 1, _moment_bytes(1), "torch.optim.RMSprop: the running mean of squares"),
    Optimizer("adam", 2, _moment_bytes(2), "Kingma and Ba 2015, arXiv 1412.6980: two moments"),
    Optimizer(
        "adamw", 2, _moment_bytes(2), "Loshchilov and Hutter 2019, arXiv 1711.05101: two moments"
    ),
    Optimizer(
        "amsgrad", 3, _moment_bytes(3), "torch.optim.AdamW with amsgrad: and the largest second"
    ),
    Optimizer(
        "lion", 1, _moment_bytes(1), "Chen et al. 2023, arXiv 2302.06675: the momentum alone"
    ),
    Optimizer(
        "adafactor", None, _factored_bytes, "Shazeer and Stern 2018, arXiv 1804.04235, section 3"
    ),
    Optimizer("muon", None, _orthogonal_bytes, MUON),
    Optimizer("adamw-8bit", None, _block_bytes(2), f"{DETTMERS}; bitsandbytes"),
    Optimizer("lion-8bit", None, _block_bytes(1), "bitsandbytes, block-wise as its 8-bit Adam"),
)
OPTIMIZERS: Mapping[str, Optimizer] = {listed.name: listed for listed in _LISTED}


def optimizer(name: str) -> Optimizer:
    """The optimizer of this name. Raises UsageError for any other."""
    if (optimizer := OPTIMIZERS.get(name.lower())) is None:
        raise UsageError(f"Unknown optimizer {name!r}. {did_you_mean(name, OPTIMIZERS)}")
    return optimizer
