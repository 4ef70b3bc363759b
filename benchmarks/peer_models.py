"""What other tools say of six models: forward FLOPs, parameters, memory, and at what cost.

    python -m benchmarks.peer_models                 # writes benchmarks/peer_models.json
    python -m benchmarks.peer_models --venv FOLDER   # keep the environment for the next time

GPT-2, Llama, ResNet-50, ViT, T5 and a mixture of experts, of transformers and with random weights.
FLOPs are held against closed forms: two for each multiplication of a matrix product, a convolution
and attention, counted in full; biases, norms and activations are none of it. Every tool is a
process of its own, installed into a throwaway environment, and asked as its documentation shows. A
model on which it fails is listed with the reason. Seconds are of the call alone, without imports
and without building the model. The mixture of experts is in bfloat16: grouped products on meta
tensors take nothing else.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import Stopwatch, machine, parser, write
from benchmarks.peers import ROOT, Said, environment, install, last_line

RESULTS = Path(__file__).with_suffix(".json")
GPU = "H100-SXM"
TIMEOUT_S = 900


# The models --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A model, its inputs, and its forward pass by hand."""

    name: str
    kind: str
    config: str
    inputs: Mapping[str, tuple[int, ...]]
    """Shapes by name; the first dimension is the batch's."""
    forward_flops: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "float32"
    has_cache: bool = False
    """Give it an empty cache, which says that the batch is not packed sequences: transformers would
    read the positions of tensors that have no values."""

    def build(self) -> Any:
        """On whatever device factories put tensors on now."""
        import torch
        import transformers

        config = getattr(transformers, self.config)(**self.sizes)
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, self.dtype))
        try:
            model = getattr(transformers, self.kind)(config)
        finally:
            torch.set_default_dtype(before)
        return called(model, list(self.inputs), self.has_cache)

    def tensors(self) -> list[Any]:
        import torch

        return [
            torch.zeros(shape, dtype=torch.float32 if name == "pixel_values" else torch.int64)
            for name, shape in self.inputs.items()
        ]


def called(model: Any, names: list[str], has_cache: bool) -> Any:
    """A module that takes tensors in order and returns logits, as every tool can call it."""
    from torch import nn
    from transformers import DynamicCache

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, second: Any = None) -> Any:
            given = dict(zip(names, (first, second), strict=False))
            cache = {"past_key_values": DynamicCache()} if has_cache else {}
            return self.model(**given, **cache).logits

    return Called()


def tokens(batch: int, sequence: int) -> dict[str, tuple[int, ...]]:
    return {"input_ids": (batch, sequence)}


def images(batch: int) -> dict[str, tuple[int, ...]]:
    return {"pixel_values": (batch, 3, 224, 224)}


# B: batch.  S: sequence.  L: layers.  d: width.  f: width inside the MLP.  V: vocabulary.


def gpt2() -> PeerModel:
    """12 d^2 weights a layer, the tied head; two products of S x S a head."""
    B, S, L, d, V = 4, 256, 12, 768, 50257
    flops = 2 * B * S * (12 * L * d * d + d * V) + L * 4 * B * S * S * d
    return PeerModel("GPT-2", "GPT2LMHeadModel", "GPT2Config", tokens(B, S), flops, has_cache=True)


def llama() -> PeerModel:
    """Keys and values of fewer heads, a gated MLP."""
    B, S, L, d, f, V, heads, groups = 1, 256, 12, 1024, 2816, 32000, 16, 4
    kv = d * groups // heads
    weights = L * (2 * d * d + 2 * d * kv + 3 * d * f) + d * V
    return PeerModel(
        "Llama", "LlamaForCausalLM", "LlamaConfig", tokens(B, S),
        2 * B * S * weights + L * 4 * B * S * S * d,
        {"hidden_size": d, "intermediate_size": f, "num_hidden_layers": L, "vocab_size": V,
         "num_attention_heads": heads, "num_key_value_heads": groups},
        has_cache=True,
    )  # fmt: skip


def mixtral() -> PeerModel:
    """Each token goes through the router and two of eight experts."""
    B, S, L, d, f, V, heads, groups, experts, chosen = 2, 128, 6, 512, 1024, 32000, 8, 2, 8, 2
    kv = d * groups // heads
    weights = L * (2 * d * d + 2 * d * kv + d * experts + chosen * 3 * d * f) + d * V
    return PeerModel(
        "MoE", "MixtralForCausalLM", "MixtralConfig", tokens(B, S),
        2 * B * S * weights + L * 4 * B * S * S * d,
        {"hidden_size": d, "intermediate_size": f, "num_hidden_layers": L, "vocab_size": V,
         "num_attention_heads": heads, "num_key_value_heads": groups,
         "num_local_experts": experts, "num_experts_per_tok": chosen},
        dtype="bfloat16", has_cache=True,
    )  # fmt: skip


