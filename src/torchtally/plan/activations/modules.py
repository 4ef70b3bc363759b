"""Parts of a layer that are recomputed by themselves (Megatron-LM's `--recompute-modules`).

Each is named as there: what of a layer's kept tensors is made again, by which products and passes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torchtally.plan.architecture.model import Experts, FeedForward, Layer


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What recomputing one module spares, and what it runs again."""

    tensors: frozenset[str]
    """Names of saved tensors, without ", cast" behind them."""
    matrices: frozenset[str] = frozenset()
    """Whose products run again."""
    streams: frozenset[str] = frozenset()
    """Whose passes run again."""
    is_of_experts: bool | None = None
    """Of layers with experts alone, or without them; None: of all."""

    def is_in(self, kind: Layer) -> bool:
        """Whether a layer of this kind has it."""
        match kind.feed_forward:
            case Experts():
                return self.is_of_experts is not False
            case FeedForward():
                return self.is_of_experts is not True
        return self.is_of_experts is None


MODULES: Mapping[str, Recomputed] = {
    "layernorm": Recomputed(
        frozenset(("input of attention", "input of feed-forward", "input of the router",
                   "input of shared experts")),
        streams=frozenset(("norms",)),
    ),
    "mla_up_proj": Recomputed(
        frozenset(("queries", "keys", "values", "values, and keys' part beside them")),
        frozenset(("q up", "kv up")), frozenset(("rotation",)),
    ),
    "moe_act": Recomputed(
        frozenset(("input of the last projection",)), streams=frozenset(("activation",)),
        is_of_experts=True,
    ),
    "mlp": Recomputed(
        frozenset(("input of the activation", "up", "gate and up",
                   "input of the last projection")),
        frozenset(("gate", "up", "gate and up", "down")), frozenset(("activation",)),
        is_of_experts=False,
    ),
}  # fmt: skip
"""By Megatron-LM's name. Of experts' activation its result alone goes, as they are multiplied in
one product of gate and up; `core_attn` is selective recomputation."""


def recomputed_in(kind: Layer, modules: tuple[str, ...]) -> list[Recomputed]:
    """Those of these modules that a layer of this kind has."""
    return [MODULES[name] for name in modules if MODULES[name].is_in(kind)]


def is_made_again(name: str, kind: Layer, modules: tuple[str, ...]) -> bool:
    """Whether a saved tensor of this name is."""
    plain = name.removesuffix(", float32").removesuffix(", cast")
    return any(plain in each.tensors for each in recomputed_in(kind, modules))
