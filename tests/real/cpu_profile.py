"""The memory of the same steps twice: run for real on the CPU, and on the virtual GPU.

The real run's allocations and frees are those torch's profiler saw, each inside the operators that
were running. The simulation's are the trace's storages. Both become a `Course`, whose clock counts
operators on the device, and courses are compared with `==`.

How an allocation of the profile finds its place:

- The profiler's tree is walked in the order of execution, and the simulation's operators are looked
  up in it one after the other, by name. An operator found is one event: whatever ran or was
  allocated below it is its own business. Every operator of the simulation must be found. One that
  makes a storage is not found in an event without any allocation: recomputation ends by raising
  from within an operator, whose kernel never runs.
- An allocation that an operator made and freed again itself is *scratch*: no tensor of the
  program's, and on another device another number. It is in no course; its peak is kept beside.
- What an operator on the device allocated and left behind is a storage of the device.
- What any other operator left behind is a storage of the host: the optimizers' step counters. The
  simulation runs these operators for real, and its tensors are watched.
- What was allocated outside every operator is a *number*: a Python scalar that the binding wraps in
  a tensor before it calls the operator. On CUDA, too, it stays on the host. It is in no course.

Detaching is no operator here. Where autograd saves a result it detaches it below the dispatcher:
the simulation is told of that, the profiler is not. It allocates nothing.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch._ops import OpOverload
from torch.profiler import ProfilerActivity, profile

from tests.traces import FullOp, ops
from torchtally.trace import Ending, Trace
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.session import recording
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import Invocation, tensors_in
from torchtally.virtual.storage import virtual_of

Program = Callable[[str], Callable[[], object]]
"""Given a device, puts a model on it, and gives back the steps to be compared."""


@dataclass(frozen=True, slots=True, order=True)
class Life:
    """One storage. Ticks count the device's operators since the steps began."""

    born: int
    """The operator that made it, or before which it was made on the host; -1: before the steps."""
    died: int
    """How many operators had run; `FOREVER` if it lives when the steps end."""
    bytes: int
    is_on_host: bool = False


FOREVER = 1 << 62
SAME = {"aten::_reshape_alias": "aten.view"}
"""`reshape` calls a view by another name where a dispatch mode listens."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the steps held, and when."""

    operators: tuple[str, ...]
    """Of the device, in order."""
    lives: tuple[Life, ...]
    """Sorted: within one operator the order is the kernel's own."""

    @property
    def curve(self) -> tuple[int, ...]:
        """Bytes on the device more than at the start, as each operator has just run."""
        change = [0] * (len(self.operators) + 1)
        for life in self.lives:
            if not life.is_on_host and life.bytes:
                if life.born >= 0:
                    change[life.born] += life.bytes
                if life.died != FOREVER:
                    change[life.died] -= life.bytes
        return tuple(accumulate(change))

    @property
    def peak_bytes(self) -> int:
        return max(self.curve)


# The simulation.


@dataclass(slots=True)
class HostStorage:
    """A real tensor's bytes in the simulation; deleted with the tensor's storage."""

    recorder: Recorder
    bytes: int
    born: int
    died: list[int] = field(default_factory=list)

    def __del__(self) -> None:
        self.died.append(self.recorder.clock)


