"""`tally train`: train, knowing what it takes before the first step, and showing what it took."""

import faulthandler
import signal
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchtally.cli.arguments import TrainParser
from torchtally.cli.chip_names import gpu_or_default, variable_gpu
from torchtally.cli.streams import unwritable_as_error
from torchtally.errors import UsageError
from torchtally.options import CHIP, Form, OptionRecord, each, own

if TYPE_CHECKING:
    from torchtally.checkpoints.ranks import Ranks
    from torchtally.report.training_plan import PlanRow
    from torchtally.timing.roofline import Roofline
    from torchtally.train.config import PrecisionName, TrainConfig
    from torchtally.train.job import Start
    from torchtally.train.loop import History

SUMMARY = "train a model, with memory and time predicted before the first step"

EPILOG = """\
examples:
  tally train examples/byte_gpt.toml
  tally train examples/byte_gpt.toml --steps 100 --optimizer.lr 3e-4
  tally train --plan examples/byte_gpt.toml              print the plan only
  tally train --plan --gpu H100-SXM examples/gpt2_124m.toml
  tally train --source examples/byte_gpt.toml > byte_gpt.py       to read, and to run
  tally train examples/teacher.toml --optimizer.lr 0.1
  tally train --watch numbers examples/byte_gpt.toml     gradients and updates lost, by parameter
  tally train --resume examples/byte_gpt.toml            resume from the newest checkpoint
  torchrun --nproc-per-node 8 -m torchtally train --resume CONFIG
  tally train CONFIG --help                              every key of a config

--key value changes a key of the config (--model.layers 6, --log.folder runs/other).
Options and keys may stand before or after CONFIG; before it, CONFIG ends in .toml,
or stands behind --.

Checkpoints are below `checkpoints` in the run's folder. SIGTERM, Ctrl-C and SIGHUP
save and exit with 143, 130 and 129; another one after a second exits immediately.
SIGUSR1 saves and continues.
"""

NUMBERS_EVERY = 100
"""Steps between two counts, where the config says nothing else."""
WHEN_SHORT = "Take fewer rows at a time (micro_batch), a shorter sequence or a smaller model."


@dataclass(frozen=True, kw_only=True)
class TrainOptions(OptionRecord):
    """Train what a TOML file describes, on the GPU or the CPU of this machine."""

    plan: bool = own("--plan", "print the plan, and do not train")
    gpu: str | None = own(
        "--gpu",
        "with --plan: the chip, which this machine need not have (default: what TALLY_GPU names, "
        "else this machine's device)",
        CHIP,
    )
    replaces: bool = own("--replace", "replace an earlier run in the folder")
    resumes: bool = own(
        "--resume",
        "resume from the newest checkpoint in the folder; start from step 0 if there is none",
    )
    allows_changes: bool = own("--allow-changes", "with --resume: allow a changed config")
    watch: str | None = own(
        "--watch",
        "numbers: count gradients that underflow and updates that bf16 weights lose, every "
        "log.numbers_every steps (100)",
        choices=each("numbers"),
    )
    source: bool = own("--source", "print model and loop as one plain Python file")
    config: str = own("CONFIG", "a TOML file", Form("CONFIG"))
    changes: tuple[str, ...] = own(
        "CHANGES", "changes to the config", Form("--key value"), nargs="..."
    )

    @property
    def start(self) -> dict[str, bool]:
        """How a run begins in a folder that may have one."""
        return {
            "resumes": self.resumes,
            "allows_changes": self.allows_changes,
            "replaces": self.replaces,
        }


PARSER = TrainParser


def command(options: TrainOptions) -> int:
    """Print the plan, train and print the result; as one of several ranks under torchrun."""
    from torchtally.checkpoints.ranks import join_ranks, launched_rank
    from torchtally.runs.function import is_within_run
    from torchtally.train.failing import fail_together
    from torchtally.train.job import check_folder
    from torchtally.train.retry import explain_shortage
    from torchtally.train.trainer import device_of

    _check(options)
    gpu: str | None = options.gpu
    if options.plan and (gpu is not None or variable_gpu() is not None):
        gpu = gpu_or_default(gpu)
    # A file that shrinks while it is mapped ends the process by a signal: this says where.
    if sys.stderr is sys.__stderr__:
        faulthandler.enable()
    with fail_together(), explain_shortage(WHEN_SHORT):
        config = _config(options)
        if options.source:
            return _source(config, options.config)
        own = launched_rank()
        if own.is_first and not options.plan:
            check_folder(config, **options.start)
        roofline = _roofline(gpu, config)
        peak = _peak_flop_per_s(roofline, config, own)
        rows: list[PlanRow] = []
        # Under `tally run` the run itself is the plan, and simulates already.
        if own.is_first and not is_within_run():
            planned = _part_of_rank(_resolve(config, gpu, roofline), own)
            rows = _prediction(planned, roofline, peak)
            with unwritable_as_error():
                print(_plan_text(planned, roofline, rows, own), end="", flush=True)
        if options.plan:
            return 0
        with join_ranks(device_of(config, own).type) as together:
            return _train(
                config, together, _start(config, own, roofline, peak, rows, options), rows
            )


