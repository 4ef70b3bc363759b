"""transformer_engine.pytorch.module: products with what stands before them.

What is kept for backward is what the modules keep (pytorch/module/linear.py, layernorm_linear.py,
layernorm_mlp.py, pytorch/tensor): of the input the copy that is read over its columns, which the
gradient of the weight is made from, and in `LayerNormMLP` the other one, too; of the weight both.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.libraries.operators.transformer_engine import ACTIVATIONS, halves

from ..common.recipe import Recipe
from .distributed import ALONE, TensorParallel, Wait, divide, now
from .quantization import (
    Float8Boundary,
    Operand,
    Precision,
    check_sizes,
    dtype_of,
    is_since,
    multiplies_columns,
    operand,
    stand_in,
)

MIB = 1 << 20


def refuse(options: Mapping[str, Any]) -> None:
    """Raise for an option that changes memory or time in a way that is not known here."""
    for name, usual in NOT_KNOWN.items():
        if options.get(name, usual) not in (usual, None):
            raise NotImplementedError(
                f"tally does not know {name}={options[name]!r} of Transformer Engine (what it does "
                "know: docs/kernels.md)"
            )


NOT_KNOWN: dict[str, Any] = {
    "fuse_wgrad_accumulation": False,
    "delay_wgrad_compute": False, "save_original_input": False, "symmetric_ar_type": None,
    "ub_overlap_ag": False, "ub_overlap_rs": False, "ub_overlap_rs_dgrad": False,
    "ub_bulk_dgrad": False, "ub_bulk_wgrad": False, "ub_tp_comm_overlap": False,
    "zero_centered_gamma": False, "checkpoint": False, "return_max_logit": False,
    "softmax_type": "vanilla", "cp_group": None, "inference_params": None, "kv_layer": None,
    "score_mod": None, "num_splits": 1, "return_layernorm_output_gathered": False,
}  # fmt: skip


class Workspace:
    """cuBLASLt's, which is taken once (pytorch/cpp_extensions/gemm.py)."""

    tensor: Tensor | None = None

    @classmethod
    def take(cls) -> None:
        if cls.tensor is None:
            size = 32 * MIB if is_since(9, 0) else 4 * MIB
            cls.tensor = torch.empty(size, dtype=torch.uint8, device="cuda")


def gemm(
    a: tuple[Tensor, Tensor | None],
    b: tuple[Tensor, Tensor | None],
    bias: Tensor | None,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
) -> Tensor:
    """(M, K) @ (N, K)."""
    Workspace.take()
    result: Tensor = torch.ops.transformer_engine.gemm(*a, *b, bias, dtype, *sizes)
    return result


def gemm_into(
    out: Tensor,
    a: tuple[Tensor, Tensor | None],
    b: tuple[Tensor, Tensor | None],
    bias: Tensor | None,
    sizes: tuple[int, int, int],
) -> None:
    """The same, for a group without rows nothing."""
    Workspace.take()
    if out.numel():
        torch.ops.transformer_engine.gemm_into(out, *a, *b, bias, *sizes)


class ProductOptions:
    def __init__(
        self, recipe: Recipe | None, *, activation: str = "", keeps_rows: bool = False,
        weights: Operand | None = None, parallel: TensorParallel = ALONE,
        boundary: Float8Boundary | None = None,
    ) -> None:  # fmt: skip
        self.recipe = recipe
        self.parallel = parallel
        self.boundary = boundary
        self.activation = activation
        self.keeps_rows = keeps_rows
        self.weights = weights
        """Quantised before, for several micro-batches."""


def own_operand(
    x: Tensor, recipe: Recipe | None, parallel: TensorParallel, *, columns: bool,
    is_gradient: bool = False,
) -> Operand:  # fmt: skip
    """Operand of a rank's rows, to be gathered: quantised before. With a scale for the whole
    tensor, the same on all ranks, only what is read over rows can be gathered.
    """
    if recipe is None:
        return Operand(x, None, x, None)
    if recipe.mxfp8():
        return operand(x, recipe, columns=columns, is_gradient=is_gradient)
    if not recipe.delayed():
        parallel.agree_on_scale(x)
    rows, scale, *_ = operand(x, recipe, columns=False, is_gradient=is_gradient)
    return Operand(rows, scale, rows, scale)