def resnet_50() -> PeerModel:
    """He et al. 2015: 4.09e9 multiplications an image."""
    B = 2
    return PeerModel(
        "ResNet-50", "ResNetForImageClassification", "ResNetConfig", images(B),
        2 * B * 4_089_184_256, {"num_labels": 1000},
    )  # fmt: skip


def vit() -> PeerModel:
    """196 patches of 16 x 16 and a class token."""
    B, L, d, f, patches, labels = 2, 12, 768, 3072, 196, 1000
    T = patches + 1
    layer = 2 * T * (4 * d * d + 2 * d * f) + 4 * T * T * d
    flops = B * (2 * patches * 3 * 16 * 16 * d + L * layer + 2 * d * labels)
    return PeerModel(
        "ViT", "ViTForImageClassification", "ViTConfig", images(B), flops, {"num_labels": labels}
    )


def t5() -> PeerModel:
    """The decoder attends to itself and, with keys and values of its S tokens, to the encoder."""
    B, S, L, d, f, V = 2, 128, 6, 512, 2048, 32128
    layer = 2 * S * (4 * d * d + 2 * d * f) + 4 * S * S * d
    crossing = 2 * S * 4 * d * d + 4 * S * S * d
    flops = B * (L * (2 * layer + crossing) + 2 * S * d * V)
    inputs = {"input_ids": (B, S), "decoder_input_ids": (B, S)}
    return PeerModel("T5", "T5ForConditionalGeneration", "T5Config", inputs, flops)


MODELS = tuple(make() for make in (gpt2, llama, resnet_50, vit, t5, mixtral))


# The tools ---------------------------------------------------------------------------------------

Ask = Callable[[], Said]
"""The call that is measured."""


def torchtally(model: PeerModel) -> Ask:
    import torch

    from torchtally import summary

    with torch.device("meta"):
        module = model.build()
    tensors = model.tensors()

    def ask() -> Said:
        total = summary(module, *tensors, gpu=GPU, precision="as-is")
        products = sum(
            entry.cost.flops
            for entry in total.ledger.reported
            if entry.kind.is_matmul and entry.op.phase.value == "forward"
        )
        return Said(products, "forward", total.parameters, total.peak_bytes)

    return ask


def flop_counter(model: PeerModel) -> Ask:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module, tensors = model.build(), model.tensors()

    def ask() -> Said:
        with FlopCounterMode(display=False) as counter:
            module(*tensors)
        return Said(counter.get_total_flops(), "forward")

    return ask


def mem_tracker(model: PeerModel) -> Ask:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers.initialization import no_init_weights

    mode = FakeTensorMode()
    with mode, no_init_weights():  # some of them read values, which fake tensors do not have
        module, tensors = model.build(), model.tensors()
        module.model.tie_weights()
        optimizer = torch.optim.AdamW(module.parameters())

    def step() -> None:
        module(*tensors).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def ask() -> Said:
        tracker = MemTracker()
        with mode:
            step()  # it tracks one step, so not the first one
            tracker.track_external(module, optimizer, *tensors)
            with tracker:
                step()
        peaks = tracker.get_tracker_snapshot("peak")
        return Said(peak_bytes=peaks[torch.device("cpu")]["Total"])

    return ask


def torchinfo(model: PeerModel) -> Ask:
    from torchinfo import summary

    module, tensors = model.build(), model.tensors()

    def ask() -> Said:
        stats = summary(module, input_data=tensors, verbose=0)
        held = stats.total_input + stats.total_output_bytes + stats.total_param_bytes
        return Said(2 * stats.total_mult_adds, "forward", stats.total_params, held)

    return ask


def fvcore(model: PeerModel) -> Ask:
    from fvcore.nn import FlopCountAnalysis, parameter_count

    module, tensors = model.build().eval(), tuple(model.tensors())

    def ask() -> Said:
        counted = FlopCountAnalysis(module, tensors)
        counted.unsupported_ops_warnings(False)
        return Said(2 * counted.total(), "forward", parameter_count(module)[""])

    return ask


def calflops(model: PeerModel) -> Ask:
    from calflops import calculate_flops

    module, tensors = model.build(), model.tensors()

    def ask() -> Said:
        flops, _, parameters = calculate_flops(
            module, args=tensors, print_results=False, print_detailed=False, output_as_string=False
        )
        return Said(round(flops), "forward", parameters)

    return ask


