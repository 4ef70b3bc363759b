"""What operators allocate besides their results: writes operators.json.

`python -m tests.truth.driver --python P tests/truth/driver/record_operators.py`
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

RECORD = Path(__file__).parent.parent / "operators.json"
HALF, BRAIN, FLOAT, LONG, BOOL = (
    torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.bool
)  # fmt: skip
Shape = tuple[int, ...]
Spec = tuple[Shape, torch.dtype]
aten = torch.ops.aten


def tensors(value: Any) -> Iterable[torch.Tensor]:
    """Every tensor in nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def traced(call: Callable[[], Any], inputs: list[torch.Tensor]) -> tuple[Any, dict[str, Any]]:
    """The call's result, and what it allocated and freed in order."""
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000)
    result = call()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    results = {tensor.untyped_storage().data_ptr() for tensor in tensors(result)} - known
    live: dict[int, tuple[int, int]] = {}
    temporaries: list[int] = []
    sequence: list[int] = []
    for index, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = (index, event["size"])
            sequence.append(event["size"])
        elif event["action"] == "free_requested" and event["addr"] in live:
            temporaries.append(live.pop(event["addr"])[1])
            sequence.append(-temporaries[-1])
    outputs = [size for address, (_, size) in live.items() if address in results]
    kept = [size for address, (_, size) in live.items() if address not in results]
    facts = {"outputs": outputs, "kept": kept, "temporaries": temporaries, "sequence": sequence}
    return result, facts


rows: list[dict[str, Any]] = []


def note(op: str, specs: list[Spec], literals: str, cold: Any, warm: Any) -> None:
    """One row: what only the first call kept is persistent."""
    persistent = Counter(cold["kept"]) - Counter(warm["kept"])
    rows.append(
        {
            "op": op,
            "shapes": [list(shape) for shape, _ in specs],
            "dtypes": [str(dtype).removeprefix("torch.") for _, dtype in specs],
            "literals": literals,
            "outputs_bytes": warm["outputs"],
            "saved_bytes": warm["kept"],
            "temporaries_bytes": warm["temporaries"],
            "persistent_bytes": sorted(persistent.elements()),
            "sequence": warm["sequence"],
        }
    )


def make(spec: Spec, grad: bool) -> torch.Tensor:
    """An input."""
    shape, dtype = spec
    tensor = torch.empty(shape, dtype=dtype, device="cuda")
    return tensor.requires_grad_() if grad and dtype.is_floating_point else tensor


def op(
    name: str, call: Callable[..., Any], *cases: list[Spec], literals: str = "", grad: bool = True
) -> None:
    """Record forward, and backward where inputs have gradients."""
    for specs in cases:
        try:
            both: list[Any] = []
            for _ in range(2):
                if not both:
                    torch._C._cuda_clearCublasWorkspaces()
                inputs = [make(spec, grad) for spec in specs]
                out, forward = traced(lambda inputs=inputs: call(*inputs), inputs)
                backward = None
                wanted = [one for one in inputs if one.requires_grad]
                outs = [one for one in tensors(out) if one.requires_grad]
                if wanted and outs:
                    first = outs[0]
                    slope = torch.empty_like(first)
                    _, backward = traced(
                        lambda first=first, wanted=wanted, slope=slope: torch.autograd.grad(
                            first, wanted, slope, allow_unused=True
                        ),
                        [*inputs, *outs, slope],
                    )
                both.append((forward, backward))
                del inputs, out, wanted, outs
            (cold, cold_backward), (warm, warm_backward) = both
            note(name, specs, literals, cold, warm)
            if warm_backward is not None:
                note(f"{name} backward", specs, literals, cold_backward, warm_backward)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            print(f"{name} {specs} {literals}: {str(error)[:300]}", file=sys.stderr)


def each(shapes: list[Shape], *dtypes: torch.dtype) -> list[list[Spec]]:
    """One input, every shape with every dtype."""
    return [[(shape, dtype)] for dtype in dtypes for shape in shapes]