def with_columns(gathered: Operand, recipe: Recipe | None) -> Operand:
    """What is gathered over rows alone is transposed where products read it over columns."""
    if recipe is None or recipe.mxfp8() or multiplies_columns(recipe):
        return gathered
    return Operand(*gathered[:2], gathered.rows.t().contiguous(), gathered.row_scales)


class Product(torch.autograd.Function):
    """activation(x) @ weight.T + bias, of (M, K) and (N, K)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: ProductOptions
    ) -> Tensor:
        recipe, (needs_x, needs_weight, _) = options.recipe, ctx.needs_input_grad[:3]
        dtype, parallel = x.dtype, options.parallel
        if recipe is None:
            weight = weight.to(dtype)
        if parallel.gathers_inputs:
            own = own_operand(x, recipe, parallel, columns=needs_weight)
            over_rows = Operand(*own[:2], own.columns[:0], None)
            inputs = now(parallel.gather(over_rows, recipe))
        elif options.boundary is not None and options.boundary.result is not None:
            own = inputs = Operand(*options.boundary.result, *options.boundary.result)
            options.boundary.result = None
        else:
            options.boundary = None
            own = inputs = operand(x, recipe, columns=needs_weight, activation=options.activation)
        weights = options.weights or operand(weight, recipe, columns=needs_x, is_weight=True)
        N, K = weight.shape
        M = inputs.rows.shape[0]
        out = gemm(inputs[:2], weights[:2], bias, dtype, (M, N, K))
        if parallel.is_row:
            out = now(parallel.reduce(out))
        kept_inputs = own if options.keeps_rows else (None, None, *own[2:])
        ctx.save_for_backward(
            *(kept_inputs if needs_weight else (None,) * 4),
            *weights,
            x if options.activation else None,
        )
        ctx.options, ctx.sizes, ctx.dtype = options, (M, N, K), dtype
        answer: Tensor = out
        return answer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        _, _, columns, scales, *weights, x = ctx.saved_tensors
        (M, N, K), dtype, options = ctx.sizes, ctx.dtype, ctx.options
        recipe, (needs_x, needs_weight, needs_bias) = options.recipe, ctx.needs_input_grad[:3]
        grad, parallel = grad.contiguous(), options.parallel
        if parallel.gathers_gradients:
            own = own_operand(grad, recipe, parallel, columns=needs_weight, is_gradient=True)
            grads = with_columns(now(parallel.gather(own, recipe)), recipe)
        else:
            grads = operand(grad, recipe, rows=needs_x, columns=needs_weight, is_gradient=True)
        grad_x = grad_weight = None
        waits: list[Wait] = []
        if parallel.gathers_inputs and needs_weight:
            is_shared = recipe is None or recipe.float8_per_tensor_scaling()
            own = Operand(columns if is_shared else columns[:0], scales, columns, scales)
            gathered, wait_for_columns = parallel.gather(own, recipe)
            waits.append(wait_for_columns)
        if needs_x:
            handed = dtype if options.boundary is None else dtype_of(recipe, is_gradient=True)
            grad_x = gemm(grads[:2], weights[2:], None, handed, (M, K, N))
            if options.boundary is not None:
                scale = grad_x.new_empty((1, 1), dtype=torch.float32)
                options.boundary.gradient = grad_x, scale
                grad_x = stand_in(grad_x, dtype)
            for wait in waits:
                wait()
            waits.clear()
            if parallel.is_column:
                grad_x, wait_for_sums = parallel.reduce(grad_x)
                waits.append(wait_for_sums)
        if needs_weight:
            if parallel.gathers_inputs:
                *_, columns, scales = with_columns(gathered, recipe)
            elif options.boundary is not None:
                *_, columns, _ = with_columns(Operand(columns, scales, columns, scales), recipe)
            grad_weight = gemm(grads[2:], (columns, scales), None, dtype, (N, K, M))
        for wait in waits:
            wait()
        if options.activation and grad_x is not None:
            grad_x = torch.ops.transformer_engine.activation_backward(grad_x, x, options.activation)
        return grad_x, grad_weight, grad.sum(0) if needs_bias else None, None


class JoinedParameters(torch.autograd.Function):
    """Parameters that lie behind each other as one, without a copy (`noop_cat`)."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, *parts: Tensor) -> Tensor:
        ctx.sizes = [part.shape[0] for part in parts]
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, *grad.split(ctx.sizes)


