"""`torchtally.numbers`: what formats would lose of a model's weights, gradients and activations."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.number_formats import NumberFormat, choose_formats
from torchtally.number_formats.losses import TensorStatistics
from torchtally.number_formats.statistics import tensor_statistics
from torchtally.numerics.counting import own_part
from torchtally.numerics.files.torch_file import parts_of
from torchtally.views.tensor_numbers import TensorNumbers, chosen


def numbers(
    model: nn.Module, formats: Sequence[str] = (), *, inputs: Tensor | tuple[Any, ...] | None = None
) -> TensorNumbers:
    """What formats lose of a model's parameters, and of their gradients where there are some;
    printed, what `tally dtypes FILE` prints.

        loss.backward()
        print(torchtally.numbers(model, ["fp16", "fp8"]))
        print(torchtally.numbers(model, inputs=rows))       # and of each layer's output

    Every number is counted, on the host. By default in fp16, bf16, fp8, mxfp8 and nvfp4. A gradient
    has its parameter's name and ".grad". With `inputs` (a tensor, or a tuple of arguments) the
    model is run on them once, without gradients, in the mode that it is in: the output of each
    module without modules in it has that module's name and ".output", in the order in which they
    ran. Modules that run several times have an output for each. Raises UsageError for an unknown
    format.
    """
    rows = choose_formats(chosen(formats))
    tensors = [statistics_of(name, tensor, rows) for name, tensor in _stored(model)]
    if inputs is not None:
        tensors += _activations(model, inputs if isinstance(inputs, tuple) else (inputs,), rows)
    return TensorNumbers(type(model).__name__, rows, tuple(tensors))


def _stored(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            yield name, own_part(parameter)
        if parameter.grad is not None:
            yield f"{name}.grad", own_part(parameter.grad)


def _activations(
    model: nn.Module, inputs: tuple[Any, ...], formats: Sequence[NumberFormat]
) -> list[TensorStatistics]:
    """Outputs of the innermost modules in one forward pass. They are counted at once, and none is
    kept.
    """
    found: list[TensorStatistics] = []

    def count(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple | list) else (output,)
        for each in outputs:
            if isinstance(each, Tensor) and each.is_floating_point():
                found.append(statistics_of(f"{name}.output", own_part(each), formats))

    with torch.no_grad(), _listening(model, count):
        model(*inputs)
    return found


@contextmanager
def _listening(model: nn.Module, count: Any) -> Iterator[None]:
    """Context in which the outputs of innermost modules are counted."""
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if next(module.children(), None) is None:
                hook = module.register_forward_hook(partial(count, name or type(module).__name__))
                stack.callback(hook.remove)
        yield


def statistics_of(name: str, tensor: Tensor, formats: Sequence[NumberFormat]) -> TensorStatistics:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return tensor_statistics(name, dtype, partial(parts_of, tensor), formats)
