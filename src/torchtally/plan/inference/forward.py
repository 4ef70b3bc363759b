"""Seconds of one forward pass that generates: of prompts, of one token each, of a few guesses.

b: sequences of one replica.  q: new tokens of each.  T: tokens in the cache, the new ones among
them.  E, a: experts, and those active for a token.

Weights are read once, however many tokens there are: with few tokens a product takes as long as its
bytes do, with many as long as its arithmetic. Keys and values are read by every sequence. So decode
is bound by memory, and prefill by compute (Pope et al. 2022, arXiv 2211.05102, section 2.1).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from torchtally.chips import Chip, Cluster
from torchtally.chips.dtypes import DTYPE_BYTES, NUMBERS_EACH
from torchtally.plan.architecture.model import Experts, LatentAttention, Layer, Model
from torchtally.plan.architecture.weights import Group, Weight, layer_weights, weights_of
from torchtally.plan.closed_form import (
    BytePerS,
    Bytes,
    Count,
    FlopPerS,
    Flops,
    Fraction,
    Seconds,
    closed_form,
)
from torchtally.plan.inference.engines import Engine
from torchtally.plan.inference.formats import WeightFormat
from torchtally.plan.inference.placement import Placement
from torchtally.plan.inference.weights import weight_bytes
from torchtally.plan.kv_cache import Cache, entry_of, kept_tokens, recurrent_state_bytes
from torchtally.plan.mixers.base import Recurrence
from torchtally.plan.parallel.attention import kernel_of
from torchtally.plan.parallel.communication import all_reduce, all_to_all, group
from torchtally.plan.parallel.compute import layer_streams
from torchtally.plan.parallel.kernels import ROOFLINE, KernelTimes, PassTimes
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.overlap import exposed_s
from torchtally.plan.parallel.pace import Host
from torchtally.plan.parallel.recurrence import scan_s
from torchtally.plan.quantity import Quantity, of, total_s
from torchtally.plan.recipes import Recipe
from torchtally.timing.constants import ALIGNMENT_BYTES, KERNEL_S
from torchtally.timing.hosts import ESTIMATED_ISSUE
from torchtally.timing.roofline.attention import AttentionShape, Fused, fused_kernel, shares_of
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.products import Product, product_s
from torchtally.timing.roofline.rates import peak_of, vector_peak_flop_per_s
from torchtally.units import Unit
from torchtally.work.geometry import causal

ACTIVATION_BYTES = 2
"""Of an element between products: 16 bits."""
DECODE_LAUNCHES = 2
"""Attention of few queries: blocks of keys by themselves, and their sum (Flash-Decoding)."""
STATE_LAUNCHES = 2
"""Of a recurrence: the convolution's update, and the state's."""
CACHE_LAUNCHES = 2
"""New keys, and new values, are put into the cache."""
LOGIT_BYTES = 16
"""Moved for each logit: cast to float32, normalised, searched: 2 + 4, 4 + 4, and 2 of sampling. An
estimate."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """What one forward pass of a replica is about."""

    sequences: int
    new: int
    """Of each sequence."""
    context: int
    """In the cache when the pass is over."""

    @property
    def rows(self) -> int:
        return self.sequences * self.new

    @property
    def is_prompt(self) -> bool:
        """Nothing is in the cache before."""
        return self.new == self.context


@dataclass(frozen=True, slots=True)
class Forward:
    """Seconds of one pass on one chip, by what takes them, one after the other."""

    products: Quantity
    attention: Quantity
    streaming: Quantity
    """Norms, rotations, activations, sampling."""
    communication: Quantity
    """What of it nothing hides."""
    overhead: Quantity
    """Of the engine, and where a host issues kernels one by one, what it is waited for."""
    total: Quantity

    @property
    def parts(self) -> tuple[tuple[str, Quantity], ...]:
        return (
            ("products", self.products),
            ("attention", self.attention),
            ("norms and sampling", self.streaming),
            ("communication", self.communication),
            ("engine", self.overhead),
        )


@dataclass(frozen=True)
class Generator:
    """A model on chips, in a format, run by an engine."""

    model: Model
    cluster: Cluster
    placement: Placement
    weights: WeightFormat
    cache: Cache
    engine: Engine

    @property
    def chip(self) -> Chip:
        return self.cluster.chip

    @cached_property
    def dtype(self) -> str:
        """Dtype of the operands of products: the format's own where the chip multiplies it."""
        return next(
            (dtype for dtype in self.weights.products if dtype in self.chip.peaks), "bfloat16"
        )

    @cached_property
    def kernels(self) -> KernelTimes:
        recipe = Recipe(
            name="inference",
            summary="",
            weights="bfloat16",
            gradients="bfloat16",
            products=self.dtype,
            activations="bfloat16",
        )
        return KernelTimes(self.chip, recipe, self.engine.pace)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.kernels.bandwidth_bytes_per_s

    @cached_property
    def intake_bytes_per_s(self) -> float:
        """Bandwidth at which weights come in where products are of few rows."""
        per_clock, chip = self.engine.intake_bytes_per_clock, self.chip
        share = self.engine.unpacking if self.is_unpacked else 1.0
        speed = share * self.bandwidth_bytes_per_s
        if per_clock is None or chip.multiprocessors is None or chip.boost_clock_hz is None:
            return speed
        return min(speed, per_clock * chip.multiprocessors * chip.boost_clock_hz)

    @property
    def is_unpacked(self) -> bool:
        """Weights are cast to 16 bits for every product."""
        return not self.weights.is_plain and self.dtype in ("bfloat16", "float16")

    def forward(self, tokens: NewTokens) -> Forward:
        """A forward pass of all layers and the head, on one chip of a replica. A prompt goes
        through layers that predict, too, whose caches it fills.
        """
        kinds = self.model.kinds
        if not tokens.is_prompt:
            kinds = tuple(kind for kind in kinds if not kind.is_predicting)
        return self._pass(kinds, tokens)

    def guess(self, tokens: NewTokens) -> Forward:
        """A forward pass of one of the model's own prediction modules and the head."""
        module = next(kind for kind in self.model.kinds if kind.is_predicting)
        return self._pass((replace(module, count=1),), tokens)

    def _pass(self, kinds: tuple[Layer, ...], tokens: NewTokens) -> Forward:
        layers = [(kind.count, self._layer(kind, tokens)) for kind in kinds]
        head_s, sampling_s = self._head(tokens)

        def sum_of(part: str, **more: Quantity) -> Quantity:
            each = ((count, getattr(layer, part)) for count, layer in layers)
            terms = {f"kind_{n}_s": layers_s(*one) for n, one in enumerate(each)}
            return total_s(part, **terms, **more)

        products, attention = sum_of("products", head=head_s), sum_of("attention")
        streaming, sent = sum_of("streaming", head=sampling_s), sum_of("communication")
        device = products.value + attention.value + streaming.value + sent.value
        launches = sum(count * layer.launches for count, layer in layers)
        depth = sum(count for count, _ in layers)
        overhead = self._overhead(float(device), launches, tokens.sequences, depth)
        whole = total_s(
            "forward pass",
            products=products,
            attention=attention,
            streaming=streaming,
            communication=sent,
            overhead=overhead,
        )
        return Forward(products, attention, streaming, sent, overhead, whole)

    def _overhead(self, device_s: float, launches: int, sequences: int, layers: int) -> Quantity:
        """The engine's, and what a host takes longer than the device."""
        engine = self.engine
        host_s = sequences * engine.sequence_s
        if engine.host is Host.EAGER:
            host_s += launches * ESTIMATED_ISSUE.forward_s
        return engine_s(layers, engine.layer_s, engine.round_s, host_s, device_s)

    def _layer(self, kind: Layer, tokens: NewTokens) -> "LayerTimes":
        products = tuple(self._products(kind, tokens))
        streams = self._streams(kind, tokens)
        attention = self._mixers(kind, tokens)
        product_total = _total("products", products)
        stream_total = _total("streaming", tuple(stream.forward for stream in streams))
        work = product_total.value + stream_total.value + attention.value
        launches = (
            len(products) + DECODE_LAUNCHES + CACHE_LAUNCHES + _stream_launches(streams, kind)
        )
        return LayerTimes(
            product_total,
            attention,
            stream_total,
            self._communication(kind, tokens, of(work, Unit.SECONDS)),
            launches,
        )

    # Products ------------------------------------------------------------------------------------

    def _products(self, kind: Layer, tokens: NewTokens) -> Iterator[Quantity]:
        """Products with every matrix of a layer. Of experts, with those that get tokens."""
        for weight in layer_weights(kind, self.model):
            if weight.uses:
                share = self.placement.share(weight, kind)
                each_bytes = self._each_bytes(weight, share)
                yield self._product(share, kind, tokens.rows, each_bytes)

    def _each_bytes(self, weight: Weight, share: Weight) -> float:
        """Bytes of each matrix of one layer, of one chip."""
        whole = weight_bytes(weight, self.model, self.weights)
        return whole / weight.count * (share.elements / weight.elements)

    def _product(self, share: Weight, kind: Layer, rows: int, size_bytes: float) -> Quantity:
        *stacked, N, K = share.shape
        block = kind.feed_forward
        if share.group is Group.EXPERTS and isinstance(block, Experts):
            met, each = self.placement.expert_rows(block, rows)
            batch = max(1, round(met))
            product_s = self.product(
                share.name, batch, max(1, round(each)), N, K, size_bytes * met / stacked[0]
            )
            reached = self.engine.experts
            return (
                product_s if reached == 1 else grouped_s(product_s, reached).with_name(share.name)
            )
        return self.product(share.name, 1, rows, N, K, size_bytes, self._dtype_of(share))

    def _dtype_of(self, weight: Weight) -> str:
        """Weights that stay wide are multiplied in 16 bits."""
        kept = self.weights
        is_wide = kept.quantization is None and kept.packing_of(weight) is kept.others
        return "bfloat16" if is_wide and not kept.is_plain else self.dtype

    def product(
        self, name: str, batch: int, M: int, N: int, K: int, size_bytes: float, dtype: str = ""
    ) -> Quantity:
        """(M, K) @ (K, N) with weights of so many bytes; few rows may go without matrix units."""
        dtype, chip = dtype or self.dtype, self.chip
        size = DTYPE_BYTES.get(dtype, 4)
        operand = size * M * K // NUMBERS_EACH.get(dtype, 1)
        beside = batch * (operand + ACTIVATION_BYTES * M * N)
        memory_s = size_bytes / self.intake_bytes_per_s + beside / self.bandwidth_bytes_per_s
        alignment = gcd(ALIGNMENT_BYTES, N * size, K * size)
        product = Product(batch, M, N, K, dtype, size, alignment)
        compute_s, launches = product_s(product, chip, memory_s)
        compute_s /= self.engine.pace.products_of(chip)
        vector_s = vector_product_s(product, chip)
        if vector_s is not None and vector_s < compute_s:
            compute_s, launches = vector_s, 1
        kernel = bound_kernel(
            compute_s=compute_s, memory_s=memory_s, overhead_s=KERNEL_S * launches
        )
        times = f"{batch} x " if batch > 1 else ""
        shapes = f"{times}({M}, {K}) @ ({K}, {N}) in {dtype}: {kernel.bound}-bound"
        return Quantity(name, kernel.seconds, Unit.SECONDS, source=ROOFLINE, note=shapes)

    def _head(self, tokens: NewTokens) -> tuple[Quantity, Quantity]:
        """The logits of each sequence's last token, or of all guesses, and choosing from them."""
        model = self.model
        rows = tokens.sequences if tokens.is_prompt else tokens.rows
        name = "embedding" if model.is_tied else "head"
        weight = next(weight for weight in weights_of(model) if weight.name == name)
        size_bytes = weight_bytes(weight, model, self.weights) / self.placement.tensor
        vocabulary = -(-model.vocabulary // self.placement.tensor)
        product = self.product(
            "head", 1, rows, vocabulary, weight.shape[-1], size_bytes, self._dtype_of(weight)
        )
        sampled = of(rows * model.vocabulary * LOGIT_BYTES, Unit.BYTES)
        return product, sampling_s(sampled, self.bandwidth_bytes_per_s)

    # All else ------------------------------------------------------------------------------------

    def _streams(self, kind: Layer, tokens: NewTokens) -> list[PassTimes]:
        layout = Layout(
            tensor=self.placement.tensor,
            micro_batch=tokens.sequences,
            implementation=self.engine.implementation,
        )
        model = replace(self.model, dropout=0.0)
        weights = tuple(self.placement.share(weight, kind) for weight in layer_weights(kind, model))
        return layer_streams(kind, model, weights, tokens.new, layout, self.kernels)

    def _mixers(self, kind: Layer, tokens: NewTokens) -> Quantity:
        parts = {}
        if kind.attention is not None:
            parts["attention_s"] = self._attention(kind, tokens)
        if kind.recurrence is not None:
            parts["recurrence_s"] = self._recurrence(kind, kind.recurrence, tokens)
        if len(parts) == 1:
            return next(iter(parts.values()))
        return total_s("attention and recurrence", **parts)

    def _recurrence(self, kind: Layer, recurrence: Recurrence, tokens: NewTokens) -> Quantity:
        """A scan of the prompt; of few tokens, the state is read and written once."""
        tensor = self.placement.tensor
        if tokens.is_prompt and tokens.new > 1:
            return scan_s(
                recurrence, tokens.rows, tokens.new, tensor, self.chip, "bfloat16",
                ACTIVATION_BYTES, self.bandwidth_bytes_per_s,
            )  # fmt: skip
        state = recurrent_state_bytes(replace(kind, count=1), tokens.sequences, self.cache, tensor)
        return state_s(state, self.bandwidth_bytes_per_s, STATE_LAUNCHES)

    def _attention(self, kind: Layer, tokens: NewTokens) -> Quantity:
        if tokens.is_prompt and tokens.new > 1:
            return self._prompt_attention(kind, tokens)
        return self._cached_attention(kind, tokens)

    def _prompt_attention(self, kind: Layer, tokens: NewTokens) -> Quantity:
        """A fused kernel over the whole prompt; latent keys and values are expanded for it."""
        attention, b, S = kind.attention, tokens.sequences, tokens.new
        assert attention is not None
        heads = max(1, attention.heads // self.placement.tensor)
        D = attention.head_dim
        E = attention.value_head_dim if isinstance(attention, LatentAttention) else D
        window = None if isinstance(attention, LatentAttention) else attention.window
        shape = AttentionShape(b * heads, S, S, D, E, causal(S, window), is_backward=False)
        kernel = self._attention_kernel(kind)
        moved = ACTIVATION_BYTES * b * S * heads * (2 * D + 2 * E)
        fused = fused_kernel((shape,), "bfloat16", kernel, moved, self.chip)
        seconds = fused.seconds / self.engine.pace.products_of(self.chip)
        note = f"({b}, {heads}, {S}, {D}), causal: {fused.bound}-bound"
        return Quantity("attention", seconds, Unit.SECONDS, source=ROOFLINE, note=note)

    def _cached_attention(self, kind: Layer, tokens: NewTokens) -> Quantity:
        """Few queries with all that is in the cache, which is read once; latent attention goes by
        its short vectors (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).
        """
        mine = self.placement.cached_layer(kind).attention
        assert mine is not None
        context = of(tokens.context, Unit.TOKENS, "context")
        keys = kept_tokens(mine, context, replace(self.cache, block=1))
        kv_heads, key_bytes, value_bytes = entry_of(mine, self.cache)
        queries = max(1, kind.split[0] // self.placement.tensor) * tokens.rows
        D = E = mine.head_dim
        if isinstance(mine, LatentAttention):
            D, E = mine.kv_rank + mine.rotary_head_dim, mine.kv_rank
        kernel = self._attention_kernel(kind)
        share = shares_of(kernel, "bfloat16", self.chip).forward
        rate = share * peak_of("bfloat16", self.chip).flop_per_s
        size = kv_heads * (key_bytes + value_bytes) * int(keys.value) * tokens.sequences
        return cached_attention_s(
            size,
            self.bandwidth_bytes_per_s,
            2 * queries * int(keys.value) * (D + E),
            rate * self.engine.pace.products_of(self.chip),
            DECODE_LAUNCHES,
        )

    def _attention_kernel(self, kind: Layer) -> Fused:
        assert kind.attention is not None
        layout = Layout(implementation=self.engine.implementation)
        return kernel_of(
            self.chip, "bfloat16", kind.attention, layout, is_masked=False, is_dropped=False
        )

    def _communication(self, kind: Layer, tokens: NewTokens, work: Quantity) -> Quantity:
        """Sums over a replica's chips, and tokens sent to experts and back.

        Where experts are spread over nodes, a batch goes in two halves, one of which is computed
        while the other is sent: only what is longer than the work shows (DeepSeek-V3, section
        3.4.1). Within a node nothing hides.
        """
        at, cluster, pace = self.placement, self.cluster, self.engine.pace
        parts: dict[str, Quantity] = {}
        row_bytes = ACTIVATION_BYTES * self.model.width
        is_spread = at.expert > 1 and isinstance(kind.feed_forward, Experts)
        if at.tensor > 1:
            ranks, staged = group(at.tensor, 1, cluster), self.engine.is_staged
            once = all_reduce(tokens.rows * row_bytes, ranks, cluster, is_staged=staged)
            sums = 1 if kind.is_parallel or is_spread else kind.blocks
            parts["all_reduce_s"] = layers_s(sums, once.at_pace(pace).seconds)
        if is_spread:
            assert isinstance(kind.feed_forward, Experts)
            row = self.model.width * (DTYPE_BYTES.get(self.dtype, 2) + ACTIVATION_BYTES)
            payload = max(1, tokens.rows // at.tensor) * kind.feed_forward.active * row
            among = group(at.expert, 1, cluster)
            sent = all_to_all(payload, among, cluster, is_staged=self.engine.is_staged).at_pace(
                pace
            )
            hidden = float(among.nodes > 1)
            parts["all_to_all_s"] = exposed_s("expert all-to-all", sent.seconds, work, hidden)
        return total_s("communication", **parts)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer of a kind."""

    products: Quantity
    attention: Quantity
    streaming: Quantity
    communication: Quantity
    launches: int


def vector_product_s(product: Product, chip: Chip) -> float | None:
    """Seconds without matrix units, at half the rate of multiply-adds, as `streaming.py` has it."""
    peak = vector_peak_flop_per_s("float32", chip)
    return None if peak is None else product.flops / (peak / 2)


def _stream_launches(streams: list[PassTimes], kind: Layer) -> int:
    """Kernels: both norms of a layer are one stream, and so are turned queries and keys."""
    times = {"norms": kind.norms, "residuals": kind.blocks, "rotation": 2}
    return sum(stream.forward_launches * times.get(stream.forward.name, 1) for stream in streams)


def _total(name: str, parts: tuple[Quantity, ...]) -> Quantity:
    return total_s(name, **{f"part_{n}_s": part for n, part in enumerate(parts)})


@closed_form("layers", Unit.SECONDS)
def layers_s(layers: Count, layer_s: Seconds) -> str:
    return "layers * layer_s"


@closed_form("products of experts", Unit.SECONDS)
def grouped_s(product_s: Seconds, reached: Fraction) -> str:
    return "product_s / reached"


@closed_form("engine", Unit.SECONDS)
def engine_s(
    layers: Count, layer_s: Seconds, round_s: Seconds, host_s: Seconds, device_s: Seconds
) -> str:
    """A host is waited for where it takes longer than the device."""
    return "layers * layer_s + round_s + max(host_s - device_s, 0)"


@closed_form("recurrence", Unit.SECONDS, "estimated: its state read and written once")
def state_s(
    state: Bytes, bandwidth_bytes_per_s: BytePerS, launches: Count, kernel_s: Seconds = KERNEL_S
) -> str:
    return "2 * state / bandwidth_bytes_per_s + launches * kernel_s"


@closed_form("sampling", Unit.SECONDS)
def sampling_s(logits: Bytes, bandwidth_bytes_per_s: BytePerS, kernel_s: Seconds = KERNEL_S) -> str:
    return "logits / bandwidth_bytes_per_s + kernel_s"


@closed_form(
    "attention", Unit.SECONDS, "Dao et al. 2023, Flash-Decoding for long-context inference"
)
def cached_attention_s(
    cache: Bytes,
    bandwidth_bytes_per_s: BytePerS,
    flops: Flops,
    flop_per_s: FlopPerS,
    launches: Count,
    kernel_s: Seconds = KERNEL_S,
) -> str:
    return "max(cache / bandwidth_bytes_per_s, flops / flop_per_s) + launches * kernel_s"
