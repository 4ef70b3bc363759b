"""`tally plan MODEL --stack megatron -o FILE`: a step of Megatron-Core's GPT as a trace."""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchtally.chips import Cluster, chip
from torchtally.cli.plan_request import DEFAULT_CHIP, resolved
from torchtally.errors import UsageError
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.questions import Request
from torchtally.plan.questions.request import USUAL_SEQUENCE
from torchtally.progress import StatusLine

if TYPE_CHECKING:
    from torchtally.trace import Trace

STACK = "megatron"
USED = frozenset(("output", "model", "gpus", "layout", "micro_batch", "sequence", "stack_name"))
"""What a written step depends on."""


def megatron_step(request: Request, command: str) -> "Trace":
    """The step by a program that is shipped; else recorded now, where Megatron-Core is installed.

    Raises UsageError where neither is, and for layouts of more than tensor parallelism.
    """
    from torchtally.models.gpt_symbols import gpt_symbols
    from torchtally.programs.shipped import key_of, shipped_programs
    from torchtally.programs.step import AskedStep, StepModel, step
    from torchtally.trace import World

    asked = resolved(request)
    model, cluster = asked.of_subject.model, asked.cluster or Cluster(chip(DEFAULT_CHIP))
    if model is None:
        raise UsageError(f"-o needs a model's shape, and {request.model} is a number alone.")
    layout = layout_of(asked, cluster)
    symbols = gpt_symbols(model, layout.tensor)
    sequence = request.sequence or min(model.context or USUAL_SEQUENCE, USUAL_SEQUENCE)
    sizes = symbols.step_sizes(layout.micro_batch, sequence, layout.tensor)
    key = key_of(symbols.variant, STACK, cluster.chip, sizes)
    shipped = shipped_programs(STACK)
    program = None if shipped is None else shipped.program(key)
    source = "" if shipped is None else f"{shipped.releases}, shipped with torchtally"
    if program is None:
        if find_spec("megatron") is None:
            raise UsageError(
                f"-o: no program of Megatron-Core is shipped for {model.name} at these sizes on "
                f"{cluster.chip.name}.\nInstall the library, and it is recorded: pip install "
                "megatron-core."
            )
        from torchtally.models.megatron import MegatronMode, recorded_gpt, releases

        of_step = {symbol: size for symbol, size in sizes.items() if symbol not in symbols.sizes}
        mode = MegatronMode(
            batch=layout.micro_batch, ranks=layout.tensor, gpus_per_node=cluster.gpus_per_node
        )
        with StatusLine(is_quiet=not sys.stderr.isatty()) as status:
            status.show("recording Megatron-Core's GPT with three layers", at_once=True)
            program, source = recorded_gpt(symbols, of_step, mode, cluster.chip), releases()
    one_step = AskedStep(
        batch=layout.micro_batch,
        sequence=sequence,
        usual_sequence=sequence,
        mode=STACK,
        chip=cluster.chip,
        command=command,
        world=World(cluster.count, cluster.node_size),
    )
    known = StepModel(symbols.name, dict(symbols.sizes), symbols.layers)
    return step(program, known, sizes, one_step, source)


def layout_of(request: Request, cluster: Cluster) -> Layout:
    """Tensor parallelism over all GPUs. Raises UsageError for another layout."""
    base = Layout(micro_batch=request.micro_batch or 1)
    layout = parse_layout(request.layout or f"tp {cluster.count}", cluster.count, None, base)
    if layout.tensor != cluster.count or layout.chips != cluster.count or layout.micro_batches > 1:
        raise UsageError(
            f"-o with --stack {STACK} writes out the tensor parallelism of all {cluster.count} "
            f"GPUs, with one micro-batch.\nWrite it so: --layout 'tp {cluster.count}'."
        )
    return layout
