"""What other planners print for the examples in their own documentation, each with the reason."""

from tests.plan.published.korthikanti_memory import layer_bytes
from tests.plan.published.megatron import GPT_175B, MT_530B, TABLE_2, days, recomputing
from tests.plan.published.models import A100, gpt, mixture_of_gpt
from tests.plan.published.row import BILLIONS, DAYS, FLOPS, GIB, HOURS, Row, Source
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import Recompute, token_flops
from torchtally.plan.memory import states_of_count
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parameters import decoder_parameters, parameters
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.recipes import recipe
from torchtally.plan.training import chip_hours, training_flops_of, training_s
from torchtally.units import Unit

ELEUTHER = "EleutherAI/cookbook at 827ee3b, calc/; the scripts' output for the README's commands"
FLOPS_OF = Source(
    "EleutherAI: calc_transformer_flops",
    ELEUTHER,
    "-l 96 -hs 12288 (V 51,200, s 2048, 300e9 tokens): `token_flops` of that GPT x tokens.",
)
SIZE_OF = Source(
    "EleutherAI: calc_transformer_params",
    ELEUTHER,
    "The list of weights, with a head of its own as the script has it.",
)
MEMORY_EACH = Source(
    "EleutherAI: calc_transformer_mem, on many GPUs",
    ELEUTHER,
    "Pythia with ZeRO-1, V 51,200, s 2048. 6.9B: l 32, h 4096, TP 2, 128 GPUs; 12B: l 36, h 5120, "
    "TP 4, 256 GPUs; 8 sequences each. Weights, gradients and activations over TP, optimizer state "
    "over all GPUs.",
)
MEMORY_OF = Source(
    "EleutherAI: calc_transformer_mem",
    ELEUTHER,
    "20B on one GPU: l 44, h 6144, V 51,200, s 2048. Recipe `megatron` with Adam: weights 2, "
    "gradients 4, master weights and moments 12 bytes a parameter. "
    "What the script calls checkpointed is selective recomputation: 34 s b h l.",
)
LLM_ANALYSIS = Source(
    "llm-analysis: days of training",
    "cli99/llm-analysis at d841e40, examples for Megatron-LM's table 2 and their output",
    "Our days for its inputs: V 50,272, s 2048, 300e9 tokens, full recomputation, the paper's "
    "FLOP/s.",
)
LLM_ANALYSIS_HOURS = Source(
    "llm-analysis: GPU-hours of LLaMA",
    "cli99/llm-analysis at d841e40, examples for LLaMA and their output",
    "Half of A100's 312e12 for hardware FLOPs with selective recomputation; V 32,000, s 2048, and "
    "as the example has it an inner width of 4 h without a gate.",
)
LLM_ANALYSIS_SIZES = Source(
    "llm-analysis: parameters",
    "cli99/llm-analysis at d841e40, the same output",
    "Equation 2 of Narayanan et al. 2021 with V 50,272.",
)
ONCE = (
    "The script counts logits once where a training makes three products of them, and looking up "
    "embeddings as FLOPs."
)
LOGITS = "It makes the logits again too. Full recomputation starts from the layers' inputs."
WHOLE_STEPS = (
    "Its batch is of 4,000,000 sequences (a slip: the paper's is of so many tokens), and it takes "
    "whole steps: 122 of 122.07, and 170 of 170.9."
)
BY_TENSOR = "The script does not divide gradients among the GPUs of tensor parallelism."
NO_BIAS = "It counts neither biases nor positions."
NORMS = "Norms and biases: the script counts 8 l h of them, and we 13 l h, as equation 2 does."

PRINTED_DAYS = ("90.12", "73.73", "73.73", "169.31", "136.23", "139.07",
                "84.82", "43.55", "23.01", "156.15", "79.95", "41.98")  # fmt: skip
V = 50_272


def trained(recompute: Recompute) -> Quantity:
    flops = token_flops(gpt(*GPT_175B), 2048, recompute=recompute)
    return training_flops_of(flops.hardware, 300e9)


def twenty_billion() -> Model:
    return gpt(44, 6144, 64, is_tied=False, has_final_norm=True)


def rows() -> tuple[Row, ...]:
    return (*_eleuther(), *_llm_analysis())


def _eleuther() -> tuple[Row, ...]:
    untied = gpt(*GPT_175B, is_tied=False, has_final_norm=True)
    states = states_of_count(
        parameters(twenty_billion()).total, recipe("megatron"), optimizer("adam")
    )
    flops = tuple(
        Row(
            source=FLOPS_OF,
            what=f"GPT-3 175B, recomputation: {recompute}",
            published=published,
            unit=FLOPS,
            computed=lambda recompute=recompute: trained(recompute),
            tolerance=tolerance,
            why=ONCE,
        )
        for recompute, published, tolerance in (
            (Recompute.FULL, "4.29e23", 0.003),
            (Recompute.NONE, "3.22e23", 0.003),
        )
    )
    sizes = (
        Row(
            source=SIZE_OF,
            what="GPT-3 175B",
            inputs="-l 96 -hs 12288",
            published="175.24",
            unit=BILLIONS,
            computed=lambda: parameters(untied).total,
        ),
        Row(
            source=SIZE_OF,
            what="Fairseq-MoE",
            inputs="-l 12 -hs 768 --moe -e 512",
            published="29.1",
            unit=BILLIONS,
            computed=lambda: parameters(mixture_of_gpt(12, 768, 512)).total,
        ),
    )
    memory = tuple(
        Row(
            source=MEMORY_OF,
            what=what,
            published=published,
            unit=GIB,
            computed=lambda quantity=quantity: quantity,
            tolerance=tolerance,
            why=NORMS if tolerance else "",
        )
        for what, published, quantity, tolerance in (
            ("weights", "38.32", states.parameters, 0.0002),
            ("gradients", "76.65", states.gradients, 0.0),
            ("optimizer", "229.95", _both(states.master, states.optimizer), 0.0001),
        )
    )
    kept = Row(
        source=MEMORY_OF,
        what="activations",
        published="17.53",
        unit=GIB,
        computed=lambda: kept_bytes(44, 6144, 64, 1, 1),
    )
    return (*flops, *sizes, *memory, kept, *_pythia())


