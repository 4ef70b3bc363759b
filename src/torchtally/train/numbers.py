"""Gradients and updates of a training that are lost: counted every so many steps, and logged."""

from collections.abc import Callable

from torch import Tensor

from torchtally.numerics.watch import NumbersWatch
from torchtally.train.trainer import Trainer
from torchtally.train.wide_update import MASTER, WideUpdate


def numbers_watch(trainer: Trainer, say: Callable[[str], None]) -> NumbersWatch | None:
    """The watch of a training whose config asks for one (log.numbers_every)."""
    every = trainer.config.log.numbers_every
    if every is None:
        return None
    optimizer, guard = trainer.optimizer, trainer.stepper.guard

    def weight_of(parameter: Tensor) -> Tensor:
        """Its master, once there is one."""
        master: Tensor = optimizer.state.get(parameter, {}).get(MASTER, parameter)
        return master

    return NumbersWatch(
        trainer.model,
        optimizer,
        every=every,
        scaler=None if guard.scaler is None else guard,
        weight_of=weight_of,
        keeps_on_average=isinstance(optimizer, WideUpdate) and optimizer.keeping == "stochastic",
        say=say,
    )
