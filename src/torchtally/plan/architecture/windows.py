"""How far a token sees in each layer, by each family's own rule; one window for each layer.

`layer_types` says it layer by layer where a file has it. Where it has not, transformers makes it by
a rule of the class, which is restated here and tested against the class.
"""

from collections.abc import Callable

from torchtally.plan.architecture.config_keys import Config, excerpt
from torchtally.plan.architecture.families import Window

SLIDES = {"full_attention": False, "sliding_attention": True, "chunked_attention": True}
Rule = Callable[[Config, int], bool]
"""Whether the layer of this number has a window."""


def everywhere(config: Config, layers: int) -> tuple[Window, ...]:
    """One window for all layers, or none: Mistral's."""
    return (config.size_or_none("sliding_window"),) * layers


def where_used(config: Config, layers: int) -> tuple[Window, ...]:
    """One window for all layers, but only where `use_sliding_window` says so: Qwen3-MoE's."""
    return everywhere(config, layers) if config.flag("use_sliding_window") else (None,) * layers


def by_layer(
    rule: Rule, key: str = "sliding_window"
) -> Callable[[Config, int], tuple[Window, ...]]:
    """Windows in the layers of `layer_types`, or else in those that the rule names."""

    def windows(config: Config, layers: int) -> tuple[Window, ...]:
        width = config.size_or_none(key)
        slides = _layer_types(config, layers) or [rule(config, at) for at in range(layers)]
        return tuple(width if slide else None for slide in slides)

    return windows


def other_than_every(period: int, key: str = "") -> Rule:
    """All layers but every so many-th: Gemma's and gpt-oss's alternation."""

    def rule(config: Config, at: int) -> bool:
        every = (config.size_or_none(key) if key else None) or period
        return (at + 1) % every != 0

    return rule


def every_layer(config: Config, at: int) -> bool:
    """All of them, unless `layer_types` says otherwise: Ministral's."""
    return True


def listed_layers(config: Config, at: int) -> bool:
    """Those of `layer_types` alone: Mellum's."""
    return False


def after_each_fourth(config: Config, at: int) -> bool:
    """Three after each layer that sees everything, which comes first: CWM's."""
    return at % 4 != 0


def late_layers(config: Config, at: int) -> bool:
    """Layers from `max_window_layers` on, where `use_sliding_window` says so: Qwen2's and
    Qwen3's.
    """
    return config.flag("use_sliding_window") and at >= config.count("max_window_layers")


def late_layers_always(config: Config, at: int) -> bool:
    """Layers from `max_window_layers` on: dots.llm1's."""
    return at >= config.count("max_window_layers")


def early_odd_layers(config: Config, at: int) -> bool:
    """Every second one before `max_window_layers`: Qwen2-MoE's."""
    is_early = at < config.count("max_window_layers")
    return config.flag("use_sliding_window") and is_early and (at + 1) % 2 != 0


def rotary_layers(config: Config, at: int) -> bool:
    """Those with rotary positions, three of four: Llama 4's chunks."""
    listed = config.list_or_none("no_rope_layers")
    if listed:
        return at < len(listed) and bool(listed[at])
    return (at + 1) % config.setting("no_rope_layer_interval") != 0


def plain_layers(config: Config, at: int) -> bool:
    """Those without rotary positions, where `use_sliding_window` says so: SmolLM3's."""
    return config.flag("use_sliding_window") and not rotary_layers(config, at)


def alternating_types(config: Config, layers: int) -> tuple[Window, ...]:
    """`attention_types`: patterns of "global" and "local", each so many times: GPT-Neo's."""
    names: list[str] = []
    for item in config.list_or_none("attention_types") or [[["global", "local"], layers]]:
        match item:
            case [list(pattern), int(times)] if 0 < times <= layers:
                names += pattern * times
            case _:
                raise config.wrong(
                    "attention_types", f"expected [pattern, count], found {excerpt(item)}"
                )
    width = config.setting("window_size")
    if len(names) < layers or not set(names) <= {"global", "local"}:
        raise config.wrong(
            "attention_types", f"does not cover all {layers} layers: {excerpt(names)}"
        )
    return tuple(width if name == "local" else None for name in names[:layers])


def _layer_types(config: Config, layers: int) -> list[bool] | None:
    listed = config.list_or_none("layer_types")
    if listed is None:
        return None
    if len(listed) != layers:
        raise config.wrong(
            "layer_types", f"expected {layers} entries, one per layer, found {len(listed)}"
        )
    for name in listed:
        if not isinstance(name, str) or name not in SLIDES:
            raise config.wrong(
                "layer_types", f"expected one of {', '.join(SLIDES)}, found {excerpt(name)}"
            )
    return [SLIDES[name] for name in listed]
