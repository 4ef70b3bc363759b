"""Programs of known models, recorded for the package.

    python -m tests.programs.ship --write [--only WORD] [MODEL_TYPE ...]

Each known model is recorded in the modes that people train in; models of one class whose sizes are
of one regime share a program. MODEL_TYPE megatron is Megatron-Core's GPT, where the library is
installed. What cannot be recorded is listed with its reason. A file is written anew where the
releases are others; else what it lacks is added.
"""

import argparse
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import product

from msgspec.structs import replace

from torchtally.chips import Cluster, chip
from torchtally.cli import parsed, plan
from torchtally.cli.plan_megatron import STACK
from torchtally.cli.plan_trace import layout_of, mode_of, mode_words, world_of
from torchtally.errors import TallyError
from torchtally.models.config_symbols import symbols_of
from torchtally.models.gpt_symbols import gpt_symbols
from torchtally.models.planned import ConfiguredClass, configured_class
from torchtally.models.recorded import TrainingMode, recorded_training
from torchtally.models.spread import Spread
from torchtally.plan.architecture.known import KnownModel, known_model, known_models
from torchtally.plan.questions.request import USUAL_SEQUENCE
from torchtally.programs import RunProgram
from torchtally.programs.file import save_programs
from torchtally.programs.packed import pack
from torchtally.programs.shipped import (
    ProgramKey,
    ShippedModel,
    ShippedPrograms,
    key_of,
    shipped_file,
    shipped_programs,
)
from torchtally.programs.sizes import RANKS
from torchtally.programs.step import BATCH, SEQUENCE, AskedStep, StepModel
from torchtally.trace import Trace