def _check(options: TrainOptions) -> None:
    if options.gpu is not None and not options.plan:
        raise UsageError(
            "--gpu applies to --plan only: training runs on this machine's own device."
        )
    if options.resumes and options.replaces:
        raise UsageError("--resume continues a run and --replace drops it: give one of them.")
    if options.allows_changes and not options.resumes:
        raise UsageError("--allow-changes applies to --resume only.")


def _source(config: "TrainConfig", place: str) -> int:
    from torchtally.train.one_file import one_file

    with unwritable_as_error():
        print(one_file(config, place), end="", flush=True)
    return 0


def _part_of_rank(config: "TrainConfig", own: "Ranks") -> "TrainConfig":
    """The config of one rank's part. Raises UsageError where the batch cannot be divided."""
    from torchtally.train.data.order import rows_of_rank

    part = rows_of_rank(config.batch, own.rank, own.size)
    rows = part.stop - part.start
    return replace(config, batch=rows, micro_batch=min(config.rows, rows))


def _config(options: TrainOptions) -> "TrainConfig":
    """The file's config with the changes of the command line."""
    from torchtally.cli.output import width
    from torchtally.files.reading import read_text
    from torchtally.train.config import WHAT
    from torchtally.train.keys import changed_config, help_text, read_changes

    toml = read_text(options.config, WHAT)
    if not {"-h", "--help"}.isdisjoint(options.changes):
        with unwritable_as_error():
            print(f"Keys of {options.config} and their values there. Change any with --key value.")
            print(help_text(changed_config(toml, options.config, ()), width()), end="", flush=True)
        raise SystemExit(0)
    try:
        changes = read_changes(options.changes)
        if options.watch is not None and "log.numbers_every" not in dict(changes):
            changes = (*changes, ("log.numbers_every", NUMBERS_EVERY))
    except UsageError as error:
        raise UsageError(
            f"{error}\n`tally train {options.config} --help` lists all keys."
        ) from error
    return changed_config(toml, options.config, changes)


# The plan ----------------------------------------------------------------------------------------


def _roofline(gpu: str | None, config: "TrainConfig") -> "Roofline | None":
    """The roofline of the named chip, else of this machine's device.

    None for a device that is in no table, and for a CPU without a calibration.
    """
    from torchtally.timing.targets import known_roofline, roofline
    from torchtally.train.trainer import device_name

    return roofline(gpu) if gpu is not None else known_roofline(device_name(config))


def _peak_flop_per_s(
    roofline: "Roofline | None", config: "TrainConfig", own: "Ranks"
) -> float | None:
    """Peak of the precision's products: the chip's, or measured now on a CPU that was not
    calibrated.
    """
    from torchtally.runs.function import is_within_run
    from torchtally.train.precision import precision
    from torchtally.train.trainer import device_of, precision_name

    device = device_of(config, own)
    products = precision(precision_name(config, device)).recipe.products
    if roofline is not None:
        peak = roofline.chip.peaks.get(products)
        return None if peak is None else peak.flop_per_s
    if device.type != "cpu" or products != "float32" or not own.is_first or is_within_run():
        return None
    from torchtally.bench.quick import product_flop_per_s

    return product_flop_per_s()


def _prediction(
    config: "TrainConfig", roofline: "Roofline | None", peak_flop_per_s: float | None
) -> "list[PlanRow]":
    """Memory by category at the peak, and the time of a step.

    From two steps on the simulated device; without a roofline from closed forms.
    """
    from torchtally.report.training_plan import closed_form_rows, traced_rows
    from torchtally.train.plan import least_step_s, states_of
    from torchtally.train.precision import precision

    if roofline is None:
        states = states_of(config, precision(config.precision).recipe)
        return closed_form_rows(states, least_step_s(config, peak_flop_per_s))
    from torchtally.ledger import account
    from torchtally.runs.function import run
    from torchtally.train.trainer import rehearse

    # Compiled, it would be run eagerly there anyway.
    rehearsed = replace(config, compile=False)
    trace = run(
        lambda: rehearse(rehearsed),
        gpu="cpu" if roofline.is_host else roofline.chip.name,
        steps=2,
        memory_is_limited=False,
    )
    return traced_rows(account(trace, roofline=roofline))


