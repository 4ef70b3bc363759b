"""A training as one plain file of Python to read and to run, with torch and NumPy alone.

The model and the order of the data are this package's own source, without annotations and with
every `config.KEY` as its value: branches that the config does not take are gone, and so is what
only they use. Losses are those of `tally train`, bit for bit on one device.
"""

import ast
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from string import Template
from types import ModuleType
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.train.config import TrainConfig
from torchtally.train.data import order
from torchtally.train.data.files import token_files
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.data.token_file import LITTLE_ENDIAN
from torchtally.train.models import (
    attention,
    feed_forward,
    linear,
    loss,
    norms,
    rotary,
    transformer,
)
from torchtally.train.models import config as config_module
from torchtally.train.models.config import TransformerConfig
from torchtally.train.optimizers.build import IMPLEMENTATIONS, TORCHS, implementation
from torchtally.train.optimizers.schedules import RateSchedule
from torchtally.train.tasks import prepare_data

MODULES = (config_module, order, linear, norms, rotary, attention, feed_forward, loss, transformer)
UNUSED = ("no_past", "_apply")
"""Methods for other purposes than training on one device."""
COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip

HEAD = Template('''\
"""$title: the training of $place in one file. Written by `tally train --source`."""

import math
from enum import StrEnum
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

STEPS, BATCH, MICRO_BATCH, SEQUENCE, STRIDE = $steps, $batch, $micro_batch, $sequence, $stride
FILES = $files  # (path, dtype, byte of the first token, tokens)
device = $device


class Config:
$config


config = Config()
''')

LOOP = Template('''

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
    chosen = ($windows).astype(np.int64)
    owners = np.searchsorted(ends, chosen, side="right")
    rows = [windows[n][at - (ends[n] - len(windows[n]))] for n, at in zip(owners, chosen)]
    return torch.from_numpy(np.stack(rows).astype(np.int64)).to(device)


def factor(step):
    """Of the learning rate."""
    if step < $warmup:
        return (step + 1) / ($warmup + 1)
$decay


torch.manual_seed($init_seed)
model = Transformer(config, recompute="$recompute").to(device)
chunk_tokens = $chunk_cpu if device == "cpu" else $chunk_cuda
parameters = list(model.parameters())
optimizer = $optimizer(
    [{"params": [p for p in parameters if $decays], "weight_decay": $weight_decay},
     {"params": [p for p in parameters if not ($decays)], "weight_decay": 0.0}],
    $options,
)
torch.manual_seed($dropout_seed)
for step in range(STEPS):
    for group in optimizer.param_groups:
        group["lr"] = $lr * factor(step)
    tokens = batch_of(step)
    optimizer.zero_grad(set_to_none=True)
    parts, losses = tokens.split(MICRO_BATCH), []
    for part in parts:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=$is_bf16):
            loss = model.loss(part[:, :-1], part[:, 1:], chunk_tokens=chunk_tokens).float()
        if len(parts) > 1:
            loss = loss * (torch.tensor(len(part)) / BATCH)
        loss.backward()
        losses.append(loss.detach())
$clip    optimizer.step()
    print(f"{step + 1} {torch.stack(losses).sum().item()!r}")
''')

AUTO = '"cuda" if torch.cuda.is_available() else "cpu"'
WINDOWS = {
    "sequential": "positions % N",
    "random": "mix(positions * GOLDEN + mix(_word({seed}))) % N",
    "shuffled": "permute(positions % N, int(N), mix(positions // N * GOLDEN + mix(_word({seed}))))",
}
REMAINING = {
    "linear": "1 - passed",
    "sqrt": "1 - math.sqrt(passed)",
    "cosine": "0.5 * (1 + math.cos(math.pi * passed))",
}


def one_file(config: TrainConfig, place: str) -> str:
    """The text of the file. Texts are tokenized first, as by a training.

    Raises UsageError for what such a file does not have.
    """
    _check(config)
    data = config.data
    paths = (prepare_data(config),) if data.text else data.train
    files = [
        (file.path, LITTLE_ENDIAN[file.dtype], file.offset_bytes, file.tokens)
        for file in token_files(paths, split="train", dtype=data.dtype)
    ]
    model = config.model.transformer()
    names = [field.name for field in fields(model)]
    names += [name for name, member in vars(type(model)).items() if isinstance(member, property)]
    sizes = {name: getattr(model, name) for name in names}
    head = HEAD.substitute(
        title=f"{model.layers} layers of width {model.width}", place=place, steps=config.steps,
        batch=config.batch, micro_batch=config.rows, sequence=config.tokens_of_sequence,
        stride=data.stride or config.tokens_of_sequence, files=files,
        device=AUTO if config.device == "auto" else repr(config.device),
        config=_config_text(sizes),
    )  # fmt: skip
    loop = LOOP.substitute(**_loop_values(config))
    definitions = _definitions(MODULES, sizes)
    return head + "\n".join(_reachable(definitions, loop)) + "\n" + loop


