"""Changes that may make a run fit, each small enough to be one line of the script or of the shell.

A candidate is only a guess that trying it is worth a run. What it saves is found by running.
"""

import re
from collections import Counter
from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.trace import FORWARD_PHASES
from torchtally.views.holdings import holdings

BATCH = re.compile(r"^--?[\w-]*(batch|bs)[\w-]*$", re.I)
"""Options by which scripts take a batch size."""

LEAST_SHARE = 0.1
"""Of the activations: what a class must hold for its checkpointing to be worth a try; of
the peak: what gathered parameters must hold."""
CLASSES = 2


@dataclass(frozen=True, slots=True)
class Change:
    """One change, or several together."""

    text: str
    """What the user would do."""
    rank: int
    """How much it asks of the user and of the training: smallest first."""
    what_ifs: tuple[str, ...] = ()
    """As `tally run --what-if` spells them."""
    settings: str = ""
    """For PYTORCH_CUDA_ALLOC_CONF."""
    arguments: tuple[str, ...] | None = None
    """The script's arguments, where they change."""

    @property
    def kind(self) -> str:
        """What it changes: of one kind, only one change at a time makes sense."""
        if self.what_ifs:
            return self.what_ifs[0].partition("=")[0]
        return "settings" if self.settings else "arguments"


def candidates(ledger: Ledger, arguments: tuple[str, ...]) -> tuple[Change, ...]:
    """Single changes for a run that ran out of memory, the smallest first."""
    changes = []
    if "expandable_segments:True" not in ledger.trace.allocator_settings:
        setting = "expandable_segments:True"
        changes.append(Change(f"PYTORCH_CUDA_ALLOC_CONF={setting}", 0, settings=setting))
    changes.append(Change("fused=True for the optimizer", 1, what_ifs=("optimizer=fused",)))
    changes.append(Change("foreach=False for the optimizer", 2, what_ifs=("optimizer=for-loop",)))
    changes += changes_of_ranks(ledger)
    changes += smaller_batches(arguments)
    if multiplies_in_float32(ledger):
        text = "torch.autocast(dtype=bfloat16) around the model"
        changes.append(Change(text, 4, what_ifs=("autocast=bfloat16",)))
    changes += [
        Change(f"torch.utils.checkpoint around each {name}", 5, what_ifs=(f"checkpoint={name}",))
        for name in classes_worth_checkpointing(ledger)
    ]
    return tuple(sorted(changes, key=lambda change: change.rank))


def changes_of_ranks(ledger: Ledger) -> list[Change]:
    """Changes of what ranks hold to share it: DistributedDataParallel's buckets, fully_shard's
    gathers.
    """
    changes = []
    # When it is made, it broadcasts the parameters (torch/nn/parallel/distributed.py,
    # _sync_module_states); its buckets may not be there yet when memory runs out.
    if any(call.name == "c10d.broadcast_" for call in ledger.trace.calls):
        text = "gradient_as_bucket_view=True"
        changes.append(Change(f"{text} for DistributedDataParallel", 1, what_ifs=(text,)))
    refusal = ledger.trace.final_refusal
    tick = ledger.memory.peak_tick if refusal is None else refusal.tick
    held_bytes: Counter[Category] = Counter()
    for storage, category in ledger.memory.alive_at(tick):
        held_bytes[category] += storage.bytes
    if held_bytes[Category.GATHERED_PARAMETERS] > LEAST_SHARE * held_bytes.total():
        text = "reshard_after_forward=True"
        changes.append(Change(f"{text} for fully_shard", 2, what_ifs=(text,)))
    return changes


def combine(changes: tuple[Change, ...], environment_settings: str) -> Change:
    """Several changes as one. The last of those that set the arguments wins."""
    settings = [change.settings for change in changes if change.settings]
    arguments = [change.arguments for change in changes if change.arguments is not None]
    return Change(
        " + ".join(change.text for change in changes),
        max(change.rank for change in changes),
        tuple(text for change in changes for text in change.what_ifs),
        ",".join([*([environment_settings] if environment_settings else []), *settings])
        if settings
        else "",
        arguments[-1] if arguments else None,
    )


def smaller_batches(arguments: tuple[str, ...]) -> list[Change]:
    """Half the batch, for an option that is named like a batch size and has a number."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if not BATCH.match(option):
            continue
        if equals and value.isdecimal() and int(value) > 1:
            changed = f"{option}={int(value) // 2}"
            rest = arguments[:place], (changed,), arguments[place + 1 :]
        elif (
            not equals
            and arguments[place + 1 : place + 2]
            and (arguments[place + 1].isdecimal() and int(arguments[place + 1]) > 1)
        ):
            half = str(int(arguments[place + 1]) // 2)
            changed = f"{option} {half}"
            rest = arguments[: place + 1], (half,), arguments[place + 2 :]
        else:
            continue
        before, middle, after = rest
        return [Change(changed, 3, arguments=(*before, *middle, *after))]
    return []


def multiplies_in_float32(ledger: Ledger) -> bool:
    """Most of the forward pass's matrix products are of fp32."""
    flops: Counter[bool] = Counter()
    for entry in ledger.entries:
        if entry.op.phase in FORWARD_PHASES and entry.kind.is_matmul and entry.call.inputs:
            flops[entry.call.inputs[-1].dtype == "float32"] += entry.cost.flops
    return flops[True] > flops[False]


def classes_worth_checkpointing(ledger: Ledger) -> list[str]:
    """Classes of which the model has several modules that hold activations, the most first."""
    class_of = {site.module: site.module_class for site in ledger.trace.sites}
    refusal = ledger.trace.final_refusal
    tick = ledger.memory.peak_tick if refusal is None else refusal.tick
    bytes_of: Counter[str] = Counter()
    paths: dict[str, set[str]] = {}
    whole = 0
    for holding in holdings(ledger, tick):
        if holding.category is not Category.ACTIVATIONS or holding.entry is None:
            continue
        whole += holding.storage.bytes
        names: set[str] = set()
        parts = holding.entry.site.module.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            name = class_of.get(path, "")
            if name:
                paths.setdefault(name, set()).add(path)
                names.add(name)
        for name in names:
            bytes_of[name] += holding.storage.bytes
    several = [
        name
        for name, size in bytes_of.most_common()
        if len(paths[name]) > 1 and size >= LEAST_SHARE * whole
    ]
    return several[:CLASSES]