def ptflops(model: PeerModel) -> Ask:
    from ptflops import get_model_complexity_info

    module = model.build()
    given = dict(zip(("first", "second"), model.tensors(), strict=False))

    def ask() -> Said:
        products, parameters = get_model_complexity_info(
            module, (1,), input_constructor=lambda _: given, as_strings=False,
            print_per_layer_stat=False,
        )  # fmt: skip
        if products is None:
            raise RuntimeError("no figure: its forward pass failed")
        return Said(round(2 * products), "forward", parameters)

    return ask


def deepspeed(model: PeerModel) -> Ask:
    from deepspeed.profiling.flops_profiler import get_model_profile

    module, tensors = model.build(), model.tensors()

    def ask() -> Said:
        flops, _, parameters = get_model_profile(
            module, args=tensors, print_profile=False, as_string=False, warm_up=0
        )
        return Said(round(flops), "forward", parameters)

    return ask


def kitsune(model: PeerModel) -> Ask:
    """It takes one shape, of floats."""
    from kitsune.predict import predict_memory

    module = model.build()
    batch, *shape = next(iter(model.inputs.values()))

    def ask() -> Said:
        prediction = predict_memory(module, shape, batch, dtype=model.dtype, optimizer="adamw")
        return Said(None, "", prediction.model_profile.total_params, prediction.total_bytes)

    return ask


def alloc(model: PeerModel) -> Ask:
    """Activations by its formula for transformers where it is told of one."""
    from alloc import ghost

    module = model.build()
    batch, sequence, *_ = next(iter(model.inputs.values()))
    config = module.model.config
    width = getattr(config, "hidden_size", None) if "input_ids" in model.inputs else None

    def ask() -> Said:
        report = ghost(
            module, dtype=model.dtype, batch_size=batch, seq_length=sequence if width else None,
            hidden_dim=width, optimizer_type="AdamW",
        )  # fmt: skip
        return Said(None, "", report.param_count, round(report.total_gb * 2**30))

    return ask


@dataclass(frozen=True, slots=True)
class ModelTool:
    """A peer, and what pip installs of it; "": part of PyTorch, or this project."""

    name: str
    asker: Callable[[PeerModel], Ask]
    package: str = ""


TOOLS = (
    ModelTool("torchtally", torchtally),
    ModelTool("FlopCounterMode", flop_counter),
    ModelTool("MemTracker", mem_tracker),
    ModelTool("torchinfo", torchinfo, "torchinfo"),
    ModelTool("fvcore", fvcore, "fvcore"),
    ModelTool("calflops", calflops, "calflops"),
    ModelTool("ptflops", ptflops, "ptflops"),
    ModelTool("DeepSpeed's profiler", deepspeed, "deepspeed"),
    ModelTool("torch-kitsune", kitsune, "torch-kitsune"),
    ModelTool("alloc", alloc, "alloc"),
)


def asked(tool: ModelTool, model: PeerModel, repeat: int) -> dict[str, Any]:
    """What a tool says of a model, and its seconds; or why it says nothing."""
    record: dict[str, Any] = {"model": model.name}
    try:
        ask = tool.asker(model)
        spent = []
        for _ in range(repeat):
            with Stopwatch() as watch:
                said = ask()
            spent.append(watch.spent.wall_s)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return record | {"problem": f"fails: {text[:100]}"}
    return record | asdict(said) | {"seconds": min(spent)}


# The processes -----------------------------------------------------------------------------------


def measured(python: str, tool: ModelTool, repeat: int, names: list[str]) -> dict[str, Any]:
    """What a tool says of each model, in a process of its own."""
    record: dict[str, Any] = {"name": tool.name, "version": "", "models": []}
    problem = install(python, tool.package) if tool.package else ""
    if problem:
        return record | {"problem": f"does not install: {problem}"}
    own = tool.name if tool.name == "torchtally" else "torch"
    record["version"] = version_of(python, tool.package or own)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [python, "-m", "benchmarks.peer_models", "--ask", tool.name, "--json",
                   str(answer), "--repeat", str(repeat), "--models", *names]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return record | {"problem": f"not done after {TIMEOUT_S} s"}
        if done.returncode:
            return record | {"problem": last_line(done.stderr)}
        return record | {"models": json.loads(answer.read_text())}


