"""What decides which activations are kept: the micro-batch, the recipe, the kernels, the split."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypedDict, Unpack

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import UsageError
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.adapters import Adapter, FirstLayer
from torchtally.plan.architecture.model import Model
from torchtally.plan.closed_form import Count, Tokens, closed_form, words_of
from torchtally.plan.flops import Recompute
from torchtally.plan.quantity import Amount, Quantity, derive, of
from torchtally.plan.recipes import Recipe
from torchtally.units import Unit

FLOAT32_BYTES, INT64_BYTES, BOOL_BYTES = 4, 8, 1


class AttentionKernel(StrEnum):
    """How attention is computed."""

    FLASH = "flash"
    """One operator that keeps no scores: FlashAttention, cuDNN's, the memory-efficient one."""
    MATH = "math"
    """Operator by operator: scores of every query with every key are kept, S * S for each head.

    Under EAGER as PyTorch's own, which computes in float32. PyTorch takes it in float32 where keys
    and values have fewer heads than queries, since no fused kernel takes both."""


class Implementation(StrEnum):
    """Implementation whose operators a layer is made of."""

    EAGER = "eager"
    """Transformers' own modules, one PyTorch operator after the other, without torch.compile."""
    FUSED = "fused"
    """Norms, activations and losses that are one kernel each and keep their inputs: Megatron-LM and
    Transformer Engine, as Korthikanti et al. 2022, arXiv 2205.05198, section 4.1, count."""


class Loss(StrEnum):
    """How the cross entropy of the logits is computed, and what it keeps of them."""

    FLOAT32 = "float32"
    """PyTorch's operators on a copy in float32 (transformers, and whatever autocast runs): the
    log-probabilities are kept, and two gradients are made."""
    PLAIN = "plain"
    """PyTorch's operators in the logits' own dtype."""
    PARALLEL = "parallel"
    """Megatron-LM's, of a vocabulary that chips may share: a softmax in float32 is kept and becomes
    the gradient, which is cast."""
    FUSED = "fused"
    """One kernel (flash-attn's, Transformer Engine's, inductor's): the logits are kept in their own
    dtype, and so is the gradient."""
    COMPOSER = "composer"
    """The same; behind the backward pass, Composer's metrics of training (cross entropy and
    perplexity) compute it twice more, by PyTorch's operators."""
    CHUNKED = "chunked"
    """With the head's product, a chunk of tokens after another (torchtitan, TRL, Unsloth, Liger):
    the gradient of the head's input is kept, and logits are those of a chunk."""


LOSS_CHUNKS = 8
"""torchtitan's `num_chunks` (torchtitan/components/loss.py @b5bcd76)."""
USUAL_LOSS = {Implementation.EAGER: Loss.FLOAT32, Implementation.FUSED: Loss.PARALLEL}
"""Where nothing says how the loss is computed."""


