"""What the host takes to issue an operator, Python and autograd included.

Two small models are trained: their kernels are short, so a step takes what issuing takes. How many
operators of each sort a step has, a trace of the same step tells; what their kernels take on a CPU,
where nothing hides it, the samples tell.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor, nn

from torchtally.bench.stopwatch import Clock, undisturbed_s
from torchtally.chips import Chip
from torchtally.timing.calibration import Issue
from torchtally.timing.roofline.lists import listed_tensors
from torchtally.trace import Call, Ending, Phase, Trace
from torchtally.tracer.session import recording
from torchtally.work import cost_of

REPETITIONS = 30
WARM_UPS = 5
WIDTH = 32

KernelSeconds = Callable[[Call], float]
"""What an operator's kernel takes, where the host has to wait for it."""


class SmallBlock(nn.Module):
    """A minimal transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, S, D = x.shape
        q, k, v = (
            part.view(B, S, 2, D // 2).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(B, S, D))
        fed: Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + fed


def transformer() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(64, WIDTH), *(SmallBlock() for _ in range(4)), nn.Linear(WIDTH, 64)
    )


def perceptron() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(nn.Embedding(64, WIDTH), *layers, nn.Linear(WIDTH, 64))


MODELS = (transformer, perceptron)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One model's step: how long the host is busy in each phase."""

    forward_s: float
    backward_s: float
    optimizer_s: float


class Loop:
    """A training loop as people write it."""

    def __init__(
        self, build: Callable[[], nn.Module], device: torch.device, *, by_lists: bool = False
    ) -> None:
        self.model = build().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=by_lists)
        self.tokens = torch.zeros(2, 8, dtype=torch.int64, device=device)

    def step(self, clock: Clock) -> StepTimes:
        begun_s = clock()
        loss = self.model(self.tokens).square().mean()
        forward_s = clock()
        loss.backward()
        backward_s = clock()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepTimes(forward_s - begun_s, backward_s - forward_s, clock() - backward_s)


def measured_step(
    build: Callable[[], nn.Module], device: torch.device, clock: Clock, *, by_lists: bool = False
) -> StepTimes:
    """The undisturbed time of each phase, on the host."""
    loop = Loop(build, device, by_lists=by_lists)
    steps = []
    for number in range(WARM_UPS + REPETITIONS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the queue is empty: issuing never waits for room
        step = loop.step(clock)
        if number >= WARM_UPS:
            steps.append(step)
    return StepTimes(
        undisturbed_s(step.forward_s for step in steps),
        undisturbed_s(step.backward_s for step in steps),
        undisturbed_s(step.optimizer_s for step in steps),
    )


def trace_step(build: Callable[[], nn.Module], chip: Chip, *, by_lists: bool = False) -> Trace:
    """Two steps of the same loop, as facts."""
    with recording(chip, script="bench") as session:
        loop = Loop(build, torch.device("cuda"), by_lists=by_lists)
        for _ in range(2):
            loop.step(lambda: 0.0)
        return session.trace(Ending("exit"))


def issuing(
    device: torch.device,
    chip: Chip,
    clock: Clock,
    view_s: float,
    launch_s: float,
    kernel_s: KernelSeconds,
) -> Issue:
    """Seconds per operator by phase: what is left of each model's step, over its operators."""
    seconds_of: dict[Phase, list[float]] = {phase: [] for phase in Phase}
    for build in MODELS:
        step = measured_step(build, device, clock)
        counts, views, kernels_s = contents(trace_step(build, chip), kernel_s)
        for phase, seconds in (
            (Phase.FORWARD, step.forward_s),
            (Phase.BACKWARD, step.backward_s),
            (Phase.OPTIMIZER, step.optimizer_s),
        ):
            left_s = seconds - views[phase] * view_s - kernels_s[phase]
            seconds_of[phase].append(max(left_s, 0.0) / counts[phase])
    optimizer_s = mean(seconds_of[Phase.OPTIMIZER])
    return Issue(
        forward_s=mean(seconds_of[Phase.FORWARD]),
        backward_s=mean(seconds_of[Phase.BACKWARD]),
        optimizer_s=optimizer_s,
        view_s=view_s,
        launch_s=launch_s,
        list_s=listed_s(device, chip, clock, optimizer_s) if device.type == "cuda" else 0.0,
    )


def listed_s(device: torch.device, chip: Chip, clock: Clock, operator_s: float) -> float:
    """Seconds for a tensor of an operator on lists, beside what any operator takes.

    On a CPU the operator goes through its lists itself, which is in the samples of it.
    """
    each = []
    for build in MODELS:
        seconds = measured_step(build, device, clock, by_lists=True).optimizer_s
        trace = trace_step(build, chip, by_lists=True)
        first, end = trace.steady_step
        listed = [
            count
            for op in trace.ops
            if first <= op.clock < end and (count := listed_tensors(trace.calls[op.call]))
        ]
        each.append(max(0.0, seconds - len(listed) * operator_s) / sum(listed))
    return mean(each)


def contents(
    trace: Trace, kernel_s: KernelSeconds
) -> tuple[Counter[Phase], Counter[Phase], dict[Phase, float]]:
    """Contents of the last step, by phase: operators that compute, views, and seconds of
    kernels.
    """
    kinds = [cost_of(call)[0] for call in trace.calls]
    counts: Counter[Phase] = Counter()
    views: Counter[Phase] = Counter()
    kernels_s = dict.fromkeys(Phase, 0.0)
    first, end = trace.steady_step
    for op in trace.ops:
        if first <= op.clock < end:
            if kinds[op.call].is_free:
                views[op.phase] += 1
            else:
                counts[op.phase] += 1
                kernels_s[op.phase] += kernel_s(trace.calls[op.call])
    return counts, views, kernels_s