class WithProducts(nn.Module):
    """A module with weights that are quantised."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        refuse(options)
        self.quantized: dict[str, Operand] = {}

    def add_parameter(
        self, name: str, shape: tuple[int, ...], split: Mapping[str, int] | None, std: float,
        dtype: torch.dtype | None, device: Any,
    ) -> None:  # fmt: skip
        """One, or several views of one, each under a name of its own."""
        whole = torch.empty(shape, dtype=dtype, device=device)
        if std:
            nn.init.normal_(whole, std=std)
        else:
            nn.init.zeros_(whole)
        if split is None:
            self.register_parameter(name, nn.Parameter(whole))
            return
        for part_name, part in zip(split, whole.split(list(split.values())), strict=True):
            self.register_parameter(f"{part_name}_{name}", nn.Parameter(part))

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


def product(x: Tensor, weight: Tensor, bias: Tensor | None, options: ProductOptions) -> Tensor:
    """Product of an input with any number of dimensions."""
    if options.recipe is not None:
        check_sizes(options.recipe, x, weight)
    bias = None if bias is None else bias.to(x.dtype)
    flat = x.reshape(-1, x.shape[-1])
    added_after = bias if options.parallel.adds_bias_after else None
    fused = None if options.parallel.adds_bias_after else bias
    out: Tensor = Product.apply(flat, weight, fused, options)  # type: ignore[no-untyped-call]
    if added_after is not None:
        out = out + added_after
    first, *others = x.shape[:-1]
    return out.view(options.parallel.rows_after(first), *others, weight.shape[0])


Split = Mapping[str, int] | Iterable[str] | None


def parts_of(split: Split, out_features: int) -> Mapping[str, int] | None:
    if split is None or isinstance(split, Mapping):
        return split
    names = list(split)
    return dict.fromkeys((name.removesuffix("_") for name in names), out_features // len(names))


STD = 0.023
"""Of weights as they are initialised (`get_default_init_method`)."""


class Linear(WithProducts):
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, return_bias: bool = False,
        params_dtype: torch.dtype | None = None, parameters_split: Split = None,
        device: Any = "cuda", tp_group: Any = None, tp_size: int = 1,
        parallel_mode: str | None = None, sequence_parallel: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.parallel = TensorParallel(tp_group, tp_size, parallel_mode, sequence_parallel)
        if self.parallel.is_column:
            out_features = divide(out_features, self.parallel.size)
        elif self.parallel.is_row:
            in_features = divide(in_features, self.parallel.size)
        if self.parallel.is_column and isinstance(parameters_split, Mapping):
            parameters_split = {
                name: divide(size, self.parallel.size) for name, size in parameters_split.items()
            }
        self.in_features, self.out_features = in_features, out_features
        self.use_bias, self.return_bias = bias, return_bias
        self.parts = parts_of(parameters_split, out_features)
        shape = (out_features, in_features)
        self.add_parameter("weight", shape, self.parts, STD, params_dtype, device)
        if bias:
            self.add_parameter("bias", shape[:1], self.parts, 0, params_dtype, device)

    def product(
        self, x: Tensor, is_first_microbatch: bool | None, boundary: Float8Boundary | None = None
    ) -> Any:
        weight = self.joined("weight", self.parts)
        bias = self.joined("bias", self.parts) if self.use_bias else None
        options = self.options(
            "weight", weight, is_first_microbatch, parallel=self.parallel, boundary=boundary
        )
        if self.return_bias:
            return product(x, weight, None, options), None if bias is None else bias.to(x.dtype)
        return product(x, weight, bias, options)

    def forward(
        self, inp: Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False,
        fp8_grad: bool = False, boundary: Float8Boundary | None = None,
    ) -> Any:  # fmt: skip
        first = next(self.parameters())
        return self.product(cast(inp, first), is_first_microbatch, boundary)


class NormOptions(nn.Module):
    """Transformer Engine's names of what torch's norms are made with."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, device: Any = "cuda",
        dtype: torch.dtype | None = None, params_dtype: torch.dtype | None = None, **options: Any,
    ) -> None:  # fmt: skip
        refuse(options)
        super().__init__(normalized_shape, eps, device=device, dtype=dtype or params_dtype)


class LayerNorm(NormOptions, nn.LayerNorm): ...


class RMSNorm(NormOptions, nn.RMSNorm): ...