def _check(config: TrainConfig) -> None:
    wrong = {
        "task": config.task != "language",
        "model.code": config.model.code is not None,
        "optimizer.name": config.optimizer.name not in TORCHS,
        "optimizer.eps_inside_root": bool(config.optimizer.eps_inside_root),
        "optimizer.decayed_on": config.optimizer.decayed_on == "matrices without embeddings",
        "precision": config.precision not in ("auto", "fp32", "bf16"),
        "model.weights": config.model.weights is not None,
        "data.weights": bool(config.data.weights),
        "data.documents": config.data.documents != "joined",
        "data.targets": config.data.targets != "all",
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise UsageError(f"{key}: not supported by --source. Change it.")


def _config_text(sizes: Mapping[str, Any]) -> str:
    """The body of a class with these sizes, and with the methods that they have here."""
    (source,) = ast.parse(inspect.getsource(TransformerConfig)).body
    assert isinstance(source, ast.ClassDef)
    methods = [
        ast.unparse(_Specialise({}).visit(node))
        for node in source.body
        if isinstance(node, ast.FunctionDef)
        and not node.decorator_list
        and not node.name.startswith("_")
        and node.name != "model"
    ]
    lines = [f"{name} = {_literal(value)}" for name, value in sizes.items()]
    return textwrap.indent("\n".join([*lines, *methods]), " " * 4)


def _literal(value: Any) -> str:
    if value is None or isinstance(value, int | float | str | tuple):
        return repr(value)
    return f"SimpleNamespace({', '.join(f'{key}={item!r}' for key, item in asdict(value).items())})"


def _loop_values(config: TrainConfig) -> dict[str, Any]:
    schedule = config.learning_rate.schedule(config.steps)
    options = config.optimizer.hyperparameters()
    options.pop("eps_inside_root", None)
    lr, weight_decay = options.pop("lr"), options.pop("weight_decay")
    kind = TORCHS[config.optimizer.name]
    device = "cuda" if config.device.startswith("cuda") else "cpu"
    options |= IMPLEMENTATIONS[implementation(config.optimizer, {device})]
    clip = f"    nn.utils.clip_grad_norm_(parameters, {config.clip_norm})\n"
    return {
        "windows": WINDOWS[config.data.order].format(seed=seed_of(Source.ORDER, config.seed)),
        "warmup": schedule.warmup_steps, "decay": _decay_text(schedule), "lr": lr,
        "init_seed": seed_of(Source.INITIALISATION, config.seed),
        "dropout_seed": seed_of(Source.DROPOUT, config.seed),
        "recompute": config.model.recompute, "chunk_cpu": config.chunk_tokens("cpu"),
        "chunk_cuda": config.chunk_tokens("cuda"), "optimizer": f"torch.optim.{kind.__name__}",
        "decays": "True" if config.optimizer.decayed_on == "all" else "p.ndim >= 2",
        "weight_decay": weight_decay, "clip": "" if config.clip_norm is None else clip,
        "options": ", ".join(f"{key}={value!r}" for key, value in {"lr": lr, **options}.items()),
        "is_bf16": config.precision == "bf16" or 'device == "cuda"' * (config.precision == "auto"),
    }  # fmt: skip


def _decay_text(schedule: RateSchedule) -> str:
    if schedule.decay == "constant":
        return "    return 1.0"
    start, steps, floor = schedule.decay_start, schedule.steps, schedule.floor or 0.0
    return (
        f"    passed = min(max((step - {start}) / {steps - start}, 0.0), 1.0)\n"
        f"    return {floor} + {1 - floor} * ({REMAINING[schedule.decay]})"
    )


# The package's own source ------------------------------------------------------------------------


def _definitions(modules: Iterable[ModuleType], values: Mapping[str, Any]) -> dict[str, str]:
    """Source by name of everything that the modules define, for these values of the config."""
    specialise = _Specialise(values)
    sources = [inspect.getsource(Recompute), *map(inspect.getsource, modules)]
    definitions: dict[str, str] = {}
    for node in (node for source in sources for node in ast.parse(source).body):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                definitions[name] = f"\n\n{ast.unparse(specialise.visit(node))}\n"
            case ast.Assign(targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])]):
                definitions[name] = ast.unparse(node)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                definitions[name] = ast.unparse(specialise.visit(node))
    return definitions


def _reachable(definitions: Mapping[str, str], text: str) -> Sequence[str]:
    """The definitions that the text needs, directly or not, in order."""
    needed: set[str] = set()
    texts = [text]
    while texts:
        names = {node.id for node in ast.walk(ast.parse(texts.pop())) if isinstance(node, ast.Name)}
        new = (names & definitions.keys()) - needed
        needed |= new
        texts += [definitions[name] for name in new]
    return [source for name, source in definitions.items() if name in needed]


class _Specialise(ast.NodeTransformer):
    """Puts values of the config in, and drops what they exclude, checks and annotations."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        is_config = ast.unparse(node.value) in ("config", "self.config")
        value = self._values.get(node.attr, node)
        is_plain = value is None or isinstance(value, int | float | str)
        return ast.Constant(value) if is_config and is_plain else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(ast.Constant(left), [comparison], [ast.Constant(right)]):
                return ast.Constant(COMPARISONS[type(comparison)](left, right))
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.body[0], ast.Raise):
            return None  # the config was checked
        if isinstance(node.test, ast.Constant):
            return node.body if node.test.value else node.orelse
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return None
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        if node.name in UNUSED:
            return None
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs, node.args.vararg):
            if argument is not None:
                argument.annotation = None
        self.generic_visit(node)
        ends = [at for at, inner in enumerate(node.body, 1) if isinstance(inner, ast.Return)]
        node.body = node.body[: min(ends, default=None)]
        return node
