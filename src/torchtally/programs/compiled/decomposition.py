"""What a compiler makes of an operator: loops over elements, sums, or a call of a library.

x: the input.  g: the gradient that comes in.  M: rows.
"""

from dataclasses import dataclass
from dataclasses import replace as replaced
from enum import Enum, auto

from msgspec.structs import replace

from torchtally.trace import Call, TensorSpec
from torchtally.work import Kind


class KernelForm(Enum):
    """How an operator is computed."""

    POINTWISE = auto()
    REDUCTION = auto()
    SCATTER = auto()
    """A loop over values that are added to or put into a table."""
    LIBRARY = auto()
    """By a kernel that nothing is fused with."""


@dataclass(frozen=True, slots=True)
class LoweringStep:
    """A loop of an operator's decomposition."""

    work: KernelForm
    reads: tuple[str, ...] | None = None
    """Arguments; None: all."""
    writes: tuple[int, ...] = ()
    """Of the operator's results."""
    takes: tuple[str, ...] = ()
    """What steps before it make, by name; a result of the operator, by its number."""
    makes: tuple[tuple[str, TensorSpec], ...] = ()
    is_columns: bool = False
    is_main: bool = True
    operations: tuple[tuple[str, int], ...] = ()


POINTWISE_KINDS = frozenset({Kind.ELEMENTWISE, Kind.COPY})
GATHERS = frozenset(
    ("embedding", "index", "index_select", "gather", "nll_loss_forward", "nll_loss_backward")
)
SCATTERS = frozenset(("index_put", "_unsafe_index_put", "scatter", "scatter_add", "index_add"))
SUMS = frozenset(
    ("sum", "mean", "amax", "amin", "max", "min", "var", "std", "prod", "any", "all", "argmax")
)
PLAIN = tuple("add sub mul neg abs exp log erf cos sin tanh sigmoid rsqrt sqrt".split())

OPERATIONS: dict[str, tuple[tuple[str, int], ...]] = {
    **{name: ((name, 1),) for name in PLAIN},
    "div": (("truediv", 1),),
    "pow": (("mul", 1),),
    "sum": (("sum", 1),),
    "mean": (("sum", 1),),
    "silu": (("exp", 1), ("add", 1), ("truediv", 1)),
    "silu_backward": (("exp", 1), ("truediv", 1), ("mul", 3), ("add", 2)),
    "gelu": (("erf", 1), ("mul", 3), ("add", 1)),
    "gelu_backward": (("erf", 1), ("exp", 1), ("mul", 6), ("add", 2)),
    "tanh_backward": (("mul", 2), ("sub", 1)),
    "native_dropout_backward": (("mul", 2),),
}
"""Of an element, what takes a kernel instructions, by inductor's names; what is not here overlaps
with memory."""
NORM = (("welford_reduce", 1),)
NORMED = (("sub", 1), ("mul", 2), ("add", 1))
RANDOM = (("rand", 1),)


def work_of(call: Call, kind: Kind) -> KernelForm:
    """How a compiler computes an operator. What it has no loop for is a library's."""
    name = call.plain_name
    if call.fused is not None:
        return KernelForm.LIBRARY
    if kind in POINTWISE_KINDS or name in GATHERS or name in DECOMPOSITIONS:
        return KernelForm.POINTWISE
    if name in SCATTERS:
        return KernelForm.SCATTER
    if kind is Kind.REDUCTION and is_sum(call):
        return KernelForm.REDUCTION
    return KernelForm.LIBRARY


def is_sum(call: Call) -> bool:
    """Many elements into one of each row: no scan, no pooling."""
    return call.plain_name in SUMS


def steps_of(call: Call, work: KernelForm) -> tuple[LoweringStep, ...]:
    """The loops of an operator that is computed by loops."""
    name = call.plain_name
    decompose = DECOMPOSITIONS.get(name)
    if decompose is not None:
        return decompose(call)
    operations = OPERATIONS.get(name, ())
    results = tuple(range(max(1, len(call.outputs))))
    if work is KernelForm.REDUCTION:
        is_columns = is_over_columns(call)
        return (LoweringStep(work, None, results, is_columns=is_columns, operations=operations),)
    unread = ("self",) if name == "nll_loss_backward" else ()
    reads = tuple({spec.argument for spec in call.inputs} - set(unread)) if unread else None
    return (LoweringStep(work, reads, results, operations=operations),)


def is_over_columns(call: Call) -> bool:
    """A sum over leading dimensions, whose elements lie a row apart."""
    shape = call.inputs[0].shape
    dims = call.literal("dim")
    given = dims if isinstance(dims, tuple) else (dims,)
    reduced = {d % len(shape) for d in given if isinstance(d, int)} if shape else set()
    kept = [n for n in range(len(shape)) if n not in reduced and shape[n] > 1]
    return bool(reduced) and bool(kept) and min(reduced) < max(kept)


def rows_of(like: TensorSpec, name: str) -> tuple[str, TensorSpec]:
    """A number in float32 for each row."""
    rows = like.elements // like.shape[-1]
    return name, TensorSpec("", (rows,), (1,), "float32", like.device, -1)


