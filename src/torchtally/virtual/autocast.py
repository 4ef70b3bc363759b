"""Autocast on the virtual GPU: CUDA's cast lists, at the dispatcher, for composites, too.

Meta tensors carry no autocast key (`getAutocastRelatedKeySetFromBackend`,
c10/core/DispatchKeySet.h), so the kernels are registered for an unused backend's key, which is
included on every thread of the session. Each kernel asks `torch.is_autocast_enabled("cuda")`:
regions, nested or disabled, are torch's. The lists are those of `AT_FORALL_LOWER_PRECISION_FP`,
`AT_FORALL_FP32`, ... in aten/src/ATen/autocast_mode.h (torch 2.13 and 2.15); a test compares their
union with what this build registers for CUDA, and only what it registers is cast.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum, auto
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from torchtally import torch_private as private
from torchtally.torch_private import OpOverload
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import virtual_of


class Cast(Enum):
    """What autocast does to an operator's floating-point arguments."""

    LOWER = auto()
    """to the region's dtype"""
    FP32 = auto()
    """to float32"""
    FP32_RESULT = auto()
    """asks for a float32 result unless the caller chose a dtype"""
    FP32_OVERLOAD = auto()
    """goes to the overload that takes a dtype, with float32"""
    PROMOTE = auto()
    """to the widest dtype among them"""


LOWER = """
_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d
conv_transpose2d.input conv_transpose3d.input convolution cudnn_convolution
cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm
baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
scaled_dot_product_attention
"""
FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
linalg_matrix_sqrth
"""
FP32_RESULT = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
FP32_OVERLOAD = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
PROMOTE = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
"""
REFUSED = {
    "binary_cross_entropy": "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are "
    "unsafe to autocast.\nMany models use a sigmoid layer right before the binary cross entropy "
    "layer.\nIn this case, combine the two layers using "
    "torch.nn.functional.binary_cross_entropy_with_logits\nor torch.nn.BCEWithLogitsLoss.  "
    "binary_cross_entropy_with_logits and BCEWithLogits are\nsafe to autocast."
}
"""Operators that CUDA's autocast refuses, and its messages."""

CASTS: dict[str, Cast] = {
    **dict.fromkeys(LOWER.split(), Cast.LOWER),
    **dict.fromkeys(FP32.split(), Cast.FP32),
    **dict.fromkeys(FP32_RESULT.split(), Cast.FP32_RESULT),
    **dict.fromkeys(FP32_OVERLOAD, Cast.FP32_OVERLOAD),
    **dict.fromkeys(PROMOTE.split(), Cast.PROMOTE),
}


