"""Launchers in front of a script (torchrun, `accelerate launch`, deepspeed): answered, not started.

A launcher starts one process per GPU and sets their environment. Here one rank runs, in this
process: its options say how many ranks there would be, its environment is set, and the script it
would start is the one that is traced. Options are parsed by the launcher's own parser.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from torchtally.errors import UsageError
from torchtally.isolation.environment import environment
from torchtally.tracer.script_file import Script


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher was asked to start."""

    script: Script
    nodes: int
    ranks_per_node: int | None
    """None: one for each GPU of a node."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Besides torchrun's."""
    gives_local_rank: bool = False
    """As the first argument of the script, too."""

    def script_of(self, local_rank: int) -> Script:
        """The script as one rank of a node is started."""
        if not self.gives_local_rank:
            return self.script
        return replace(
            self.script, arguments=(f"--local_rank={local_rank}", *self.script.arguments)
        )


def launch_of(script: Script) -> Launch | None:
    """What a launcher would start; None where the script is none.

    Raises UsageError for a launcher that cannot be answered.
    """
    words = (script.target, *script.arguments)
    if script.text is not None:
        return None
    launcher = launcher_of(script.target, is_module=script.is_module)
    return None if launcher is None else launcher(words[1:])


def launcher_of(target: str, *, is_module: bool) -> "Launcher | None":
    name = target if is_module else os.path.basename(target)
    if not is_module and os.path.isfile(name):
        return None  # a script of the user's that is called like one
    return LAUNCHERS.get(name)


def torchrun(arguments: Sequence[str]) -> Launch:
    from torch.distributed.run import get_args_parser

    options = get_args_parser().parse_args(list(arguments))
    nodes = int(str(options.nnodes).rpartition(":")[2])
    count = str(options.nproc_per_node)
    script = Script(
        options.training_script, tuple(options.training_script_args), is_module=bool(options.module)
    )
    return Launch(script, nodes, int(count) if count.isdigit() else None)


def accelerate(arguments: Sequence[str]) -> Launch | None:
    """`accelerate launch`; its other commands are programs like any other."""
    if not arguments or arguments[0] != "launch":
        return None
    commands: Any = import_module("accelerate.commands.launch")
    options: Any = commands.launch_command_parser().parse_args(list(arguments[1:]))
    if options.config_file is not None:
        raise UsageError(
            "`accelerate launch --config_file` is not read here.\nGive its settings as options of "
            "`accelerate launch`: --num_processes, --mixed_precision, --use_fsdp, ..."
        )
    nodes = int(options.num_machines or 1)
    ranks = options.num_processes
    options.num_machines, options.num_processes = nodes, ranks or nodes
    # accelerate fills these in from its configuration, or asks the hardware.
    options.mixed_precision = options.mixed_precision or "no"
    options.dynamo_backend = options.dynamo_backend or "no"
    environment = commands.prepare_multi_gpu_env(options)
    own = {k: v for k, v in environment.items() if k.startswith(("ACCELERATE_", "FSDP_"))}
    script = Script(
        options.training_script, tuple(options.training_script_args), is_module=bool(options.module)
    )
    return Launch(script, nodes, None if ranks is None else max(1, ranks // nodes), own)


def deepspeed(arguments: Sequence[str]) -> Launch:
    # Its package looks for a GPU when it is imported, and keeps what it finds.
    with environment({} if "DS_ACCELERATOR" in os.environ else {"DS_ACCELERATOR": "cuda"}):
        try:
            runner: Any = import_module("deepspeed.launcher.runner")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"`deepspeed` cannot be simulated: {error.name} is not installed here.\n"
                "Install it, or start the script by torchrun, which DeepSpeed supports."
            ) from None
        options = runner.parse_args(list(arguments))
    nodes, ranks = max(options.num_nodes, 1), options.num_gpus
    script = Script(options.user_script, tuple(options.user_args), is_module=bool(options.module))
    return Launch(
        script, nodes, ranks if ranks > 0 else None, gives_local_rank=not options.no_local_rank
    )


Launcher = Callable[[Sequence[str]], Launch | None]
LAUNCHERS: dict[str, Launcher] = {
    "torchrun": torchrun,
    "torch.distributed.run": torchrun,
    "torch.distributed.launch": torchrun,
    "accelerate": accelerate,
    "accelerate.commands.launch": lambda arguments: accelerate(["launch", *arguments]),
    "deepspeed": deepspeed,
}
"""By the name of the program or of the module."""
