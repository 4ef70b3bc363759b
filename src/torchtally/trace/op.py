"""One dispatched operator: what was called, on what, from where, in which phase.

An `Op` is a row of numbers. What it was called with is a `Call`, where it came from a `Site`: rows
of two tables of the trace, to which the ops that share them refer by number. Whatever depends on a
call alone is computed once per call.
"""

import math
from enum import StrEnum

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.trace.record import Count, Index, Record, Tick

Scalar = int | bool | str | None
Literal = Scalar | tuple[Scalar, ...]
"""A non-tensor argument a formula may need. Floats (a learning rate) change no count: not kept."""


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    """Forward work that no backward pass follows. Never recorded: `steps` tells it apart."""
    PREFILL = "prefill"
    """Of a run that generates tokens: passes over tokens that were given. Never recorded."""
    DECODE = "decode"
    """Passes over tokens that a pass before them made, and choosing the next. Never recorded."""


FORWARD_PHASES = frozenset({Phase.FORWARD, Phase.PREFILL, Phase.DECODE})
"""What counts as the forward pass of the period that is reported."""


class TensorSpec(Record, frozen=True):
    """One tensor argument or result of a call: its shape and layout, not its values.

    `storage` is a number within the call: tensors of one call that share storage carry the same
    one. `is_written` says that the operator's schema lets it write to this argument.
    """

    argument: str
    """The argument's name in the operator's schema ("self", "mat2"); "" for a result."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    """"cuda:0" for the accounted device, "cpu" for the host."""
    storage: int
    is_written: bool = False
    is_pinned: bool = False
    """A host tensor in page-locked memory: the device copies it by itself, and at full speed."""

    @property
    def elements(self) -> int:
        """Elements of the shape, a broadcast one counted as often as it appears."""
        return math.prod(self.shape)

    @property
    def itemsize_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of distinct elements: a dimension of stride 0 (broadcast) is stored once."""
        if 0 not in self.stride:
            return math.prod(self.shape) * DTYPE_BYTES[self.dtype]
        stored = (n for n, step in zip(self.shape, self.stride, strict=True) if step or n == 0)
        return math.prod(stored) * self.itemsize_bytes

    @property
    def is_on_device(self) -> bool:
        return self.device != "cpu"


class Call(Record, frozen=True):
    """An operator with everything a cost can depend on: shapes, strides, dtypes and literals."""

    name: str
    """As torch spells it, without the overload: "aten.mm"."""
    overload: str
    inputs: tuple[TensorSpec, ...]
    """Tensor arguments in schema order; the tensors of a list argument follow one another."""
    outputs: tuple[TensorSpec, ...]
    literals: tuple[tuple[str, Literal], ...] = ()
    """By name, as the script gave them: an argument left at its default is not among them.

    ("allow_tf32", True) is not an argument but PyTorch's setting at that moment: CUDA's libraries
    may compute this float32 product, convolution or recurrent network in TF32. Nor is
    ("benchmark", True): cuDNN tries this convolution's algorithms when it meets it first. Nor is
    ("in_graph", True): a CUDA graph that is replayed issues the call with its others. Nor is
    ("group", n): the collective is one of `Trace.groups[n]`. ("unrecorded", True): a profiler did
    not record what the operator was called with.

    Of attention, values are among them where they are known, since its work depends on them:
    "lengths_q" and "lengths_k" of packed sequences, and of a mask "attended", two counts of the
    scores' elements: with every query taken to attend to as many keys as the one that attends to
    most, and those that the mask leaves. ("drops", True): it drops some of its weights.
    """
    is_mutating: bool = False
    """The operator writes to at least one argument (`add_`, `out=`)."""
    fused: "FusedKernel | None" = None
    """Of a kernel that a compiler wrote, whose name is that of the call."""

    @property
    def plain_name(self) -> str:
        """The name without its namespace and the mark of an in-place form: "mm", "add"."""
        return self.name.partition(".")[2].removesuffix("_")

    def tensors(self, argument: str) -> tuple[TensorSpec, ...]:
        """The tensors given for one argument: none, one, or those of a list."""
        return tuple(spec for spec in self.inputs if spec.argument == argument)

    def tensor(self, argument: str) -> TensorSpec:
        """The tensor given for one argument. Raises KeyError when it was not given."""
        for spec in self.inputs:
            if spec.argument == argument:
                return spec
        raise KeyError(f"{self.name} was called without {argument!r}")

    def literal(self, argument: str, default: Literal = None) -> Literal:
        for name, value in self.literals:
            if name == argument:
                return value
        return default

    @property
    def is_recorded(self) -> bool:
        """What it was called with is known."""
        return self.literal("unrecorded") is not True

    @property
    def is_view(self) -> bool:
        """Every result lives in storage that came in, and nothing was written."""
        if self.is_mutating or not self.outputs or not self.inputs:
            return False
        came_in = {spec.storage for spec in self.inputs}
        return all(spec.storage in came_in for spec in self.outputs)


