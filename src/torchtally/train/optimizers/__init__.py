"""Optimizers from a config: torch.optim's and ours; learning-rate schedules and clipping."""

from torchtally.train.optimizers.adagrad import RootEpsAdaGrad
from torchtally.train.optimizers.build import build, implementation, implementations, load_state
from torchtally.train.optimizers.clipping import clip_by_norm, clip_by_value, global_norm
from torchtally.train.optimizers.config import (
    DEFAULTS,
    DecayedOn,
    OptimizerConfig,
    OptimizerImplementation,
)
from torchtally.train.optimizers.foreach import ForeachOptimizer
from torchtally.train.optimizers.groups import parameter_groups
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon, newton_schulz
from torchtally.train.optimizers.schedules import (
    ScheduleConfig,
    learning_rates,
    set_learning_rate,
)
from torchtally.train.optimizers.state import (
    held_state_bytes,
    planned_counter_bytes,
    planned_state_bytes,
)

__all__ = [
    "DEFAULTS",
    "DecayedOn",
    "ForeachOptimizer",
    "Lion",
    "Muon",
    "OptimizerConfig",
    "OptimizerImplementation",
    "RootEpsAdaGrad",
    "ScheduleConfig",
    "build",
    "clip_by_norm",
    "clip_by_value",
    "global_norm",
    "held_state_bytes",
    "implementation",
    "implementations",
    "learning_rates",
    "load_state",
    "newton_schulz",
    "parameter_groups",
    "planned_counter_bytes",
    "planned_state_bytes",
    "set_learning_rate",
]
