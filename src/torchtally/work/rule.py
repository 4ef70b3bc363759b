"""The table of rules: a function, or a row of a table, per operator, from a call to its cost.

A rule's file opens with the legend of its shape letters. Conventions that hold for all of them:

- a multiply and an add are two FLOPs; any other arithmetic on one element (an exp, a compare) is
  one, on integers as on floats; complex arithmetic is counted in real FLOPs (`arithmetic.py`);
- every input is read once and every result written once (`one_pass`), broadcast elements once;
- a table read by index is read where the indices point, never more than the whole of it once;
- a result in storage that came in, with nothing written, is a view: free, whatever its name;
- the in-place form of an operator (`add_`) has the rule of the operator, unless it has its own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from torchtally.trace import Call, Part, TensorSpec
from torchtally.work import kernels
from torchtally.work.cost import Cost


class Kind(StrEnum):
    """What sort of work an operator is. Products, attention and convolutions are matmul work."""

    PRODUCT = "product"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    LOSS = "loss"
    RECURRENT = "recurrent"
    FFT = "fft"
    LINEAR_ALGEBRA = "linear_algebra"
    SORTING = "sorting"
    INDEXING = "indexing"
    RANDOM = "random"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    FUSED = "fused"
    """A kernel that a compiler wrote for several operators."""
    KERNEL = "kernel"
    """A script's or a library's own, of which it is declared what it costs."""
    MATRIX_KERNEL = "matrix_kernel"
    """One whose FLOPs are declared to be those of products on tensor cores."""
    COMMUNICATION = "communication"
    VIEW = "view"
    METADATA = "metadata"
    SLEEP = "sleep"
    """The script's own `time.sleep`: no work of the device."""
    UNCOUNTED = "uncounted"

    @property
    def is_matmul(self) -> bool:
        """Work that runs on tensor cores; MFU counts the FLOPs of these kinds alone."""
        return self in MATMUL

    @property
    def is_free(self) -> bool:
        return self in (Kind.VIEW, Kind.METADATA, Kind.SLEEP)


MATMUL = frozenset(
    (Kind.PRODUCT, Kind.ATTENTION, Kind.CONVOLUTION, Kind.RECURRENT, Kind.MATRIX_KERNEL)
)

Formula = Callable[[Call], Cost]


@dataclass(frozen=True, slots=True)
class Rule:
    kind: Kind
    formula: Formula


RULES: dict[str, Rule] = {}
"""Operator name ("aten.mm") to its rule. Filled by the imports in `work/__init__.py`."""


def rule(operators: str, *, kind: Kind) -> Callable[[Formula], Formula]:
    """Register a formula for operators, as `full_names` reads them.

    Raises ValueError when one has a rule already.
    """

    def register(formula: Formula) -> Formula:
        for name in full_names(operators):
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = Rule(kind, formula)
        return formula

    return register


def full_names(operators: str) -> list[str]:
    """Those without a namespace are of aten: "mm c10d.send" gives "aten.mm" and "c10d.send"."""
    return [name if "." in name else f"aten.{name}" for name in operators.split()]


RESULT, FIRST = "result", "first"


class PerElement(NamedTuple):
    """Operators whose FLOPs are a number for each element of one tensor, in one pass."""

    operators: str
    flops: int = 0
    of: str = RESULT
    """An argument, or the first result (RESULT) or input (FIRST)."""
    unread: tuple[str, ...] = ()

    def cost(self, call: Call) -> Cost:
        flops = self.flops and self.flops * self.counted_tensor(call).elements
        return one_pass(call, flops=flops, unread=self.unread)

    def counted_tensor(self, call: Call) -> TensorSpec:
        if self.of == RESULT:
            return result(call)
        return call.inputs[0] if self.of == FIRST else call.tensor(self.of)


def rules(kind: Kind, *rows: PerElement) -> None:
    """Register a rule for the operators of each row. Raises ValueError as `rule` does."""
    for row in rows:
        rule(row.operators, kind=kind)(row.cost)


def one_pass(
    call: Call, *, flops: int = 0, unread: Iterable[str] = (), unwritten: Iterable[str] = ()
) -> Cost:
    """`flops`, and each device input read once and each result written once.

    `unread` names arguments that are written without being read (`copy_`'s self), `unwritten`
    those the schema lets the operator write to and it leaves alone. The target of an out= form is
    never read.
    """
    skip, kept = frozenset(unread), frozenset(unwritten)
    has_out = not call.name.endswith("_")
    came_in = {spec.storage for spec in call.inputs}
    on_device = [spec for spec in call.inputs if spec.is_on_device]
    written = [s for s in on_device if s.is_written and s.argument not in kept]
    read = [s for s in on_device if s.argument not in skip and not (has_out and s.is_written)]
    fresh = [s for s in call.outputs if s.is_on_device and s.storage not in came_in]
    return Cost(
        flops=flops,
        bytes_read=sum(spec.bytes for spec in read),
        bytes_written=sum(spec.bytes for spec in written + fresh),
    )


