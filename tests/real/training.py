"""Train a model on the virtual GPU, and know from the model alone what must have happened."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtally import Ledger, account, run
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.trace.storage import allocated_bytes
from torchtally.work import Kind

GPU = "H100-SXM"

Loss = Callable[[nn.Module], Tensor]
"""A model's loss on a batch made on the spot."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the script itself can say of its tensors, by asking them and `torch.cuda`."""

    parameter_bytes: int
    trainable_bytes: int
    peak_allocated_bytes: int


@dataclass(frozen=True, slots=True)
class Training:
    ledger: Ledger
    held: Held

    def flops(self, kind: Kind, phase: Phase) -> int:
        """Of the steady-state step."""
        return sum(
            entry.cost.flops
            for entry in self.ledger.reported
            if entry.kind is kind and entry.op.phase is phase
        )

    def phases(self, *kinds: Kind) -> tuple[int, int, int]:
        """FLOPs of these kinds: forward, backward, recompute."""
        forward, backward, recompute = (
            sum(self.flops(kind, phase) for kind in kinds)
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
        )
        return forward, backward, recompute

    def bytes_after_step(self, category: Category) -> int:
        """Held for a category when the last step's last operator ran: before `zero_grad`."""
        end = self.ledger.trace.step_ends[-1]
        return self.ledger.memory.by_category()[category].at(end - 1)

    def bytes_at_peak(self, category: Category) -> int:
        return dict(self.ledger.memory.at_peak)[category]

    @property
    def uncounted(self) -> set[str]:
        """Operators without a rule, anywhere in the run."""
        return {entry.call.name for entry in self.ledger.entries if entry.kind is Kind.UNCOUNTED}

    @property
    def placeholders(self) -> set[tuple[str, str]]:
        return {
            (placeholder.op, placeholder.given) for placeholder in self.ledger.trace.placeholders
        }


def rounded_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors' storages, each once, rounded up to 512 as the allocator does."""
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(map(allocated_bytes, storages.values()))


def train(
    make: Callable[[], nn.Module],
    loss: Loss,
    *,
    steps: int = 2,
    autocast: torch.dtype | None = torch.bfloat16,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> Training:
    """So many steps of a model that starts on the host and trains on "cuda"."""
    held: list[Held] = []

    def script() -> None:
        model = make().to("cuda").train()
        stepper = optimizer(model.parameters(), lr=1e-4)
        for _ in range(steps):
            with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
                out = loss(model)
            out.backward()
            stepper.step()
            stepper.zero_grad()
        parameters = list(model.parameters())
        held.append(
            Held(
                parameter_bytes=rounded_bytes(parameters),
                trainable_bytes=rounded_bytes(
                    parameter for parameter in parameters if parameter.requires_grad
                ),
                peak_allocated_bytes=torch.cuda.max_memory_allocated(),
            )
        )

    ledger = account(run(script, gpu=GPU))
    return Training(ledger, held[0])


def check_memory(training: Training) -> None:
    """AdamW in float32: a gradient and two moments, each as large as what is trained."""
    memory, held = training.ledger.memory, training.held
    assert (
        memory.peak_bytes
        == held.peak_allocated_bytes
        == sum(number for _, number in memory.at_peak)
    )
    assert training.bytes_at_peak(Category.PARAMETERS) == held.parameter_bytes
    assert training.bytes_at_peak(Category.OPTIMIZER_STATE) == 2 * held.trainable_bytes
    assert training.bytes_after_step(Category.PARAMETERS) == held.parameter_bytes
    assert training.bytes_after_step(Category.GRADIENTS) == held.trainable_bytes
    assert training.bytes_after_step(Category.OPTIMIZER_STATE) == 2 * held.trainable_bytes


def check_training(training: Training, *, uncounted: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """The laws of the ledger, nothing left out of it unsaid, and memory to the byte."""
    training.ledger.check()
    assert training.uncounted == set(uncounted)
    assert len(training.ledger.trace.step_ends) == 2
    check_memory(training)
