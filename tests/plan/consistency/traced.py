"""A reference model trained for two steps on the virtual GPU, and what its ledger holds."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._functorch.partitioners import get_default_op_list
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from tests.plan.consistency.references import VOCABULARY, Reference
from torchtally import Ledger, account, run
from torchtally.memory import Category, is_alive
from torchtally.plan.recipes import Recipe
from torchtally.trace import Phase, Role, Storage

GPU = "H100-SXM"
Steppers = Callable[[nn.Module], Iterable[torch.optim.Optimizer]]


def adamw(model: nn.Module) -> Iterable[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=1e-4)]


@dataclass(frozen=True, slots=True)
class Traced:
    """Bytes are those asked for: the allocator rounds each tensor up to 512, which is much of a
    small model and no matter of a closed form.
    """

    ledger: Ledger

    def bytes_of(self, role: Role) -> int:
        """On the device when the last step's last operator ran, before gradients are freed."""
        return _bytes(storage for storage in self._alive(self.ledger.trace.step_ends[-1] - 1)
                      if storage.role is role)  # fmt: skip

    @property
    def kept_bytes(self) -> int:
        """What the forward pass of the steady step leaves for the backward pass.

        Storages of category ACTIVATIONS made in this step and alive when the first backward
        operator comes, and of category INPUTS those that the backward pass reads (token ids; the
        labels' copy is an activation already). Not `bytes_saved` of the entries, which counts what
        is made in the forward pass and freed before its end as well.
        """
        first, _ = self.ledger.trace.steady_step
        read = self._read_in_backward()
        categories = dict(
            zip(self.ledger.memory.storages, self.ledger.memory.categories, strict=True)
        )
        return _bytes(
            storage
            for storage in self._alive(self._first_backward_tick() - 1)
            if storage.born >= first
            and (
                categories[storage] is Category.ACTIVATIONS
                or (categories[storage] is Category.INPUTS and storage.number in read)
            )
        )

    @property
    def most_kept_bytes(self) -> int:
        """Of category ACTIVATIONS at the fullest moment of the steady step: what is repeated for
        one layer is among it. Token ids are not.
        """
        first, end = self.ledger.trace.steady_step
        pairs = zip(self.ledger.memory.storages, self.ledger.memory.categories, strict=True)
        change: dict[int, int] = {}
        for storage, category in pairs:
            if category is Category.ACTIVATIONS and first <= storage.born < end:
                died = end if storage.died is None else storage.died
                change[storage.born] = change.get(storage.born, 0) + storage.requested_bytes
                change[died] = change.get(died, 0) - storage.requested_bytes
        most = held = 0
        for tick in sorted(change):
            held += change[tick]
            most = max(most, held)
        return most

    def _alive(self, tick: int) -> list[Storage]:
        return [storage for storage in self.ledger.memory.storages if is_alive(storage, tick)]

    def _first_backward_tick(self) -> int:
        return min(
            entry.op.clock for entry in self.ledger.reported if entry.op.phase is Phase.BACKWARD
        )

    def _read_in_backward(self) -> set[int]:
        phases = (Phase.BACKWARD, Phase.RECOMPUTE)
        return {
            n for entry in self.ledger.reported if entry.op.phase in phases for n in entry.op.inputs
        }


def train(
    reference: Reference,
    recipe: Recipe,
    *,
    checkpointed: bool = False,
    use_reentrant: bool = False,
    by_operators: bool = False,
    is_math: bool = False,
    steppers: Steppers = adamw,
    gpu: str = GPU,
) -> Traced:
    """Two steps on random tokens: weights in the recipe's dtype, or under autocast."""

    def script() -> None:
        model = reference.make().to(getattr(torch, recipe.weights)).to("cuda").train()
        vocabulary = getattr(model.config, "vocab_size", VOCABULARY)
        if checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        if by_operators:
            model.gradient_checkpointing_enable(
                {"use_reentrant": False, "context_fn": every_other_product}
            )
        optimizers = list(steppers(model))
        for _ in range(2):
            ids, labels = (
                torch.randint(0, vocabulary, (reference.batch, reference.sequence), device="cuda")
                for _ in range(2)
            )
            with _autocast(recipe), _kernels(is_math):
                loss = model(input_ids=ids, labels=labels, use_cache=False).loss
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad()

    return Traced(account(run(script, gpu=gpu)))


def every_other_product() -> object:
    """What torchtitan's policy keeps (distributed/activation_checkpoint.py), by the same API."""
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    intensive = get_default_op_list().compute_intensive_ops
    saved = {packet.default for packet in (attention, *intensive) if hasattr(packet, "default")}
    product = torch.ops.aten.mm.default
    products = {False: 0, True: 0}

    def policy(context: Any, operator: object, *args: object, **options: object) -> Any:
        products[context.is_recompute] += operator is product
        is_even = operator is product and products[context.is_recompute] % 2 == 0
        is_kept = operator in saved and not is_even
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _autocast(recipe: Recipe) -> torch.autocast:
    return torch.autocast("cuda", dtype=torch.bfloat16, enabled=recipe.is_autocast)


def _kernels(is_math: bool) -> AbstractContextManager[None]:
    return sdpa_kernel(SDPBackend.MATH) if is_math else nullcontext()


def _bytes(storages: Iterable[Storage]) -> int:
    return sum(storage.requested_bytes for storage in storages)
