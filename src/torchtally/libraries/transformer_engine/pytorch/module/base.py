"""transformer_engine.pytorch.module.base: what all modules with products have in common."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..quantization import Operand, Precision, operand
from ..tensor_parallel import ALONE, TensorParallel
from .product import JoinedParameters, MainGradient, ProductOptions, get_dummy_wgrad, get_workspace

__all__ = ["TransformerEngineBaseModule", "get_dummy_wgrad", "get_workspace"]


def refuse(options: Mapping[str, Any]) -> None:
    """Raise for an option that changes memory or time in a way that is not known here."""
    for name, usual in NOT_KNOWN.items():
        if options.get(name, usual) not in (usual, None):
            raise NotImplementedError(
                f"tally does not know {name}={options[name]!r} of Transformer Engine (what it does "
                "know: docs/kernels.md)"
            )


NOT_KNOWN: dict[str, Any] = {
    "delay_wgrad_compute": False,
    "symmetric_ar_type": None,
    "ub_overlap_ag": False,
    "ub_overlap_rs": False,
    "ub_overlap_rs_dgrad": False,
    "ub_bulk_dgrad": False,
    "ub_bulk_wgrad": False,
    "ub_tp_comm_overlap": False,
    "zero_centered_gamma": False,
    "checkpoint": False,
    "return_max_logit": False,
    "softmax_type": "vanilla",
    "cp_group": None,
    "inference_params": None,
    "kv_layer": None,
    "score_mod": None,
    "num_splits": 1,
    "return_layernorm_output_gathered": False,
}


class TransformerEngineBaseModule(nn.Module):
    """A module with weights that are quantised."""

    def __init__(
        self,
        *,
        fuse_wgrad_accumulation: bool = False,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        refuse(options)
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.get_rng_state_tracker, self.rng_tracker_name = get_rng_state_tracker, rng_tracker_name
        self.ub_name = options.get("ub_name")
        self.quantized: dict[str, Operand] = {}

    def add_parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        split: Mapping[str, int] | None,
        initialize: Callable[[Tensor], Any],
        dtype: torch.dtype | None,
        device: Any,
    ) -> None:
        """One, or several views of one, each under a name of its own."""
        whole = torch.empty(shape, dtype=dtype, device=device)
        tracker = self.get_rng_state_tracker
        names = (self.rng_tracker_name,) if self.rng_tracker_name else ()
        with torch.no_grad(), nullcontext() if tracker is None else tracker().fork(*names):
            initialize(whole)
        if split is None:
            self.register_parameter(name, nn.Parameter(whole))
            return
        for part_name, part in zip(split, whole.split(list(split.values())), strict=True):
            self.register_parameter(f"{part_name}_{name}", nn.Parameter(part))

    def mark(self, parallel_mode: str | None, sequence_parallel: bool) -> None:
        """Set what trainers ask of a parameter: how ranks share it (`reset_parameters`)."""
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("layer_norm") or (parallel_mode == "row" and parameter.dim() == 1):
                parameter.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
            elif parallel_mode == "column" or parameter.dim() == 2:
                parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
                parameter.partition_dim = int(parallel_mode == "row")  # type: ignore[attr-defined]
                parameter.partition_stride = 1  # type: ignore[attr-defined]

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        for parallel in vars(self).values():
            if isinstance(parallel, TensorParallel):
                parallel.group = tp_group

    def joined(self, name: str, split: Mapping[str, int] | None) -> Tensor:
        if split is None:
            whole: Tensor = getattr(self, name)
            return whole
        parts = [getattr(self, f"{part_name}_{name}") for part_name in split]
        first = parts[0]
        if any(part.untyped_storage() is not first.untyped_storage() for part in parts):
            return torch.cat(parts)
        rows = sum(split.values())
        whole = first.detach().as_strided((rows, *first.shape[1:]), first.stride())
        joined: Tensor = JoinedParameters.apply(whole, *parts)  # type: ignore[no-untyped-call]
        return joined

    def options(
        self, name: str, weight: Tensor, is_first_microbatch: bool | None, **options: Any
    ) -> ProductOptions:
        """Weights that serve all micro-batches of a step are quantised in the first."""
        recipe = Precision.recipe
        parallel = options.get("parallel", ALONE)
        is_known = recipe is None or recipe.float8_per_tensor_scaling() or recipe.mxfp8()
        if not is_known and parallel.is_by_sequence and parallel.mode is not None:
            raise NotImplementedError(
                "tally does not know sequence_parallel=True of Transformer Engine in "
                f"{type(recipe).__name__}"
            )
        if self.fuse_wgrad_accumulation:
            options |= {"gradient": MainGradient(weight, adds=not is_first_microbatch)}
        if recipe is None or is_first_microbatch is None:
            return ProductOptions(recipe, **options)
        if is_first_microbatch or name not in self.quantized:
            self.quantized.pop(name, None)
            with torch.no_grad():
                self.quantized[name] = operand(weight, recipe, is_weight=True)
        return ProductOptions(recipe, weights=self.quantized[name], **options)


def cast(x: Tensor, weight: Tensor) -> Tensor:
    """The input in the dtype that products are done in (`set_activation_dtype`)."""
    if torch.is_autocast_enabled("cuda"):
        return x.to(torch.get_autocast_dtype("cuda"))
    assert x.dtype == weight.dtype, (
        "Data types for parameters must match when outside of autocasted region."
    )
    return x


def default_init_method(weight: Tensor) -> Tensor:
    return nn.init.normal_(weight, mean=0.0, std=0.023)