def version_of(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def ask_here(args: Any) -> None:
    tool = next(tool for tool in TOOLS if tool.name == args.ask)
    chosen = [model for model in MODELS if model.name in args.models]
    records = [asked(tool, model, args.repeat) for model in chosen]
    Path(args.json).write_text(json.dumps(records))


# The tables --------------------------------------------------------------------------------------


MEMORY_OF = "GPT-2"
"""The model whose memory README shows."""


def peer_models_table() -> str:
    """Forward FLOPs of the closed form, by tool and model, and the rest in short: for README."""
    results = json.loads(RESULTS.read_text())
    models = results["models"]
    names = " | ".join(model["name"] for model in models)
    rows = [
        f"| | {names} | parameters | memory of {MEMORY_OF} | seconds |",
        f"|---|{'--:|' * len(models)}--:|--:|--:|",
    ]
    for tool in results["tools"]:
        records = {record["model"]: record for record in tool["models"]}
        cells = [
            *(of_closed_form(records.get(model["name"]), model["forward_flops"])
              for model in models),
            parameters_right(records, models),
            mebibytes(records.get(MEMORY_OF, {}).get("peak_bytes")),
            mean_seconds(tool),
        ]  # fmt: skip
        rows.append(f"| {tool['name']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def parameters_right(records: dict[str, Any], models: list[dict[str, Any]]) -> str:
    """On how many models: "6 of 6"; "-" for a tool that counts none."""
    said = [(records.get(model["name"], {}).get("parameters"), model) for model in models]
    right = sum(parameters == model["parameters"] for parameters, model in said)
    return f"{right} of {len(models)}" if any(count for count, _ in said) else "-"


def mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def of_closed_form(record: dict[str, Any] | None, exact: int) -> str:
    """100 %, to a tenth where it is not; "fails"; "-" where the tool counts no FLOPs."""
    if record is None or "problem" in record:
        return "fails"
    if record["flops"] is None:
        return "-"
    share = 100 * record["flops"] / exact
    return "100 %" if record["flops"] == exact else f"{share:.1f} %"


def mean_seconds(tool: dict[str, Any]) -> str:
    """Of the models on which it does not fail."""
    known = [record["seconds"] for record in tool["models"] if "seconds" in record]
    return f"{sum(known) / len(known):.2f}" if known else "-"


def all_peer_models_table() -> str:
    """Everything, model by model: for docs/peers.md."""
    results = json.loads(RESULTS.read_text())
    parts = []
    for model in results["models"]:
        shapes = ", ".join("x".join(map(str, shape)) for shape in model["inputs"].values())
        parts += [
            f"**{model['name']}** ({model['kind']}, {shapes}); by hand "
            f"{model['forward_flops'] / 1e9:.4f} GFLOPs forward, "
            f"{model['parameters'] / 1e6:.3f} M parameters",
            "",
            "| | GFLOPs forward | of the closed form | parameters | memory | seconds |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for tool in results["tools"]:
            record = next((each for each in tool["models"] if each["model"] == model["name"]), None)
            parts.append(peer_row(tool, record, model["forward_flops"]))
        parts.append("")
    return "\n".join(parts).rstrip()


def peer_row(tool: dict[str, Any], record: dict[str, Any] | None, exact: int) -> str:
    name = f"{tool['name']} {tool['version']}".strip()
    if record is None or "problem" in record:
        problem = (tool if record is None else record).get("problem", "").replace("|", "/")
        return f"| {name} | {problem} | | | | |"
    flops, parameters, peak = (record[key] for key in ("flops", "parameters", "peak_bytes"))
    cells = (
        "-" if flops is None else f"{flops / 1e9:.4f}",
        of_closed_form(record, exact),
        "-" if parameters is None else f"{parameters / 1e6:.3f} M",
        mebibytes(peak),
        f"{record['seconds']:.2f}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def facts_of(model: PeerModel) -> dict[str, Any]:
    """What does not depend on any tool."""
    import torch

    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in model.build().parameters())
    return {**asdict(model), "parameters": parameters}


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--venv", metavar="FOLDER", help="keep the environment of the peers here")
    options.add_argument("--ask", choices=[tool.name for tool in TOOLS], help="one tool, here")
    options.add_argument("--tools", metavar="NAMES", help="only these, separated by commas")
    names = [model.name for model in MODELS]
    options.add_argument("--models", nargs="+", choices=names, default=names)
    args = options.parse_args(argv)
    if args.ask:
        ask_here(args)
        return 0
    chosen = args.tools.split(",") if args.tools else [tool.name for tool in TOOLS]
    tools = [tool for tool in TOOLS if tool.name in chosen]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.venv or temporary)
        python = environment(folder) if any(tool.package for tool in tools) else sys.executable
        records = [measured(python, tool, args.repeat, args.models) for tool in tools]
    results = {
        "machine": machine(),
        "models": [facts_of(model) for model in MODELS if model.name in args.models],
        "tools": records,
    }
    if not args.json:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write(args.json, results)
    print(json.dumps(records, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
