"""Small sweeps for tests: a definition, and results made up."""

from typing import Any

from torchtally.sweep.definition import Definition, SweepPoint, define
from torchtally.sweep.results import LossSeries, RunEnding, RunResult, Status
from torchtally.sweep.space import grid, points

TEACHER = """\
task = "teacher"
steps = 10
batch = 4
device = "cpu"
[teacher]
dim = 4
[optimizer]
name = "sgd"
[learning_rate]
shape = "constant"
[log]
folder = "teacher"
every = 1
"""


def definition(*grids: str, toml: str = TEACHER, **changes: Any) -> Definition:
    """Of the teacher, over grids as they are written."""
    grid_points = points([grid(text) for text in grids], [], 0, 1)
    return define("teacher.toml", toml, grid_points, **{"keeps_checkpoints": False, **changes})


def result(
    point: SweepPoint,
    training: LossSeries = (),
    status: Status = Status.ENDED,
    validation: LossSeries = (),
    message: str = "",
) -> RunResult:
    return RunResult(
        point=point,
        ending=RunEnding(status=status, exit_code=0, wall_s=1.5, message=message),
        training=training,
        validation=validation,
        records=tuple((step, {"train/loss": loss}) for step, loss in training),
    )
