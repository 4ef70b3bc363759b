"""The first forward and backward pass of a script, whose tensors have values, counted as it runs.

A batch is shrunk where it enters a model: to ROWS of its first dimension and, of integers, which
are tokens, to TOKENS of the second. A model is what is called from no other module.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from torchtally import torch_private as private
from torchtally.errors import ScriptError
from torchtally.number_formats import NumberFormat
from torchtally.number_formats.losses import TensorStatistics
from torchtally.numerics.model_numbers import statistics_of
from torchtally.tracer.steps import StepsDone
from torchtally.units import format_bytes
from torchtally.virtual.stand_ins import StandIn

ROWS = 2
TOKENS = 128
MEMORY_SHARE = 0.5
"""Of this machine's, that weights and gradients may take: the rest is for activations."""


class FirstStep:
    """What a script's first step made, so far.

    `on_done` is called after the backward pass, before the script is stopped. Raises ScriptError
    in the script where its weights are too large for this machine.
    """

    def __init__(self, formats: Sequence[NumberFormat], on_done: Callable[[], None]) -> None:
        self.formats, self._on_done = tuple(formats), on_done
        self.outputs: list[TensorStatistics] = []
        """Of innermost modules, in the order in which they ran."""
        self.gradients: list[TensorStatistics] = []
        """Of parameters; empty until the backward pass."""
        self.shrunk: list[str] = []
        """Batches that were cut, in words."""
        self.registered_bytes = 0
        self._models: dict[nn.Module, str] = {}
        """What the names in each begin with."""
        self._names: dict[nn.Module, str] = {}
        self._depth = 0

    def stand_ins(self) -> list[StandIn]:
        """Calls of modules and the backward pass, to be replaced while the script runs."""
        native_call, native_backward = nn.Module.__call__, torch.autograd.backward
        step = self

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not step._depth and next(self.parameters(), None) is not None:
                args, kwargs = step._enter(self, args, kwargs)
            step._depth += 1
            try:
                output = native_call(self, *args, **kwargs)
            finally:
                step._depth -= 1
            if torch.is_grad_enabled() and next(self.children(), None) is None:
                step._count(self, output)
            return output

        def backward(*args: Any, **kwargs: Any) -> None:
            # What is recomputed within it was counted before.
            step._depth, outputs = step._depth + 1, list(step.outputs)
            native_backward(*args, **kwargs)
            step.outputs = outputs
            step._end()

        return [StandIn(nn.Module, "__call__", call), StandIn(torch.autograd, "backward", backward)]

    @contextmanager
    def watching_weights(self) -> Iterator[None]:
        """Context in which parameters are refused that do not fit, before they have values."""
        handle = register_module_parameter_registration_hook(self._add_weight)
        try:
            yield
        finally:
            handle.remove()

    def _add_weight(self, module: nn.Module, name: str, weight: Tensor | None) -> None:
        if weight is None or weight.is_meta or name in dict(module.named_parameters(recurse=False)):
            return
        self.registered_bytes += weight.nbytes
        machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if 2 * self.registered_bytes > MEMORY_SHARE * machine_bytes:
            raise ScriptError(
                f"--real-values: weights of {format_bytes(self.registered_bytes)} and more, and "
                f"gradients as large, are over {MEMORY_SHARE:.0%} of this machine's "
                f"{format_bytes(machine_bytes)}: give the script a smaller model."
            )

    def _enter(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with the batch shrunk."""
        if model not in self._models:
            kind = type(model).__name__
            of_kind = sum(type(other) is type(model) for other in self._models)
            prefix = f"{kind}{f'_{of_kind + 1}' * bool(of_kind)}." if self._models else ""
            self._models[model] = prefix
            for name, module in model.named_modules():
                self._names.setdefault(module, prefix + name if name else prefix[:-1] or kind)
        small: tuple[tuple[Any, ...], dict[str, Any]] = private.tree_map_only(
            Tensor, shrunk, (args, kwargs)
        )
        pairs = zip(private.tree_leaves((args, kwargs)), private.tree_leaves(small), strict=True)
        cuts = [f"{tuple(a.shape)} to {tuple(b.shape)}" for a, b in pairs if a is not b]
        if cuts and (sentence := f"{type(model).__name__}: {cuts[0]}") not in self.shrunk:
            self.shrunk.append(sentence)
        return small

    def _count(self, module: nn.Module, output: Any) -> None:
        name = self._names.get(module, type(module).__name__)
        for each in private.tree_leaves(output):
            if isinstance(each, Tensor) and each.is_floating_point():
                self.outputs.append(self._statistics(name, each))

    def _end(self) -> None:
        names: dict[nn.Parameter, str] = {}  # a model may be called whole, and in parts
        for model, prefix in self._models.items():
            for name, parameter in model.named_parameters():
                names.setdefault(parameter, prefix + name)
        self.gradients = [
            self._statistics(name, parameter.grad)
            for parameter, name in names.items()
            if parameter.grad is not None
        ]
        self._on_done()
        raise StepsDone

    @property
    def _statistics(self) -> Callable[[str, Tensor], TensorStatistics]:
        return partial(statistics_of, formats=self.formats)


def shrunk(tensor: Tensor) -> Tensor:
    """Its first rows; of integers, of two dimensions and more, the first tokens of each."""
    if not tensor.ndim:
        return tensor
    rows = tensor[:ROWS] if len(tensor) > ROWS else tensor
    is_tokens = rows.ndim > 1 and not rows.is_floating_point() and rows.shape[1] > TOKENS
    return rows[:, :TOKENS] if is_tokens else rows
