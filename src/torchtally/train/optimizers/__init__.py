"""Optimizers from a config: torch.optim's and ours; learning-rate schedules and clipping."""
