"""`torchtally.numbers`: what formats would lose of a model's weights and gradients as they are."""

from collections.abc import Sequence
from functools import partial

from torch import nn

from torchtally.number_formats import choose_formats
from torchtally.number_formats.statistics import tensor_statistics
from torchtally.numerics.counting import own_part
from torchtally.numerics.files.torch_file import parts_of
from torchtally.views.tensor_numbers import TensorNumbers, chosen


def numbers(model: nn.Module, formats: Sequence[str] = ()) -> TensorNumbers:
    """What formats lose of a model's parameters, and of their gradients where there are some;
    printed, what `tally dtypes FILE` prints.

        loss.backward()
        print(torchtally.numbers(model, ["fp16", "fp8"]))

    Every number is counted, on the host. By default in fp16, bf16, fp8, mxfp8 and nvfp4. A gradient
    has its parameter's name and ".grad". Raises UsageError for an unknown format.
    """
    rows = choose_formats(chosen(formats))
    named = []
    for name, parameter in model.named_parameters():
        named.append((name, own_part(parameter)))
        if parameter.grad is not None:
            named.append((f"{name}.grad", own_part(parameter.grad)))
    return TensorNumbers(
        type(model).__name__,
        rows,
        tuple(
            tensor_statistics(
                name, str(tensor.dtype).removeprefix("torch."), partial(parts_of, tensor), rows
            )
            for name, tensor in named
            if tensor.is_floating_point()
        ),
    )