def result(call: Call) -> TensorSpec:
    """The first result; for an in-place operator on a list, which returns nothing, its target."""
    if call.outputs:
        return call.outputs[0]
    for spec in call.inputs:
        if spec.is_written:
            return spec
    return call.inputs[0]


def integers(call: Call, argument: str) -> tuple[int, ...]:
    """An argument that is an int or a list of ints, as a tuple; empty when it was not given."""
    value = call.literal(argument)
    values = value if isinstance(value, tuple) else (value,)
    return tuple(int(item) for item in values if isinstance(item, int))


def integer(call: Call, argument: str, default: int) -> int:
    """An argument that is one int."""
    values = integers(call, argument)
    return values[0] if values else default


def is_set(call: Call, argument: str) -> bool:
    """A flag was given and is true."""
    return call.literal(argument) is True


def mask(call: Call, argument: str, size: int) -> tuple[bool, ...]:
    """An argument that is a list of flags, which results are wanted; all when it was not given."""
    flags = tuple(bool(flag) for flag in integers(call, argument))
    return flags or (True,) * size


def rule_of(call: Call) -> Rule | None:
    """The rule of an operator, in-place or not; None without a rule."""
    return RULES.get(call.name) or RULES.get(call.name.removesuffix("_"))


MOVES = frozenset(
    """
    prims.convert_element_type prims.device_put prims.iota prims.inductor_seeds
    prims.inductor_lookup_seed prims.inductor_force_stride_order
    """.split()
)
"""Operators of a compiler's own that compute nothing."""


def cost_of_part(part: Part) -> Cost:
    """FLOPs as if each operator ran by itself; bytes as the kernel moves them."""
    return Cost(sum(map(fused_flops, part.calls)), part.bytes_read, part.bytes_written)


def heart_of(call: Call) -> Call | None:
    """The product or attention that a compiler's kernel is a template of; None of other kernels."""
    for part in () if call.fused is None else call.fused.parts:
        for inner in part.calls:
            rule = RULES.get(inner.name)
            if rule is not None and rule.kind.is_matmul:
                return inner
    return None


def fused_flops(call: Call) -> int:
    """FLOPs by the operator's rule. One that the compiler alone has is arithmetic on each
    element.
    """
    if call.is_view or call.name in MOVES:
        return 0
    rule = rule_of(call)
    return result(call).elements if rule is None else rule.formula(call).flops


def cost_without_rule(call: Call) -> tuple[Kind, Cost]:
    """Kind and cost as declared; of a script's kernel at least the bytes are known."""
    is_launched = kernels.is_launched(call)
    flops = kernels.declared_flops(call)
    if flops is None:
        return Kind.UNCOUNTED, kernels.kernel_bytes(call) if is_launched else Cost()
    kind = Kind.MATRIX_KERNEL if is_set(call, "on_tensor_cores") else Kind.KERNEL
    plain = kernels.kernel_bytes(call) if is_launched else one_pass(call)
    return kind, kernels.declared_cost(call, flops, plain)


def reason_uncounted(call: Call) -> str:
    return kernels.UNDECLARED if kernels.is_launched(call) else "no rule"


def cost_of(call: Call) -> tuple[Kind, Cost]:
    """The kind and cost of a call. An operator without a rule is UNCOUNTED, never silently
    zero, unless its cost is declared.
    """
    if call.fused is not None:
        heart = heart_of(call)
        kind = Kind.FUSED if heart is None else RULES[heart.name].kind
        return kind, sum(map(cost_of_part, call.fused.parts), start=Cost())
    rule = rule_of(call)
    # c10d's schemas do not say that a collective writes to the tensors it returns.
    is_collective = rule is not None and rule.kind is Kind.COMMUNICATION
    if call.is_view and not is_collective:
        return Kind.VIEW, Cost()
    if rule is None:
        return cost_without_rule(call)
    return rule.kind, rule.formula(call)


def known_cost(call: Call) -> tuple[Kind, Cost] | None:
    """The same, of what a profiler recorded: None where that does not suffice."""
    if not call.is_recorded:
        return None
    try:
        return cost_of(call)
    except Exception:  # arguments that no rule foresaw: the ledger lists the call with the reason
        return None