@dataclass(frozen=True, slots=True)
class HostLog:
    """The operators that a simulation ran on the host, and what they left there."""

    operators: list[tuple[int, str]] = field(default_factory=list)
    """The device's clock, and the name."""
    storages: list[tuple[int, int, list[int]]] = field(default_factory=list)
    """Bytes, born, died."""

    @contextmanager
    def watching(self, mode: VirtualDispatch, recorder: Recorder) -> Iterator[None]:
        run_on_host = mode.run_on_host

        def run(call: Invocation) -> Any:
            result = run_on_host(call)
            self.operators.append((recorder.clock, call.operator.name))
            came_in = {tensor.untyped_storage()._cdata for tensor in call.inputs}
            if call.operator.name == "aten.lift_fresh":  # how `torch.tensor` hands its result over
                came_in = set()
            for tensor in tensors_in(result):
                storage = tensor.untyped_storage()
                is_real = virtual_of(tensor) is None and storage.device.type == "cpu"
                if is_real and storage._cdata not in came_in:
                    watched = HostStorage(recorder, storage.nbytes(), recorder.clock)
                    self.storages.append((watched.bytes, watched.born, watched.died))
                    storage.watched = watched  # type: ignore[attr-defined]
            return result

        def run_plainly(overload: OpOverload, args: tuple[Any, ...]) -> Any:
            return run(Invocation(mode.operator(overload), args, {}))

        mode.run_on_host = run  # type: ignore[method-assign]
        mode.run_plainly = run_plainly  # type: ignore[method-assign]
        try:
            yield
        finally:
            del mode.run_on_host, mode.run_plainly  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Simulation:
    """A trace, and the part of it that is the steps."""

    trace: Trace
    first: int
    """The tick at which the steps began."""
    host: HostLog

    @property
    def course(self) -> Course:
        counted = [is_counted(op) for op in ops(self.trace)[self.first :]]
        before = [0, *accumulate(counted)]

        def life(size: int, born: int, died: int | None, *, is_on_host: bool = False) -> Life:
            begin = before[born - self.first] if born >= self.first else -1
            end = FOREVER if died is None else before[died - self.first]
            return Life(begin, end, size, is_on_host)

        lives = [
            *(
                life(storage.requested_bytes, storage.born, storage.died)
                for storage in self.trace.storages
                if storage.died is None or storage.died >= self.first
            ),
            *(
                life(size, born, died[0] if died else None, is_on_host=True)
                for size, born, died in self.host.storages
            ),
        ]
        changing = [
            life for life in lives if life.bytes and (life.born >= 0 or life.died != FOREVER)
        ]
        return Course(device_names(self.operators), tuple(sorted(changing)))

    @property
    def operators(self) -> list["Operator"]:
        """Every operator, the host's among the device's."""
        births = {storage.born for storage in self.trace.storages if storage.requested_bytes}
        host = [
            (clock, 0, Operator(name, is_device=False, makes_storage=False))
            for clock, name in self.host.operators
            if name.startswith("aten.")  # not the profiler's own annotations
        ]
        device = [
            (op.clock, 1, Operator(op.call.name, is_device=True, makes_storage=op.clock in births))
            for op in ops(self.trace)[self.first :]
            if is_counted(op)
        ]
        return [operator for _, _, operator in sorted([*host, *device], key=lambda pair: pair[:2])]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the simulation, to be found in the profile."""

    name: str
    is_device: bool
    makes_storage: bool


def device_names(operators: list[Operator]) -> tuple[str, ...]:
    return tuple(operator.name for operator in operators if operator.is_device)


def is_counted(op: FullOp) -> bool:
    """Not a detached view, nor the move of an empty tensor to where it is already."""
    if op.call.name == "aten._to_copy" and max(op.inputs) < 0:
        return any(spec.elements for spec in op.call.inputs)
    return op.call.name != "aten.detach"


def simulated(program: Program) -> Simulation:
    """The steps on the virtual GPU, composed as the CPU composes them."""
    host = HostLog()
    with recording("H100-SXM", script="steps", dispatch="cpu") as recorder:
        steps = program("cuda")
        with no_collections(), host.watching(recorder.gpu.mode, recorder.recorder):
            first = recorder.recorder.clock
            steps()
            trace = recorder.trace(Ending("exit"))
            host = HostLog(
                [*host.operators], [(size, born, [*died]) for size, born, died in host.storages]
            )
    return Simulation(trace, first, host)


# The real run.


@dataclass(frozen=True, slots=True)
class Run:
    """A profiled run: its course, and what is in no course."""

    course: Course
    peak_bytes: int
    """At most held more than at the start, scratch and numbers and the host's included."""
    scratch: int
    """How many allocations were scratch."""
    numbers: tuple[int, ...]
    """Sizes of the allocations outside every operator."""
    events: int
    """Allocations and frees altogether."""


def profiled(program: Program, operators: list[Operator]) -> Run:
    """The steps for real, the profile's allocations separated by the simulation's operators."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # scratch of parallel kernels is theirs alone
    try:
        steps = program("cpu")
        with (
            no_collections(),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watch,
        ):
            steps()
        results: Any = watch.profiler
        return Reader(operators).read(results.kineto_results.experimental_event_tree())
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_collections() -> Iterator[None]:
    """Garbage in cycles dies at a moment that depends on everything else in the process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(slots=True)
