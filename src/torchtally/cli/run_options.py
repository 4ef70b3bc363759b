"""What `tally run` is asked: its options."""

from dataclasses import dataclass

from torchtally.cli.arguments import COMPILERS, SECONDS, ScriptOptions
from torchtally.cli.output import FORMAT, OUTPUT, ColumnOptions
from torchtally.errors import UsageError
from torchtally.options import CHIP, COUNT, FILE, Form, OptionGroup, option, own, positive_count
from torchtally.options.simulation import SIMULATION, SimulationOptions
from torchtally.report.formats import format_names

DEFAULT_OUTPUT = "run.tally"
ALL, STAGES = "all", "stages"


def rank_choice(text: str) -> "tuple[int, ...] | str":
    """Ranks by their numbers, lowest first, "stages" or "all". Raises UsageError."""
    if text in (ALL, STAGES):
        return text
    try:
        return tuple(sorted({int(number) for number in text.split(",")}))
    except ValueError:
        raise UsageError(
            f"expected numbers of ranks (0 or 0,7), {STAGES} or {ALL}, got {text!r}"
        ) from None


def step_count(text: str) -> "int | str":
    return "all" if text == "all" else positive_count(text)


STEPS = Form("N|all", step_count)
LIMITS = OptionGroup("limits")


SPARSITY = "sparsity=2:4"


@dataclass(frozen=True, kw_only=True)
class RunOptions(ScriptOptions, SimulationOptions, ColumnOptions):
    """Run an unmodified training script on a simulated GPU and report what each line, module
    and operator of a training step costs.
    """

    argv: tuple[str, ...] = ()
    """All words, for processes of other ranks."""
    code: str | None = own(
        "-c",
        "run this code, as `python -c` does; - runs stdin, and a notebook (.ipynb) runs its cells",
        Form("CODE"),
    )
    gpu: str | None = own(
        "--gpu",
        "the chip to simulate; `tally gpus` lists them (default: the one that TALLY_GPU names, "
        "else H100-SXM)",
        CHIP,
    )
    rank: "tuple[int, ...] | str" = own(
        "--rank",
        "with several GPUs (--gpu 8xH100-SXM): the ranks to simulate (default 'stages': rank 0, "
        "and the pipeline stages it communicates with; the other ranks are assumed to behave "
        "alike)",
        Form("N[,N...]|stages|all", rank_choice),
        default=STAGES,
    )
    steps: "int | str | None" = own(
        "--steps",
        "stop after N training steps in all; 'all' runs the script to its end (default: after 2 "
        "steps of the same model; the second one is the steady state, with optimizer state in "
        "memory)",
        STEPS,
    )
    tokens: int | None = own(
        "--tokens",
        "for a script that generates: stop after N decoding passes (default: it runs to its end)",
        COUNT,
    )
    max_seconds: float | None = own(
        "--max-seconds", "stop a script that runs longer, and report", SECONDS
    )
    watch: bool = own(
        "--watch",
        "on a terminal, show the run while it runs: FLOPs, memory, the hottest lines so far; then "
        "the report, and `tally view`",
    )
    real_values: bool = own(
        "--real-values",
        "instead of simulating, compute the first step for real on the CPU, of a batch shrunk to 2 "
        "rows of 128 tokens: how large each layer's outputs and gradients are, and what number "
        "formats lose of them",
    )
    quiet: bool = own("--quiet", "neither progress nor report on stderr")
    brief: bool = option(
        "--brief",
        OUTPUT,
        "instead of progress and report at most 12 lines (as JSON at most 1 KB), with what changed "
        "since the last such run of the script",
    )
    what_ifs: tuple[str, ...] = option(
        "--what-if",
        SIMULATION,
        "run the script as if it were changed: checkpoint=CLASS, autocast=bfloat16, "
        "optimizer=fused, compile, bucket_cap_mb=100, reshard_after_forward=False, sparsity=2:4 "
        "(repeatable)",
        Form("CHANGE"),
        is_repeated=True,
    )
    compiler: tuple[str, ...] = option(
        "--compile",
        SIMULATION,
        "what torch.compile does: PyTorch's own inductor compiles for the simulated chip "
        "(default), or nothing; after the script it is the script's own option",
        choices=COMPILERS,
        default=(),
    )
    advises: bool = option(
        "--no-advice",
        SIMULATION,
        "do not rerun the script to try changes: after OOM, those that would make it fit; on "
        "several GPUs, those that would hide more of the network; with --what-if, the script "
        "without it",
        turns_off=True,
    )
    limits: tuple[str, ...] = option(
        "--assert",
        LIMITS,
        "a limit; if it does not hold, the exit code is 3: 'peak < 24GiB', 'step < 200ms'; also "
        "reserved, saved, flops, forward, backward, recompute, parameters, mfu, tokens/s, "
        "samples/s (repeatable)",
        Form("LIMIT"),
        is_repeated=True,
    )
    budget: str | None = option(
        "--budget", LIMITS, "limits of this run, from a file kept in the repository", FILE
    )
    update: bool = option("--update", LIMITS, "write this run's figures to the file of --budget")
    output: str = option(
        "-o",
        OUTPUT,
        f"where the trace goes (default {DEFAULT_OUTPUT}), for `tally show`",
        FILE,
        default=DEFAULT_OUTPUT,
        alias="--output",
        is_written=True,
    )
    format: str = option(
        "--format",
        OUTPUT,
        f"format of the report on stderr: {', '.join(format_names())}",
        FORMAT,
        default="text",
    )
    json: str | None = option(
        "--json", OUTPUT, "also write the report as JSON", FILE, is_written=True
    )
    html: str | None = option(
        "--html",
        OUTPUT,
        "also write an interactive page: source, memory over time, treemap, roofline; `tally "
        "report` makes it from a trace",
        FILE,
        is_written=True,
    )

    @property
    def asks_sparsity(self) -> bool:
        """A change that the run is not made with: its ledger tells what it would bring."""
        return SPARSITY in self.what_ifs

    @property
    def changes(self) -> tuple[str, ...]:
        """Those that the script is run with."""
        return tuple(change for change in self.what_ifs if change != SPARSITY)

    @property
    def is_terse(self) -> bool:
        """Neither progress nor remarks on stderr."""
        return self.quiet or self.brief