class WeightCache:
    """Low-precision copies of leaf weights, kept until the outermost region ends, as CUDA's are."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        weight_and_copy = self._copies.get(id(weight))
        if (
            weight_and_copy is not None
            and weight_and_copy[0]() is weight
            and weight_and_copy[1].dtype is dtype
        ):
            return weight_and_copy[1]
        # `cached_cast` (ATen/autocast_mode.cpp) caches whatever it made first: a copy from a
        # no_grad region has no grad_fn and would cut later gradients (pytorch #165068).
        with torch.enable_grad():
            copy = weight.to(dtype)
        self._copies[id(weight)] = (weakref.ref(weight), copy)
        return copy

    def clear(self) -> None:
        self._copies.clear()


def is_eligible(leaf: Any) -> bool:
    """A floating-point tensor on a virtual GPU; float64 is never cast."""
    if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point:
        return False
    if leaf.dtype is torch.float64:
        return False
    virtual = virtual_of(private.unwrap(leaf))
    return virtual is not None and isinstance(virtual.home, DeviceMemory)


def operator_named(name: str) -> OpOverload:
    base, _, overload = name.partition(".")
    overload_found: OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return overload_found


@cache
def known_casts() -> tuple[tuple[str, OpOverload, Cast], ...]:
    """Name, operator and cast of all that this build of torch casts on CUDA."""
    names = set(private.autocast_operators())
    return tuple(
        (name, operator_named(name), cast)
        for name, cast in CASTS.items()
        if f"aten::{name}" in names
    )


class Autocast:
    """The cast kernels of one session: from when autocast is first enabled, until its end.

    They are Python functions in the way of every product, and take 2 ms to register: a script
    without autocast has none. Until then operators pass the included key by.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.cache = WeightCache()
        self._stack = stack
        self._lock = threading.Lock()
        self._threads: set[int] = set()
        """Those that the key was taken in for, by a region that they are in."""
        self._is_registered = False

    def begin(self) -> None:
        """Have operators without a cast pass the key by."""
        fallthrough = Library("_", "IMPL")
        fallthrough.fallback(torch.library.fallthrough_kernel, private.AUTOCAST_KEY.name)
        self._stack.callback(private.destroy, fallthrough)
        if torch.is_autocast_enabled("cuda"):
            self.register()

    def stand_ins(self) -> list[StandIn]:
        """`torch.autocast` enables by one function, on whatever thread."""
        native = torch.set_autocast_enabled
        backend, threads = "privateuseone", self._threads

        def set_autocast_enabled(*args: Any, **kwargs: Any) -> None:
            native(*args, **kwargs)
            is_enabled, thread = torch.is_autocast_enabled("cuda"), threading.get_ident()
            if is_enabled and not self._is_registered:
                self.register()
            # On other threads than the session's the key is excluded (`autocast_on_backend`), and
            # stays so between regions: a thread may outlive the session.
            if is_enabled and not torch.is_autocast_enabled(backend):
                native(backend, True)
                threads.add(thread)
            elif not is_enabled and thread in threads:
                native(backend, False)
                threads.discard(thread)

        return [StandIn(torch, "set_autocast_enabled", set_autocast_enabled)]

    def register(self) -> None:
        """Register all kernels, unless they are; the compiler does, too: it enables autocast where
        no stand-in is.
        """
        with self._lock:
            if self._is_registered:
                return
            library = Library("aten", "IMPL")
            for name, operator, cast in known_casts():
                library.impl(name, self.kernel(operator, cast), private.AUTOCAST_KEY.name)
            for name, reason in REFUSED.items():
                kernel = self.refusal(operator_named(name), reason)
                library.impl(name, kernel, private.AUTOCAST_KEY.name)
            self._stack.callback(private.destroy, library)
            self._is_registered = True

    def kernel(self, operator: OpOverload, cast: Cast) -> Callable[..., Any]:
        has_dtype = any(argument.name == "dtype" for argument in private.schema(operator).arguments)
        if cast is Cast.FP32_OVERLOAD:
            return self.overload_kernel(operator)

        def run(*args: Any, **kwargs: Any) -> Any:
            with private.exclude_autocast_key():
                if torch.is_autocast_enabled("cuda"):
                    args, kwargs = self.cast_arguments(cast, has_dtype, args, kwargs)
                return operator(*args, **kwargs)

        return run

    def overload_kernel(self, operator: OpOverload) -> Callable[..., Any]:
        name = operator.name().removeprefix("aten::")
        with_dtype = operator_named(FP32_OVERLOAD[name])

        def run(*args: Any, **kwargs: Any) -> Any:
            with private.exclude_autocast_key():
                if torch.is_autocast_enabled("cuda") and is_eligible(args[0]):
                    arguments = dict(zip(("self", "p", "dim", "keepdim"), args, strict=False))
                    arguments = {
                        "p": 2,
                        "keepdim": False,
                        **arguments,
                        **kwargs,
                        "dtype": torch.float32,
                    }
                    if "dim" not in arguments:
                        del arguments["keepdim"]
                    return with_dtype(**arguments)
                return operator(*args, **kwargs)

        return run

    def refusal(self, operator: OpOverload, reason: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with private.exclude_autocast_key():
                if torch.is_autocast_enabled("cuda") and is_eligible(args[0]):
                    raise RuntimeError(reason)
                return operator(*args, **kwargs)

        return run

    def cast_arguments(
        self, cast: Cast, has_dtype: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as CUDA's autocast would pass them on."""
        lower = torch.get_autocast_dtype("cuda")
        if cast is Cast.FP32_RESULT and has_dtype:
            if kwargs.get("dtype") is None and is_eligible(args[0]) and not gives_dtype(args):
                return args, {**kwargs, "dtype": torch.float32}
            return args, kwargs
        if cast is Cast.PROMOTE:
            dtype = widest(leaves((*args, *kwargs.values())), lower)
        else:
            dtype = lower if cast is Cast.LOWER else torch.float32

        def to_dtype(leaf: Any) -> Any:
            if isinstance(leaf, (list, tuple)):
                return type(leaf)(to_dtype(item) for item in leaf)
            if not is_eligible(leaf) or leaf.dtype is dtype:
                return leaf
            if dtype is lower and self.is_cacheable(leaf):
                return self.cache.cast(leaf, dtype)
            return leaf.to(dtype)

        # The last argument is cast first: `WrapFunction_::call` (ATen/autocast_mode.h) casts inside
        # the call's argument list, which GCC evaluates from right to left. Block addresses follow.
        cast_kwargs = {name: to_dtype(kwargs[name]) for name in reversed(kwargs)}
        cast_args = [to_dtype(arg) for arg in reversed(args)]
        return tuple(reversed(cast_args)), {name: cast_kwargs[name] for name in kwargs}

    def is_cacheable(self, tensor: Tensor) -> bool:
        """CUDA caches casts of float32 leaves that require grad and are not views.

        `can_try_cache` of `cached_cast` in ATen/autocast_mode.cpp.
        """
        return (
            tensor.dtype is torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not private.is_view(tensor)
            and torch.is_autocast_cache_enabled()
            and not torch.is_inference_mode_enabled()
        )


def gives_dtype(args: tuple[Any, ...]) -> bool:
    return any(isinstance(arg, torch.dtype) for arg in args)


def leaves(args: tuple[Any, ...]) -> list[Tensor]:
    eligible: list[Tensor] = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            eligible += leaves(tuple(arg))
        elif is_eligible(arg):
            eligible.append(arg)
    return eligible


def widest(tensors: list[Tensor], lower: torch.dtype) -> torch.dtype:
    """float32 if any tensor is, else the region's dtype."""
    return torch.float32 if any(t.dtype is torch.float32 for t in tensors) else lower
