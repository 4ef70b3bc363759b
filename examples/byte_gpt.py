"""5 layers of width 128: the training of examples/byte_gpt.toml in one file. Written by `tally train --source`."""

import math
from enum import StrEnum
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

STEPS, BATCH, MICRO_BATCH, SEQUENCE, STRIDE = 1500, 8, 8, 256, 256
FILES = [('runs/byte_gpt/data/train-00000.bin', '<u2', 1024, 33498606)]  # (path, dtype, byte of the first token, tokens)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Config:
    layers = 5
    width = 128
    heads = 2
    kv_heads = 1
    ffn = 352
    vocabulary = 257
    context = 256
    norm = 'rms'
    positions = 'rope'
    activation = 'swiglu'
    is_tied = True
    has_bias = False
    window = None
    dropout = 0.0
    rope_theta = 10000.0
    rope_stretch = None
    norm_eps = 1e-05
    head_dim = None
    has_qkv_bias = False
    has_qk_norm = False
    has_post_norms = False
    is_embedding_scaled = False
    global_every = None
    local_rope_theta = None
    query_scalar = None
    logit_cap = None
    experts = None
    active_experts = None
    init_std = None
    head_size = 64
    def is_local(self, layer):
        """Whether this layer, counted from 0, has the window."""
        every = self.global_every
        return self.window is not None and (every is None or (layer + 1) % every != 0)


config = Config()


class Recompute(StrEnum):
    """What the backward pass recomputes instead of keeping it (activation checkpointing)."""
    NONE = 'none'
    SELECTIVE = 'selective'
    'The scores of attention alone, as fused attention does by itself (Korthikanti 2022).'
    OPERATORS = 'op'
    "All of a layer but attention's kernel and every other product (`plan/recomputation.py`)."
    FULL = 'full'
    'Every layer, from its input.'

GATED = ('swiglu', 'geglu')
ROUNDS = 4
SMALL_BITS, SMALL_ROUNDS = (8, 16)
GOLDEN = np.uint64(11400714819323198485)
MIX_1 = np.uint64(13787848793156543929)
MIX_2 = np.uint64(10723151780598845931)


def permute(places, count, keys):
    """Each place in [0, count) under the permutation selected by its key."""
    bits = (count - 1).bit_length()
    permuted_places = feistel(places, bits, keys)
    outside = np.flatnonzero(permuted_places >= count)
    while outside.size:
        permuted_places[outside] = feistel(permuted_places[outside], bits, keys[outside])
        outside = outside[permuted_places[outside] >= count]
    return permuted_places



