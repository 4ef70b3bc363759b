"""Who generates: how keys and values are kept, what a chip keeps free, and the pace it sustains."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from torchtally.chips.capabilities import DATA_CENTER_BLACKWELL
from torchtally.errors import UsageError, did_you_mean
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.kv_cache import CacheKind
from torchtally.plan.parallel.pace import BEST, TYPICAL, Host, Pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A program that generates."""

    name: str
    summary: str
    cache: CacheKind
    block: int = 1
    """Tokens of a page."""
    implementation: Implementation = Implementation.FUSED
    host: Host = Host.GRAPHS
    memory_share: float = 1.0
    """Of a chip's memory, what it takes for itself."""
    is_staged: bool = True
    """Sums of several chips go through NCCL's buffers, and are not stored to the others' memory."""
    is_of_one_chip: bool = False
    """Several are not planned: llama.cpp gives each some of the layers, one after the other."""
    most_sequences: int | None = None
    """At once, of one replica; None: as many as fit."""
    pace: Pace = BEST
    """Shares of the best published rates."""
    experts: float = 1.0
    """Of the rate of other products, what those of experts reach: rows of many experts fill tiles
    badly, chips wait for the fullest, tokens are sorted."""
    unpacking: float = 1.0
    """Of the bandwidth, what weights come in at that are cast on the way to a product."""
    layer_s: float = 0.0
    """What a layer takes besides."""
    round_s: float = 0.0
    """What a forward pass takes besides: choosing sequences, sampling."""
    sequence_s: float = 0.0
    """What a host takes for a token of one sequence, beside the device: it is waited for where that
    is longer."""
    intake_bytes_per_clock: float | None = None
    """What one multiprocessor takes in of weights at most, where products are of few rows."""
    slower: float = 1.0
    """Nine of ten published figures took at most so many times as long as predicted."""
    source: str = ""


def sustained_engine(
    who: Engine,
    *,
    products: float = 1.0,
    blackwell: float | None = None,
    passes: float = 1.0,
    experts: float = 1.0,
    unpacking: float = 1.0,
    sequence_us: float = 0.0,
    layer_us: float = 0.0,
    intake_bytes_per_clock: float | None = None,
) -> Engine:
    """An engine with what it sustains: shares of the best rates, and microseconds besides."""
    generations = {} if blackwell is None else dict.fromkeys(DATA_CENTER_BLACKWELL, blackwell)
    pace = Pace(
        "typical", MappingProxyType(generations), other_products=products, passes=passes,
        links=TYPICAL.links, message_s=0.0, contention=0.0, launch_s=MappingProxyType({}),
    )  # fmt: skip
    return replace(
        who, pace=pace, experts=experts, unpacking=unpacking, sequence_s=sequence_us / 1e6,
        layer_s=layer_us / 1e6, intake_bytes_per_clock=intake_bytes_per_clock,
    )  # fmt: skip


SERVING = Engine(
    name="serving", summary="vLLM, SGLang, TensorRT-LLM: pages, fused kernels, CUDA graphs",
    cache=CacheKind.PAGED, block=16, memory_share=0.9, most_sequences=1024, slower=1.3,
    is_staged=False,
    source="half A of TensorRT-LLM's throughput tables: H200 and GB200",
)  # fmt: skip
"""Pages of 16 tokens and 90 % of a chip's memory are vLLM's defaults (block_size,
gpu_memory_utilization), as are 1024 sequences at once (max_num_seqs on server GPUs). All three add
up by kernels of their own (vLLM's custom_all_reduce.cuh, TensorRT-LLM's customAllReduceKernels.cu).
"""

COMPILED = Engine(
    name="compiled",
    summary="torch.compile and CUDA graphs: gpt-fast, transformers compiled",
    cache=CacheKind.STATIC,
    slower=1.2,
    source="half A of gpt-fast's tables: Llama 2 on A100s",
)

EAGER = Engine(
    name="eager",
    summary="transformers, module by module",
    cache=CacheKind.DYNAMIC,
    implementation=Implementation.EAGER,
    host=Host.EAGER,
    slower=1.3,
    source="what trainings sustain (plan/parallel/pace.py): no published table is used",
)

LLAMA_CPP = Engine(
    name="llama.cpp",
    summary="llama.cpp on one GPU, as of May 2024",
    cache=CacheKind.STATIC,
    slower=1.7,
    is_of_one_chip=True,
    source="half A of XiongjieDai's llama-bench tables: RTX 3090, A6000, L40S, A100 PCIe, M1 Max",
)

_LISTED = (
    sustained_engine(
        SERVING, products=0.9, blackwell=0.55, passes=0.9, experts=0.25, sequence_us=35
    ),
    sustained_engine(COMPILED, passes=0.85, unpacking=0.8),
    sustained_engine(EAGER, products=TYPICAL.other_products, passes=TYPICAL.passes),
    sustained_engine(
        LLAMA_CPP, products=0.5, passes=0.9, unpacking=0.95, layer_us=50, intake_bytes_per_clock=6
    ),
)
"""Constants by `benchmarks/learn_inference.py`; docs/inference.md has how far they are off."""
ENGINES: Mapping[str, Engine] = {listed.name: listed for listed in _LISTED}
ALIASES = {
    "vllm": "serving", "sglang": "serving", "tensorrt-llm": "serving", "trt-llm": "serving",
    "tgi": "serving", "gpt-fast": "compiled", "transformers": "eager", "llamacpp": "llama.cpp",
    "ollama": "llama.cpp",
}  # fmt: skip
"""Programs, and by which engine they are planned."""


def engine(name: str) -> Engine:
    """The engine of this name. Raises UsageError for any other."""
    word = name.lower()
    if (row := ENGINES.get(ALIASES.get(word, word))) is None:
        raise UsageError(f"Unknown engine {name!r}. {did_you_mean(word, (*ENGINES, *ALIASES))}")
    return row


def at_best(engine: Engine) -> Engine:
    """The same with every kernel at its best published rate, and nothing else to wait for.

    Gaps between kernels are where the engine's own pace has them: its constants hold them else.
    """
    return replace(
        engine,
        host=Host.GRAPHS,
        pace=replace(BEST, has_gaps=engine.pace.has_gaps),
        experts=1.0,
        unpacking=1.0,
        layer_s=0.0,
        round_s=0.0,
        sequence_s=0.0,
        intake_bytes_per_clock=None,
        slower=1.0,
    )
