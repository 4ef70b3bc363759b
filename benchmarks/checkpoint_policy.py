"""Solved checkpoint policies beside inductor's activation_memory_budget, all of them runs.

A model of four equal blocks (batch 16 x 1,024, width 1,024, bfloat16) is compiled, once under
inductor's budgets and once with checkpoints solved by the eager trace. Each row is a run on the
simulated GPU: kernels of a step, and the peak of allocated memory. A point of inductor's is
"beaten" where one of ours takes no more time and no more memory.

    python -m benchmarks.checkpoint_policy [--model GPT] [--gpu H100-SXM] [--limits 2500MiB 3000MiB]
        [--json FILE]
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measuring import parser, show, write
from tests.fixes.blocks import GPT, LLAMA
from torchtally.fixes.fix import FileEvidence
from torchtally.fixes.patch import ScriptSources
from torchtally.fixes.policy import solve
from torchtally.fixes.policy_graph import policy_graph
from torchtally.fixes.policy_search import GAP, with_policy
from torchtally.fixes.trial import FixTrial, TrialRequest, run
from torchtally.units import format_bytes, format_seconds, parse_bytes

SMALL, LARGE = "width=512, rows=8, context=512", "width=1024, rows=16, context=1024"
BUDGETS = (1.0, 0.7, 0.5, 0.3, 0.0)
"""Of inductor: shares of what is kept without recomputation."""
LIMITS = ("2500MiB", "2840MiB", "3000MiB")
"""Of ours: peaks of allocated memory that the policy is solved for, before it is compiled."""
EVIDENCE = FileEvidence(frozenset(), frozenset(("Block",)))


def compiled(source: str, budget: float | None = None) -> str:
    """The script with its model compiled, under a budget of inductor's."""
    lines = ["    model = torch.compile(model)\n"]
    if budget is not None:
        lines[:0] = [
            "    import torch._functorch.config as functorch\n",
            f"    functorch.activation_memory_budget = {budget}\n",
        ]
    return source.replace("    optimizer =", "".join(lines) + "    optimizer =", 1)


def trial(folder: Path, name: str, source: str, gpu: str) -> FixTrial:
    script = folder / f"{name}.py"
    script.write_text(source)
    return run(TrialRequest(str(script), (), gpu, 2, str(folder)), str(script), is_limited=False)


def point(name: str, done: FixTrial) -> dict[str, Any]:
    ledger = done.ledger
    if ledger is None:
        raise SystemExit(f"{name} fails: {done.failure}")
    return {
        "name": name,
        "kernels_s": ledger.times.kernel_s(ledger.reported),
        "peak_bytes": ledger.memory.peak_bytes,
    }


def points(source: str, gpu: str, limits: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Inductor's, then ours."""
    found = []
    for budget in BUDGETS:
        done = trial(folder, "inductor", compiled(source, budget), gpu)
        found.append(point(f"inductor, budget {budget:g}", done))
    script = str(folder / "train.py")
    sources = ScriptSources(script, {script: source}, {script: EVIDENCE})
    whole = with_policy(sources, {}, "").changed[script]
    ledger = trial(folder, "whole", whole, gpu).ledger
    assert ledger is not None
    graph = policy_graph(ledger)
    for limit in limits:
        solved = solve(graph.problem, parse_bytes(limit), gap=GAP)
        assert solved is not None
        changed = with_policy(sources, graph.kept(solved.kept), "").changed[script]
        done = trial(folder, "ours", compiled(changed), gpu)
        found.append(point(f"solved for {limit}", done))
    return found


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--model", default="GPT", choices=("GPT", "Llama"))
    options.add_argument("--gpu", default="H100-SXM", metavar="NAME")
    options.add_argument("--limits", nargs="+", default=LIMITS, metavar="SIZE")
    args = options.parse_args(argv)
    source = {"GPT": GPT, "Llama": LLAMA}[args.model].replace(SMALL, LARGE)
    assert LARGE in source
    with tempfile.TemporaryDirectory() as folder:
        found = points(source, args.gpu, args.limits, Path(folder))
    ours = found[len(BUDGETS) :]
    for each in found[: len(BUDGETS)]:
        each["is_beaten"] = any(
            other["kernels_s"] <= each["kernels_s"] and other["peak_bytes"] <= each["peak_bytes"]
            for other in ours
        )
    show(
        f"{args.model}, compiled, on {args.gpu}",
        ("", "kernels of a step", "peak", "beaten"),
        [
            (each["name"], format_seconds(each["kernels_s"]), format_bytes(each["peak_bytes"]),
             {True: "yes", False: "no", None: ""}[each.get("is_beaten")])
            for each in found
        ],
    )  # fmt: skip
    write(args.json, {"points": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