def _resolve(config: "TrainConfig", gpu: str | None, roofline: "Roofline | None") -> "TrainConfig":
    """The config with precision and chunks as on the named chip, else on this machine's device."""
    from torchtally.train.trainer import device_of, precision_name

    if gpu is None or roofline is None:
        device = device_of(config)
        kind, precision = device.type, precision_name(config, device)
    else:
        kind = "cpu" if roofline.is_host else "cuda"
        has_bf16 = kind == "cuda" and "bfloat16" in roofline.chip.peaks
        usual: PrecisionName = "bf16" if has_bf16 else "fp32"
        precision = usual if config.precision == "auto" else config.precision
    return replace(config, precision=precision, loss_chunk_tokens=config.chunk_tokens(kind) or 0)


def _plan_text(
    config: "TrainConfig", roofline: "Roofline | None", rows: "list[PlanRow]", own: "Ranks"
) -> str:
    from torchtally.report.training_plan import plan_text
    from torchtally.train.plan import weights
    from torchtally.train.precision import precision
    from torchtally.units import format_count

    parameters = format_count(sum(weight.elements for weight in weights(config)))
    where = "this machine" if roofline is None else roofline.chip.name
    mode = precision(config.precision)
    return plan_text(
        f"{parameters} parameters, {config.steps} steps of {config.batch} on {where}",
        rows,
        remark=f"{mode.name}: {mode.effect}",
        ranks=own.size,
        is_sharded=config.parallel.strategy == "fsdp",
        is_timed=roofline is not None,
    )


# The training ------------------------------------------------------------------------------------


def _train(config: "TrainConfig", own: "Ranks", start: "Start", rows: "list[PlanRow]") -> int:
    from torchtally.checkpoints.signals import EXIT_CODE, listen
    from torchtally.report.training import TrainingDisplay
    from torchtally.train.job import train_in_folder
    from torchtally.train.loop import SilentObserver

    show = (
        TrainingDisplay(steps=config.steps, every=config.log.every, rows=rows)
        if own.is_first
        else SilentObserver()
    )
    with listen(show.on_note) as signals:
        history = train_in_folder(config, own, show, signals, start)
        if isinstance(show, TrainingDisplay):
            show.close()
            with unwritable_as_error():
                print(_closing_text(config, history), end="", flush=True)
        # torchrun ends all ranks as soon as one has ended with an exit code.
        own.wait()
    return EXIT_CODE + history.stopped_by if history.stopped_by else 0


def _start(
    config: "TrainConfig",
    own: "Ranks",
    roofline: "Roofline | None",
    peak_flop_per_s: float | None,
    rows: "list[PlanRow]",
    options: TrainOptions,
) -> "Start":
    """How the run begins; its MFU is of the chip's peak for the precision's products, if known."""
    from torchtally.train.job import Start
    from torchtally.train.logs.log import RunHeader
    from torchtally.train.precision import precision
    from torchtally.train.trainer import device_of, precision_name

    products = precision(precision_name(config, device_of(config, own))).recipe.products
    convention = None
    if peak_flop_per_s is not None:
        is_promised = roofline is not None and not roofline.is_host
        kind = "promised dense" if is_promised else "best measured"
        convention = (
            f"products forward and backward, attention in full, of the {kind} {products} peak"
        )
    return Start(
        **options.start,
        peak_flop_per_s=peak_flop_per_s,
        header=RunHeader(
            config=config.document(), mfu_convention=convention, predicted=_prediction_values(rows)
        ),
    )


def _prediction_values(rows: "list[PlanRow]") -> "dict[str, float | int]":
    """The plan under the log names of the measured values."""
    from torchtally.report.training_plan import AT_LEAST
    from torchtally.train.logs import names

    return {
        names.STEP_S if row.name == "step" else names.memory_name(row.name): row.predicted
        for row in rows
        if row.predicted is not None and row.name != AT_LEAST
    }


def _closing_text(config: "TrainConfig", history: "History") -> str:
    """The curve of all losses, including those before resuming, and the place of the log."""
    from torchtally.cli.output import width
    from torchtally.report.loss_plot import LossCurve
    from torchtally.report.training import closing_text

    stopped = ""
    if history.stopped_by:
        is_complete = history.steps >= config.steps
        end = "after the last step" if is_complete else "and saved; continue with --resume"
        stopped = f"{signal.Signals(history.stopped_by).name} {end}"
    return closing_text(
        LossCurve(tuple(history.training), tuple(history.validation)),
        steps=history.steps,
        log=f"{config.log.folder}/log.jsonl",
        stopped=stopped,
        width=min(width(), 80),
        encoding=sys.stdout.encoding,
    )