NORMS: dict[str, Callable[..., nn.Module]] = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def add_norm(
    module: nn.Module, width: int, normalization: str, dtype: torch.dtype | None, device: Any
) -> None:
    assert normalization in NORMS, "Unsupported normalization type!"
    ones = torch.ones(width, dtype=dtype, device=device)
    module.register_parameter("layer_norm_weight", nn.Parameter(ones))
    has_bias = normalization == "LayerNorm"
    bias = nn.Parameter(torch.zeros_like(ones)) if has_bias else None
    module.register_parameter("layer_norm_bias", bias)


def normed(module: Any, x: Tensor, eps: float) -> Tensor:
    """Norm in the input's dtype; the statistics of its rows are kept in float32."""
    weight, bias = module.layer_norm_weight.to(x.dtype), module.layer_norm_bias
    with torch.autocast("cuda", enabled=False):
        if bias is None:
            return nn.functional.rms_norm(x, weight.shape, weight, eps)
        return nn.functional.layer_norm(x, weight.shape, weight, bias.to(x.dtype), eps)


class LayerNormLinear(Linear):
    def __init__(
        self, in_features: int, out_features: int, eps: float = 1e-5, bias: bool = True,
        normalization: str = "LayerNorm", params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False, device: Any = "cuda", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            in_features, out_features, bias, params_dtype=params_dtype, device=device, **options
        )
        if self.parallel.is_row:
            raise NotImplementedError(
                'tally does not know parallel_mode="row" of Transformer Engine\'s LayerNormLinear'
            )
        self.eps, self.return_layernorm_output = eps, return_layernorm_output
        add_norm(self, in_features, normalization, params_dtype, device)

    def forward(  # type: ignore[override]
        self,
        inp: Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        x = normed(self, cast(inp, next(self.parameters())), self.eps)
        out = self.product(x, is_first_microbatch)
        if not self.return_layernorm_output:
            return out
        return (*out, x) if self.return_bias else (out, x)


class LayerNormMLP(WithProducts):
    layer_norm_weight: Tensor
    fc1_weight: Tensor
    fc2_weight: Tensor

    def __init__(
        self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, bias: bool = True,
        normalization: str = "LayerNorm", activation: str = "gelu", return_bias: bool = False,
        return_layernorm_output: bool = False, params_dtype: torch.dtype | None = None,
        device: Any = "cuda", tp_group: Any = None, tp_size: int = 1,
        set_parallel_mode: bool = False, sequence_parallel: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.columns, self.rows = (
            TensorParallel(
                tp_group, tp_size, mode if set_parallel_mode else None, sequence_parallel
            )
            for mode in ("column", "row")
        )
        if set_parallel_mode:
            ffn_hidden_size = divide(ffn_hidden_size, self.columns.size)
        if activation not in ACTIVATIONS:
            raise NotImplementedError(f"Activation type {activation} is not supported!")
        self.activation, self.eps = activation, eps
        self.use_bias, self.return_bias = bias, return_bias
        self.return_layernorm_output = return_layernorm_output
        width = ffn_hidden_size * halves(activation)
        add_norm(self, hidden_size, normalization, params_dtype, device)
        for name, shape in (("fc1", (width, hidden_size)), ("fc2", (hidden_size, ffn_hidden_size))):
            self.add_parameter(f"{name}_weight", shape, None, STD, params_dtype, device)
            if bias:
                self.add_parameter(f"{name}_bias", shape[:1], None, 0, params_dtype, device)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Any:
        inp = cast(inp, self.layer_norm_weight)
        x = normed(self, inp, self.eps)
        fc1_bias, fc2_bias = (getattr(self, f"{name}_bias", None) for name in ("fc1", "fc2"))
        weight = self.fc1_weight
        options = self.options(
            "fc1", weight, is_first_microbatch, keeps_rows=True, parallel=self.columns
        )
        hidden = product(x, weight, fc1_bias, options)
        weight = self.fc2_weight
        options = self.options(
            "fc2", weight, is_first_microbatch, keeps_rows=True, activation=self.activation,
            parallel=self.rows,
        )  # fmt: skip
        out = product(hidden, weight, None if self.return_bias else fc2_bias, options)
        answers: list[Any] = [out]
        if self.return_bias:
            answers.append(fc2_bias if fc2_bias is None else fc2_bias.to(out.dtype))
        if self.return_layernorm_output:
            answers.append(x)
        return answers[0] if len(answers) == 1 else tuple(answers)
