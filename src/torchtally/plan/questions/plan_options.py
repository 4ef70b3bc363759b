"""The options of `tally plan`, in the order of its help, and sets of them that questions use.

A new one is a field of `PlanOptions`, and nothing else. A question that reads it names it, or a set
that it is in, in its `@uses`; every other question refuses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtally.options import (
    CHIPS,
    COUNT,
    FILE,
    LENGTH,
    OWN,
    RATE,
    SHARE,
    TIME,
    USD,
    Form,
    OptionGroup,
    each,
    flop_count,
    option,
)
from torchtally.plan.activations.setting import AttentionKernel, Implementation, Loss
from torchtally.plan.adapters import ALL
from torchtally.plan.flops import Recompute
from torchtally.plan.inference.engines import Engine
from torchtally.plan.inference.formats import WeightFormat
from torchtally.plan.kv_cache import CACHE_FORMATS, CacheFormat
from torchtally.plan.optimizers import OPTIMIZERS, Optimizer
from torchtally.plan.parallel.attention import ATTENTIONS
from torchtally.plan.parallel.pace import PACES, TYPICAL, Host, Pace
from torchtally.plan.questions.forms import (
    CACHE_FORMAT,
    ENGINE,
    IMAGE_SIZES,
    MFU,
    NETWORK,
    OPTIMIZER,
    OVERLAP,
    PRICE,
    RECIPE,
    STACK,
    TARGETS,
    WEIGHT_FORMAT,
)
from torchtally.plan.questions.whole_options import WholeOptions
from torchtally.plan.recipes import RECIPES, Recipe
from torchtally.timing.roofline.attention import Fused
from torchtally.units import parse_bytes, parse_flop_per_s
from torchtally.work.convention import Convention

SIZES = OptionGroup("the model by its sizes, instead of MODEL")
TRAINING = OptionGroup("training")
SAMPLES = OptionGroup(
    "one sample of a model that is counted in its own class (docs/architectures.md)"
)
ADAPTERS = OptionGroup(
    "fine-tuning by low-rank adapters (LoRA, QLoRA, DoRA)",
    asked_by="lora",
    remedy="an option of adapters: add --lora 16",
)
PREFERENCES = OptionGroup(
    "training on preferences (DPO) and rewards (GRPO)",
    asked_by="grpo",
    remedy="an option of GRPO: add --grpo",
)
INFERENCE = OptionGroup(
    "inference", asked_by="inference", remedy="an option of inference: add --inference"
)
CLUSTER = OptionGroup("chips")
GOAL = OptionGroup("the question")
OUTPUT = OptionGroup("output")


def _configuration(name: str, form: str, field: str) -> Any:
    """The option that writes a framework's configuration."""
    text = f"--search among the layouts that {name} supports, and write the best as {form}"
    return option(f"--{field}", GOAL, text, FILE, is_written=True, is_checked=False)


