"""The training loop: batches in, records out, checkpoints in between."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from torch import Tensor

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.randomness import seed_all
from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.saver import Saver
from torchtally.checkpoints.signals import Signals
from torchtally.errors import UsageError
from torchtally.numerics.watch import NumbersWatch
from torchtally.progress import StepRecord
from torchtally.train.config import TrainConfig
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.evaluation import Rows
from torchtally.train.footprint import Footprint, footprint, measure_activation_bytes
from torchtally.train.logs.log import Log
from torchtally.train.logs.names import values_of
from torchtally.train.models.transformer import Transformer
from torchtally.train.numbers import numbers_watch
from torchtally.train.outcome import StepError, StepResult
from torchtally.train.sampling import continue_prompt
from torchtally.train.tasks import Language, Task, TrainBatch
from torchtally.train.tensor_file import write_tensors
from torchtally.train.trainer import LoopState, Trainer


@runtime_checkable
class TrainingObserver(Protocol):
    """Observes a training without affecting it."""

    def on_step(self, step: int, record: StepRecord) -> None:
        """`step` steps are done. Memory is measured once, after the first."""

    def on_note(self, text: str) -> None:
        """A message for the user: a skipped step, a halved micro-batch."""

    def on_evaluation(self, step: int, loss_nats: float, tokens: int) -> None:
        """The mean loss over so many validation targets."""

    def on_sample(self, step: int, text: str) -> None: ...


class SilentObserver:
    """Ignores everything: the observer of all ranks but the first."""

    def on_step(self, step: int, record: StepRecord) -> None: ...
    def on_note(self, text: str) -> None: ...
    def on_evaluation(self, step: int, loss_nats: float, tokens: int) -> None: ...
    def on_sample(self, step: int, text: str) -> None: ...


@dataclass(slots=True)
class History:
    """The losses of a run."""

    training: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    steps: int = 0
    """Done."""
    stopped_by: int = 0
    """The signal that stopped the run; 0 if none did."""


def train(
    trainer: Trainer,
    log: Log,
    observer: TrainingObserver,
    *,
    checkpoints: Checkpoints | None = None,
    resumed: int | None = None,
    signals: Signals | None = None,
    mfu_of: Callable[[float], float | None] = lambda step_s: None,
    clock: Callable[[], float] = time.perf_counter,
) -> History:
    """Run the remaining steps of the config, until a signal asks to stop; `resumed` are done.

    Saves to `checkpoints` if given. `mfu_of` returns the MFU of a step of so many seconds, if
    known. Raises StepError where the config says to stop, UsageError for broken data, and
    CheckpointError for failed saves. In any case all records are written and a save in progress is
    finished.
    """
    saver = None
    if checkpoints is not None:
        when = trainer.config.checkpoint
        saver = Saver(trainer.contents, checkpoints, when, saved_step=resumed)
    heard = signals or Signals(observer.on_note)
    return _Run(trainer, log, observer, saver, heard, mfu_of, clock).all_steps(resumed)


class _StoppedError(Exception):
    """A signal arrived during an evaluation."""


@dataclass(slots=True)
class _Run:
    """One training: its progress, and what is due."""

    trainer: Trainer
    log: Log
    observer: TrainingObserver
    saver: Saver | None
    signals: Signals
    mfu_of: Callable[[float], float | None]
    clock: Callable[[], float]
    history: History = field(default_factory=History)
    footprint: Footprint | None = None
    watch: NumbersWatch | None = None
    began_s: float = 0.0

    @property
    def config(self) -> TrainConfig:
        return self.trainer.config

    @property
    def task(self) -> Task:
        return self.trainer.task

    @property
    def state(self) -> LoopState:
        return self.trainer.loop

    def all_steps(self, resumed: int | None) -> History:
        config = self.config
        self.history.steps = first = resumed or 0
        with ExitStack() as stack:
            stack.callback(self.task.close)
            batches = stack.enter_context(
                self.task.batches(range(first, config.steps), self.trainer.device)
            )
            profiler = stack.enter_context(_profiler(config, self.trainer.ranks))
            if self.saver is not None:
                stack.enter_context(self.saver)
            self.watch = numbers_watch(self.trainer, self.observer.on_note)
            if self.watch is not None:
                stack.callback(self.watch.close)
            self._begin(resumed)
            for batch in batches:
                if self._is_exhausted(batch.step):
                    break
                self._step(batch)
                if profiler is not None:
                    profiler.step()
                if self._is_over(batch.step + 1):
                    break
            self._end()
        return self.history

    def _begin(self, resumed: int | None) -> None:
        if resumed is None:
            # Dropout draws from the process's generators: seed them for reproducible runs.
            seed = seed_of(Source.DROPOUT, self.config.seed)
            seed_all(self.trainer.ranks.seed(seed))
            if self.config.evaluation.every is not None:
                self._evaluate(0)  # where the curve begins
        elif not self.state.is_evaluated:
            self._now_and_then(resumed)
        self.signals.is_training = True
        self.began_s = self.clock()

    def _is_over(self, step: int) -> bool:
        """Ends a step: evaluates and saves if due. Whether to stop."""
        stop, is_asked = self._gather_requests(step)
        is_evaluated = False
        if not stop:
            try:
                self._now_and_then(step)
                is_evaluated = True
            except _StoppedError:
                stop, is_asked = self._gather_requests(step)
        if stop or is_asked or self._kept_step == step:
            self._save(step, is_evaluated=is_evaluated)
        return bool(stop)

    @property
    def _kept_step(self) -> int | None:
        """The best step, if the config keeps its checkpoint; step 0 has none."""
        return self.state.best[0] if self.state.best and self.config.checkpoint.keep_best else None

    def _is_exhausted(self, step: int) -> bool:
        """Whether `patience` evaluations up to this step did not find a lower loss."""
        every, patience = self.config.evaluation.every, self.config.evaluation.patience
        if every is None or patience is None or self.state.best is None:
            return False
        return step // every - self.state.best[0] // every >= patience

    def _gather_requests(self, step: int) -> tuple[int, bool]:
        """(the signal to stop for, whether to save now): the same on all ranks."""
        if self.saver is None:
            return self.trainer.ranks.max(self.signals.stop)[0], False
        return self.saver.requests(step, self.signals)

    def _save(self, step: int, *, is_evaluated: bool) -> None:
        if self.saver is None:
            return
        before_s = self.clock()
        self.state.is_evaluated = is_evaluated
        self.saver.save(step, self._kept_step)
        self.began_s += self.clock() - before_s

    def _end(self) -> None:
        step = self.history.steps
        is_early = step < self.config.steps and self._is_exhausted(step)
        if is_early and self.state.best is not None:
            self.observer.on_note(
                f"ended after step {step}: {self.config.evaluation.patience} evaluations without a "
                f"lower validation loss than {self.state.best[1]:.4g}, of step {self.state.best[0]}"
            )
        if self.saver is not None:
            if self.config.checkpoint.at_end and (is_early or step == self.config.steps):
                self._save(step, is_evaluated=True)
            self.saver.wait()
        self.history.stopped_by = self.trainer.ranks.max(self.signals.stop)[0]

    def _step(self, batch: TrainBatch) -> None:
        result = self._train_step(batch)
        ended_s = self.clock()
        step_s, self.began_s = ended_s - self.began_s, ended_s
        self.history.steps = done = batch.step + 1
        self.history.training.append((done, result.loss))
        self._note(done, result)
        if self.footprint is None and not result.is_skipped:
            self.footprint = self._measure_footprint(batch, result.micro_batch)
            self.began_s = self.clock()
        record = self._record(batch, result, step_s)
        if done % self.config.log.every == 0 or done in (1, self.config.steps):
            self.log.write(done, values_of(record))
        if self.watch is not None and self.watch.counted_step == done:
            self.log.write(done, self.watch.values(by_layer=True))
        self.observer.on_step(done, record)

    def _train_step(self, batch: TrainBatch) -> StepResult:
        """Take the step; on StepError keep its batch in the run's folder."""
        if self.watch is not None:
            self.watch.steps = batch.step  # done, those skipped and of an earlier run included
        try:
            return self.trainer.step(batch)
        except StepError as error:
            message = f"{error}\n{self._keep_batch(error)}"
            raise type(error)(message, step=error.step, batch=error.batch) from error

    def _keep_batch(self, error: StepError) -> str:
        """Save the batch of the step, and say where."""
        ranks = self.trainer.ranks
        of_rank = f"-rank-{ranks.rank}" if ranks.size > 1 else ""
        path = Path(self.config.log.folder) / f"bad-batch-{error.step}{of_rank}.safetensors"
        inputs, targets = error.batch
        try:
            write_tensors({"inputs": inputs.contiguous(), "targets": targets.contiguous()}, path)
        except (OSError, SafetensorError) as failure:
            return f"Its batch could not be written to {path} ({failure})."
        return f"Its batch is saved in {path}."

    def _measure_footprint(self, batch: TrainBatch, rows: int) -> Footprint:
        """Memory held, and activations of one micro-batch: measured once."""
        trainer = self.trainer
        inputs, targets = batch.inputs[:rows], batch.targets[:rows]

        def forward() -> Tensor:
            with trainer.precision.autocast(trainer.device):
                return trainer.loss(inputs, targets)

        kept = measure_activation_bytes(forward, trainer.model, (inputs, targets))
        return footprint(trainer.model, trainer.optimizer, activations_bytes=kept)

    def _record(self, batch: TrainBatch, result: StepResult, step_s: float) -> StepRecord:
        tokens = self.task.tokens_of_step or 0
        return StepRecord(
            loss=result.loss,
            learning_rate=self.trainer.learning_rate,
            tokens=tokens * (batch.step + 1),
            tokens_per_s=tokens / step_s if step_s else 0.0,
            step_s=step_s,
            wait_s=batch.wait_s,
            skipped_steps=self.state.skipped,
            grad_norm=result.grad_norm,
            mfu=self.mfu_of(step_s),
            memory_bytes={} if self.footprint is None else self.footprint.by_category(),
            peak_bytes=None if self.footprint is None else self.footprint.peak_allocated_bytes,
        )

    def _note(self, step: int, result: StepResult) -> None:
        self.state.skipped += result.is_skipped
        if result.is_skipped:
            self.observer.on_note(f"step {step} {result.outcome} (loss {result.loss:.4g})")
        elif result.is_spike:
            self.observer.on_note(f"step {step}: loss spike to {result.loss:.4g}")
        if result.lowered_from is not None:
            self.observer.on_note(
                f"step {step}: out of memory with micro-batches of {result.lowered_from}; "
                f"continuing with {result.micro_batch}, same batch"
            )

    def _now_and_then(self, step: int) -> None:
        """Evaluate and sample if due; neither counts as time of a step."""
        before_s = self.clock()
        if _is_due(step, self.config.evaluation.every, self.config.steps):
            self._evaluate(step)
        if _is_due(step, self.config.sampling.every, self.config.steps):
            self._sample(step)
        self.began_s += self.clock() - before_s

    def _evaluate(self, step: int) -> None:
        rows = list(self.task.validation(self.trainer.device))
        if not rows:
            return

        def until_stopped() -> Iterator[Rows]:
            for row in rows:
                if self.trainer.ranks.max(self.signals.stop)[0]:
                    raise _StoppedError
                yield row

        evaluation = self.trainer.evaluate(until_stopped())
        self.history.validation.append((step, evaluation.loss_nats))
        if self.state.best is None or evaluation.loss_nats < self.state.best[1]:
            self.state.best = (step, evaluation.loss_nats)
        self.log.write(step, evaluation.values())
        self.observer.on_evaluation(step, evaluation.loss_nats, evaluation.tokens)

    def _sample(self, step: int) -> None:
        sampling = self.config.sampling
        if not sampling.tokens:
            return
        task = self.task
        if not isinstance(task, Language) or task.tokenizer is None:
            raise UsageError(
                "sampling.tokens: cannot sample text, since the tokenizer of the data is unknown. "
                "Prepare the data with `tally data prepare`, or disable sampling."
            )
        assert isinstance(task.model, Transformer)  # the config has no code of the user's own
        trainer = self.trainer
        # All ranks take part in gathering sharded weights, so all of them draw the same sample.
        with trainer.parallel.whole_weights():
            _, text = continue_prompt(
                task.model,
                task.tokenizer,
                sampling.prompt,
                tokens=sampling.tokens,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                seed=seed_of(Source.SAMPLING, self.config.seed),
                precision_context=lambda: trainer.precision.autocast(trainer.device),
            )
        self.observer.on_sample(step, text)


def _is_due(step: int, every: int | None, steps: int) -> bool:
    return step == steps or (every is not None and step % every == 0)


@contextmanager
def _profiler(config: TrainConfig, ranks: Ranks) -> Iterator["torch.profiler.profile | None"]:
    """torch.profiler over the configured steps; its trace goes to the run's folder."""
    first = config.profile.first_step
    if first is None or not ranks.is_first:
        yield None
        return
    folder = Path(config.log.folder)
    # The step before is recorded and discarded: it includes the profiler's start-up.
    schedule = torch.profiler.schedule(
        wait=max(first - 1, 0), warmup=min(first, 1), active=config.profile.steps, repeat=1
    )

    def keep(profile: torch.profiler.profile) -> None:
        profile.export_chrome_trace(str(folder / "profile.json.gz"))

    with torch.profiler.profile(schedule=schedule, on_trace_ready=keep) as profile:
        yield profile