def elementwise() -> None:
    """Activations, copies, masks."""
    flat = [(100,), (1000, 1000), (8, 512, 3072)]
    for name in ("gelu", "silu", "relu", "softplus", "leaky_relu", "hardswish", "elu", "mish"):
        op(name, getattr(F, name), *each(flat[1:], BRAIN, FLOAT))
    op("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), *each(flat[1:], BRAIN))
    op("glu", F.glu, *each([(64, 2048)], BRAIN))
    op("logsigmoid", F.logsigmoid, *each(flat[1:], BRAIN))
    op("prelu", F.prelu, [((64, 128, 100), FLOAT), ((128,), FLOAT)])
    op("dropout", lambda x: F.dropout(x, 0.1), *each(flat, BRAIN, FLOAT), literals="p=0.1")
    op("to float32", lambda x: x.float(), *each(flat, BRAIN))
    op("to bfloat16", lambda x: x.bfloat16(), *each(flat, FLOAT))
    op("contiguous of transposed", lambda x: x.t().contiguous(), *each([(1000, 3000)], FLOAT))
    op("copy_", lambda a, b: a.copy_(b), [((999, 77), FLOAT), ((999, 77), BRAIN)], grad=False)
    op(
        "copy_ of transposed",
        lambda a, b: a.copy_(b.t()),
        *[
            [((900, 700), one), ((700, 900), two)]
            for one in (FLOAT, BRAIN)
            for two in (FLOAT, BRAIN)
        ],
        grad=False,
    )
    op("to cpu, transposed", lambda x: x.t().cpu(), *each([(100, 300)], FLOAT), grad=False)
    op("from cpu", lambda x: torch.ones(x.shape).cuda(), *each([(100, 300)], FLOAT), grad=False)
    op(
        "copy_ from cpu to transposed",
        lambda x: x.t().copy_(torch.ones(300, 100)),
        *each([(100, 300)], FLOAT),
        grad=False,
    )
    op(
        "copy_ from cpu of float64",
        lambda x: x.copy_(torch.ones(100, 300, dtype=torch.float64)),
        *each([(100, 300)], FLOAT),
        grad=False,
    )
    op("cat", lambda a, b: torch.cat([a, b]), [((100, 64), BRAIN), ((50, 64), BRAIN)])
    op("stack", lambda a, b: torch.stack([a, b]), [((100, 64), BRAIN), ((100, 64), BRAIN)])
    op(
        "cat of many",
        lambda x: torch.cat([x] * 200),
        *each([(10, 64), (64, 100)], BRAIN),
        literals="200 times",
        grad=False,
    )
    mask = [[((64, 512), BOOL), ((64, 512), BRAIN), ((64, 512), BRAIN)]]
    op("where", torch.where, *mask)
    op(
        "masked_fill",
        lambda x, m: x.masked_fill(m, 0.0),
        [((4, 8, 512, 512), BRAIN), ((512, 512), BOOL)],
    )
    op("add broadcast", lambda x, y: x + y, [((64, 512, 100), BRAIN), ((100,), BRAIN)])
    op("mul", lambda x, y: x * y, [((64, 512), BRAIN), ((64, 512), BRAIN)])
    op("div", lambda x, y: x / y, [((64, 512), FLOAT), ((64, 512), FLOAT)])
    op("pow", lambda x: x**2, *each([(64, 512)], FLOAT))
    op("pow 3", lambda x: x**3, *each([(64, 512)], FLOAT))
    op("clamp", lambda x: x.clamp(0, 1), *each([(64, 512)], FLOAT))
    op("tanh", torch.tanh, *each([(64, 512)], FLOAT))
    op("sqrt", torch.sqrt, *each([(64, 512)], FLOAT))
    op("max of two", torch.maximum, [((64, 512), FLOAT), ((64, 512), FLOAT)])
    op("tril", torch.tril, *each([(512, 512)], FLOAT))


def normalising() -> None:
    """Norms, softmax, losses."""
    for rows_, width in [(1000, 768), (4096, 1024), (16384, 4096), (8, 64), (100_000, 64)]:
        for dtype in (FLOAT, BRAIN):
            op(
                "layer_norm",
                lambda x, w, b: F.layer_norm(x, w.shape, w, b),
                [((rows_, width), dtype), ((width,), dtype), ((width,), dtype)],
            )
            op(
                "rms_norm",
                lambda x, w: F.rms_norm(x, w.shape, w),
                [((rows_, width), dtype), ((width,), dtype)],
            )
    for shape in [(8, 64, 32, 32), (32, 256, 56, 56), (4, 32, 7, 7), (16, 512, 128)]:
        channels = (shape[1],)
        for dtype in (FLOAT, BRAIN):
            op(
                "group_norm",
                lambda x, w, b: F.group_norm(x, 8, w, b),
                [(shape, dtype), (channels, dtype), (channels, dtype)],
                literals="8",
            )
        for dtype in (FLOAT, BRAIN):
            op(
                "batch_norm cudnn",
                lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                [(shape, dtype), (channels, FLOAT), (channels, FLOAT)],
            )
            with torch.backends.cudnn.flags(enabled=False):
                op(
                    "batch_norm native",
                    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
                    [(shape, dtype), (channels, FLOAT), (channels, FLOAT)],
                )
                op(
                    "batch_norm native channels_last",
                    lambda x, w, b: F.batch_norm(
                        x.detach().to(memory_format=torch.channels_last).requires_grad_(),
                        None, None, w, b, True,
                    )
                    if x.dim() == 4
                    else x,
                    [(shape, dtype), (channels, FLOAT), (channels, FLOAT)],
                )  # fmt: skip
    for shape in [(64, 512), (8, 12, 512, 512), (512, 50257)]:
        for dtype in (FLOAT, BRAIN):
            op("softmax", lambda x: F.softmax(x, -1), [(shape, dtype)])
            op("log_softmax", lambda x: F.log_softmax(x, -1), [(shape, dtype)])
    op("softmax dim 0", lambda x: F.softmax(x, 0), *each([(4096, 512)], FLOAT))
    op(
        "softmax bfloat16 to float32",
        lambda x: F.softmax(x, -1, dtype=torch.float32),
        *each([(64, 4096)], BRAIN),
    )
    for shape in [(100, 1000), (8192, 50257), (20_000, 100)]:
        for dtype in (FLOAT, BRAIN):
            labels = ((shape[0],), LONG)
            op("nll_loss", F.nll_loss, [(shape, dtype), labels])
            op("cross_entropy", F.cross_entropy, [(shape, dtype), labels])
            op(
                "cross_entropy",
                lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
                [(shape, dtype), labels],
                literals="label_smoothing=0.1",
            )
    for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy_with_logits"):
        op(name, getattr(F, name), [((512, 1000), FLOAT), ((512, 1000), FLOAT)])
    op("kl_div", F.kl_div, [((512, 1000), FLOAT), ((512, 1000), FLOAT)])


def reducing() -> None:
    """Sums of every shape: big ones go by parts."""
    shapes = [
        (100,),
        (10_000,),
        (1_000_000,),
        (16_777_216,),
        (100_000_001,),
        (4096, 4096),
        (8, 512, 3072),
    ]
    for dtype in (FLOAT, BRAIN):
        for name in ("sum", "mean", "norm", "max", "argmax", "std", "any"):
            op(name, getattr(torch, name), *each(shapes, dtype), grad=name in ("norm",))
        for dim in (0, 1):
            wide = [(4096, 4096), (65_536, 768), (10, 1_000_000), (1_000_000, 10), (8192, 50257)]
            op(
                "sum",
                lambda x, dim=dim: x.sum(dim),
                *each(wide, dtype),
                literals=f"dim={dim}",
                grad=False,
            )
            op(
                "max",
                lambda x, dim=dim: x.max(dim),
                *each(wide, dtype),
                literals=f"dim={dim}",
                grad=False,
            )
    op("sum to float32", lambda x: x.sum(dtype=FLOAT), *each(shapes, BRAIN), grad=False)
    op(
        "sum dims",
        lambda x: x.sum((0, 1)),
        *each([(8, 512, 3072), (32, 1024, 768)], BRAIN, FLOAT),
        grad=False,
    )
    op("isnan any", lambda x: x.isnan().any(), *each([(1_000_000,)], FLOAT), grad=False)
    op("item", lambda x: x.sum().item(), *each([(10,)], FLOAT), grad=False)
    op("all equal", lambda x: torch.equal(x, x + 1), *each([(1000,)], FLOAT), grad=False)
    op("logsumexp", lambda x: x.logsumexp(-1), *each([(512, 50257)], FLOAT))
    op(
        "cumsum",
        lambda x: x.cumsum(-1),
        *each([(100,), (1_000_000,), (512, 4096), (4096, 77)], FLOAT, BRAIN),
    )
    op("cumsum int64", lambda x: x.cumsum(0), *each([(1_000_000,), (100,)], LONG), grad=False)


def ordering() -> None:
    """Sorts, the largest of many, draws and permutations."""
    for name, dtypes in (("sort", (FLOAT, LONG)), ("argsort", (FLOAT,))):
        op(
            name,
            lambda x, name=name: getattr(x, name)(-1),
            *each(
                [
                    (100,),
                    (1000,),
                    (4096,),
                    (5000,),
                    (1_000_000,),
                    (512, 1000),
                    (512, 50257),
                    (64, 5000),
                ],
                *dtypes,
            ),
            grad=False,
        )
    op(
        "sort stable",
        lambda x: x.sort(stable=True),
        *each([(1_000_000,), (512, 1000)], FLOAT),
        grad=False,
    )
    for k in (5, 50):
        op(
            "topk",
            lambda x, k=k: x.topk(k),
            *each([(64, 50257), (1000,), (1_000_000,), (8, 2000), (4096, 64)], FLOAT, BRAIN),
            literals=f"k={k}",
            grad=False,
        )
    op(
        "multinomial",
        lambda x: x.multinomial(1),
        *each([(64, 50257), (1, 1000)], FLOAT),
        grad=False,
    )
    op("multinomial 5", lambda x: x.multinomial(5, True), *each([(64, 50257)], FLOAT), grad=False)
    op("unique", lambda x: x.unique(), *each([(1000,), (1_000_000,)], LONG), grad=False)
    op("nonzero", torch.nonzero, *each([(1000,), (1_000_000,), (512, 512)], BOOL), grad=False)
    op("bincount", lambda x: x.bincount(minlength=100), *each([(1000,)], LONG), grad=False)
    op(
        "randperm",
        lambda _: torch.randperm(1_000_000, device="cuda"),
        *each([(1,)], LONG),
        literals="1000000",
        grad=False,
    )
    op(
        "randperm",
        lambda _: torch.randperm(10_000, device="cuda"),
        *each([(1,)], LONG),
        literals="10000",
        grad=False,
    )
    op("arange", lambda _: torch.arange(10_000, device="cuda"), *each([(1,)], LONG), grad=False)
    op("one_hot", lambda x: F.one_hot(x, 1000), *each([(100,), (8, 512)], LONG), grad=False)
    op("one_hot without classes", F.one_hot, *each([(100,)], LONG), grad=False)


def indexing() -> None:
    """Embeddings, gathers, scatters."""
    for (vocabulary, width), tokens in (
        ((50257, 768), (8, 512)), ((32000, 4096), (4, 2048)), ((1000, 64), (16,)),
        ((512, 256), (64, 512)), ((5000, 64), (3073,)), ((5000, 64), (3072,)),
    ):  # fmt: skip
        for dtype in (FLOAT, BRAIN):
            op(
                "embedding",
                lambda w, i: F.embedding(i, w),
                [((vocabulary, width), dtype), (tokens, LONG)],
            )
    op(
        "embedding padded",
        lambda w, i: F.embedding(i, w, padding_idx=0),
        [((50257, 768), FLOAT), ((8, 512), LONG)],
    )
    op(
        "embedding_bag",
        lambda w, i: F.embedding_bag(i, w),
        [((5000, 64), FLOAT), ((100, 20), LONG)],
    )
    for count in (100, 4096, 100_000):
        op("index rows", lambda x, i: x[i], [((1000, 256), FLOAT), ((count,), LONG)])
        op(
            "index_select",
            lambda x, i: x.index_select(0, i),
            [((1000, 256), FLOAT), ((count,), LONG)],
        )
        op("gather", lambda x, i: x.gather(1, i), [((count, 256), FLOAT), ((count, 1), LONG)])
        op(
            "scatter_add",
            lambda x, i, s: x.scatter_add(1, i, s),
            [((count, 256), FLOAT), ((count, 8), LONG), ((count, 8), FLOAT)],
        )
        op(
            "index_put_ accumulate",
            lambda x, i, v: x.index_put_((i,), v, accumulate=True),
            [((1000, 256), FLOAT), ((count,), LONG), ((count, 256), FLOAT)],
            grad=False,
        )
        op(
            "index_put_",
            lambda x, i, v: x.index_put_((i,), v),
            [((1000, 256), FLOAT), ((count,), LONG), ((count, 256), FLOAT)],
            grad=False,
        )
        op(
            "index_add_",
            lambda x, i, v: x.index_add_(0, i, v),
            [((1000, 256), FLOAT), ((count,), LONG), ((count, 256), FLOAT)],
            grad=False,
        )
    op(
        "masked index",
        lambda x, m: x[m],
        [((1_000_000,), FLOAT), ((1_000_000,), BOOL)],
        [((1000,), FLOAT), ((1000,), BOOL)],
        grad=False,
    )
    op(
        "masked_scatter",
        lambda x, m, s: x.masked_scatter(m, s),
        [((100_000,), FLOAT), ((100_000,), BOOL), ((100_000,), FLOAT)],
        grad=False,
    )
    op(
        "masked_select",
        torch.masked_select,
        [((1_000_000,), FLOAT), ((1_000_000,), BOOL)],
        grad=False,
    )
    op("repeat_interleave", lambda x: x.repeat_interleave(4, 1), *each([(8, 4, 512, 64)], BRAIN))
    op(
        "repeat_interleave by tensor",
        lambda x, n: x.repeat_interleave(n, 0, output_size=400),
        [((100, 64), FLOAT), ((100,), LONG)],
        grad=False,
    )
    op("flip", lambda x: x.flip(0), *each([(1000, 64)], FLOAT))
    op("roll", lambda x: x.roll(1), *each([(1000, 64)], FLOAT))


def multiplying() -> None:
    """Matrix products, and the workspaces of cuBLAS and cuBLASLt."""
    for m, k, n in [(64, 64, 64), (4096, 768, 3072), (8192, 4096, 4096)]:
        for dtype in (FLOAT, BRAIN, HALF):
            op("mm", torch.mm, [((m, k), dtype), ((k, n), dtype)])
            op("addmm", torch.addmm, [((n,), dtype), ((m, k), dtype), ((k, n), dtype)])
            op("linear", F.linear, [((m, k), dtype), ((n, k), dtype), ((n,), dtype)])
            op("linear no bias", F.linear, [((8, m // 8, k), dtype), ((n, k), dtype)])
    op(
        "bmm",
        torch.bmm,
        *[[((96, 512, 64), dtype), ((96, 64, 512), dtype)] for dtype in (FLOAT, BRAIN)],
    )
    op(
        "baddbmm",
        torch.baddbmm,
        [((96, 512, 512), BRAIN), ((96, 512, 64), BRAIN), ((96, 64, 512), BRAIN)],
    )
    op("matmul 4d", torch.matmul, [((8, 12, 512, 64), BRAIN), ((8, 12, 64, 512), BRAIN)])
    op(
        "matmul of transposed heads",
        lambda q, k: q.transpose(1, 2) @ k.permute(0, 2, 3, 1),
        [((8, 512, 12, 64), BRAIN), ((8, 512, 12, 64), BRAIN)],
    )
    op(
        "einsum",
        lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b),
        [((8, 512, 12, 64), BRAIN), ((8, 512, 12, 64), BRAIN)],
    )
    op("mv", torch.mv, [((512, 512), FLOAT), ((512,), FLOAT)])
    op("dot", torch.dot, [((5120,), FLOAT), ((5120,), FLOAT)])
    for shape in [
        (8, 12, 512, 64),
        (2, 32, 2048, 128),
        (4, 8, 1000, 96),
        (16, 16, 100, 40),
        (1, 4, 17, 256),
    ]:
        for dtype in (BRAIN, HALF, FLOAT):
            for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"):
                if dtype == FLOAT and backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
                    continue
                for causal, dropout in ((True, 0.0), (False, 0.1)):

                    def attend(
                        q: Any, k: Any, v: Any, causal: bool = causal, p: float = dropout
                    ) -> Any:
                        return F.scaled_dot_product_attention(q, k, v, None, p, causal)

                    with sdpa_kernel([SDPBackend.__members__[backend]]):
                        op(
                            f"scaled_dot_product_attention {backend.lower()}",
                            attend,
                            [(shape, dtype)] * 3,
                            literals=f"is_causal={causal}, dropout_p={dropout}",
                        )
    gqa: list[Spec] = [
        ((2, 32, 2048, 128), BRAIN),
        ((2, 8, 2048, 128), BRAIN),
        ((2, 8, 2048, 128), BRAIN),
    ]
    op(
        "scaled_dot_product_attention default",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        gqa,
        literals="enable_gqa=True, is_causal=True",
    )
    for queries, keys in ((512, 512), (100, 300)):
        masked: list[Spec] = [
            ((8, 12, queries, 64), BRAIN),
            ((8, 12, keys, 64), BRAIN),
            ((8, 12, keys, 64), BRAIN),
            ((8, 1, queries, keys), BOOL),
        ]
        op(
            "scaled_dot_product_attention default with mask",
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
            masked,
        )
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            op(
                "scaled_dot_product_attention efficient_attention with mask",
                lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
                masked,
            )


def optimising() -> None:
    """Foreach and fused steps, clipping, unscaling."""
    lists: list[list[Spec]] = [
        [((1000, 1000), FLOAT)] * 2,
        [((768,), FLOAT), ((768, 3072), FLOAT), ((50257, 768), FLOAT), ((1,), FLOAT)] * 3,
        [((100,), FLOAT)] * 500,
        [((4096, 4096), BRAIN)] * 3,
    ]
    op("_foreach_norm", lambda *x: torch._foreach_norm(x), *lists, grad=False)
    op("_foreach_add_", lambda *x: torch._foreach_add_(x, 1.0), *lists, grad=False)
    op("_foreach_mul", lambda *x: torch._foreach_mul(x, 0.5), *lists, grad=False)
    op("_foreach_lerp_", lambda *x: torch._foreach_lerp_(x, x, 0.5), *lists, grad=False)
    op("_foreach_sqrt", lambda *x: torch._foreach_sqrt(x), *lists, grad=False)
    op("_foreach_addcmul_", lambda *x: torch._foreach_addcmul_(x, x, x, 0.5), *lists, grad=False)
    op(
        "_foreach_addcdiv_",
        lambda *x: torch._foreach_addcdiv_(x, x, x, [0.5] * len(x)),
        *lists,
        grad=False,
    )
    op("_foreach_copy_", lambda *x: torch._foreach_copy_(x, x), *lists, grad=False)
    op("get_total_norm", lambda *x: torch.nn.utils.get_total_norm(x), *lists, grad=False)

    def clip(*x: torch.Tensor) -> torch.Tensor:
        for one in x:
            one.grad = one.detach()
        return torch.nn.utils.clip_grad_norm_(x, 1.0)

    op("clip_grad_norm_", clip, *lists)

    def unscale(*x: torch.Tensor) -> None:
        scale, inf = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
        torch._amp_foreach_non_finite_check_and_unscale_(list(x), inf, scale)

    op("_amp_foreach_non_finite_check_and_unscale_ and two scalars", unscale, *lists, grad=False)
    for how in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            options: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}

            for specs in lists:
                parameters = [make(spec, True) for spec in specs]
                optimizer = kind(parameters, lr=0.1, **how, **options)
                for one in parameters:
                    one.grad = torch.empty_like(one)
                literals = ", ".join(f"{key}={value}" for key, value in {**how, **options}.items())
                try:
                    _, first = traced(optimizer.step, parameters)
                    _, second = traced(optimizer.step, parameters)
                except RuntimeError as error:
                    print(kind.__name__, literals, str(error)[:300], file=sys.stderr)
                    continue
                note(f"{kind.__name__}.step, the second", specs, literals, first, second)


def images() -> None:
    """Pools, resizing, convolutions (cuDNN's own workspaces are not in the stand-in)."""
    for shape in [(8, 64, 112, 112), (4, 3, 33, 47)]:
        for dtype in (FLOAT, BRAIN):
            op(
                "max_pool2d",
                lambda x: F.max_pool2d(x, 3, 2, 1),
                [(shape, dtype)],
                literals="3, 2, 1",
            )
            op("avg_pool2d", lambda x: F.avg_pool2d(x, 2), [(shape, dtype)], literals="2")
            op(
                "adaptive_avg_pool2d",
                lambda x: F.adaptive_avg_pool2d(x, 7),
                [(shape, dtype)],
                literals="7",
            )
            op(
                "adaptive_avg_pool2d",
                lambda x: F.adaptive_avg_pool2d(x, 1),
                [(shape, dtype)],
                literals="1",
            )
            for mode in ("nearest", "bilinear", "bicubic"):
                op(
                    "interpolate",
                    lambda x, mode=mode: F.interpolate(x, scale_factor=2, mode=mode),
                    [(shape, dtype)],
                    literals=f"2, {mode}",
                )
            op("pad", lambda x: F.pad(x, (1, 1, 1, 1)), [(shape, dtype)])
            channels = shape[1]
            op(
                "conv2d",
                lambda x, w, b: F.conv2d(x, w, b, padding=1),
                [(shape, dtype), ((64, channels, 3, 3), dtype), ((64,), dtype)],
            )
            op(
                "conv2d depthwise",
                lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0]),
                [(shape, dtype), ((channels, 1, 3, 3), dtype)],
            )
            op(
                "conv_transpose2d",
                lambda x, w: F.conv_transpose2d(x, w, stride=2),
                [(shape, dtype), ((channels, 32, 2, 2), dtype)],
            )
    op("unfold", lambda x: F.unfold(x, 3), *each([(4, 3, 33, 47)], FLOAT))


def main() -> None:
    """Record all."""
    families = (elementwise, normalising, reducing, ordering, indexing, multiplying, optimising)
    for family in (*families, images):
        family()
    facts = {
        "torch": torch.__version__,
        "about": "Allocations in bytes that operators made on a stand-in for the CUDA driver"
        " (tests/truth/driver), as requested from PyTorch's caching allocator. saved: alive after"
        " the call and not its result; persistent: made by the first call only; sequence:"
        " allocations and, negative, frees in order. Values read from the device are zero."
        " What cuDNN's engines"
        " ask for as a workspace is not included.",
        "device": torch.cuda.get_device_name(),
        "rows": rows,
    }
    lines = ",\n".join(json.dumps(row) for row in facts.pop("rows"))
    text = json.dumps(facts)[:-1] + f', "rows": [\n{lines}\n]}}\n'
    RECORD.write_text(text)


if __name__ == "__main__":
    main()