UNRECORDED = (("unrecorded", True),)
"""Literals of a call of which a profiler recorded the name alone."""


class Part(Record, frozen=True):
    """What one operator of the script has of a kernel that a compiler fused it into."""

    operator: str
    calls: tuple[Call, ...]
    """What it was decomposed into: each as if it was called by itself."""
    bytes_read: Count
    bytes_written: Count
    """From and to memory, by the compiler's own count: its other operands never leave the chip."""


Operations = tuple[tuple[str, Count], ...]
"""(name, times) of what is computed for single elements."""


class Tile(Record, frozen=True):
    """How a compiler's template of a product cuts it up: a block of threads for each tile."""

    rows: Count
    columns: Count
    depth: Count
    """Of K, what a block takes in at a time."""
    stages: Count
    """Of these, as many are in shared memory: one that is multiplied, the others on their way."""
    warps: Count


class FusedKernel(Record, frozen=True):
    """What a compiler's kernel does: its parts sum to the kernel."""

    kind: str
    """"pointwise", "reduction", "persistent reduction", "foreach", "template" or "other"."""
    parts: tuple[Part, ...]
    operations: Operations = ()
    """By the compiler's names ("exp", "load", "sum"), by its own count. An operator of a part may
    be computed more often than it has elements: once for each that reads it."""
    tile: Tile | None = None
    """Of a template of a product."""


class Frame(Record, frozen=True):
    """A line of Python below which an operator ran."""

    file: str
    line: int
    function: str
    text: str
    """The source line itself, stripped, so that a report needs no source tree."""
    is_own: bool
    """The user's own code; else an installed library's (never torch's: those are left out)."""
    dimensions: str = ""
    """Names that the source gives to the dimensions of what the line makes: "batch seq"."""


class Site(Record, frozen=True):
    """Site to which an operator belongs. A backward operator belongs to its forward line and
    module.
    """

    module: str
    """Path of the module whose forward ran it ("blocks.3.attn.qkv"); "" outside any module."""
    module_class: str
    frames: tuple[Frame, ...]
    """Innermost first."""

    @property
    def line(self) -> Frame | None:
        """The innermost line of the user's own code, else the innermost one known."""
        for frame in self.frames:
            if frame.is_own:
                return frame
        return self.frames[0] if self.frames else None


class Op(Record, frozen=True):
    """One operator that ran on the device at one tick of the trace's clock."""

    clock: Tick
    call: Index
    """Its number in `Trace.calls`."""
    site: Index
    """Its number in `Trace.sites`."""
    phase: Phase
    inputs: tuple[int, ...]
    """Numbers of the storages of the call's inputs, in that order; -1 for a host tensor, and for
    every tensor of a run that a profiler recorded."""
    outputs: tuple[int, ...]
    """Numbers of the storages of the call's outputs, in that order; -1 for a host tensor."""
    stream: int = 0
    """The stream that it ran on; a communicator has its own (`communicator_stream`)."""
    parts: tuple[Index, ...] = ()
    """Numbers of the sites that the parts of a fused call belong to, in their order."""
