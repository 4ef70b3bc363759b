"""The tables of docs/architectures.md: families with a closed form, and those counted by class."""

from collections.abc import Iterator

from tests.plan.config_cases import CASES
from torchtally.plan.architecture.config import FAMILIES, from_values
from torchtally.plan.architecture.model import Experts, LatentAttention, Layer, Model, SelfAttention
from torchtally.plan.architecture.multimodal import WRAPPERS

HEAD = "| model_type | attention | feed-forward | not counted |\n|---|---|---|---|"


def families_table() -> str:
    """One row per family with a closed form, as its first test case is read."""
    first: dict[str, Model] = {}
    for model_type, keys in CASES.values():
        if model_type not in first:
            values = keys | {"model_type": model_type}
            first[model_type] = from_values(values, name=model_type, place="config.json")
    rows = (f"| {_row(name, first[name])} |" for name in sorted(FAMILIES) if name in first)
    parts = [
        f"| {name} | of its text part | of its text part | {', '.join(wrapper.parts)} |"
        for name, wrapper in sorted(WRAPPERS.items())
    ]
    return "\n".join((HEAD, *rows, *parts))


def counted_families() -> str:
    """Other families that transformers has a causal language model of, in one paragraph."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    others = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(FAMILIES) - set(WRAPPERS))
    return ", ".join(f"`{name}`" for name in others)


def _row(name: str, model: Model) -> str:
    attention = "; ".join(dict.fromkeys(map(_attention, model.kinds)))
    blocks = "; ".join(dict.fromkeys(map(_feed_forward, model.kinds)))
    return " | ".join((f"`{name}`", attention, blocks, ", ".join(model.left_out) or "-"))


def _attention(kind: Layer) -> str:
    words = [kind.recurrence.label.split(",")[0]] if kind.recurrence is not None else []
    if kind.attention is not None:
        words.append(", ".join(_attention_words(kind.attention)))
    return " beside ".join(words)


def _attention_words(attention: SelfAttention | LatentAttention) -> Iterator[str]:
    if isinstance(attention, LatentAttention):
        yield "latent"
        return
    shared = attention.kv_heads < attention.heads
    yield ("one key for all heads" if attention.kv_heads == 1 else "grouped") if shared else "plain"
    if attention.is_chunked:
        yield "in chunks"
    elif attention.window is not None:
        yield "in a window"
    if attention.head_norm_sizes:
        yield "norms of heads"
    if attention.has_gate:
        yield "a gate"
    if attention.sinks:
        yield "sinks"


def _feed_forward(kind: Layer) -> str:
    block = kind.feed_forward
    if block is None:
        return "none"
    gate = "gated" if block.is_gated else "plain"
    if not isinstance(block, Experts):
        return f"{gate} {block.activation}{', receptance' if block.has_receptance else ''}"
    shared = ", shared" if block.shared_width else ""
    return f"experts of {gate} {block.activation}{shared}"
