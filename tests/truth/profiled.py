"""What the profiler saw, by operator: how often it ran, for how long, and by which kernels.

Read from the profiler's raw events: `key_averages` knows no data types, and building its tables
takes longer than the steps did. Of a list of tensors torch 2.11 tells no shapes; nor do we.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch.autograd import DeviceType  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, a copy or a fill of the device."""

    name: str
    """Without its parameters, which its template names as well."""
    launches: float
    """For a step."""
    device_s: float
    """For a step."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All calls of an operator with the same shapes and data types."""

    name: str | None
    """As the profiler names it, "aten::mm"; None for kernels that it links to no operator."""
    shapes: tuple[tuple[int, ...], ...]
    """Of its tensors, in order; () too for a list of tensors, whose data type is "TensorList"."""
    dtypes: tuple[str, ...]
    """Of each; by torch's own names."""
    calls: float
    """For a step; on a GPU those that launched a kernel."""
    self_s: float
    """For a step. On a GPU the time of its own kernels on the device; else that of the host in the
    operator, without the operators that it called."""
    kernels: tuple[Kernel, ...]
    """The longest first; none on the host."""

    def to_json(self) -> list[Any]:
        """Only the values: the keys of a thousand rows would be most of a file."""
        kernels = [[kernel.name, kernel.launches, kernel.device_s] for kernel in self.kernels]
        return [self.name, self.shapes, self.dtypes, self.calls, self.self_s, kernels]

    @staticmethod
    def from_json(document: list[Any]) -> "OperatorTime":
        name, shapes, dtypes, calls, self_s, kernels = document
        return OperatorTime(
            name,
            tuple(map(tuple, shapes)),
            tuple(dtypes),
            calls,
            self_s,
            tuple(Kernel(*kernel) for kernel in kernels),
        )


class Event(Protocol):
    """What is asked of torch's `_KinetoEvent`; torch 2.11 answers all of it."""

    def name(self) -> str: ...
    def device_type(self) -> DeviceType: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def duration_ns(self) -> int: ...
    def start_thread_id(self) -> int: ...
    def end_thread_id(self) -> int: ...
    def correlation_id(self) -> int: ...
    def linked_correlation_id(self) -> int: ...
    def is_user_annotation(self) -> bool: ...
    def shapes(self) -> list[list[int]]: ...
    def dtypes(self) -> list[str]: ...


DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
}
"""The compiler's names, as the profiler gives them; others are kept as they are."""

NO_TENSORS = ("", "Scalar", "ScalarList")
UNDEFINED = "nullptr"
"""The start of what it says of a tensor that is not there."""

RUNTIME = re.compile(r"cu(da)?[A-Z]")
"""Calls of CUDA itself, whose numbers are not those of operators."""

Signature = tuple[str | None, tuple[tuple[int, ...], ...], tuple[str, ...]]


def signature(event: Event | None) -> Signature:
    if event is None:
        return None, (), ()
    tensors = [
        (tuple(shape), DTYPES.get(dtype, dtype))
        for shape, dtype in zip(event.shapes(), event.dtypes(), strict=True)
        if dtype not in NO_TENSORS and not dtype.startswith(UNDEFINED)
    ]
    return event.name(), tuple(shape for shape, _ in tensors), tuple(name for _, name in tensors)


@dataclass(slots=True)
class Sum:
    """What is added up for a row."""

    calls: int = 0
    self_ns: int = 0
    launches: Counter[str] = field(default_factory=Counter)
    kernel_ns: Counter[str] = field(default_factory=Counter)

    def row(self, of: Signature, steps: int) -> OperatorTime:
        kernels = tuple(
            Kernel(kernel, per_step(self.launches[kernel], steps), seconds(duration_ns, steps))
            for kernel, duration_ns in self.kernel_ns.most_common()
        )
        calls = per_step(self.calls, steps)
        return OperatorTime(*of, calls, seconds(self.self_ns, steps), kernels)


def per_step(number: int, steps: int) -> float:
    return round(number / steps, 4)


def seconds(duration_ns: int, steps: int) -> float:
    return round(duration_ns / steps / 1e9, 12)


def operator_times(events: Iterable[Event], steps: int, *, is_gpu: bool) -> list[OperatorTime]:
    """For one step, of the events of so many; the longest first."""
    known = [event for event in events if not event.is_user_annotation()]
    sums = on_the_device(known) if is_gpu else on_the_host(known)
    rows = [time.row(of, steps) for of, time in sums.items()]
    return sorted(rows, key=lambda row: -row.self_s)


def on_the_device(events: list[Event]) -> dict[Signature, Sum]:
    """Kernels by the operator that launched them, the innermost one."""
    operators = {event.correlation_id(): event for event in events if is_operator(event)}
    launched: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.device_type() != DeviceType.CPU:
            number = event.linked_correlation_id()
            launched[number if number in operators else 0].append(event)
    sums: dict[Signature, Sum] = defaultdict(Sum)
    for number, kernels in launched.items():
        time = sums[signature(operators.get(number))]
        # Kernels without an operator are no call of any.
        time.calls += number in operators
        for kernel in kernels:
            name = short(kernel.name())
            time.launches[name] += 1
            time.kernel_ns[name] += kernel.duration_ns()
            time.self_ns += kernel.duration_ns()
    return sums


def is_operator(event: Event) -> bool:
    return (
        event.device_type() == DeviceType.CPU
        and event.linked_correlation_id() == 0
        and event.correlation_id() != 0
        and not RUNTIME.match(event.name())
    )


def on_the_host(events: list[Event]) -> dict[Signature, Sum]:
    sums: dict[Signature, Sum] = defaultdict(Sum)
    for event, self_ns in self_times(event for event in events if is_operator(event)):
        if event.name().startswith("aten::"):  # the rest is autograd's book-keeping
            time = sums[signature(event)]
            time.calls += 1
            time.self_ns += self_ns
    return sums


def self_times(events: Iterable[Event]) -> Iterator[tuple[Event, int]]:
    """Each with its nanoseconds outside those that began and ended within it, in its thread."""
    whole = [event for event in events if event.start_thread_id() == event.end_thread_id()]
    whole.sort(key=lambda event: (event.start_thread_id(), event.start_ns(), -event.end_ns()))
    inner_ns = [0] * len(whole)
    around: list[int] = []
    for number, event in enumerate(whole):
        while around and not is_within(event, whole[around[-1]]):
            around.pop()
        if around:
            inner_ns[around[-1]] += event.duration_ns()
        around.append(number)
    return (
        (event, event.duration_ns() - inner) for event, inner in zip(whole, inner_ns, strict=True)
    )


def is_within(event: Event, outer: Event) -> bool:
    same = event.start_thread_id() == outer.start_thread_id()
    return same and event.end_ns() <= outer.end_ns()


def short(kernel: str) -> str:
    """A kernel's name without what it returns and the parameters at its end."""
    name = kernel.removeprefix("void ")
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if depth == 0:
            # "Memcpy HtoD (Pageable -> Device)" has a remark there, not parameters.
            return name[:place] if place and name[place - 1] != " " else name
    return name
