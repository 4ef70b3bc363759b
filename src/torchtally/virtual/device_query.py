"""A program `nvidia-smi` on the script's PATH, which answers for the simulated GPU."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchtally.chips import Chip
from torchtally.memory.workspace import context_bytes
from torchtally.virtual import nvidia_smi
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

NAME = "nvidia-smi"
MIB = 1024**2
UUID = "GPU-00000000-0000-0000-0000-{:012d}"


class DeviceQuery:
    """Puts the program in place when a script first starts a process or looks for it."""

    def __init__(self, mode: VirtualDispatch, chip: Chip) -> None:
        self.mode = mode
        self.chip = chip
        self._folder: Path | None = None

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Facts of each GPU, by nvidia-smi's names of fields, at this moment."""
        context = context_bytes(self.chip)
        total = self.chip.total_memory_bytes // MIB
        used = [(gpu.reserved_bytes + context) // MIB for gpu in self.mode.gpus]
        return [
            {
                "index": number,
                "count": len(self.mode.gpus),
                "name": self.chip.device_name,
                "uuid": UUID.format(number),
                "compute_cap": self.chip.capability_name,
                "memory.total": total,
                "memory.used": used_mib,
                "memory.free": total - used_mib,
            }
            for number, used_mib in enumerate(used)
        ]

    def prepare(self) -> Path:
        """The program's path; it will answer as of now."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tally-nvidia-smi-"))
            command = [sys.executable, "-IS", nvidia_smi.__file__, str(self._folder / "facts.json")]
            program = self._folder / NAME
            program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            program.chmod(0o755)
            path = os.environ.get("PATH", os.defpath)
            os.environ["PATH"] = f"{self._folder}{os.pathsep}{path}"
        (self._folder / "facts.json").write_text(json.dumps(self.facts))
        return self._folder / NAME

    def remove(self) -> None:
        if self._folder is not None:
            entries = os.environ.get("PATH", "").split(os.pathsep)
            kept = [entry for entry in entries if entry != str(self._folder)]
            os.environ["PATH"] = os.pathsep.join(kept)
            shutil.rmtree(self._folder, ignore_errors=True)

    def stand_ins(self) -> list[StandIn]:
        native_init: Any = subprocess.Popen.__init__
        native_system, native_which = os.system, shutil.which

        def init(process: Any, args: Any, *rest: Any, **options: Any) -> None:
            native_init(process, self.command(args), *rest, **options)

        def system(command: str) -> int:
            self.prepare()
            return native_system(command)

        def which(cmd: Any, *args: Any, **kwargs: Any) -> Any:
            if cmd == NAME:
                self.prepare()
            return native_which(cmd, *args, **kwargs)

        return [
            StandIn(subprocess.Popen, "__init__", init),
            StandIn(os, "system", system),
            StandIn(shutil, "which", which),
        ]

    def command(self, args: Any) -> Any:
        """The command with the program's path in place of its name, whatever PATH the child has."""
        program = self.prepare()
        if args == NAME:
            return str(program)
        if isinstance(args, (list, tuple)) and args and os.path.basename(str(args[0])) == NAME:
            return [str(program), *args[1:]]
        return args
