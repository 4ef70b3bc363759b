"""Features of PyTorch and forms of scripts, each in a script of a few lines.

B: batch.  T: tokens.  S: sequence.  d: width.  V: vocabulary.  L: layers.
"""

import json
import py_compile
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.corpus.case import GENERATED, Case, Figures
from tests.corpus.sums import attention, linear, trained

B, N, M = 16, 64, 32
"""Of most: a batch of 16, a layer from 64 to 32."""

HERE = Path(__file__).parent
STEP = HERE / "scripts" / "features" / "step.py"

ONE = Figures(parameters=N * M + M, flops=trained(first=linear(B, N, M)))
"""A layer."""
TWO = Figures(
    parameters=N * N + N + N * M + M, flops=trained(linear(B, N, M), first=linear(B, N, N))
)
"""A layer from 64 to 64 before it."""


def notebook(work: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# A step"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!nvidia-smi\n"]},
        {"cell_type": "code", "source": STEP.read_text().splitlines(keepends=True)},
    ]
    (work / "step.ipynb").write_text(
        json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
    )


def compiled_code(work: Path) -> None:
    py_compile.compile(str(STEP), cfile=str(work / "step.pyc"))


def feature(
    name: str, command: str | tuple[str, ...], figures: Figures = ONE, **others: Any
) -> Case:
    if isinstance(command, str):
        command = (f"features/{command}.py",)
    return Case(name=name, kind="feature", command=command, figures=figures, **others)


def generated(B: int = 2, P: int = 4, new: int = 8, d: int = 64, V: int = 100, L: int = 2) -> int:
    """The prompt at once, then token after token with a cache; the head on the last position."""
    prompt = L * linear(B * P, d, 12 * d) + attention(B, P, d, L)
    rest = sum(L * linear(B, d, 12 * d) + L * 4 * B * S * d for S in range(P + 1, P + new))
    return prompt + rest + new * linear(B, d, V)


def between_0_and_1(report: dict[str, Any], stdout: str) -> list[str]:
    """What the script makes of its clock and of events."""
    said = re.search(r"^MFU (\S+) (\S+)$", stdout, re.M)
    if said is not None and all(0 < float(each) < 1 for each in said.groups()):
        return []
    return [f"the script's MFU: {said and said[0]}"]


GENERATION = Figures(
    parameters=100 * 64 + 32 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64, flops=generated()
)
inference: Callable[..., Case] = partial(
    feature, figures=GENERATION, steps=0, ending="exit", period=GENERATED,
    prints=(r"generated \(2, 12\)",),
)  # fmt: skip

GRAPH_VALUES = 128
EXPERT_TOKENS, EXPERT_D, EXPERT_F, EXPERTS = 256, 32, 128, 4

