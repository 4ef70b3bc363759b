"""The program of a probe: run a script once and report the memory it needs."""

import gc
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from torchtally.chips import chip
from torchtally.isolation.environment import environment
from torchtally.isolation.network import limited_network
from torchtally.isolation.run import isolation
from torchtally.memory.allocator import replay
from torchtally.memory.allocator.needed import NeededMemory
from torchtally.memory.allocator.replay import BORN, events
from torchtally.memory.workspace.kind import BLAS, SCRATCH
from torchtally.runs.allocations import Allocations
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.runs.probe.differences import Differences
from torchtally.runs.probe.folding import Folding
from torchtally.runs.protocol import WRITTEN, CapacityVerdict, ProbeRequest, ProbeResult
from torchtally.timing.prediction import Prediction
from torchtally.timing.targets import roofline
from torchtally.trace import Ending, Storage, Trace
from torchtally.trace.caveats import caveats
from torchtally.tracer.placeholder_reads import PLACEHOLDER_LIMIT
from torchtally.tracer.script import run
from torchtally.tracer.script_file import Script
from torchtally.tracer.session import ignore_step, variables_of
from torchtally.tracer.steps import StepLimit, Steps, StepsDone
from torchtally.tracer.stopper import ScriptOutcome, Stopper, flush_outputs
from torchtally.tracer.what_if import stand_ins
from torchtally.virtual.session import VirtualGPU, virtual_gpu
from torchtally.virtual.stand_ins import apply


def probe(request: ProbeRequest, folder: Path, reply: Callable[[ProbeResult], None]) -> None:
    """Run the script, reply, and end the process. `folder` keeps what it writes."""
    if request.allocator_settings is not None:
        # Only the simulated allocator reads them, when the session begins: torch's is not used.
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = request.allocator_settings
        os.environ.pop("PYTORCH_ALLOC_CONF", None)
    # A probe runs on each core, and threads of OpenMP spin while they wait for work (libgomp's
    # GOMP_SPINCOUNT): with more than one, probes side by side took twice the CPU time.
    torch.set_num_threads(1)
    script = Script(
        request.script, request.arguments, is_module=request.is_module, text=request.text
    )
    recorder = AllocationRecorder(placeholder_limit=request.placeholder_limit or PLACEHOLDER_LIMIT)
    recorder.tensors.is_one_of_many = request.world.size > 1

    def leaving(outcome: ScriptOutcome) -> int:
        with suppress(StepsDone):
            recorder.by_hand.finish()
        recorder.is_stopped = True
        gc.disable()  # much is allocated here that stays, and then the process ends
        isolated.outside(answer, outcome.ending)
        return 0

    def answer(ending: Ending) -> None:
        reply(result(ending, recorder, folding, gpu, differences, request.capacities))
        isolated.tidy()

    stopper = Stopper(leaving, max_seconds=request.max_seconds)
    limit = StepLimit(request.steps)
    steps = Steps(recorder, limit, ignore_step, stopper.steps_are_done)
    with ExitStack() as stack:
        files = isolation(
            request.writes, str(folder / WRITTEN), restricts=True, temporary_in=str(folder)
        )
        isolated = stack.enter_context(files)
        stack.enter_context(limited_network(request.network, recorder.effect, is_own_process=True))
        gpu = stack.enter_context(
            virtual_gpu(
                chip(request.gpu),
                observer=recorder,
                nonzero_fraction=request.nonzero_fraction,
                memory_is_limited=False,
                kernel_s=Prediction(roofline(request.gpu)).kernel_s,
                world=request.world,
            )
        )
        stack.enter_context(environment({**variables_of(request.world), **dict(request.variables)}))
        stack.enter_context(apply(stand_ins(request.what_ifs)))
        differences = Differences(gpu.chip, request.targets)
        stack.enter_context(apply(differences.stand_ins()))
        folding = Folding(recorder, gpu.mode, gpu.mode.gpus[0])
        # A forward pass that is not executed would leave out what its hooks gather.
        if request.folds and request.world.size == 1:
            folding.watch_readers()
            stack.enter_context(apply(folding.stand_ins()))
        stack.enter_context(apply([*recorder.modules.stand_ins(), *steps.stand_ins()]))
        stack.enter_context(steps.watch())
        code = leaving(run(script, stopper))
        flush_outputs()
        os._exit(code)  # threads of the script may still run, and nothing waits for them