TORCHTITAN = _configuration("torchtitan", "its configuration (0.2, TOML)", "torchtitan")
MEGATRON = _configuration("Megatron-LM", "its arguments", "megatron")
DEEPSPEED = _configuration("DeepSpeed", "its configuration (JSON): ZeRO alone", "deepspeed")
ACCELERATE = _configuration("accelerate", "its configuration (YAML): FSDP", "accelerate")


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WholeOptions):
    """What `tally plan` is asked. None or False: not given."""

    model: str | None = option("MODEL", OWN, "the model (see below)", Form("MODEL"), nargs="?")
    mtp: int | None = option(
        "--mtp", OWN, "modules of multi-token prediction: DeepSeek-V3 has 1; default none", COUNT
    )
    parameters: int | None = option("--parameters", SIZES, "number of parameters: 70B", COUNT)
    layers: int | None = option("--layers", SIZES, "layers of the decoder", COUNT)
    width: int | None = option("--width", SIZES, "width of the residual stream", COUNT)
    heads: int | None = option("--heads", SIZES, "query heads", COUNT)
    kv_heads: int | None = option(
        "--kv-heads", SIZES, "key and value heads; default: as --heads", COUNT
    )
    ffn: int | None = option("--ffn", SIZES, "inner width; default: 4 x --width", COUNT)
    vocabulary: int | None = option("--vocabulary", SIZES, "tokens that it knows", COUNT)
    tied: bool = option("--tied", SIZES, "the head shares the embedding's weight")
    gated: bool = option(
        "--gated", SIZES, "gated feed-forward (SwiGLU): three matrices; needs --ffn"
    )
    models: bool = option("--models", SIZES, "list the models known by name", is_checked=False)

    tokens: int | None = option("--tokens", TRAINING, "tokens of the whole training: 15T", COUNT)
    sequence: int | None = option(
        "--sequence",
        TRAINING,
        "tokens per sequence, 128K is 131072; default: the model's context, at most 8192",
        LENGTH,
        alias="--context",
    )
    micro_batch: int | None = option(
        "--micro-batch", TRAINING, "sequences per chip and pass", COUNT
    )
    global_batch: int | None = option("--batch", TRAINING, "sequences per optimizer step", COUNT)
    recipe: Recipe = option(
        "--recipe",
        TRAINING,
        "number formats, which --help all lists; default mixed",
        RECIPE,
        default=RECIPES["mixed"],
    )
    optimizer: Optimizer = option(
        "--optimizer",
        TRAINING,
        "optimizer, for the memory of its state (below); default adamw",
        OPTIMIZER,
        default=OPTIMIZERS["adamw"],
    )
    recompute: Recompute | None = option(
        "--recompute",
        TRAINING,
        "activation recomputation: none; selective, attention's scores; op, all but attention "
        "and every other product (torchtitan); or full; --search tries none and full",
        choices=each(*Recompute),
    )
    attention: tuple[AttentionKernel | None, Fused | None] = option(
        "--attention",
        TRAINING,
        "attention kernel; default flash, PyTorch's own choice",
        choices=ATTENTIONS,
        default=(None, None),
    )
    """What is kept, and whose kernel."""
    host: Host = option(
        "--host",
        TRAINING,
        "what issues kernels: Python (eager, default; blocking, with CUDA_LAUNCH_BLOCKING=1), "
        "torch.compile's code, CUDA graphs (dense-graphs: of all but experts)",
        choices=each(*Host),
        default=Host.EAGER,
    )
    stack_name: str | None = option(
        "--stack",
        TRAINING,
        "software that runs it, whose host, kernels, attention, overlap and recipe are assumed "
        "where they are not given (below); megatron-bridge:26.06 of a release",
        STACK,
    )
    overlap: Mapping[str, float] | None = option(
        "--overlap",
        TRAINING,
        "share of compute behind which communication hides, by degree: tensor=1,expert=0.27",
        OVERLAP,
    )
    pace: Pace = option(
        "--pace",
        TRAINING,
        "predicted steps: typical, as in published trainings (default), or kernels at their best",
        choices=PACES,
        default=TYPICAL,
    )
    implementation: Implementation | None = option(
        "--kernels",
        TRAINING,
        "norms, activations and losses as transformers runs them (eager), or as Megatron-LM does "
        "(fused; default with --search, but for --lora)",
        choices=each(*Implementation),
    )
    """None: a search assumes fused kernels, everything else, and one of adapters, transformers'
    own."""
    loss: Loss | None = option(
        "--loss",
        TRAINING,
        "cross entropy: PyTorch's on a float32 copy of the logits (float32), in their dtype "
        "(plain), Megatron-LM's (parallel), one kernel (fused; composer: with Composer's metrics), "
        "or chunk by chunk with the head's product (chunked: torchtitan, TRL, Unsloth, Liger); "
        "default by --kernels",
        choices=each(*Loss),
    )
    gradients: str | None = option(
        "--gradients",
        TRAINING,
        "dtype of gradients, instead of the recipe's",
        choices=each("bfloat16", "float16", "float32"),
    )
    fp8_weights: bool = option(
        "--fp8-weights",
        TRAINING,
        "of a recipe in 8 bits, weights are held and gathered in 8 bits alone (Megatron-LM's "
        "fp8_param_gather)",
    )
    convention: Convention = option(
        "--convention",
        TRAINING,
        "how attention's FLOPs are counted; default full",
        choices=each(*Convention),
        default=Convention.FULL,
    )

    source_sequence: int | None = option(
        "--source-sequence",
        SAMPLES,
        "tokens of the encoder or of a prompt; --sequence is the decoder's",
        LENGTH,
    )
    images: tuple[int, int] | None = option(
        "--images",
        SAMPLES,
        "images per sample, by their side: 1x336; of a diffusion model the picture's: 1024",
        IMAGE_SIZES,
    )
    """(how many, pixels of a side)."""
    audio_s: float | None = option("--audio", SAMPLES, "audio per sample: 30s", TIME)

    lora: int | None = option(
        "--lora",
        ADAPTERS,
        "rank of the adapters; weights are frozen, in 16 bits or as --weights says (nf4: QLoRA)",
        Form("RANK", COUNT.read),
    )
    lora_targets: tuple[str, ...] = option(
        "--lora-targets",
        ADAPTERS,
        "matrices with an adapter: q,v or q_proj,v_proj; default all-linear",
        TARGETS,
        default=(ALL,),
    )
    lora_dropout: float = option(
        "--lora-dropout", ADAPTERS, "dropout of the adapters' inputs; default 0", SHARE, default=0.0
    )
    dora: bool = option("--dora", ADAPTERS, "DoRA: a trained magnitude per output")

    dpo: bool = option(
        "--dpo",
        PREFERENCES,
        "DPO: pairs of answers and a reference model; lengths by --prompt and --generate",
        is_checked=False,
    )
    grpo: bool = option(
        "--grpo",
        PREFERENCES,
        "GRPO: answers generated in each step (--engine), with rewards",
        is_checked=False,
    )
    generations: int = option(
        "--generations", PREFERENCES, "answers per prompt; default 8", COUNT, default=8
    )
    """TRL's default."""
    reference: bool = option(
        "--reference", PREFERENCES, "GRPO with a reference model (beta above 0)"
    )

    inference: bool = option(
        "--inference", INFERENCE, "plan inference instead of training", is_checked=False
    )
    prompt: int | None = option("--prompt", INFERENCE, "tokens per prompt; default 1024", LENGTH)
    generate: int | None = option(
        "--generate", INFERENCE, "tokens generated per prompt; default 256", LENGTH
    )
    weights: WeightFormat | None = option(
        "--weights",
        INFERENCE,
        "bf16, fp8, int8, int4, awq, gptq, nvfp4, mxfp4, q4_K_M, ... (all below); default: the "
        "model's",
        WEIGHT_FORMAT,
    )
    """None: those of the checkpoint; beside adapters in 16 bits, or 32 by the recipe."""
    kv_cache: CacheFormat = option(
        "--kv-cache",
        INFERENCE,
        "format of keys and values: bf16 (default), fp8, int8, int4, nvfp4, q8_0, q4_0",
        CACHE_FORMAT,
        default=CACHE_FORMATS["bf16"],
    )
    kv_block: int | None = option(
        "--kv-block", INFERENCE, "tokens per block of the cache; default 16", COUNT
    )
    engine: Engine | None = option(
        "--engine",
        INFERENCE,
        "serving (default: vLLM, SGLang, TensorRT-LLM), compiled, eager, llama.cpp",
        ENGINE,
    )
    draft: str | None = option(
        "--draft", INFERENCE, "a smaller draft model, for speculative decoding", Form("MODEL")
    )
    guesses: int | None = option(
        "--guesses", INFERENCE, "draft tokens per round; default 4, or as many as --mtp", COUNT
    )
    acceptance: float = option(
        "--acceptance",
        INFERENCE,
        "probability that a draft token is accepted; default 0.7",
        SHARE,
        default=0.7,
    )

    gpus: str | None = option(
        "--gpus", CLUSTER, "1024xH100-SXM, 4x2xA100-PCIe, RTX-4090", CHIPS, is_checked=False
    )
    mfu: float | None = option("--mfu", CLUSTER, "MFU of the training: 0.4", MFU)
    memory_bytes: int | None = option(
        "--memory",
        CLUSTER,
        "memory of one chip, instead of the table's: 80GB",
        Form("BYTES", parse_bytes),
    )
    network: tuple[int | None, float] | None = option(
        "--network",
        CLUSTER,
        "network cards of a node, instead of the table's: 8x400Gb/s; without a number, one for "
        "each chip",
        NETWORK,
    )
    """(cards of a node, bits per second of each)."""
    peak_flop_per_s: float | None = option(
        "--peak",
        CLUSTER,
        "peak of one chip in the recipe's dtype, instead of the table's: 989.5TFLOP/s",
        Form("RATE", parse_flop_per_s),
    )
    usd_per_hour: float | None = option(
        "--price", CLUSTER, "price of one chip per hour, instead of the table's", PRICE
    )
    compare: str | None = option(
        "--compare",
        CLUSTER,
        "compare with other chips: H100-SXM,A100-SXM,B200",
        CHIPS,
        is_checked=False,
    )

    deadline_s: float | None = option("--deadline", GOAL, "30d, 24h, 2w", TIME)
    budget_usd: float | None = option("--budget", GOAL, "1M, $250K", USD)
    largest: str | None = option(
        "--largest", GOAL, "the largest that fits", choices=each("model", "batch", "sequence")
    )
    tokens_per_s: float | None = option(
        "--tokens-per-s", GOAL, "observed speed of all chips together: 400K", RATE
    )
    flops: int | None = option("--flops", GOAL, "compute to spend: 3e24", Form("N", flop_count))
    search: bool = option(
        "--search", GOAL, "every parallel layout, fastest first", is_checked=False
    )
    layout: str | None = option(
        "--layout",
        GOAL,
        "a given layout, compared with the fastest: 'dp 16/z2, tp 8, pp 8x5, mb 1x8, full'; or a "
        "configuration file: torchtitan (.toml), DeepSpeed (.json), accelerate (.yaml), "
        "Megatron-LM (its arguments)",
        Form("WORDS"),
        is_checked=False,
    )
    torchtitan: str | None = TORCHTITAN
    megatron: str | None = MEGATRON
    deepspeed: str | None = DEEPSPEED
    accelerate: str | None = ACCELERATE

    output: str | None = option(
        "-o",
        OUTPUT,
        "write a training step as a trace, as `tally run -o` does, and show it: the operators of "
        "the model's class, recorded with three small layers; what is not shipped needs "
        "transformers",
        FILE,
        alias="--output",
        is_written=True,
        is_checked=False,
    )
    explain: bool = option(
        "--explain", OUTPUT, "print each formula with its numbers and sources", is_checked=False
    )
    rows: int | None = option("--top", OUTPUT, "rows per table; default 10", COUNT)
    page: str | None = option(
        "--page",
        OUTPUT,
        "napkin math as a page for a browser, offline: the closed forms with sliders, starting "
        "from the numbers given here",
        FILE,
        is_written=True,
        is_checked=False,
    )
    limits: tuple[str, ...] = option(
        "--assert",
        OUTPUT,
        "a limit on a figure of the answer; if it does not hold, the exit code is 3: 'memory < "
        "80GB', 'training-time < 30d' (repeatable)",
        Form("LIMIT"),
        is_repeated=True,
        is_checked=False,
        default=(),
    )


