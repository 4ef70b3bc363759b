"""`nvidia-smi` of the simulated GPU, as a program: `python nvidia_smi.py FACTS ARGUMENTS...`.

FACTS is a JSON file: a list of GPUs, each with its fields by nvidia-smi's own names; MiB as
numbers. Fields that a simulation has no answer to are "[N/A]", as on hardware that lacks a sensor.
Runs in a process of its own and imports nothing but the standard library.
"""

import json
import sys
from typing import Any

Gpu = dict[str, Any]

NOT_AVAILABLE = "[N/A]"
MEBIBYTES = "MiB"
UNKNOWN_EXIT = 1


def main(arguments: list[str]) -> int:
    facts, *rest = arguments
    with open(facts, encoding="utf-8") as file:
        gpus: list[Gpu] = json.load(file)
    options = options_of(rest)
    gpus = [gpu for gpu in gpus if options.get("id", str(gpu["index"])) == str(gpu["index"])]
    if fields := options.get("query-gpu"):
        print(*rows(gpus, fields.split(","), options.get("format", "")), sep="\n")
    elif "query-compute-apps" in options:
        print(
            *header(options["query-compute-apps"].split(","), options.get("format", "")), sep="\n"
        )
    elif "list-gpus" in options:
        print(
            *(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})" for gpu in gpus), sep="\n"
        )
    elif set(options) <= {"id"}:
        print(*page(gpus), sep="\n")
    else:
        print(
            f"tally: nvidia-smi {' '.join(rest)} is not supported on the simulated GPU, which "
            "answers --query-gpu=FIELDS --format=csv, -L, and without options.",
            file=sys.stderr,
        )
        return UNKNOWN_EXIT
    return 0


SHORT = {"-L": "list-gpus", "-i": "id"}
WITH_VALUE = ("id", "query-gpu", "query-compute-apps", "format")


def options_of(arguments: list[str]) -> dict[str, str]:
    """Options by their long names; "" for one without a value."""
    options: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, _, value = argument.partition("=")
        name = SHORT.get(name, name.removeprefix("--"))
        options[name] = value or (next(rest, "") if name in WITH_VALUE else "")
    return options


def header(fields: list[str], layout: str) -> list[str]:
    if "noheader" in layout:
        return []
    units = [f"{field} [{MEBIBYTES}]" if is_memory(field) else field for field in names(fields)]
    return [", ".join(units)]


def rows(gpus: list[Gpu], fields: list[str], layout: str) -> list[str]:
    """Rows as `--format=csv[,noheader][,nounits]` prints them."""
    unit = "" if "nounits" in layout else f" {MEBIBYTES}"
    lines = header(fields, layout)
    for gpu in gpus:
        cells = [
            f"{gpu[field]}{unit}" if is_memory(field) else str(gpu.get(field, NOT_AVAILABLE))
            for field in names(fields)
        ]
        lines.append(", ".join(cells))
    return lines


def names(fields: list[str]) -> list[str]:
    aliases = {"gpu_name": "name", "gpu_uuid": "uuid"}
    return [aliases.get(field.strip(), field.strip()) for field in fields]


def is_memory(field: str) -> bool:
    return field in ("memory.total", "memory.used", "memory.free")


def page(gpus: list[Gpu]) -> list[str]:
    """The table that `nvidia-smi` prints without options, as far as there is an answer."""
    bar = "+" + "-" * 77 + "+"
    lines = [bar, f"| {'NVIDIA-SMI of a GPU simulated by tally':<75} |", bar]
    for gpu in gpus:
        memory = f"{gpu['memory.used']}{MEBIBYTES} / {gpu['memory.total']}{MEBIBYTES}"
        lines += [f"| {gpu['index']:>3}  {gpu['name']:<40} {memory:>29} |", bar]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
