"""The training stack: models, optimizers, data and a loop, each small enough to read."""

from torchtally.checkpoints import check_extra

check_extra()
