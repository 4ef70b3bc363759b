"""Facts of an operator, read from its schema once per overload."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from torchtally import torch_private as private
from torchtally.memory.workspace import has_scratch, has_scratch_before_results, uses_blas
from torchtally.torch_private import OpOverload

PLAIN_ON_HOST = frozenset(["aten.add", "aten._local_scalar_dense"])
"""Operators whose handler concerns virtual tensors only."""

ALLOCATION_ORDER = {
    "aten.native_dropout": (1, 0),
    "aten._scaled_dot_product_cudnn_attention": (2, 3, 0, 1),
}
"""Measured on PyTorch's CUDA build: the mask before the result, the seeds before the result."""

HOST_RESULTS = dict.fromkeys(
    ("aten._scaled_dot_product_efficient_attention", "aten._efficient_attention_forward"), (2, 3)
)
"""Measured on PyTorch's CUDA build: seed and offset are no request to the device's allocator, with
dropout or without. Only a graph's capture wants them there ("Seed and Offset Device" in
native/transformers/cuda/attention.cu)."""

STATISTICS = frozenset(["running_mean", "running_var"])
UPDATED = dict.fromkeys(
    (
        "aten.native_batch_norm",
        "aten.cudnn_batch_norm",
        "aten.batch_norm_update_stats",
        "aten.batch_norm_gather_stats",
        "aten.batch_norm_gather_stats_with_counts",
    ),
    STATISTICS,
)
"""Arguments written to in training, of which the operator's schema does not say so."""

Product = Literal["matmul", "conv", "rnn"]
"""Kinds of products with a TF32 setting each."""

PRODUCTS: dict[str, Product] = {
    **dict.fromkeys(
        (
            "aten.mm", "aten.addmm", "aten.addmm_", "aten.bmm", "aten.baddbmm", "aten.baddbmm_",
            "aten.addbmm", "aten.addbmm_", "aten._addmm_activation",
        ),
        "matmul",
    ),
    **dict.fromkeys(
        (
            "aten.convolution", "aten.convolution_backward", "aten._convolution",
            "aten.cudnn_convolution", "aten.cudnn_convolution_transpose",
            "aten.cudnn_convolution_relu", "aten.cudnn_convolution_add_relu",
        ),
        "conv",
    ),
    "aten._cudnn_rnn": "rnn",
    "aten._cudnn_rnn_backward": "rnn",
}  # fmt: skip
"""Operators that cuBLAS and cuDNN may compute on tensor cores; a product with a vector is not."""

Wait = Literal["copy", "index", "value"]

WAITS: dict[str, Wait] = {
    **dict.fromkeys(("aten._to_copy", "aten.copy_", "aten._foreach_copy_"), "copy"),
    **dict.fromkeys(
        ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"), "index"
    ),
    **dict.fromkeys(
        (
            "aten.nonzero", "aten.masked_select", "aten._unique", "aten._unique2",
            "aten.unique_dim", "aten.unique_consecutive", "aten.unique_dim_consecutive",
            "aten.repeat_interleave", "aten.bincount", "aten._linalg_check_errors",
        ),
        "value",
    ),
}  # fmt: skip
"""Operators for which the host may wait for the device, and why.

"copy": a copy between host and device. "index": indices of the host's are copied to the device
first, not asynchronously (native/TensorAdvancedIndexing). "value": a number is read back, mostly
the size of the result.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """Facts of one overload that the dispatcher and the recorder ask for on every call."""

    overload: OpOverload
    """Of a kernel that is no operator of torch's (`kernel`) there is none, and none is called."""
    overload_name: str
    name: str
    """As torch spells it, without the overload: "aten.mm"."""
    arguments: tuple[str, ...]
    """Names of all arguments, positional ones first, in schema order."""
    written: frozenset[str]
    """Arguments the schema lets it write to."""
    updated: frozenset[str]
    """Arguments it writes to while it trains, though its schema does not say so."""
    is_mutating: bool
    is_view: bool
    """Its results share their storage with an argument, and it writes to none."""
    is_inplace: bool
    """Writes values to its first argument, whose shape and storage stay what they are."""
    returns_self: bool
    """An in-place operator gives back its first argument; lists of tensors give back nothing."""
    is_factory: bool
    """Takes no tensor and makes one."""
    is_random: bool
    takes_workspace: bool
    """Takes device memory besides its results."""
    copies_before_results: bool
    """It holds copies of its operands while its results are allocated."""
    is_composite: bool
    """Only a composition of other operators: reaches a dispatch mode under inference mode alone."""
    allocation_order: tuple[int, ...] | None
    """The order in which its results are allocated, where it is not that of the results."""
    host_results: tuple[int, ...]
    """Places of results that are on the host."""
    handler: Callable[..., Any] | None
    """What runs it, where running it takes more than its shapes."""
    product: Product | None
    """The setting that allows its float32 products to be computed in TF32."""
    waits: Wait | None
    """Why the host may wait for the device when it has issued it."""
    is_plain_on_host: bool
    """Takes tensors, and with host tensors alone it runs as in plain torch."""
    fact_rule: Callable[..., Any] | None
    """What is known of its result where not all values are (`facts/rules.py`)."""
    needs_facts: bool
    """Nothing is known of its result if nothing is of its arguments."""
    is_attention: bool
    """What it costs depends on the values of masks and offsets, too (`attended.py`)."""
    is_elementwise: bool
    is_foreach: bool
    """Each element of its one result depends on one element of each argument."""
    may_give_facts: bool
    templates: dict[int, Any] = field(default_factory=dict)
    """Results (`templates.py`) by the call's signature, on which alone they depend."""


