"""Small traces for tests: a few operators whose sums a reader can do in their head."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from torchtally.trace import (
    Call,
    Ending,
    Frame,
    Literal,
    Note,
    Op,
    Phase,
    Placeholder,
    Reserved,
    Role,
    Site,
    Storage,
    TensorSpec,
    Trace,
)

GPU = "cuda:0"


def spec(
    *shape: int,
    argument: str = "",
    dtype: str = "float32",
    storage: int = 0,
    device: str = GPU,
    is_pinned: bool = False,
) -> TensorSpec:
    """A contiguous tensor."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size
    return TensorSpec(
        argument, shape, tuple(reversed(stride)), dtype, device, storage, is_pinned=is_pinned
    )


def mm_call(m: int, k: int, n: int, dtype: str = "float32", *, allow_tf32: bool = False) -> Call:
    """`aten.mm` of (m, k) with (k, n): 2 m k n FLOPs."""
    literals: tuple[tuple[str, Literal], ...] = (("allow_tf32", True),) if allow_tf32 else ()
    return Call(
        "aten.mm",
        "default",
        (
            spec(m, k, argument="self", dtype=dtype, storage=0),
            spec(k, n, argument="mat2", dtype=dtype, storage=1),
        ),
        (spec(m, n, dtype=dtype, storage=2),),
        literals,
    )


def factory_call(*shape: int, name: str = "aten.empty", dtype: str = "float32") -> Call:
    return Call(name, "memory_format", (), (spec(*shape, dtype=dtype),))


def copy_in_call(
    *shape: int, dtype: str = "float32", is_pinned: bool = False, non_blocking: bool = False
) -> Call:
    """A copy of a host tensor to the device."""
    source = spec(*shape, argument="self", dtype=dtype, device="cpu", is_pinned=is_pinned)
    result = spec(*shape, dtype=dtype, storage=1)
    literals: tuple[tuple[str, Literal], ...] = (("non_blocking", True),) if non_blocking else ()
    return Call("aten._to_copy", "default", (source,), (result,), literals)


FLASH = "aten._scaled_dot_product_flash_attention"


def attention_call(is_causal: bool, name: str = FLASH) -> Call:
    q, k, v = (
        spec(1, 1, 4, 8, argument=name_, storage=number)
        for number, name_ in enumerate(("query", "key", "value"))
    )
    literals: tuple[tuple[str, Literal], ...] = (("is_causal", is_causal),)
    return Call(name, "default", (q, k, v), (spec(1, 1, 4, 8, storage=3),), literals)


def unknown_call(name: str = "mylib.mystery") -> Call:
    return Call(name, "default", (spec(4, argument="x"),), (spec(4, storage=1),))


def frame(file: str = "train.py", line: int = 1, text: str = "", *, is_own: bool = True) -> Frame:
    return Frame(file, line, "main", text or f"line_{line}()", is_own)


def site(*frames: Frame, module: str = "", module_class: str = "") -> Site:
    return Site(module, module_class, frames)


NOWHERE = site()


@dataclass
class TraceBuilder:
    """Appends operators, one tick each, and the storages they allocate."""

    ops: list[Op] = field(default_factory=list)
    calls: dict[Call, int] = field(default_factory=dict)
    sites: dict[Site, int] = field(default_factory=dict)
    storages: list[Storage] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    differentiated: list[int] = field(default_factory=list)
    """Ticks of the operators whose autograd nodes a backward pass runs."""
    stream: int = 0
    """The stream on which storages are allocated from now on."""
    chip: str = "H100-SXM"

    @property
    def clock(self) -> int:
        return len(self.ops)

    def run(
        self,
        call: Call,
        inputs: Sequence[int] = (),
        *,
        site: Site = NOWHERE,
        phase: Phase = Phase.FORWARD,
        outputs: Sequence[int] | None = None,
        role: Role | None = None,
        name: str = "",
        size: int | None = None,
    ) -> int:
        """Run one operator that allocates its results (or takes `outputs`). Returns the last."""
        if outputs is None:
            outputs = [self.allocate(size or out.bytes, role, name) for out in call.outputs]
        self.ops.append(
            Op(
                self.clock,
                self.calls.setdefault(call, len(self.calls)),
                self.sites.setdefault(site, len(self.sites)),
                phase,
                tuple(inputs),
                tuple(outputs),
            )
        )
        return outputs[-1] if outputs else -1

    def allocate(self, size: int, role: Role | None = None, name: str = "") -> int:
        number = len(self.storages)
        is_trained = role is Role.PARAMETER
        storage = Storage(
            number, GPU, size, self.clock, None, role, name, self.stream, is_trained=is_trained
        )
        self.storages.append(storage)
        return number

    def free(self, *numbers: int) -> None:
        """Gone before the next operator."""
        for number in numbers:
            self.storages[number] = replace(self.storages[number], died=self.clock)

    def reserve(self, size: int) -> None:
        """From the next operator on, so many bytes are in the allocator's segments."""
        self.reserved.append(Reserved(GPU, self.clock, size))

    def wait(self) -> None:
        """The host waits for the device before it issues the next operator."""
        if self.clock not in self.waits:
            self.waits.append(self.clock)

    def end_step(self) -> None:
        self.step_ends.append(self.clock)

    def build(
        self,
        *,
        script: str = "train.py",
        ending: Ending = Ending("steps"),  # noqa: B008 (frozen)
        placeholders: Sequence[Placeholder] = (),
        notes: Sequence[Note] = (),
    ) -> Trace:
        return Trace(
            script=script,
            chip=self.chip,
            torch_version="2.13.0",
            calls=tuple(self.calls),
            sites=tuple(self.sites),
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            step_ends=tuple(self.step_ends),
            ending=ending,
            placeholders=tuple(placeholders),
            notes=tuple(notes),
            reserved=tuple(self.reserved),
            waits=tuple(self.waits),
            differentiated=tuple(self.differentiated),
            facts={"python": "3.11.7"},
        )


def big_trace(ops: int) -> Trace:
    """As many operators, each allocating a storage that lives for ten ticks."""
    lines = [frame(line=n) for n in range(200)]
    sites = [
        site(lines[n], lines[n // 2], module=f"blocks.{n}.mlp", module_class="MLP")
        for n in range(200)
    ]
    calls = [mm_call(n + 1, 64, 32) for n in range(300)]
    phases = (Phase.FORWARD, Phase.BACKWARD)
    return Trace(
        script="train.py --big",
        chip="H100-SXM",
        torch_version="2.13.0",
        calls=tuple(calls),
        sites=tuple(sites),
        ops=tuple(
            Op(n, n % 300, n % 200, phases[n // 1000 % 2], (max(n - 2, 0), max(n - 1, 0)), (n,))
            for n in range(ops)
        ),
        storages=tuple(
            Storage(n, GPU, 512 * (n % 100 + 1), n, n + 10 if n + 10 < ops else None)
            for n in range(ops)
        ),
        step_ends=(ops // 2, ops),
        ending=Ending("steps"),
    )