def kept_bytes(layers: int, width: int, heads: int, batch: int, tensor: int) -> Quantity:
    """Activations of all layers on one chip."""
    one = layer_bytes(
        layers,
        width,
        heads,
        batch,
        tensor=tensor,
        is_sequence_parallel=tensor > 1,
        recompute=Recompute.SELECTIVE,
    )
    return derive("activations", Unit.BYTES, "layers * one", layers=of(layers, Unit.COUNT), one=one)


def shared(layers: int, width: int, chips: int) -> tuple[Quantity, Quantity, Quantity]:
    """Weights, gradients and optimizer state on each of so many chips, weights alone by TP."""
    model = gpt(layers, width, 32, is_tied=False, has_final_norm=True)
    states = states_of_count(parameters(model).total, recipe("megatron"), optimizer("adam"))
    return (
        _part(states.parameters, chips),
        _part(states.gradients, chips),
        _part(_both(states.master, states.optimizer), chips),
    )


def _part(whole: Quantity, chips: int) -> Quantity:
    return derive(whole.name, Unit.BYTES, "whole / chips", whole=whole, chips=of(chips, Unit.CHIPS))


def _pythia() -> tuple[Row, ...]:
    def row(what: str, published: str, computed: Quantity, apart: float | None, why: str) -> Row:
        return Row(
            source=MEMORY_EACH,
            what=what,
            published=published,
            unit=GIB,
            computed=lambda: computed,
            differs_by=apart,
            why=why,
        )

    pythia = []
    for size, layers, width, tensor, chips, printed in (
        ("6.9B", 32, 4096, 2, 128, ("6.40", "25.60", "0.60", "34.00")),
        ("12B", 36, 5120, 4, 256, ("5.52", "44.19", "0.52", "23.91")),
    ):
        weights, gradients, _ = shared(layers, width, tensor)
        _, _, state = shared(layers, width, chips)
        kept = kept_bytes(layers, width, 32, 8, tensor)
        apart = 1 / tensor - 1
        pythia += [
            row(f"{size}, weights", printed[0], weights, None, ""),
            row(f"{size}, gradients", printed[1], gradients, apart, BY_TENSOR),
            row(f"{size}, optimizer", printed[2], state, None, ""),
            row(f"{size}, activations", printed[3], kept, None, ""),
        ]
    return tuple(pythia)


def _both(master: Quantity, moments: Quantity) -> Quantity:
    return derive("optimizer state", Unit.BYTES, "master + moments", master=master, moments=moments)


def _llm_analysis() -> tuple[Row, ...]:
    times = tuple(
        Row(
            source=LLM_ANALYSIS,
            what=what,
            inputs=f"{n} GPUs x {x} TFLOP/s",
            published=published,
            unit=DAYS,
            computed=lambda shape=shape, n=n, x=x: days(recomputing(*shape, V), n, x * 1e12),
            tolerance=0.001,
            why=LOGITS,
        )
        for (what, shape, n, x, _, _), published in zip(TABLE_2, PRINTED_DAYS, strict=True)
    )
    sizes = tuple(
        Row(
            source=LLM_ANALYSIS_SIZES,
            what=what,
            published=published,
            unit=BILLIONS,
            computed=lambda shape=shape: decoder_parameters(shape[0], shape[1], V, 2048),
            tolerance=0.0005,
            why=NO_BIAS,
        )
        for what, shape, published in (("175B", GPT_175B, "174.56"), ("530B", MT_530B, "529.51"))
    )
    return (*times, *sizes, *_llama_hours())


def _llama_hours() -> tuple[Row, ...]:
    def hours(shape: tuple[int, int, int], tokens: float) -> Quantity:
        model = gpt(*shape, 32_000, 0, has_bias=False)
        flops = token_flops(model, 2048, recompute=Recompute.SELECTIVE)
        work = training_flops_of(flops.hardware, tokens)
        return chip_hours(2048, training_s(work, 2048, A100, 0.5))

    return tuple(
        Row(
            source=LLM_ANALYSIS_HOURS,
            what=what,
            inputs=f"{tokens / 1e12:.1f}e12 tokens",
            published=published,
            unit=HOURS,
            computed=lambda shape=shape, tokens=tokens: hours(shape, tokens),
            tolerance=tolerance,
            why=WHOLE_STEPS,
        )
        for what, shape, tokens, published, tolerance in (
            ("7B", (32, 4096, 32), 1.0e12, "77,832", 0.0006),
            ("13B", (40, 5120, 40), 1.0e12, "148,047", 0.0006),
            ("33B", (60, 6656, 52), 1.4e12, "510,213", 0.0053),
            ("65B", (80, 8192, 64), 1.4e12, "1,015,701", 0.0053),
        )
    )