class Options(TypedDict, total=False):
    """What may be said besides the model, the micro-batch and the recipe; defaults in `Setting`."""

    recompute: Recompute
    kernel: AttentionKernel
    implementation: Implementation
    loss: Loss | None
    """None: the implementation's usual one."""
    modules: tuple[str, ...]
    """Recomputed by themselves, of `modules.MODULES`."""
    tensor: int
    """Chips that share each layer's matrices (tensor parallelism)."""
    is_sequence_parallel: bool
    """They share what is between those matrices too, by tokens."""
    context: int
    """Chips that share each sequence (context parallelism)."""
    is_exchanged: bool
    """Rows go to the chips of their experts and back, and recomputation keeps them."""
    adapter: Adapter | None
    """What is trained, where the weights themselves are frozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One micro-batch on one chip, and how it is computed there."""

    model: Model
    recipe: Recipe
    words: Mapping[str, Quantity]
    """What formulas call batch, sequence (on this chip), keys (of the whole sequence), width."""
    recompute: Recompute = Recompute.NONE
    kernel: AttentionKernel = AttentionKernel.FLASH
    implementation: Implementation = Implementation.EAGER
    loss: Loss | None = None
    modules: tuple[str, ...] = ()
    tensor: int = 1
    is_sequence_parallel: bool = False
    context: int = 1
    is_exchanged: bool = False
    adapter: Adapter | None = None
    first: FirstLayer | None = None
    """Where this is the first layer, beside adapters: what of it has a gradient."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of this layer's matrices, beside adapters."""

    @property
    def is_fused(self) -> bool:
        return self.implementation is Implementation.FUSED

    @property
    def is_loss_one_kernel(self) -> bool:
        return self.usual_loss in (Loss.FUSED, Loss.COMPOSER)

    @property
    def usual_loss(self) -> Loss:
        """The loss asked for, or the implementation's."""
        return self.loss or USUAL_LOSS[self.implementation]

    @property
    def logit_bytes(self) -> int:
        """Bytes of a number that PyTorch's operators keep of the loss: autocast's are float32."""
        is_wide = self.usual_loss is not Loss.PLAIN or self.is_mixed_eagerly
        return FLOAT32_BYTES if is_wide else self.inner_bytes

    @property
    def stream_bytes(self) -> int:
        """Bytes of one number of the residual stream. Autocast adds up in the weights' dtype."""
        recipe = self.recipe
        return recipe.weight_bytes if self.is_mixed_eagerly else recipe.activation_bytes

    @property
    def inner_bytes(self) -> int:
        """Bytes of one number that a product has made."""
        return self.recipe.activation_bytes

    @property
    def operand_bytes(self) -> int:
        """Bytes of one number that a product is given. TF32 is read from float32. What frozen
        weights are given in 8 bits is not kept, but for adapters, which take 16.
        """
        if self.is_frozen and self.recipe.is_quantised:
            return self.inner_bytes
        products = self.recipe.products
        return DTYPE_BYTES.get(products, self.inner_bytes)

    @property
    def is_mixed_eagerly(self) -> bool:
        """Whether `torch.autocast` applies, where norms and the residual stream stay in the
        weights' dtype. Fused implementations have it in the activations'.
        """
        return self.recipe.is_autocast and not self.is_fused

    @property
    def is_frozen(self) -> bool:
        """Weights have no gradient, but for adapters': what they alone would read is not kept."""
        return self.adapter is not None

    @property
    def has_weight_casts(self) -> bool:
        """Products are given weights in another dtype, and keep those for the backward pass."""
        is_held = self.recipe.has_8_bit_weights
        return not is_held and self.operand_bytes != self.recipe.weight_bytes

    @property
    def is_recomputed(self) -> bool:
        """Layer by layer, from its input."""
        return self.recompute in (Recompute.FULL, Recompute.OPERATORS)

    @property
    def dropout(self) -> bool:
        """There is one on the residual stream."""
        return self.model.dropout > 0

    @property
    def attention_dropout(self) -> bool:
        return _or(self.model.attention_dropout, self.model.dropout) > 0

    @property
    def embedding_dropout(self) -> bool:
        return _or(self.model.embedding_dropout, self.model.dropout) > 0

    @property
    def tokens(self) -> int:
        """Tokens of the whole sequence."""
        return int(self.words["keys"].value)

    def without_recompute(self) -> "Setting":
        """The same without recomputation."""
        return replace(self, recompute=Recompute.NONE, modules=())

    def split(self, region: Region) -> int:
        """Chips among which a tensor there is split."""
        is_split = region is Region.INNER or (region is Region.STREAM and self.is_sequence_parallel)
        return self.tensor if is_split else 1

    def keep(
        self,
        name: str,
        formula: str,
        itemsize_bytes: int,
        region: Region = Region.STREAM,
        why: str = "",
        **more: int,
    ) -> Saved:
        """A tensor with so many elements, by a formula over `words` and these."""
        terms = {
            word: self.words[word] if word in self.words else of(more[word], Unit.COUNT)
            for word in words_of(formula)
        }
        elements = derive(f"elements of {name}", Unit.COUNT, formula, **terms)
        formula = "elements * itemsize"
        terms = {"elements": elements, "itemsize": of(itemsize_bytes, Unit.BYTES_EACH)}
        if self.split(region) > 1:
            formula += " / chips"
            terms["chips"] = of(self.split(region), Unit.COUNT)
        size = derive(name, Unit.BYTES, formula, "", why, **terms)
        return Saved(name, elements, itemsize_bytes, region, size, why)


def setting_of(
    model: Model, batch: Amount, sequence: Amount, recipe: Recipe, **options: Unpack[Options]
) -> Setting:
    """The setting of a micro-batch of so many sequences. Raises UsageError for no chips at all."""
    whole = of(sequence, Unit.TOKENS, "sequence")
    context, tensor = options.get("context", 1), options.get("tensor", 1)
    for name, chips in (("tensor", tensor), ("context", context)):
        if chips < 1:
            raise UsageError(f"{name} parallelism over {chips} chips: give 1 or more.")
    words = {
        "batch": of(batch, Unit.COUNT, "batch"),
        "sequence": _on_this_chip(whole, context) if context > 1 else whole,
        "keys": whole,
        "width": of(model.width, Unit.COUNT, "width"),
        "tensor": of(tensor, Unit.COUNT, "tensor"),
    }
    return Setting(model=model, recipe=recipe, words=words, **options)


@closed_form("sequence on this chip", Unit.TOKENS)
def _on_this_chip(sequence: Tokens, context: Count) -> str:
    return "ceil(sequence / context)"


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