MODEL = frozenset(("model", "parameters", "layers", "width", "heads", "vocabulary", "mtp"))
BY_SIZES = frozenset(("kv_heads", "ffn", "tied", "gated"))
"""Of a model that its sizes describe: with --layers alone."""
COUNTED = frozenset(("sequence", "convention"))
"""What FLOPs of a token depend on besides the model, where its shape is known."""
PEAK = frozenset(("recipe", "peak_flop_per_s"))
"""What a share of the peak depends on."""
STEP = PEAK | {
    *("sequence", "micro_batch", "global_batch", "optimizer", "recompute", "attention", "host"),
    *("loss", "fp8_weights", "overlap", "pace", "implementation", "convention", "memory_bytes"),
    "network",
}
"""What a predicted step and its memory depend on."""
SERVED = frozenset(("prompt", "weights", "kv_cache", "kv_block", "engine", "memory_bytes"))
"""What the memory of a model that generates depends on."""
GUESSED = frozenset(("draft", "guesses", "acceptance"))
ADAPTED = frozenset(("lora", "lora_targets", "lora_dropout", "dora"))
TUNING = ADAPTED | {
    *("weights", "recipe", "optimizer", "recompute", "attention", "loss", "memory_bytes")
}
"""What the memory of a fine-tuning depends on."""
SAMPLED = frozenset(("source_sequence", "images", "audio_s"))
IN_CLASS = SAMPLED | {"sequence", "micro_batch", "recipe"}
"""What a step depends on that is counted in the model's own class."""
