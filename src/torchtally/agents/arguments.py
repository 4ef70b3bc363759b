"""What each tool is asked, as types: JSON Schema, validation and the command line come from them.

Values become words of a command line, never of a shell. An option's value is part of its own word
(`--gpu=H100`), and what has no option may not begin with "-", so that none is taken for another.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from torchtally.agents.workspace import ServerFolder
from torchtally.errors import UsageError
from torchtally.options import options_of
from torchtally.plan.questions import Request

Word = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*$")]
Name = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f-][^\x00-\x1f]*$(?!\n)")
]
"""It cannot begin with "-"."""
NOT_AN_OPTION = r"^[^\x00-][^\x00]*$"
FilePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=NOT_AN_OPTION,
        description="A file within the server's folder",
    ),
]
Words = Annotated[list[Word], Meta(max_length=64)]
Names = Annotated[list[Name], Meta(max_length=16)]
RunOrTrace = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        pattern=NOT_AN_OPTION,
        description="The number of a run, as the tool run gave it, or a trace's file",
    ),
]
Count = Annotated[int, Meta(ge=1, le=1 << 20)]
Steps = Annotated[int, Meta(ge=1, le=1000)]
Top = Annotated[int, Meta(ge=1, le=50, description="Rows, the dearest first")]
Gpu = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$(?!\n)",
        description="A GPU or several: H100-SXM, 8xH100-SXM",
    ),
]
View = Literal["line", "module", "op", "phase", "category"]
DEFAULT_GPU = "H100-SXM"


class ToolArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a tool is asked."""

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line after `tally`. Raises UsageError for what is not in the folder."""
        raise NotImplementedError


class RunArguments(ToolArguments, frozen=True):
    """Run a training script on a simulated GPU: does it fit, how long is a step, what does it
    cost, which lines, and what changed since its last run. Answers with the document brief/1 and
    the number of the run, by which `diff` and resources name it.
    """

    script: FilePath
    arguments: Annotated[Words, Meta(description="The script's own")] = []
    gpu: Gpu = DEFAULT_GPU
    steps: Annotated[Steps, Meta(description="Training steps to simulate")] = 2
    limits: Annotated[Words, Meta(description='As --assert has them: "peak < 24GiB"')] = []
    what_ifs: Annotated[
        Words, Meta(description="As --what-if has them: checkpoint=Block, optimizer=fused, compile")
    ] = []
    tries_changes: Annotated[
        bool, Meta(description="Out of memory, try changes that would make it fit")
    ] = True

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line; files of the run lie in the workspace."""
        return [
            "run", f"--gpu={self.gpu}", f"--steps={self.steps}", "--network=off", "--brief",
            *(f"--assert={limit}" for limit in self.limits),
            *(f"--what-if={change}" for change in self.what_ifs),
            *([] if self.tries_changes else ["--no-advice"]),
            workspace.inside(self.script), "--", *self.arguments,
        ]  # fmt: skip


class DiffArguments(ToolArguments, frozen=True):
    """Compare two runs: what the second takes more, by line, module, operator, phase or category
    of memory.
    """

    before: RunOrTrace
    after: RunOrTrace
    by: View = "line"
    top: Top = 10

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        traces = [workspace.trace(each) for each in (self.before, self.after)]
        return ["diff", *traces, f"--by={self.by}", f"--top={self.top}", "--json=-"]


class FitArguments(ToolArguments, frozen=True):
    """Find the largest value of one of a script's arguments (a batch size) that fits GPUs."""

    script: FilePath
    vary: Annotated[Word, Meta(description='With {} for the number: "--batch-size={}"')]
    arguments: Annotated[Words, Meta(description="The script's own")] = []
    gpus: Annotated[tuple[Gpu, ...], Meta(min_length=1, max_length=8)] = (DEFAULT_GPU,)
    smallest: Count = 1
    largest: Count = 1 << 16
    multiple_of: Count = 1

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        return [
            "fit", f"--vary={self.vary}", *(f"--gpu={gpu}" for gpu in self.gpus),
            f"--from={self.smallest}", f"--to={self.largest}", f"--multiple-of={self.multiple_of}",
            "--network=off", "--quiet", "--json=-",
            workspace.inside(self.script), "--", *self.arguments,
        ]  # fmt: skip


