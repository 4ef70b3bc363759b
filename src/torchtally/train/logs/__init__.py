"""What a training writes down: JSON lines always, and what dashboards read when asked.

    names        the names of all values: what they mean, their units, whose names they are
    records      a training step as values under those names
    log          what a log is, which ones there are, and how a run begins
    jsonl        FOLDER/log.jsonl, and reading it again
    tensorboard, wandb, trackio
    together     all of them as one: `with logs(folder, ...) as log:`

What is logged never decides how a training goes: a log that fails is reported, and left out.
"""

from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import Log, LogName, NoLog, RunHeader
from torchtally.train.logs.records import StepRecord
from torchtally.train.logs.together import logs

__all__ = [
    "Log",
    "LogName",
    "NoLog",
    "RunHeader",
    "StepRecord",
    "logs",
    "read_log",
]
