"""Generators for tests: a model by its name or itself, chips, a format, an engine."""

from torchtally.chips.clusters import cluster
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import Model
from torchtally.plan.inference.engines import engine
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.forward import Generator
from torchtally.plan.inference.placement import Placement
from torchtally.plan.kv_cache import Cache, cache_format


def generator(
    model: str | Model,
    chips: str,
    *,
    weights: str = "bf16",
    kept: str = "bf16",
    who: str = "serving",
    at: Placement | None = None,
) -> Generator:
    serving_engine = engine(who)
    return Generator(
        known_model(model) if isinstance(model, str) else model,
        cluster(chips),
        at or Placement(tensor=cluster(chips).count),
        weight_format(weights),
        Cache(serving_engine.cache, serving_engine.block, cache_format(kept)),
        serving_engine,
    )
