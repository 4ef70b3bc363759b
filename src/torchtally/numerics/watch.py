"""Gradients that underflow and updates that weights lose, counted in some steps of a training.

    watch = torchtally.NumbersWatch(model, optimizer, every=100)
    for batch in loader:
        ...                                 # the loop's own code, unchanged
    print(watch)                            # the last step counted, by layer

It listens to the optimizer's steps (`register_step_pre_hook`), so that a step which a loss scaler
skips is none, and gradients are unscaled already where the scaler does that.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtally.errors import UsageError
from torchtally.numerics.counting import GRADIENT_COUNTS, gradient_counts, own_part, update_counts
from torchtally.numerics.layers import LayerNumbers, all_layers
from torchtally.numerics.worries import worries
from torchtally.table import Column, Table, Tabular
from torchtally.units import Unit

EVERY = 100
"""Steps between two counts."""
PREFIX = "numbers/"
"""Of values in logs."""


class LossScale(Protocol):
    """What knows the loss scale: a torch.amp.GradScaler."""

    def get_scale(self) -> float: ...


Log = Callable[[dict[str, float], int], Any]
COLUMNS = (
    Column("tensor_name", "parameter", Unit.TEXT),
    Column("largest_gradient", "largest", Unit.TIMES),
    Column("fp16_underflow_share", "zero in fp16", Unit.FRACTION),
    Column("fp8_underflow_share", "in e5m2", Unit.FRACTION),
    Column("lost_update_share", "lost in bf16", Unit.FRACTION),
)


class NumbersWatch(Tabular):
    """Counts of the first step and of every `every`-th, by parameter; see the module's text.

    Args:
        model: whose parameters are named; those with gradients that the optimizer updates count.
        optimizer: the loop's own.
        every: steps between two counts.
        scaler: a GradScaler, whose loss scale fp16 would have. None: a scale of 1.
        log: gets the values after each count: a function of a dict and the step.
        weight_of: the tensor that a parameter's update is made in: a float32 copy, if there is one.
        keeps_on_average: updates are rounded at random, and none is lost.
        say: gets warnings, each kind once.

    A count copies the weights for the length of the optimizer's step, and reads gradients and
    weights a few times; `cost_s` is what that took, and `cost_share` its share of the time since
    the first step. Of sharded parameters this rank's part is counted.

    Raises UsageError for `every` below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        every: int = EVERY,
        scaler: LossScale | None = None,
        log: Log | None = None,
        weight_of: Callable[[Tensor], Tensor] = lambda parameter: parameter,
        keeps_on_average: bool = False,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if every < 1:
            raise UsageError(f"NumbersWatch: expected every of at least 1, got {every}.")
        self._names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters()
        }
        self._every, self._scaler, self._log = every, scaler, log
        self._weight_of, self._keeps_on_average = weight_of, keeps_on_average
        self._say, self._clock = say or _to_stderr, clock
        self._before: list[tuple[Tensor, Tensor]] = []
        self._began_s: float | None = None
        self._told: set[str] = set()
        self.steps, self.counts, self.cost_s = 0, 0, 0.0
        self.layers: tuple[LayerNumbers, ...] = ()
        """Of the last count, in the model's order."""
        self.loss_scale = 1.0
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        """Count no further steps."""
        for hook in self._hooks:
            hook.remove()

    @property
    def total(self) -> LayerNumbers:
        """All parameters of the last count."""
        return all_layers(self.layers)

    @property
    def cost_share(self) -> float:
        """Share of the time since the first step that counting took."""
        if self._began_s is None:
            return 0.0
        return self.cost_s / max(self._clock() - self._began_s, sys.float_info.min)

    def values(self, *, by_layer: bool = False) -> dict[str, float]:
        """The last count for a log: shares of all parameters, and by parameter where asked for."""
        if not self.layers:
            return {}
        total = self.total
        values = {
            **_shares(total, ""),
            f"{PREFIX}largest_gradient": total.largest,
            f"{PREFIX}cost_share": self.cost_share,
        }
        if (headroom := total.headroom(self.loss_scale)) is not None:
            values[f"{PREFIX}fp16_headroom"] = headroom
        for layer in self.layers if by_layer else ():
            values |= _shares(layer, f"/{layer.name}")
        return values

    def table(self) -> Table:
        """The last count by parameter, the largest share of lost updates first."""
        layers = sorted(
            self.layers,
            key=lambda each: (each.lost_update_share or 0.0, each.fp16_underflow_share),
            reverse=True,
        )
        rows = tuple(
            (each.name, each.largest, each.fp16_underflow_share, each.fp8_underflow_share,
             each.lost_update_share)
            for each in layers
        )  # fmt: skip
        return Table(
            f"Numbers of step {self.counted_step}",
            COLUMNS,
            rows,
            note="largest: of the gradient. zero in fp16: share of the gradient that becomes "
            "zero there, with the loss scale; in e5m2: with a scale of the tensor. lost in bf16: "
            "share of the updates below half a step of bf16 weights.",
        )

    counted_step = 0
    """The last step counted, from 1."""

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.steps += 1
        if self._began_s is None:
            self._began_s = self._clock()
        if self.steps != 1 and self.steps % self._every != 0:
            return
        started_s = self._start()
        # Of all: a step with a closure, as Lightning's, has no gradients before it.
        self._before = [
            (parameter, own_part(self._weight_of(parameter)).clone())
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter in self._names
        ]
        self.loss_scale = 1.0 if self._scaler is None else self._scaler.get_scale()
        self.cost_s += self._clock() - started_s

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._before:
            return
        started_s = self._start()
        found = [
            (parameter, before, parameter.grad)
            for parameter, before in self._before
            if parameter.grad is not None
        ]
        counts = [
            torch.cat([
                gradient_counts(gradient, self.loss_scale),
                update_counts(before, own_part(self._weight_of(parameter)), gradient),
            ])
            for parameter, before, gradient in found
        ]  # fmt: skip
        names = [self._names[parameter] for parameter, _, _ in found]
        self._before = []
        rows = (count.tolist() for count in counts)
        self.layers = tuple(self._layer(name, row) for name, row in zip(names, rows, strict=True))
        self.counted_step = self.steps
        self.counts += 1
        self.cost_s += self._clock() - started_s
        self._tell()

    def _layer(self, name: str, row: list[float]) -> LayerNumbers:
        numbers, nonfinite, largest, under, over, fp8 = row[:GRADIENT_COUNTS]
        updates, lost = row[GRADIENT_COUNTS:]
        return LayerNumbers(
            name, int(numbers), int(nonfinite), largest, int(under), int(over), int(fp8),
            int(updates), None if self._keeps_on_average else int(lost),
        )  # fmt: skip

    def _start(self) -> float:
        """The time at which the device has done what it was given: that is no cost of counting."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return self._clock()

    def _tell(self) -> None:
        """Say once of each kind where it begins to matter, and log."""
        dtypes = {parameter.dtype for parameter in self._names}
        wide = {self._weight_of(parameter).dtype for parameter in self._names}
        for kind, text in worries(
            self.layers,
            loss_scale=self.loss_scale if self._scaler is not None else None,
            has_fp16=torch.float16 in dtypes,
            has_bf16_weights=torch.bfloat16 in wide and not self._keeps_on_average,
        ):
            if kind not in self._told:
                self._told.add(kind)
                self._say(f"warning: step {self.steps}: {text}")
        if self._log is not None:
            self._log(self.values(), self.steps)


def _shares(layer: LayerNumbers, of: str) -> dict[str, float]:
    shares = {
        "fp16_underflow_share": layer.fp16_underflow_share,
        "fp8_underflow_share": layer.fp8_underflow_share,
        "lost_update_share": layer.lost_update_share,
    }
    return {f"{PREFIX}{name}{of}": share for name, share in shares.items() if share is not None}


def _to_stderr(text: str) -> None:
    print(f"torchtally: {text}", file=sys.stderr, flush=True)
