"""`tally export`: a run in the formats of other tools, a trained model as others load it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.destination import check_output, place_of
from torchtally.cli.ledgers import TimedOptions, timed_ledger
from torchtally.cli.output import emit, write_bytes
from torchtally.cli.streams import say
from torchtally.options import Form, each, one_of, output, own
from torchtally.report.exports import export_names

if TYPE_CHECKING:
    from torchtally.report.exports import Exported

SUMMARY = "write a run for memory_viz, Perfetto, speedscope, ..., or a trained model"
MODELS = {
    "hf": "a model that `tally train` trained, as a folder of transformers",
    "gguf": "the same as one file of llama.cpp",
}

EXAMPLES = """\
examples:
  tally export run.tally --to memory-snapshot           writes run.snapshot.pickle
  tally export run.tally --to perfetto -o step.json.gz --gpu A100-SXM
  tally export run.tally --to speedscope --step 2
  tally export run.tally --to flamegraph --of memory -o peak.svg
  tally export run.tally --to folded -o - | flamegraph.pl > flops.svg
  tally export run.tally --to parquet -o calls.parquet
  tally export run.tally --to badge -o badge.svg        for a README
  tally export runs/byte_gpt --to hf -o models/byte_gpt
  tally export runs/byte_gpt --to hf -o models/early --step 500 --dtype bfloat16
  tally export runs/byte_gpt --to hf -o models/small --weights int8
  tally export runs/byte_gpt --to gguf -o models/byte_gpt.gguf --weights int8

Of a run, totals are of one step, as in `tally show`; a memory snapshot covers the whole run unless
--step names a part of it. A model's folder gets config.json, model.safetensors, and the tokenizer
of the data as tokenizer.json, which transformers loads; GGUF has all of it in one file.
"""
OF_A_RUN = ("gpu", "of")
OF_A_MODEL = ("dtype", "weights")


def epilog() -> str:
    """Every format with its line of help, and the examples."""
    from torchtally.report.exports import exporter

    lines = {name: exporter(name).SUMMARY for name in export_names()}
    lines |= MODELS
    width = max(map(len, lines))
    text = "".join(f"  {name:{width}}  {line}\n" for name, line in lines.items())
    return f"formats:\n{text}\n{EXAMPLES}"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(TimedOptions):
    """Write what a run did as files that other tools open, or a trained model."""

    file: str = own(
        "RUN", "a trace (tally run -o FILE); for hf and gguf the folder of a training", Form("RUN")
    )
    to: str = own(
        "--to",
        "the format, one of those below",
        Form("FORMAT", one_of(lambda: (*export_names(), *MODELS))),
        is_required=True,
    )
    output: str | None = output(
        "where it goes (default: beside RUN; - for stdout, where it is text); .gz at its end "
        "compresses",
        makes_folder=True,
    )
    replace: bool = False
    of: str | None = own(
        "--of",
        "for flamegraph and folded: time (default), flops, bytes (moved), saved (for the backward "
        "pass), memory (at the peak)",
        Form("QUANTITY"),
    )
    dtype: str | None = own(
        "--dtype",
        "hf, gguf: dtype of the weights; default: as trained",
        choices=each("float32", "bfloat16", "float16"),
    )
    weights: str | None = own(
        "--weights",
        "quantised weights; hf: by torchao, in the format of compressed-tensors; gguf: Q8_0 and "
        "Q4_0",
        choices=each("int8", "fp8", "int4"),
    )


EPILOG = epilog


def command(options: ExportOptions) -> int:
    """Write the files, and say where."""
    check(options)
    return export_model(options) if options.to in MODELS else export_run(options)


def check(options: ExportOptions) -> None:
    """Raises UsageError for options of a run with a model, and the other way round."""
    from torchtally.errors import UsageError
    from torchtally.report.exports import exporter

    is_model = options.to in MODELS
    for name in OF_A_RUN if is_model else OF_A_MODEL:
        if getattr(options, name):
            raise UsageError(
                f"--{name} applies to {'runs' if is_model else 'models'}: leave it out with --to "
                f"{options.to}."
            )
    if options.of and not getattr(exporter(options.to), "IS_OF_A_QUANTITY", False):
        raise UsageError(f"--to {options.to} exports every quantity: leave out --of.")
    if is_model and options.output is None:
        raise UsageError(f"--to {options.to}: missing folder. Name it: -o models/mine.")
    if is_model and not isinstance(options.step, int | None):
        raise UsageError(f"--to {options.to} exports one checkpoint: give --step a number.")


def export_run(options: ExportOptions) -> int:
    """The files of a format, each whole or not at all."""
    import os

    from torchtally.errors import UsageError
    from torchtally.report.exports import Wanted, export, exporter

    place = options.output or options.file.removesuffix(".tally") + exporter(options.to).SUFFIX
    if place != "-" and os.path.exists(place) and os.path.samefile(place, options.file):
        raise UsageError(f"{place}: is the run itself. Choose another file with -o FILE.")
    place_of(place, "-o")
    ledger = timed_ledger(options)
    exported = export(ledger, options.to, Wanted(options.of or "", options.step is not None))
    for part in exported.parts:
        check_output(place + part if place != "-" else place, "-o", replaces=options.replace)
    write_parts(exported, options.to, place)
    for remark in exported.remarks:
        say(f"tally: note: {remark}")
    return 0


def write_parts(exported: "Exported", format: str, place: str) -> None:
    """Writes to files beside each other, whose names are printed, or one text to stdout for "-"."""
    from torchtally.errors import UsageError

    if place == "-":
        content = exported.parts.get("")
        if not isinstance(content, str):
            raise UsageError(f"--to {format} is binary, not text for stdout. Name a file: -o FILE.")
        emit(content)
        return
    for part, content in exported.parts.items():
        write_bytes(compress(content, place), place + part)
        emit(f"{place}{part}\n")


def compress(content: str | bytes, place: str) -> bytes:
    """Bytes as they stand in a file of this name; the same bytes for the same content."""
    import gzip

    plain = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return gzip.compress(plain, 6, mtime=0) if place.endswith(".gz") else plain


def export_model(options: ExportOptions) -> int:
    """Write the model, and say what is in it."""
    from pathlib import Path

    from torchtally.errors import UsageError
    from torchtally.train.models.huggingface_config import CONFIG
    from torchtally.train.trained import export, load_trained
    from torchtally.units import format_count

    place, step = options.output, options.step
    assert place is not None
    assert isinstance(step, int | None)
    written = Path(place, CONFIG) if options.to == "hf" else Path(place)
    if written.exists() and not options.replace:
        raise UsageError(f"{place}: already has a model. Add --replace to overwrite it.")
    trained = load_trained(options.file, step)
    parts, has_tokenizer = export(
        trained, place, dtype=options.dtype, weights=options.weights, is_gguf=options.to == "gguf"
    )
    parameters = format_count(sum(value.numel() for value in trained.model.parameters()))
    kind = str(trained.model.embedding.weight.dtype).removeprefix("torch.")
    which = "matrices of layers" if options.to == "hf" else "matrices"
    kind += f", {which} in {options.weights}" if options.weights else ""
    emit(f"{trained.source}: {parameters} parameters in {kind}\n{place}: {', '.join(parts)}\n")
    if not has_tokenizer:
        why = (
            "that of the data is unknown"
            if trained.tokenizer_json is None
            else ("GGUF takes byte-level ones that split text as GPT-2's does")
        )
        emit(f"without a tokenizer: {why}\n")
    return 0