class Block:
    """An allocation of the profile while it is alive."""

    bytes: int
    born: int
    is_on_host: bool
    place: int
    """The number of the outermost event that counts as one operator; -1 outside of any."""


@dataclass(slots=True)
class Reader:
    """Walks one profile's tree; see the module's docstring for the rules."""

    operators: list[Operator]
    found: int = 0
    """How many of `operators` were found so far."""
    clock: int = 0
    """How many of those are the device's."""
    place: int = -1
    places: int = 0
    is_in_device_operator: bool = False
    alive: dict[int, Block] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    scratch: int = 0
    events: int = 0
    held: int = 0
    peak: int = 0
    total: int | None = None

    def read(self, roots: list[Any]) -> Run:
        for root in roots:
            self.walk(root)
        missing = self.operators[self.found : self.found + 1]
        assert not missing, f"operator {self.found} never ran for real: {missing[0].name}"
        for block in self.alive.values():
            self.ended(block, FOREVER)
        course = Course(device_names(self.operators), tuple(sorted(self.lives)))
        return Run(course, self.peak, self.scratch, tuple(self.numbers), self.events)

    def walk(self, event: Any) -> None:
        if event.tag.name == "Allocation":
            self.allocation(event.extra_fields)
            return
        if self.place >= 0 or not is_operator(event):
            for child in event.children:
                self.walk(child)
        elif self.is_next(event):
            self.whole(event, is_device=self.operators[self.found].is_device)
        elif self.holds_next(event):
            for child in event.children:
                self.walk(child)
        else:
            self.whole(event, is_device=False, is_known=False)

    def is_next(self, event: Any) -> bool:
        name = SAME.get(event.name, event.name.replace("::", "."))
        if self.found == len(self.operators):
            return False
        wanted = self.operators[self.found]
        return name == wanted.name and (allocates(event) or not wanted.makes_storage)

    def holds_next(self, event: Any) -> bool:
        """The operator looked for is inside: this one is only its composition."""
        return any(self.is_next(child) or self.holds_next(child) for child in event.children)

    def whole(self, event: Any, *, is_device: bool, is_known: bool = True) -> None:
        """An event that is one operator."""
        self.place, self.is_in_device_operator = self.places, is_device
        for child in event.children:
            self.walk(child)
        self.places += 1
        self.place, self.is_in_device_operator = -1, False
        self.found += is_known
        self.clock += is_device

    def allocation(self, fields: Any) -> None:
        size = fields.alloc_size
        self.events += 1
        assert self.total is None or fields.total_allocated == self.total + size, "an event is lost"
        self.total = fields.total_allocated
        self.held += size
        self.peak = max(self.peak, self.held)
        if size > 0:
            self.alive[fields.ptr] = Block(
                size, self.clock, not self.is_in_device_operator, self.place
            )
            return
        block = self.alive.pop(fields.ptr, None)
        if block is None:
            self.lives.append(Life(-1, self.clock, -size))
        elif block.place >= 0 and block.place == self.place:
            self.scratch += 1
        else:
            self.ended(block, self.clock)

    def ended(self, block: Block, died: int) -> None:
        if block.place < 0:
            self.numbers.append(block.bytes)
        else:
            self.lives.append(Life(block.born, died, block.bytes, block.is_on_host))


def allocates(event: Any) -> bool:
    """Something was allocated below. Not by an operator that raised before its kernel ran."""
    if event.tag.name == "Allocation":
        return bool(event.extra_fields.alloc_size > 0)
    return any(map(allocates, event.children))


def is_operator(event: Any) -> bool:
    """Not one of autograd's nodes, nor an annotation of the script's."""
    return event.tag.name == "TorchOp" and event.name.startswith("aten::")


def differences(simulation: Course, real: Course) -> list[str]:
    """What is not equal, in words."""
    ours, theirs = Counter(simulation.lives), Counter(real.lives)

    def describe(life: Life) -> str:
        names = simulation.operators
        maker = names[life.born] if 0 <= life.born < len(names) else "the start"
        return f"{life} of {maker}"

    return [
        *(f"only for real: {describe(life)}" for life in (theirs - ours).elements()),
        *(f"only simulated: {describe(life)}" for life in (ours - theirs).elements()),
    ]