def norm(call: Call) -> tuple[LoweringStep, ...]:
    """x's rows to their statistics, and the result from both."""
    statistics = tuple(range(1, len(call.outputs)))
    x = call.tensor("input")
    return (
        LoweringStep(
            KernelForm.REDUCTION,
            ("input",),
            statistics,
            makes=(rows_of(x, "rows"),),
            operations=NORM,
        ),
        LoweringStep(
            KernelForm.POINTWISE,
            ("input", "weight", "bias"),
            (0,),
            ("rows",),
            is_main=False,
            operations=NORMED,
        ),
    )


def norm_backward(call: Call) -> tuple[LoweringStep, ...]:
    """xhat, two sums of each row, the gradient of x; sums of columns for weight and bias."""
    x = call.tensor("input")
    xhat = replace(x, argument="", dtype="float32", storage=-1, is_written=False)
    flags = call.literal("output_mask")
    wanted = flags if isinstance(flags, tuple) else (True,) * len(call.outputs)
    places = iter(range(len(wanted)))
    of_input, *of_others = (next(places) if flag else None for flag in wanted)
    form = KernelForm.REDUCTION
    steps = [
        LoweringStep(
            KernelForm.POINTWISE, ("input", "mean", "rstd"), makes=(("xhat", xhat),), is_main=False
        )
    ]
    if of_input is not None:
        rows = (rows_of(x, "rows"),)
        steps += [
            LoweringStep(form, ("grad_out", "weight"), (), ("xhat",), rows, is_main=False),
            LoweringStep(
                KernelForm.POINTWISE,
                ("grad_out", "rstd", "weight"),
                (of_input,),
                ("xhat", "rows"),
                is_main=False,
            ),
        ]
    for place, takes in zip(of_others, (("xhat",), ()), strict=False):
        if place is not None:
            steps.append(
                LoweringStep(form, ("grad_out",), (place,), takes, is_columns=True, is_main=False)
            )
    return steps[0], *(replaced(step, is_main=n == 0) for n, step in enumerate(steps[1:]))


def softmax(call: Call) -> tuple[LoweringStep, ...]:
    """A largest element and a sum of each row."""
    x = call.tensor("self")
    online = (("online_softmax_reduce", 1),)
    return (
        LoweringStep(
            KernelForm.REDUCTION, makes=(rows_of(x, "most"), rows_of(x, "sum")), operations=online
        ),
        LoweringStep(
            KernelForm.POINTWISE,
            None,
            (0,),
            ("most", "sum"),
            is_main=False,
            operations=() if "log" in call.name else (("exp", 1),),
        ),
    )


def softmax_backward(call: Call) -> tuple[LoweringStep, ...]:
    g = call.tensor("grad_output")
    is_log = "log" in call.name
    exponential = (("exp", 1),) if is_log else ()
    summed = ("grad_output",) if is_log else ("grad_output", "output")
    return (
        LoweringStep(KernelForm.REDUCTION, summed, makes=(rows_of(g, "sum"),)),
        LoweringStep(
            KernelForm.POINTWISE,
            ("grad_output", "output"),
            (0,),
            ("sum",),
            is_main=False,
            operations=exponential,
        ),
    )


def nll_loss(call: Call) -> tuple[LoweringStep, ...]:
    """A gather of each target's element, summed up."""
    target = call.tensor("target")
    picked = TensorSpec("", target.shape, target.stride, call.inputs[0].dtype, target.device, -1)
    return (
        LoweringStep(KernelForm.POINTWISE, ("self", "target"), makes=(("picked", picked),)),
        LoweringStep(KernelForm.REDUCTION, ("target",), (0, 1), ("picked",), is_main=False),
    )


def embedding_backward(call: Call) -> tuple[LoweringStep, ...]:
    """Rows added up in float32, in zeros, and the sums cast."""
    table = replace(call.outputs[0], argument="self", dtype="float32", storage=-1)
    zeros = LoweringStep(KernelForm.POINTWISE, (), makes=(("zeros", table),), is_main=False)
    if call.outputs[0].dtype == table.dtype:
        return zeros, LoweringStep(KernelForm.SCATTER, None, (0,), ("zeros",))
    return (
        zeros,
        LoweringStep(KernelForm.SCATTER, None, takes=("zeros",), makes=(("sums", table),)),
        LoweringStep(KernelForm.POINTWISE, (), (0,), ("sums",), is_main=False),
    )


def dropout(call: Call) -> tuple[LoweringStep, ...]:
    """The mask from random numbers, which are computed wherever it is read."""
    return (
        LoweringStep(KernelForm.POINTWISE, (), (1,), operations=RANDOM),
        LoweringStep(
            KernelForm.POINTWISE, ("input",), (0,), ("1",), is_main=False, operations=(("mul", 2),)
        ),
    )


DECOMPOSITIONS = {
    "native_layer_norm": norm,
    "_fused_rms_norm": norm,
    "native_layer_norm_backward": norm_backward,
    "_fused_rms_norm_backward": norm_backward,
    "_softmax": softmax,
    "_log_softmax": softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": softmax_backward,
    "nll_loss_forward": nll_loss,
    "embedding_dense_backward": embedding_backward,
    "native_dropout": dropout,
}
