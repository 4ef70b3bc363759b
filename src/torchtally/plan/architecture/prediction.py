"""Multi-token prediction: modules behind a decoder's last layer that say tokens further on.

Each is a layer of the decoder's own kind between a product that joins two normed inputs, a token's
state and the embedding of one further on, and a norm; embedding and head are the decoder's
(DeepSeek-V3, arXiv 2412.19437, section 2.2; `MtpLayer` of transformers 5). A config.json says how
many a checkpoint has; transformers does not train them, and published sizes mostly leave them out.
"""

from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.architecture.config_keys import Config
from torchtally.plan.architecture.model import Layer, Model

KEYS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
WORDS = "multi-token prediction"


def modules_left_out(config: Config) -> tuple[str, ...]:
    """Prediction modules that the file has and that are left out, in words."""
    n = config.count(*KEYS)
    return (f"{n} {WORDS} module{'s' if n > 1 else ''} (--mtp {n})",) if n else ()


def with_prediction(model: Model, modules: int) -> Model:
    """The same with so many modules. Raises UsageError for a model of which none has attention."""
    module = replace(_last_that_attends(model), count=modules, is_predicting=True)
    return replace(
        model,
        kinds=(*model.kinds, module),
        left_out=tuple(part for part in model.left_out if WORDS not in part),
        notes=(*model.notes, f"with {modules} {WORDS} module{'s' if modules > 1 else ''}"),
    )


def _last_that_attends(model: Model) -> Layer:
    """Qwen3-Next's, too, has attention, where three of four layers have a recurrence."""
    for kind in reversed(model.kinds):
        if kind.attention is not None:
            return kind
    raise UsageError(f"{model.name}: no published module of {WORDS} is without attention.")
