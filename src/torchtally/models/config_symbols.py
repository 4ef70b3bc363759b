"""The sizes of a configuration of transformers as symbols, and the configuration at other sizes."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from torchtally.errors import ProgramError
from torchtally.programs import LAYERS
from torchtally.programs.labels import SHARDED

VOCABULARY, WIDTH, FFN, EXPERT_FFN = "vocabulary", "width", "ffn", "expert_ffn"
KV_HEADS, GROUP, HEAD_DIM, EXPERTS, POSITIONS, WINDOW, EMBEDDING = (
    "kv_heads", "group", "head_dim", "experts", "positions", "window", "embedding",
)  # fmt: skip
PLAIN = {
    VOCABULARY: ("vocab_size",),
    EMBEDDING: ("word_embed_proj_dim",),
    FFN: ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    EXPERT_FFN: ("moe_intermediate_size",),
    EXPERTS: ("num_local_experts", "num_experts", "n_routed_experts"),
    POSITIONS: ("max_position_embeddings", "max_seq_len"),
    WINDOW: ("sliding_window",),
}
"""Symbols that are one key each, by transformers' names; the first that a configuration has."""


@dataclass(frozen=True, slots=True)
class ConfigSymbols:
    """A configuration whose sizes can be changed."""

    config: Any
    sizes: Mapping[str, int]
    """Its own: the query heads are kv_heads x group; the width, where the class has no head dim of
    its own, is heads x head_dim. Head dims and ranks of latent attention stay as they are."""
    keys: Mapping[str, str]
    """The symbol that each key of `PLAIN` is; two keys may be one size."""
    kept: frozenset[str]
    """Symbols of which a class takes more than products: they stay as they are."""
    layers: int

    period: int
    """Layers after which their kinds come again."""
    lead: int
    """The first layers, of kinds that do not come again; a period where there are none."""

    @property
    def name(self) -> str:
        """The configuration's class."""
        return type(self.config).__name__

    @property
    def shared(self) -> frozenset[str]:
        """Sizes that ranks divide which share weights: of the first dimensions of weights."""
        return SHARDED

    @property
    def variant(self) -> str:
        """A digest of all that the configuration says besides its sizes, those that are kept
        among it.
        """
        sizes = {each: size if each in self.kept else 2 for each, size in self.sizes.items()}
        config = self.at(sizes, self.modules(LAYERS))
        values = [type(config).__name__, operative(config.to_dict())]
        text = json.dumps(values, sort_keys=True, default=str)
        return blake2b(text.encode(), digest_size=8).hexdigest()

    def modules(self, layers: int) -> int:
        """The length of the list of the lead and periods, so many in all: the last has the rest."""
        return self.lead + (layers - 1) * self.period + (self.layers - self.lead) % self.period

    def least(self, sequence: int) -> Mapping[str, int]:
        """What sizes are above in every recording: the vocabulary above the ids of the
        configuration's own tokens, a window that a sequence does not fill above every sequence.
        """
        ids = [getattr(self.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")]
        least = {VOCABULARY: max((each for each in ids if isinstance(each, int)), default=0)}
        if self.sizes.get(WINDOW, 0) > sequence:
            least[WINDOW] = LONGEST_RECORDED
        return least

    def at(self, values: Mapping[str, int], layers: int) -> Any:
        """The configuration with these sizes, and so many layers."""
        config = copy.deepcopy(self.config)
        heads = values[KV_HEADS] * values[GROUP]
        config.num_attention_heads = heads
        kv_heads_key = key_of(config, KV_HEADS_KEYS)
        if kv_heads_key is not None:
            setattr(config, kv_heads_key, values[KV_HEADS])
        if WIDTH not in self.sizes:
            values = {**values, WIDTH: heads * values[HEAD_DIM]}
        elif HEAD_DIM in self.sizes:
            config.head_dim = values[HEAD_DIM]
        config.hidden_size = values[WIDTH]
        for key, symbol in self.keys.items():
            setattr(config, key, values[symbol])
        for key, kinds in kinds_of(config).items():
            periods = -(-max(0, layers - len(kinds)) // self.period)
            setattr(config, key, (kinds + kinds[-self.period :] * periods)[:layers])
        config.num_hidden_layers = layers
        return config


KV_HEADS_KEYS = ("num_key_value_heads", "num_kv_heads")


def key_of(config: Any, names: Sequence[str]) -> str | None:
    """The first of these keys that a configuration has."""
    return next((key for key in names if getattr(config, key, None) is not None), None)


KINDS = ("layer_types", "no_rope_layers")
"""Ends of keys whose value is a list with the kind of each layer."""


def kinds_of(config: Any) -> dict[str, list[Any]]:
    """The keys that say of which kind each layer is."""
    values = config.to_dict()
    layers = values.get("num_hidden_layers", getattr(config, "num_hidden_layers", None))
    return {
        key: value
        for key, value in values.items()
        if key.endswith(KINDS) and isinstance(value, list) and len(value) == layers
    }


def order_of(config: Any) -> tuple[int, int]:
    """(period, lead): the number of layers after which their kinds come again, and of those before.

    Raises ProgramError where they do not come again twice.
    """
    layers = config.num_hidden_layers
    dense = getattr(config, "first_k_dense_replace", None) or 0
    kinds = list(zip(*kinds_of(config).values(), [n < dense for n in range(layers)], strict=True))
    for lead in range(layers):
        for period in range(1, (layers - (lead or 1)) // (LAYERS - 1) + 1):
            first = lead or period
            if layers - first >= (LAYERS - 1) * period and all(
                kinds[n] == kinds[n - period] for n in range(lead + period, layers)
            ):
                return period, first
    listed = ", ".join(sorted({str(each) for kind in kinds for each in kind[:-1]}))
    raise ProgramError(
        f"{type(config).__name__}: {layers} layers whose kinds do not come again often enough "
        f"({listed or 'too few layers'})."
    )


def symbols_of(config: Any) -> ConfigSymbols:
    """The symbols of a decoder's configuration.

    Raises ProgramError for layers whose kinds do not come again, and for models of several stacks.
    """
    name = type(config).__name__
    if config.get_text_config() is not config or getattr(config, "is_encoder_decoder", False):
        raise ProgramError(f"{name}: plans are not written out for models of several stacks yet.")
    keys = {
        symbol: found
        for symbol, names in PLAIN.items()
        for found in [next((key for key in names if hasattr(config, key)), None)]
        if found is not None
    }
    heads, kv_heads = config.num_attention_heads, kv_heads_of(config)
    own_head_dim = config.to_dict().get("head_dim")  # some classes compute it
    sizes = {
        symbol: getattr(config, key)
        for symbol, key in keys.items()
        if getattr(config, key) is not None
    }
    if (getattr(config, "n_group", None) or 1) > 1:
        sizes.pop(EXPERTS, None)  # as many as a router's groups divide: they stay as they are
    if FFN in keys and FFN not in sizes:
        sizes[FFN] = FFN_PER_WIDTH * config.hidden_size
    sizes |= {KV_HEADS: kv_heads, GROUP: heads // kv_heads}
    is_latent = hasattr(config, "kv_lora_rank")
    if not is_latent:
        sizes[HEAD_DIM] = own_head_dim or config.hidden_size // heads
    if own_head_dim or is_latent:
        sizes[WIDTH] = config.hidden_size
    by_key = {key: symbol for symbol, key in keys.items() if symbol in sizes}
    if sizes.get(EMBEDDING) == config.hidden_size:  # else there are projections between the two
        del sizes[EMBEDDING]
        by_key[keys[EMBEDDING]] = WIDTH
    kept = {KV_HEADS, GROUP} if has_alibi(config) else set()  # slopes go by powers of two of them
    return ConfigSymbols(
        config, sizes, by_key, frozenset(kept), config.num_hidden_layers, *order_of(config)
    )


def kv_heads_of(config: Any) -> int:
    """Heads of keys and values."""
    heads: int = config.num_attention_heads
    key = key_of(config, KV_HEADS_KEYS)
    if key == "num_kv_heads" and config.multi_query and not config.new_decoder_architecture:
        return 1  # Falcon's classes then leave the key alone
    return heads if key is None else int(getattr(config, key))


def has_alibi(config: Any) -> bool:
    """Whether positions are biases of the scores, by a slope for each head."""
    attention = getattr(config, "attn_config", config)
    return bool(getattr(attention, "alibi", False)) or config.model_type == "bloom"


def operative(value: Any) -> Any:
    """The keys of a configuration that operators may follow from."""
    if isinstance(value, dict):
        return {key: operative(each) for key, each in value.items() if key not in NO_OPERATORS}
    return value


NO_OPERATORS = frozenset(
    """
    bos_token_id eos_token_id rms_norm_eps layer_norm_eps layer_norm_epsilon initializer_range
    rope_theta factor low_freq_factor high_freq_factor beta_fast beta_slow
    architectures dtype transformers_version _name_or_path
    """.split()
)
"""Keys that change values or nothing, and no operator."""
LONGEST_RECORDED = 4096
"""No sequence of a recording is as long."""
FFN_PER_WIDTH = 4
"""Where a configuration leaves the inner width out (GPT-2's n_inner)."""