def result(
    ending: Ending,
    recorder: AllocationRecorder,
    folding: Folding,
    gpu: VirtualGPU,
    differences: Differences,
    capacities: Sequence[tuple[int, int]],
) -> ProbeResult:
    """How the run ended, its peaks, its allocations, and one verdict per capacity."""
    trace = recorder.trace(
        script="",
        chip=gpu.chip.name,
        ending=ending,
        facts={},
        allocator_settings=gpu.mode.gpus[0].allocator.settings.text,
    )
    peaks = gpu.peak_allocated_bytes, gpu.peak_reserved_bytes
    device = str(gpu.mode.gpus[0].device)
    needed = NeededMemory(trace, peaks, device)
    kept = [
        storage
        for storage in trace.storages
        if storage.number not in folding.storages
        and storage.device == device
        and storage.name != SCRATCH.name
    ]
    return ProbeResult(
        ending=ending.kind,
        message=ending.message,
        steps=len(trace.step_ends),
        peak_allocated_bytes=peaks[0],
        peak_reserved_bytes=peaks[1],
        folded=folding.folded,
        verdicts=tuple(
            verdict(needed, recorder.refused, capacity_bytes, total_bytes)
            for capacity_bytes, total_bytes in capacities
        ),
        allocations=Allocations(
            events=event_order(trace, kept, recorder.scratch, device),
            sizes=[storage.requested_bytes for storage in kept],
            blas=[n for n, storage in enumerate(kept) if storage.name == BLAS.name],
            calls=recorder.scratch_calls,
            uses_streams=any(storage.stream for storage in kept),
        ),
        alike=frozenset(target for target in differences.alike if target),
        questions=tuple(differences.questions),
        caveats=caveats(trace.notes),
    )


def event_order(
    trace: Trace, kept: Sequence[Storage], scratch: Sequence[tuple[int, int]], device: str
) -> list[int]:
    """Order as of `runs.allocations.Allocations.events`: births, deaths and calls that take
    scratch.
    """
    numbers = {storage.number: n for n, storage in enumerate(kept, 1)}
    order_: list[int] = []
    waiting = deque(scratch)
    for tick, order, storage in events(trace, device):
        while waiting and waiting[0][0] < tick:
            order_.append(len(kept) + 1 + waiting.popleft()[1])
        if storage is None:
            order_.append(0)
        elif storage.number in numbers:
            order_.append(numbers[storage.number] * (1 if order == BORN else -1))
    return order_ + [len(kept) + 1 + call for _, call in waiting]


def verdict(
    needed: NeededMemory, refused: str, capacity_bytes: int, total_bytes: int
) -> CapacityVerdict:
    """Whether the run fits a capacity, and its peaks there.

    The run itself had unlimited memory. Where it reserved no more than the capacity, a limited run
    allocates the same. Else the allocator gives cached segments back, which takes a replay.
    """
    peaks = needed.peaks
    if peaks[1] <= capacity_bytes or refused:
        return CapacityVerdict(not refused, *peaks)
    replayed = replay(
        needed.trace, device=needed.device, capacity_bytes=capacity_bytes, total_bytes=total_bytes
    )
    if not replayed.fits:
        return CapacityVerdict(False, peaks[0], needed.more_than(capacity_bytes))
    return CapacityVerdict(True, replayed.peak_allocated_bytes, replayed.peak_reserved_bytes)
