"""Arguments of Trainer, TRL, Lightning and accelerate, in place of code."""

from collections.abc import Callable

import libcst as cst

from torchtally.fixes.fix import FileEvidence, NotApplicableError, ValueChange, fix
from torchtally.fixes.syntax import has_keyword, imports, last_name, with_keyword

OF_TRL = ("SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig", "KTOConfig", "ORPOConfig")
OF_TRAINER = ("TrainingArguments", "Seq2SeqTrainingArguments", *OF_TRL)
NEEDS = "a TrainingArguments, or one of TRL's configs, that does not say so"

ChangeCall = Callable[[cst.Call, cst.Call], cst.Call]


class _Calls(cst.CSTTransformer):
    """Calls by what they call, each changed by a function of it before and after its parts are."""

    def __init__(self, changes: dict[str, ChangeCall]) -> None:
        super().__init__()
        self.changes = changes

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        change = self.changes.get(last_name(original_node.func))
        return updated_node if change is None else change(original_node, updated_node)


def _adding(guards: tuple[str, ...], **values: str) -> ChangeCall:
    """More keywords, where none of the guards is said."""

    def change(before: cst.Call, after: cst.Call) -> cst.Call:
        if has_keyword(before, *guards):
            return after
        for name, value in values.items():
            after = with_keyword(after, name, value)
        return after

    return change


@fix(
    "Trainer checkpoints", "recompute layers, by the Trainer's own argument", ValueChange.ROUNDED,
    NEEDS,
)  # fmt: skip
def checkpoints(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Arguments of a Trainer with gradient_checkpointing."""
    if "gradient_checkpointing_enable" in module.code:
        raise NotApplicableError("the sources checkpoint already")
    change = _adding(
        ("gradient_checkpointing",), gradient_checkpointing="True",
        # Reentrant checkpoints pass no gradient on where the inputs need none, as below adapters.
        gradient_checkpointing_kwargs='{"use_reentrant": False}',
    )  # fmt: skip
    return module.visit(_Calls(dict.fromkeys(OF_TRAINER, change)))


@fix(
    "bfloat16 by argument", "compute in bfloat16, as Trainer, Lightning and accelerate are told to",
    ValueChange.CHANGED, "a Trainer or an Accelerator that says no precision",
)  # fmt: skip
def bfloat16(module: cst.Module, evidence: FileEvidence) -> cst.Module:
    """Arguments of a Trainer with bf16, of Lightning with its precision, of accelerate with its."""
    changes = dict.fromkeys(OF_TRAINER, _adding(("bf16", "fp16"), bf16="True"))
    if imports(module, "lightning") or imports(module, "pytorch_lightning"):
        changes["Trainer"] = _adding(("precision", "plugins"), precision='"bf16-mixed"')
    if imports(module, "accelerate"):
        guards = ("mixed_precision", "deepspeed_plugin")
        changes["Accelerator"] = _adding(guards, mixed_precision='"bf16"')
    changed = module.visit(_Calls(changes))
    if changed.code != module.code and "bfloat16" not in evidence.peaks:
        raise NotApplicableError("the chip has no rate for bfloat16")
    return changed
