"""Models that see or hear beside reading: their text part, and what of them is not counted."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torchtally.plan.architecture.config_keys import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """One model_type that holds a text model."""

    text: str
    """The text part's model_type, where the file does not say."""
    parts: tuple[str, ...] = ("the vision tower", "the projector")
    """What is not counted."""
    tied_by: Literal["whole", "text", "nothing"] = "whole"
    """Whose `tie_word_embeddings` transformers goes by; Llama 3.2 Vision's head has fewer rows than
    its embedding, so that nothing can tie them."""


def text_part(config: Config, wrapper: Wrapper) -> Config:
    """The keys of the text part, and what the whole says of it.

    Older files hold them among the whole's own: then they are the whole's.
    """
    text = config.below("text_config") or config
    values = dict(text.values)
    if text is config or "model_type" not in values:
        values["model_type"] = wrapper.text
    values["tie_word_embeddings"] = _is_tied(config, text.of_type(values["model_type"]), wrapper)
    for key in ("dtype", "torch_dtype"):
        if config.values.get(key) is not None:
            values.setdefault(key, config.values[key])
    return replace(text, values=values)


def _is_tied(config: Config, text: Config, wrapper: Wrapper) -> bool:
    """Whether weights are tied, by the key of the whole; of older files, where only the text part
    has one, by that.
    """
    key = "tie_word_embeddings"
    if wrapper.tied_by == "nothing":
        return False
    is_only_below = text.values.get(key) is not None and config.values.get(key) is None
    return text.flag(key) if wrapper.tied_by == "text" or is_only_below else config.flag(key)


def without_cross_attention(config: Config) -> tuple[Config, tuple[str, ...]]:
    """Llama 3.2 Vision's text part: its cross-attention layers look at images, and go with them."""
    layers = config.size("num_hidden_layers")
    cross = config.layers_listed("cross_attention_layers", layers) or frozenset()
    values = dict(config.values) | {"num_hidden_layers": layers - len(cross)}
    parts = (f"{len(cross)} cross-attention layers", "8 rows of the embedding, for images")
    return replace(config, values=values), parts


Narrowing = Callable[[Config], tuple[Config, tuple[str, ...]]]
NARROWED: dict[str, Narrowing] = {"mllama_text_model": without_cross_attention}
"""By the text part's model_type: layers of it that go with what is not counted."""

WRAPPERS = {
    "llava": Wrapper(text="llama"),
    "llava_next": Wrapper(text="llama"),
    "qwen2_vl": Wrapper(text="qwen2_vl_text"),
    "qwen2_5_vl": Wrapper(text="qwen2_5_vl_text"),
    "qwen3_vl": Wrapper(text="qwen3_vl_text"),
    "gemma3": Wrapper(text="gemma3_text"),
    "mistral3": Wrapper(text="mistral"),
    "llama4": Wrapper(text="llama4_text", tied_by="text"),
    "mllama": Wrapper(text="mllama_text_model", tied_by="nothing"),
}
"""By model_type."""