class FixArguments(ToolArguments, frozen=True):
    """Find changes of a script that make it fit a GPU or its step shorter, each proved by a run:
    what is kept, and the patch. Writes nothing. Takes some ten runs of the script.
    """

    script: FilePath
    arguments: Annotated[Words, Meta(description="The script's own")] = []
    gpu: Gpu = DEFAULT_GPU
    goal: Annotated[
        Literal["fit", "faster"] | None,
        Meta(description="Default: fit where it does not fit, else faster"),
    ] = None
    changes_values: Annotated[
        bool, Meta(description="Also changes that compute with fewer bits: bfloat16, TF32")
    ] = False
    steps: Annotated[Steps, Meta(description="Training steps of each run")] = 2

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        return [
            "fix", f"--gpu={self.gpu}", f"--steps={self.steps}",
            *([] if self.goal is None else [f"--{self.goal}"]),
            *(["--change-values"] if self.changes_values else []),
            "--network=off", "--quiet", "--json=-",
            workspace.inside(self.script), "--", *self.arguments,
        ]  # fmt: skip


class PlanArguments(ToolArguments, frozen=True):
    """Plan a training or inference without a script: memory, time, layout, cost."""

    model: Annotated[
        Name | None,
        Meta(description="llama-3-70b, a number of parameters (7B), a config.json in the folder"),
    ] = None
    gpus: Annotated[Gpu | None, Meta(description="64xH100-SXM")] = None
    options: Annotated[
        dict[str, Annotated[str, Meta(max_length=256)] | int | float | bool],
        Meta(
            max_length=32,
            description="Others of `tally plan`, by name: {'tokens': '15T', 'sequence': 8192, "
            "'micro-batch': 1, 'mfu': 0.4, 'search': true, 'inference': true, 'deadline': '30d'}",
        ),
    ] = {}

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line. Raises UsageError for an option that there is not, or that is of a
        file.
        """
        words = ["plan", *([] if self.model is None else [workspace.model(self.model)])]
        words += [] if self.gpus is None else [f"--gpus={self.gpus}"]
        for name, value in self.options.items():
            if name not in plan_options():
                raise UsageError(
                    f"plan has no option {name[:64]!r} here.\n"
                    f"Give some of: {', '.join(plan_options())}."
                )
            if name in OF_A_MODEL:
                value = workspace.model(str(value))
            if value is not False:
                words.append(f"--{name}" if value is True else f"--{name}={value}")
        return [*words, "--json=-"]


OF_A_MODEL = ("draft", "stack")
"""Options whose value may be a file."""


def plan_options() -> Sequence[str]:
    """Options of `tally plan` that neither write files nor begin a dialogue."""
    return [
        option.name.removeprefix("--")
        for field, option in options_of(Request).items()
        if option.name.startswith("--") and not option.is_written and field != "gpus"
    ]


class SummaryArguments(ToolArguments, frozen=True):
    """Account for a model by itself, module by module: parameters, FLOPs, time, memory."""

    model: Annotated[
        Name, Meta(description="file.py:Class, a config.json of transformers, or a known name")
    ]
    inputs: Annotated[Names, Meta(description="By shape and dtype: 8x3x224x224, 4x512:int64")] = []
    gpu: Gpu = DEFAULT_GPU
    optimizer: Name = "adamw"
    precision: Name = "bf16"
    depth: Annotated[int, Meta(ge=1, le=16)] = 2

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        return [
            "summary", workspace.model(self.model), *(f"--input={each}" for each in self.inputs),
            f"--gpu={self.gpu}", f"--optimizer={self.optimizer}", f"--precision={self.precision}",
            f"--depth={self.depth}", "--json=-",
        ]  # fmt: skip


class ExplainArguments(ToolArguments, frozen=True):
    """Account for a real run by what a profiler recorded: where its time or memory went."""

    file: FilePath
    by: Annotated[View | None, Meta(description="One view instead of the whole account")] = None
    top: Top = 10
    gpu: Gpu | None = None

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        return [
            "explain", workspace.inside(self.file),
            *([] if self.by is None else [f"--by={self.by}", f"--top={self.top}"]),
            *([] if self.gpu is None else [f"--gpu={self.gpu}"]), "--json=-",
        ]  # fmt: skip


class GpusArguments(ToolArguments, frozen=True):
    """List the GPUs that can be simulated, or every number of one of them with its source."""

    gpu: Gpu | None = None

    def words(self, workspace: ServerFolder) -> list[str]:
        """The command line."""
        return ["gpus", *([] if self.gpu is None else [self.gpu]), "--json=-"]


TOOLS: dict[str, type[ToolArguments]] = {
    "run": RunArguments,
    "diff": DiffArguments,
    "fit": FitArguments,
    "fix": FixArguments,
    "plan": PlanArguments,
    "summary": SummaryArguments,
    "explain": ExplainArguments,
    "gpus": GpusArguments,
}


def input_schema(kind: type[msgspec.Struct]) -> dict[str, object]:
    """The JSON Schema of a type that has no types inside it."""
    (_, parts) = msgspec.json.schema_components([kind])
    schema = dict(parts[kind.__name__])
    return {key: value for key, value in schema.items() if key not in ("title", "description")}
