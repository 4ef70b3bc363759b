"""The training stack: models, optimizers, data and a loop, each small enough to read."""
