"""A training in its folder: a new one, a resumed one, or one in place of another."""

from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.signals import Signals
from torchtally.errors import CheckpointError, UsageError
from torchtally.train.config import TrainConfig
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import Log, NoLog, RunHeader
from torchtally.train.logs.together import logs
from torchtally.train.loop import History, TrainingObserver, train
from torchtally.train.plan import step_flops
from torchtally.train.resuming import changes_of_config, check_changes, resume
from torchtally.train.tasks import former_tokens, has_tokens_of_text
from torchtally.train.trainer import Trainer, trainer_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a run begins, and what is known before its first step."""

    resumes: bool
    """From the newest checkpoint, if there is one."""
    allows_changes: bool
    replaces: bool
    """Drops the earlier run in the folder."""
    peak_flop_per_s: float | None
    """Of a device, for the precision's products."""
    header: RunHeader


def train_in_folder(
    config: TrainConfig, ranks: Ranks, observer: TrainingObserver, signals: Signals, start: Start
) -> History:
    """Train to the end or to a signal; the losses include those in the log before resuming.

    The folder is locked before text is tokenized or a model built. Raises UsageError for an earlier
    run in the folder that is neither resumed nor replaced.
    """
    checkpoints = _checkpoints(config)
    flops, peak = step_flops(config), start.peak_flop_per_s
    with checkpoints.lock() if ranks.is_first else nullcontext():
        ranks.run_on_first(
            lambda: _check_past(
                config, checkpoints, start.resumes, start.allows_changes, start.replaces
            ),
            "look for an earlier run",
        )
        trainer = trainer_of(config, ranks)
        resumed = None
        if start.resumes:
            note, allows = observer.on_note, start.allows_changes
            resumed = resume(trainer, checkpoints, note, allows_changes=allows)
        if resumed is not None:
            observer.on_note(f"resuming from step {resumed}")
        with _log(trainer, observer, resumed, start) as log:
            ranks.run_on_first(lambda: _tidy(checkpoints, start), "remove old checkpoints")
            past = None if resumed is None else read_log(config.log.folder)
            history = train(
                trainer, log, observer, checkpoints=checkpoints, resumed=resumed, signals=signals,
                mfu_of=lambda s: flops / ranks.size / s / peak if flops and peak and s else None,
            )  # fmt: skip
    if past is not None:
        history.training[:0] = past.series(names.LOSS)
        history.validation[:0] = past.series(names.EVAL_LOSS)
    return history


def check_folder(
    config: TrainConfig, *, resumes: bool, allows_changes: bool, replaces: bool
) -> None:
    """What the run's folder says about a run that is to begin so, before anything is computed.

    Raises UsageError while another run trains there, for an earlier run that is neither resumed nor
    replaced, and for one that was another training.
    """
    checkpoints = _checkpoints(config)
    with checkpoints.lock() if checkpoints.path.is_dir() else nullcontext():
        _check_past(config, checkpoints, resumes, allows_changes, replaces)


def _checkpoints(config: TrainConfig) -> Checkpoints:
    return Checkpoints(config.log.folder, follows_links=config.checkpoint.follows_links)


def _check_past(
    config: TrainConfig,
    checkpoints: Checkpoints,
    resumes: bool,
    allows_changes: bool,
    replaces: bool,
) -> None:
    steps = [] if replaces else checkpoints.steps()
    if not steps:
        return
    if not resumes:
        raise UsageError(
            f"{checkpoints.path}: has checkpoints of an earlier run. Continue it with --resume, "
            "drop it with --replace, or give this run a folder: --log.folder runs/other."
        )
    # Before they are replaced: the run that is resumed was trained on the tokens that are there.
    reads_text = config.task == "language" and bool(config.data.text)
    if reads_text and not allows_changes and not has_tokens_of_text(config):
        raise UsageError(
            f"data.text: has changed since its tokens were made. {former_tokens(config)} "
            "--allow-changes continues on the new text, and --replace starts over."
        )
    # A damaged one is set aside where it is resumed from, and says so.
    with suppress(CheckpointError):
        manifest = checkpoints.manifest(steps[0])
        check_changes(manifest, changes_of_config(manifest, config), allows_changes=allows_changes)


def _tidy(checkpoints: Checkpoints, start: Start) -> None:
    """Remove what crashes left behind, and the checkpoints of a run that is replaced."""
    checkpoints.clean()
    if start.replaces:
        checkpoints.clear()


def _log(
    trainer: Trainer, observer: TrainingObserver, resumed: int | None, start: Start
) -> AbstractContextManager[Log]:
    """The first rank's logs; the others write none."""
    config = trainer.config
    if not trainer.ranks.is_first:
        return nullcontext(NoLog())
    first_step = 0 if resumed is None else resumed + 1
    header = replace(start.header, fingerprints=trainer.task.fingerprints)
    return logs(
        config.log.folder,
        header,
        to=config.log.to,
        project=config.log.project,
        resumed_at=first_step if start.resumes else None,
        replaces=start.replaces,
        say=observer.on_note,
    )