CASES = (
    # What must start.
    feature("pin_memory under inference_mode", "inference_pins"),
    feature("torch.device(0)", "device_0"),
    feature(
        "CUDA graph of a step", ("--steps", "5", "features/cuda_graph.py"), TWO,
        steps=5, period="steady-state step 5",
    ),
    feature(
        "jagged nested tensors", "nested",
        Figures(
            parameters=4 * N * N,
            flops=trained(linear(3 + 5 + 8, N, N), first=linear(3 + 5 + 8, N, 3 * N))
            + sum(attention(1, S, N, 1) * 7 // 2 for S in (3, 5, 8)),
        ),
    ),
    feature(
        "TorchScript module", "torchscript",
        Figures(
            parameters=2 * (N * N + N) + N * M + M,
            flops=trained(linear(B, N, N), linear(B, N, M), first=linear(B, N, N)),
        ),
    ),
    feature(
        "torch.linalg.lstsq", "least_squares",
        Figures(parameters=17 * 4, flops=trained(first=linear(128, 16, 4))),
    ),
    feature(
        "sparse product", "sparse",
        Figures(
            parameters=N * 16,
            flops=trained(first=linear(32, N, 16)) + 2 * linear(1, GRAPH_VALUES, 16),
        ),
        prints=(f"values {GRAPH_VALUES}",),
    ),
    feature(
        "fake quantisation", ("--steps", "3", "features/fake_quantization.py"),
        steps=3, period="steady-state step 3",
    ),
    feature("threads and timers", "threads"),
    feature("pools of threads", "pools"),
    feature("torch.multiprocessing.spawn of one", "spawn"),
    feature("DataLoader workers", "workers"),
    feature("nvidia-smi by subprocess", "nvidia_smi", prints=("found NVIDIA H100",)),
    feature("code on stdin", ("-",), stdin=STEP.read_text()),
    feature("code of the command line", ("-c", STEP.read_text())),
    feature("notebook", ("step.ipynb",), data=notebook),
    feature("compiled code", ("step.pyc",), data=compiled_code),
    # Values.
    inference("generate without an end token", ("features/generate.py",)),
    inference("generate with an end token", ("features/generate.py", "2")),
    feature(
        "top-1 routing by argmax", "routing",
        Figures(
            parameters=EXPERT_D * EXPERTS + EXPERTS * 2 * EXPERT_D * EXPERT_F,
            flops=trained(
                linear(EXPERT_TOKENS, EXPERT_D, EXPERTS),
                2 * linear(EXPERT_TOKENS, EXPERT_D, EXPERT_F),
            ),
        ),
        notes=("balanced routing",),
    ),
    feature(
        "conditions on large tensors", "finite",
        Figures(parameters=4096**2, flops=trained(first=linear(4096, 4096, 4096))),
    ),
    # What a step is.
    feature("weights updated by hand", "by_hand", Figures(parameters=N * M, flops=ONE.flops)),
    feature(
        "gradient accumulation", "accumulation",
        Figures(parameters=ONE.parameters, flops=4 * ONE.flops),
    ),
    feature(
        "LBFGS", ("--steps", "4", "features/lbfgs.py"),
        # Of the history, which is one pair: five dot products of all weights.
        Figures(parameters=17 * 8, flops=trained(first=linear(B, 16, 8)) + 5 * linear(1, 17, 8)),
        steps=4, period="steady-state step 4",
    ),
    feature(
        "frozen trunk", "frozen",
        Figures(
            parameters=TWO.parameters, trained=ONE.parameters,
            flops=linear(B, N, N) + ONE.flops,
        ),
    ),
    # What people do in a step.
    feature(
        "gradient checkpointing", "checkpointing",
        Figures(
            parameters=3 * (N * 256 + 256 + 256 * N + N),
            flops=3 * 4 * (linear(B, N, 256) + linear(B, 256, N)),
        ),
    ),
    feature(
        "autocast with GradScaler", ("--steps", "3", "features/mixed_precision.py"), TWO,
        steps=3, period="steady-state step 3",
    ),
    feature("average of weights", "moving_average"),
    feature("average that is sampled from", "sampled_average"),
    feature("float32 master copies", "masters"),
    feature(
        "target network", "target_network",
        Figures(
            parameters=2 * ONE.parameters, flops=ONE.flops + linear(B, N, M),
            trained=ONE.parameters,
        ),
    ),
    feature("hooks", "hooks", TWO),
    feature(
        "wrapper subclass", "wrapper_subclass",
        Figures(parameters=ONE.parameters, flops=linear(B, N, N) + ONE.flops),
    ),
    feature("schedule and clipping", "schedules"),
    feature(
        "torch.func", "functional", Figures(parameters=N * M, flops=ONE.flops),
    ),
    feature(
        "checkpoints written and read", ("--steps", "3", "features/save_and_resume.py"),
        steps=3, period="steady-state step 3",
    ),
    feature("torch.compile", "compiled", TWO),
    feature(
        "batch size by running out of memory", "out_of_memory",
        # In, out, and the sum's gradient laid out for the product: 3 x 16 GiB fit, 3 x 32 do not.
        Figures(parameters=1024**2, flops=trained(first=linear(1 << 22, 1024, 1024))),
        prints=(f"batch {1 << 22}",),
    ),
    feature(
        "events and clocks", ("--steps", "all", "features/timed.py"),
        Figures(parameters=4096**2, flops=trained(first=linear(4096, 4096, 4096))),
        steps=3, period="steady-state step 3", ending="exit", check=between_0_and_1,
    ),
)  # fmt: skip