def feistel(places, bits, keys):
    """A permutation of [0, 2**bits) for each key: each half is XORed with a hash of the other."""
    low_bits = np.uint64((bits + 1) // 2)
    low_mask = np.uint64((1 << (bits + 1) // 2) - 1)
    high_mask = np.uint64((1 << bits // 2) - 1)
    low, high = (places & low_mask, places >> low_bits)
    for _ in range(SMALL_ROUNDS if bits <= SMALL_BITS else ROUNDS):
        keys = mix(keys + GOLDEN)
        low = low ^ mix(high + keys) & low_mask
        high = high ^ mix(low ^ keys) & high_mask
    return high << low_bits | low



def mix(words):
    """splitmix64's finaliser: every bit of the result depends on every bit of the word."""
    words = (words ^ words >> np.uint64(30)) * MIX_1
    words = (words ^ words >> np.uint64(27)) * MIX_2
    mixture = words ^ words >> np.uint64(31)
    return mixture



def _word(number):
    return np.array([number % 2 ** 64], np.uint64)

CUT = 3.0


@torch.no_grad()
def fill_normal(weight, std):
    """Fill from a normal distribution of this standard deviation, truncated at 3 * std.

    The truncation leaves 98.7 % of the standard deviation. Narrow dtypes are drawn in float32 and
    rounded once: a uniform bfloat16 has 8 bits, which leave few values in the normal's tails.
    """
    wide = weight if weight.dtype.itemsize >= 4 else torch.empty_like(weight, dtype=torch.float32)
    nn.init.trunc_normal_(wide, std=std, a=-CUT * std, b=CUT * std)
    if wide is not weight:
        weight.copy_(wide)



class Linear(nn.Linear):
    """torch's Linear, initialised with std gain / sqrt(in), or gain * std, and a zero bias.

    A sum of `in` products of unit variance has variance `in`, so outputs start with a standard
    deviation near `gain` at every width. As a subclass of torch's Linear it is found by what
    replaces linear layers (fp8, adapters).
    """

    def __init__(self, in_features, out_features, *, has_bias=False, gain=1.0, std=None):
        self.std = gain * (1 / math.sqrt(in_features) if std is None else std)
        super().__init__(in_features, out_features, bias=has_bias)

    def reset_parameters(self):
        fill_normal(self.weight, self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)



class Embedding(nn.Embedding):
    """`rows` vectors of length near 1: unless given, entries start with std 1 / sqrt(width).

    So a tied head starts like a `Linear` of the same shape.
    """

    def __init__(self, rows, width, std=None):
        self.std = 1 / math.sqrt(width) if std is None else std
        super().__init__(rows, width)

    def reset_parameters(self):
        fill_normal(self.weight, self.std)



def norm_of(config):
    """The norm of a config; a layer norm has a bias if the config has biases."""
    return rms_norm_of(config, 128)



def rms_norm_of(config, width):
    """An RMS norm of this many features, as in this config."""
    return RMSNorm(width, 1e-05, 0.0)



class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (offset + weight): Zhang and Sennrich 2019, arXiv 1910.07467.

    torch.nn.functional.rms_norm is one kernel on CUDA. On the CPU it is eight operators and three
    times as slow as `_OnHost`, which takes float32 and float64 there.
    """

    def __init__(self, width, eps, offset=0.0):
        super().__init__()
        self.eps, self.offset = (eps, offset)
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x):
        weight = self.weight + self.offset if self.offset else self.weight
        is_wide = x.dtype == self.weight.dtype and x.dtype.itemsize >= 4
        if x.device.type == 'cpu' and is_wide and (not torch.compiler.is_compiling()):
            on_host = _OnHost.apply
            out = on_host(x, weight, self.eps)
            return out
        return F.rms_norm(x, weight.shape, weight, self.eps)



class _OnHost(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean(x^2) + eps). Saves x, w and one number per token.

    dw = sum over tokens of g x r, and dx = r g w - x r^3 mean(g w x): both sums are products of the
    matrix g x with a vector.
    """

    @staticmethod
    def forward(ctx, x, weight, eps):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        out = (x * r).mul_(weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        x, weight, r = ctx.saved_tensors
        g, = grads
        gx = g * x
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = r.flatten() @ gx.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            mean = (gx @ weight).unsqueeze(-1).div_(x.shape[-1])
            grad_x = torch.mul(g, weight).mul_(r).addcmul_(x, mean.mul_(r ** 3), value=-1)
        return (grad_x, grad_weight, None)



def stretch_rates(rates, stretch):
    """Radians per position, reduced for long periods. A pair with `high_factor` or more turns in
    the original context is unchanged, one with `low_factor` or fewer is fully stretched.
    """
    turns = stretch.original_context * rates / (2 * math.pi)
    share = (turns - stretch.low_factor) / (stretch.high_factor - stretch.low_factor)
    return torch.lerp(rates / stretch.factor, rates, share.clamp(0, 1))



class Rotary(nn.Module):
    """Tables of cosines and sines, as non-persistent float32 buffers."""

    def __init__(self, head_dim, context, theta, stretch=None):
        super().__init__()
        self.theta, self.stretch = (theta, stretch)
        for name in ('cos', 'sin'):
            table = torch.empty(context, head_dim // 2, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        """Pair i of D/2 rotates by theta ** (-2 i / D) per position."""
        context, half = self.cos.shape
        device = self.cos.device
        exponents = torch.arange(half, dtype=torch.float32, device=device) / half
        positions = torch.arange(context, dtype=torch.float32, device=device)
        rates = 1.0 / self.theta ** exponents
        if self.stretch is not None:
            rates = stretch_rates(rates, self.stretch)
        angles = torch.outer(positions, rates)
        self.cos, self.sin = (angles.cos(), angles.sin())

    def forward(self, x, begin=0):
        """Rotates positions from `begin` on, in float32 or wider; returns the input's dtype."""
        end = begin + x.shape[1]
        cos, sin = (table[begin:end, None] for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(x.dtype)

HALVES = (torch.float16, torch.bfloat16)


def window_mask(sequence, window, device):
    """[q, k] is true where q - window < k <= q. None where the window has no effect, so that the
    causal kernel can be used.
    """
    if window is None or window >= sequence:
        return None
    at = torch.arange(sequence, device=device)
    behind = at[:, None] - at
    return (behind >= 0) & (behind < window)



def document_mask(ids, start, window):
    """[b, 0, q, k] is true where k <= q, in the window and in the same document; a document begins
    with the id `start`, which is also what the one before ends with.
    """
    documents = (ids == start).cumsum(dim=1)
    at = torch.arange(ids.shape[1], device=ids.device)
    behind = at[:, None] - at
    is_near = (behind >= 0) & (behind < (window or ids.shape[1]))
    return (documents[:, None, :, None] == documents[:, None, None, :]) & is_near



def attend(q, k, v, mask, dropout, is_causal, scale=None):
    """softmax(q k^T * scale) v, under the mask, causally or over all keys; the scale is
    1 / sqrt(head_dim) unless given.
    """
    is_grouped = q.shape[1] != k.shape[1]
    if is_grouped and (not _takes_groups(q, mask)):
        group = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
        is_grouped = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=is_grouped, scale=scale)



def _takes_groups(q, mask):
    """Whether a fused kernel takes grouped heads. On CUDA only FlashAttention does, for float16 and
    bfloat16 without a mask; otherwise PyTorch would use the math fallback, which materializes all
    scores, while repeated heads still get the memory-efficient kernel (sdp_utils.cpp).
    """
    return q.device.type == 'cpu' or (mask is None and q.dtype in HALVES)



class CausalAttention(nn.Module):
    """Attention with one matrix for query, key and value of all heads, and one output matrix."""

    def __init__(self, config, *, window, gain, recomputes):
        super().__init__()
        d, D, std = (128, 64, None)
        self.heads, self.kv_heads, self.head_dim = (2, 1, D)
        self.dropout, self.recomputes, self.window = (0.0, recomputes, window)
        self.scale = None
        rows, has_bias = ((2 + 2 * 1) * D, False)
        self.qkv = Linear(d, rows, has_bias=has_bias or False, std=std)
        self.q_norm = None
        self.k_norm = None
        self.output = Linear(2 * D, d, has_bias=has_bias, gain=gain, std=std)

    def forward(self, x, rotary, mask=None, past=None):
        """Output of attention. With a past, `x` are the first tokens, or the next one."""
        begin = 0 if past is None else past.tokens
        q, k, v = (tensor.transpose(1, 2) for tensor in self._project(x, rotary, begin))
        if past is not None:
            k, v = past.extend(k, v)
        if begin and self.window is not None:
            k, v = (k[:, :, -self.window:], v[:, :, -self.window:])
        dropout = self.dropout if self.training else 0.0
        is_causal = mask is None and (not begin)
        if self.recomputes and torch.is_grad_enabled():
            attended = checkpoint(attend, q, k, v, mask, dropout, is_causal, self.scale, use_reentrant=False)
        else:
            attended = attend(q, k, v, mask, dropout, is_causal, self.scale)
        joined = self.output(attended.transpose(1, 2).flatten(2))
        return joined

    def _project(self, x, rotary, begin):
        """q, k, v, each (batch, sequence, heads or kv_heads, head_dim), q and k rotated
        together.
        """
        h, k = (self.heads, self.kv_heads)
        qkv = self.qkv(x).unflatten(-1, (h + 2 * k, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query, key, value = qkv.split((h, k, k), dim=2)
            query, key = (self.q_norm(query), self.k_norm(key))
            turned = (query, key) if rotary is None else (rotary(query, begin), rotary(key, begin))
            return (*turned, value)
        if rotary is None:
            return tuple(qkv.split((h, k, k), dim=2))
        turning, value = qkv.split((h + k, k), dim=2)
        return (*rotary(turning, begin).split((h, k), dim=2), value)



class DecoderFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), SwiGLU, or GELU in place of silu, GEGLU: Shazeer 2020, arXiv
    2002.05202; without a gate
    down(gelu(up(x))), exact or with GPT-2's tanh: Hendrycks and Gimpel 2016, arXiv 1606.08415.
    """

    def __init__(self, config, *, gain):
        super().__init__()
        width, ffn, bias = (128, 352, False)
        is_gated, std = ('swiglu' in GATED, None)
        self.gate = Linear(width, ffn, has_bias=bias, std=std) if is_gated else None
        self.up = Linear(width, ffn, has_bias=bias, std=std)
        self.down = Linear(ffn, width, has_bias=bias, gain=gain, std=std)
        self.activation = 'swiglu'

    def forward(self, x):
        inner = self._activate(self.up(x) if self.gate is None else self.gate(x))
        out = self.down(inner if self.gate is None else inner * self.up(x))
        return out

    def _activate(self, x):
        if self.activation == 'swiglu':
            return F.silu(x)
        return F.gelu(x, approximate='none' if self.activation == 'gelu' else 'tanh')

IGNORED = -100


def linear_cross_entropy(hidden, weight, targets, *, chunk_tokens=None, cap=None):
    """Mean over targets other than -100 of -log softmax(hidden @ weight.T)[target], in nats, of
    logits that `soft_cap` has capped.

    With `chunk_tokens` None all logits exist at once. A number bounds them, by a loop of plain
    operators, which torch.compile, autocast and a trace see; linear_cross_entropy of torch 2.13 is
    one opaque operator that autocast does not cast. A chunked loss has no second derivative.

    Known limit: with bfloat16 weights, the weight gradients of chunks accumulate in bfloat16.
    """
    targets = targets.long()
    if chunk_tokens is None:
        logits = soft_cap(F.linear(hidden, weight), cap)
        return F.cross_entropy(logits, targets, ignore_index=IGNORED)
    chunked = _Chunked.apply
    loss = chunked(_as_autocast(hidden), weight, targets, chunk_tokens, cap)
    return loss



def soft_cap(logits, cap):
    """cap * tanh(logits / cap): Gemma 2, arXiv 2408.00118, section 2."""
    return logits if cap is None else cap * torch.tanh(logits / cap)



def _as_autocast(hidden):
    """The tensor in the dtype that autocast would multiply in."""
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return hidden.to(torch.get_autocast_dtype(kind)) if is_cast else hidden



class _Chunked(torch.autograd.Function):
    """Computes both gradients with the loss, and saves them for backward instead of logits."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk_tokens, cap):
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        wide = torch.promote_types(hidden.dtype, torch.float32)
        cast = weight.to(hidden.dtype)
        is_counted = targets != IGNORED
        count = is_counted.sum()
        share = (is_counted.to(wide) / count.clamp(min=1))[:, None]
        loss = hidden.new_zeros((), dtype=wide)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], chunk_tokens):
                part = slice(start, start + chunk_tokens)
                rows = hidden[part]
                logits = soft_cap(F.linear(rows, cast).to(wide), cap)
                slope = None if cap is None else 1 - (logits / cap) ** 2
                loss += _loss_leaving_gradient(logits, targets[part, None], share[part])
                error = (logits if slope is None else logits * slope).to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(error, cast, out=grad_hidden[part])
                if grad_weight is not None:
                    _add_product(grad_weight, error.T, rows)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return loss * (count / count)

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        """Gradients in place, since one may be as large as the head. A second backward pass is
        refused by autograd: the version counters of the saved tensors have changed
        (saved_variable.cpp).
        """
        grad_hidden, grad_weight = (None if kept is None else kept.mul_(grads[0]) for kept in ctx.saved_tensors)
        return (grad_hidden, grad_weight, None, None, None)



def _loss_leaving_gradient(logits, targets, share):
    """The sum of share * cross-entropy; overwrites `logits` with its gradient, share * (softmax -
    one-hot). Ignored tokens have share 0.
    """
    picked = torch.where(targets == IGNORED, 0, targets)
    highest = logits.amax(dim=-1, keepdim=True)
    score = logits.gather(-1, picked)
    total = logits.sub_(highest).exp_().sum(dim=-1, keepdim=True)
    logits.mul_(share / total).scatter_add_(-1, picked, -share)
    return ((total.log() + highest - score) * share).sum()



def _add_product(total, a, b):
    """total += a @ b, accumulated in the dtype of total."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b



class DecoderBlock(nn.Module):
    """x + attention(norm(x)), and x + feed_forward(norm(x)) of that; with a norm of what is added
    where the config has post norms.
    """

    def __init__(self, config, layer, recompute):
        super().__init__()
        gain = 1 / math.sqrt(2 * 5)
        self.attention_norm = norm_of(config)
        self.is_local = config.is_local(layer)
        self.attention = CausalAttention(config, window=None if self.is_local else None, gain=gain, recomputes=recompute is Recompute.SELECTIVE)
        self.feed_forward_norm = norm_of(config)
        kind = DecoderFeedForward
        self.feed_forward = kind(config, gain=gain)
        self.attention_post_norm = None
        self.feed_forward_post_norm = None
        self.dropout = 0.0

    def forward(self, x, rotary, mask=None, past=None):
        attended = self.attention(self.attention_norm(x), rotary, mask, past)
        x = x + self._drop_out(attended, self.attention_post_norm)
        fed = self.feed_forward(self.feed_forward_norm(x))
        return x + self._drop_out(fed, self.feed_forward_post_norm)

    def _drop_out(self, x, norm):
        x = x if norm is None else norm(x)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x



class Transformer(nn.Module):
    """The decoder of a config.

    Matrices are initialised as in `Linear`, those that write to the residual stream with a gain of
    1 / sqrt(2 layers). Build a large model on `torch.device("meta")`, then `to_empty(device=...)`
    and `reset_parameters()`, or `huggingface.read_weights`.

    `recompute` is activation recomputation, as in the closed forms: "full" keeps only each block's
    input; "selective" recomputes what is between attention's operands and its result, which pays
    where no fused kernel is used.
    """

    def __init__(self, config, *, recompute=Recompute.NONE):
        super().__init__()
        self.config = config
        self.recompute = Recompute(recompute)
        self.document_start = None
        'The id that begins a document, if tokens attend to those of their own document alone.'
        d, std = (128, None)
        self.embedding = Embedding(257, d, std)
        is_rotary, theta = (True, None)
        self.positions = None if is_rotary else Embedding(256, d, std)
        size = (64, 256)
        self.rotary = Rotary(*size, 10000.0, None) if is_rotary else None
        self.local_rotary = Rotary(*size, theta) if is_rotary and theta is not None else None
        self.blocks = nn.ModuleList((DecoderBlock(config, layer, self.recompute) for layer in range(5)))
        self.norm = norm_of(config)
        self.head = None

    @property
    def head_weight(self):
        return self.embedding.weight if self.head is None else self.head.weight

    def reset_parameters(self):
        """Initialise all values, for instance after `to_empty`."""
        for module in self.modules():
            reset = getattr(module, 'reset_parameters', None)
            if module is not self and reset is not None:
                reset()

    def hidden(self, ids, past=None):
        """The input of the head: the output of the last norm. With a KV cache, `ids` are the first
        tokens, or the next one.

        Raises UsageError for a sequence longer than the context.
        """
        begin, sequence = (past[0].tokens if past else 0, ids.shape[1])
        end = begin + sequence
        assert not begin or sequence == 1
        x = self._embed(ids, begin)
        local_mask, mask_of_all = (window_mask(sequence, None, ids.device), None)
        if self.document_start is not None and past is None:
            local_mask = document_mask(ids, self.document_start, None)
            mask_of_all = document_mask(ids, self.document_start, None)
        by_kind = {True: (self.local_rotary or self.rotary, local_mask), False: (self.rotary, mask_of_all)}
        pasts = [*past] if past else [None] * len(self.blocks)
        for block, past_of_block in zip(self.blocks, pasts, strict=True):
            x = self._run(block, x, *by_kind[bool(block.is_local)], past_of_block)
        normed = self.norm(x)
        return normed

    def _embed(self, ids, begin):
        """The input of the first block, for tokens at the positions from `begin` on."""
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight[begin:begin + ids.shape[1]]
        return x

    def _run(self, block, *inputs):
        """The output of a block, whose activations are recomputed where the model says so."""
        if self.recompute is Recompute.FULL and torch.is_grad_enabled():
            recomputed = checkpoint(block, *inputs, use_reentrant=False)
            return recomputed
        output = block(*inputs)
        return output

    def forward(self, ids):
        """Logits of the token after each position."""
        return self.logits(self.hidden(ids))

    def logits(self, hidden):
        """Logits of the input of the head."""
        return soft_cap(F.linear(hidden, self.head_weight), None)

    def loss(self, ids, targets, *, chunk_tokens=None):
        """Mean cross-entropy in nats over targets that are not -100, as `linear_cross_entropy`."""
        return linear_cross_entropy(self.hidden(ids).flatten(0, 1), self.head_weight, targets.flatten(), chunk_tokens=chunk_tokens, cap=None)



slide = np.lib.stride_tricks.sliding_window_view
windows = [
    slide(np.memmap(path, dtype, "r", begin, tokens), SEQUENCE + 1)[::STRIDE]
    for path, dtype, begin, tokens in FILES
]
ends = np.cumsum([len(view) for view in windows])


def batch_of(step):
    """Tokens of BATCH windows: a pure function of the step."""
    N = np.uint64(ends[-1])
    positions = np.arange(step * BATCH, (step + 1) * BATCH, dtype=np.uint64)
    chosen = (permute(positions % N, int(N), mix(positions // N * GOLDEN + mix(_word(3533851601170079078))))).astype(np.int64)
    owners = np.searchsorted(ends, chosen, side="right")
    rows = [windows[n][at - (ends[n] - len(windows[n]))] for n, at in zip(owners, chosen)]
    return torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)


def factor(step):
    """Of the learning rate."""
    if step < 100:
        return (step + 1) / (100 + 1)
    passed = min(max((step - 100) / 1400, 0.0), 1.0)
    return 0.1 + 0.9 * (0.5 * (1 + math.cos(math.pi * passed)))


torch.manual_seed(7572214052260029825)
model = Transformer(config, recompute="none").to(device)
chunk_tokens = 128 if device == "cpu" else None
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(
    [{"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
     {"params": [p for p in parameters if not (p.ndim >= 2)], "weight_decay": 0.0}],
    lr=0.003, betas=(0.9, 0.95), eps=1e-08, fused=True,
)
torch.manual_seed(3963845970054565166)
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = 0.003 * factor(step)
    tokens = batch_of(step)
    optimizer.zero_grad(set_to_none=True)
    parts, losses = tokens.split(MICRO_BATCH), []
    for part in parts:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device == "cuda"):
            loss = model.loss(part[:, :-1], part[:, 1:], chunk_tokens=chunk_tokens).float()
        if len(parts) > 1:
            loss = loss * (torch.tensor(len(part)) / BATCH)
        loss.backward()
        losses.append(loss.detach())
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    print(f"{step + 1} {torch.stack(losses).sum().item()!r}")
