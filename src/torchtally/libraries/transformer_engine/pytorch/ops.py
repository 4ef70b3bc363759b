"""transformer_engine.pytorch.ops: operations that are fused where they follow each other."""

from typing import Any, NoReturn

from torch import nn


class FusibleOperation(nn.Module):
    def __init__(self, *args: Any, **options: Any) -> None:
        refuse_operations()


class Sequential(FusibleOperation): ...


def refuse_operations() -> NoReturn:
    raise NotImplementedError(
        "tally does not know transformer_engine.pytorch.ops (Megatron's "
        "use_transformer_engine_op_fuser and use_te_activation_func)"
    )


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    refuse_operations()