GPU = "H100-SXM"
GPUS = (GPU, "A100-SXM")
"""Of those that choose kernels alike: Hopper and Blackwell of data centers, Ampere and Ada."""
MODES = tuple(
    ("--recipe", recipe, "--recompute", recompute)
    for recipe, recompute in product(("bf16", "amp", "mixed"), ("none", "full"))
)
SHARDED_MODES = tuple(
    ("--recipe", recipe, "--recompute", recompute, "--gpus", f"8x{GPU}", "--layout", "dp 8/z3")
    for recipe, recompute in (("bf16", "none"), ("mixed", "none"), ("mixed", "full"))
)
"""By FSDP2: of any number of ranks."""
BATCHES = (2, 1)
RELEASES = ", ".join(
    f"{name} {version(name).partition('+')[0]}" for name in ("torch", "transformers")
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files of these model types, else of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("--only", metavar="WORD", help="modes with this word alone: fsdp2")
    parser.add_argument("types", nargs="*")
    asked = parser.parse_args(arguments)
    for model_type in dict.fromkeys(asked.types or map(type_of, configured_rows())):
        if model_type == STACK:
            ship_megatron()
        else:
            ship(model_type, asked.only or "")


def ship(model_type: str, word: str) -> None:
    """Write the programs of one model type, in modes with this word."""
    before = shipped_programs(model_type)
    shelf: dict[ProgramKey, RunProgram] = {}
    models: dict[str, ShippedModel] = {}
    refused: set[ProgramKey] = set()
    if before is not None and before.releases == RELEASES:
        shelf = {key: before.packed.program(n) for n, key in enumerate(before.keys)}
        models |= before.models
    for row in configured_rows():
        if type_of(row) == model_type:
            models |= record_row(row, shelf, refused, word)
    if models:
        packed = pack(shelf.values())
        path = shipped_file(model_type)
        path.parent.mkdir(exist_ok=True)
        save_programs(ShippedPrograms(RELEASES, models, tuple(shelf), packed), path)
        print(f"{path.name}: {len(shelf)} programs, {path.stat().st_size} bytes", flush=True)


MEGATRON_MODELS = ("Llama 3 8B",)
"""One of each kind that is shipped: with a head of its own and grouped queries."""
RANKS_OF_TENSORS = (1, 2)
"""One, and several heads of keys on each of several: one head on each has other operators."""


def ship_megatron() -> None:
    """Write the programs of Megatron-Core's GPT, those of one regime once."""
    from torchtally.models.megatron import MegatronMode, recorded_gpt, releases

    shelf: dict[ProgramKey, RunProgram] = {}
    for name, ranks, batch in product(MEGATRON_MODELS, RANKS_OF_TENSORS, BATCHES):
        symbols = gpt_symbols(known_model(name), ranks)
        sizes = symbols.step_sizes(batch, USUAL_SEQUENCE, ranks)
        key = key_of(symbols.variant, STACK, chip(GPU), sizes)
        if key in shelf:
            continue
        of_step = {symbol: size for symbol, size in sizes.items() if symbol not in symbols.sizes}
        try:
            program = recorded_gpt(
                symbols, of_step, MegatronMode(batch=batch, ranks=ranks), chip(GPU)
            )
        except TallyError as error:
            print(f"{name}, tp {ranks}, batch {batch}: {str(error).splitlines()[0]}", flush=True)
            continue
        shelf[key] = replace(program, trace=replace(in_libraries(program.trace), facts={}))
    path = shipped_file(STACK)
    save_programs(ShippedPrograms(releases(), {}, tuple(shelf), pack(shelf.values())), path)
    print(f"{path.name}: {len(shelf)} programs, {path.stat().st_size} bytes", flush=True)


def record_row(
    row: KnownModel, shelf: dict[ProgramKey, RunProgram], refused: set[ProgramKey], word: str
) -> dict[str, ShippedModel]:
    """Record what a known model lacks. Returns it by its name; nothing where it has no program.

    What was refused of another model is not tried again.
    """
    try:
        configured = configured_class(row.config or {}, row.name)
        symbols = symbols_of(configured.config)
    except TallyError as error:
        print(f"{row.name}: {error}", flush=True)
        return {}
    model = StepModel(configured.name, dict(symbols.sizes), symbols.layers)
    has_program = False
    for gpu, words, batch in product(GPUS, (*MODES, *SHARDED_MODES), BATCHES):
        asked = asked_of(words, batch, gpu)
        key = key_of(symbols.variant, asked.mode, asked.chip, asked.sizes(model.sizes))
        if key in refused or word not in f"{gpu} {asked.mode}":
            continue
        if key not in shelf:
            try:
                shelf[key] = recorded(configured, asked, words)
            except TallyError as error:
                refused.add(key)
                reason = str(error).splitlines()[0][:200]
                print(f"{row.name}, {gpu}, {asked.mode}, batch {batch}: {reason}", flush=True)
                continue
        has_program = True
    return {row.name: ShippedModel(model, symbols.variant)} if has_program else {}


def asked_of(words: Sequence[str], batch: int, name: str = GPU) -> AskedStep:
    """A step of the usual sequence in the mode of these options."""
    request = plan.asked_of(parsed(["plan", "MODEL", *words]))
    cluster = Cluster(chip(name), 1 if request.layout is None else 8)
    return AskedStep(
        batch=batch, sequence=None, usual_sequence=USUAL_SEQUENCE, chip=cluster.chip,
        command="plan", mode=mode_words(request, cluster), world=world_of(request, cluster),
    )  # fmt: skip


def recorded(configured: ConfiguredClass, asked: AskedStep, words: Sequence[str]) -> RunProgram:
    """A program recorded now, its lines in files as the libraries name them."""
    symbols = symbols_of(configured.config)
    sizes = asked.sizes(symbols.sizes)
    of_batch = {each: sizes[each] for each in (BATCH, SEQUENCE, RANKS) if each in sizes}
    mode = mode_for(words, asked)
    program = recorded_training(configured.build, symbols, of_batch, mode, asked.chip)
    return replace(program, trace=replace(in_libraries(program.trace), facts={}))


def mode_for(words: Sequence[str], asked: AskedStep) -> TrainingMode:
    """How the step of these options is trained."""
    request = plan.asked_of(parsed(["plan", "MODEL", *words]))
    return mode_of(request, Spread(layout_of(request, Cluster(asked.chip, asked.world.size))))


def in_libraries(trace: Trace) -> Trace:
    """The trace with its lines in files as the libraries name them."""
    return replace(
        trace,
        sites=tuple(
            replace(site, frames=tuple(replace(f, file=in_library(f.file)) for f in site.frames))
            for site in trace.sites
        ),
    )


def in_library(file: str) -> str:
    """The part of a path below the folder of installed libraries."""
    return file.rpartition("site-packages/")[2]


def configured_rows() -> Iterator[KnownModel]:
    return (row for row in known_models() if row.config is not None)


def type_of(row: KnownModel) -> str:
    return str((row.config or {})["model_type"])


if __name__ == "__main__":
    main()