TORCHS_OWN = ("aten", "prims")
"""Namespaces of operators that stay what they are: a library's may be declared anew."""
TEMPLATE_LIMIT = 10_000
"""Results of an operator that are kept for the next session: those of hundreds of models."""


@dataclass(slots=True)
class KnownOperators:
    """Torch's own operators by the overload's id, with results, as the last session knew them.

    They are the same in all sessions of a process that simulate the same chip in the same way.
    """

    way: Any = None
    operators: dict[int, Operator] = field(default_factory=dict)

    def of(self, way: Any) -> dict[int, Operator]:
        """Those for a session that simulates in this way."""
        if self.way != way:
            self.way, self.operators = way, {}
        return dict(self.operators)

    def keep(self, operators: Mapping[int, Operator]) -> None:
        """Keep what a session, now at its end, has learnt."""
        for identity, operator in operators.items():
            if operator.overload.namespace in TORCHS_OWN:
                self.operators[identity] = operator
                if len(operator.templates) > TEMPLATE_LIMIT:
                    operator.templates.clear()


KNOWN = KnownOperators()


def is_foreach(name: str) -> bool:
    """One operator on each tensor of a list."""
    return name.startswith("aten._foreach_")


def is_elementwise(overload: OpOverload) -> bool:
    results = private.schema(overload).returns
    return (
        torch.Tag.pointwise in overload.tags
        and torch.Tag.nondeterministic_seeded not in overload.tags
        and len(results) == 1
        and str(results[0].type) == "Tensor"
    )


def written_by(name: str, schema: Any) -> frozenset[str]:
    """Arguments that an operator writes to. Schemas of `c10d` do not say which."""
    if name.startswith("c10d.") and name.endswith("_"):
        tensors = [each.name for each in schema.arguments if "Tensor" in str(each.type)]
        return frozenset([name for name in tensors if name.startswith("output")] or tensors[:1])
    return frozenset(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def learn(
    overload: OpOverload,
    handler: Callable[..., Any] | None = None,
    fact_rule: Callable[..., Any] | None = None,
    *,
    needs_facts: bool = True,
) -> Operator:
    schema = private.schema(overload)
    takes_tensor = any("Tensor" in str(argument.type) for argument in schema.arguments)
    makes_tensor = any("Tensor" in str(result.type) for result in schema.returns)
    name = f"{overload.namespace}.{schema.name.split('::')[1]}"
    return Operator(
        overload=overload,
        overload_name=private.overload_name(overload),
        name=name,
        arguments=tuple(argument.name for argument in schema.arguments),
        written=written_by(name, schema),
        updated=UPDATED.get(name, frozenset()),
        is_mutating=schema.is_mutable,
        is_view=not schema.is_mutable
        and any(result.alias_info is not None for result in schema.returns),
        is_inplace=schema.is_mutable
        and name.endswith("_")
        and not name.endswith("__")
        and torch.Tag.inplace_view not in overload.tags,
        returns_self=bool(schema.returns),
        is_factory=makes_tensor and not takes_tensor,
        is_random=torch.Tag.nondeterministic_seeded in overload.tags,
        takes_workspace=uses_blas(name) or has_scratch(name),
        copies_before_results=has_scratch_before_results(name),
        is_composite=private.has_composite_kernel(overload),
        allocation_order=ALLOCATION_ORDER.get(name),
        host_results=HOST_RESULTS.get(name, ()),
        handler=handler,
        product=PRODUCTS.get(name),
        waits=WAITS.get(name),
        is_plain_on_host=takes_tensor and (handler is None or name in PLAIN_ON_HOST),
        fact_rule=fact_rule,
        needs_facts=needs_facts,
        is_attention=any(part in name for part in ("attention", "varlen_attn", "flash_attn")),
        is_elementwise=is_elementwise(overload),
        is_foreach=is_foreach(name),
        may_give_facts=fact_rule is not None or is_elementwise(overload) or is_foreach(name),
    )


def kernel(name: str, arguments: tuple[str, ...], written: frozenset[str]) -> Operator:
    """Facts of a kernel that is none of the dispatcher's: a script's own."""
    none: Any = None
    return Operator(
        overload=none,
        overload_name="",
        name=name,
        arguments=arguments,
        written=written,
        updated=frozenset(),
        is_mutating=bool(written),
        is_view=False,
        is_inplace=False,
        returns_self=False,
        is_factory=False,
        is_random=False,
        takes_workspace=False,
        copies_before_results=False,
        is_composite=False,
        allocation_order=None,
        host_results=(),
        handler=None,
        product=None,
        waits=None,
        is_plain_on_host=False,
        fact_rule=None,
        needs_facts=False,
        is_attention=False,
        is_elementwise=False,
        is_foreach=False,
        may_give_facts=False,
    )
