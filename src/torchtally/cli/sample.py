"""`tally sample`: text from a trained model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.output import emit
from torchtally.options import COUNT, Form, OptionRecord, each, own, positive_count

if TYPE_CHECKING:
    from torchtally.train.trained import Trained

SUMMARY = "continue a text with a trained model"

EPILOG = """\
examples:
  tally sample runs/byte_gpt --prompt "def "
  tally sample runs/byte_gpt --prompt "def " --tokens 500 --temperature 0
  tally sample models/byte_gpt --prompt "import os" --json
  tally sample runs/byte_gpt --weights int4             with weights quantised to 4 bits
  tally sample runs/byte_gpt --weights all              what each costs, instead of a text

RUN is the folder of a run, or a model of transformers (`tally export`). The same
seed gives the same text on the same machine.
"""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(OptionRecord):
    """Print a prompt and its continuation by a model that was trained."""

    run: str = own("RUN", "the folder of a run, or of a model", Form("RUN"))
    prompt: str = own("--prompt", "default: a newline", Form("TEXT"), default="\n")
    tokens: int = own("--tokens", "default 200", COUNT, default=200)
    temperature: float = own(
        "--temperature", "0 takes the most likely token; default 0.8", Form("T", float), default=0.8
    )
    top_k: int | None = own(
        "--top-k", "sample from the K most likely tokens only", Form("K", positive_count)
    )
    seed: int = own("--seed", "default 1", Form("N", int), default=1)
    step: int | None = own("--step", "the checkpoint to use; default: the newest", COUNT)
    weights: str | None = own(
        "--weights",
        "weights quantised by torchao; all: bytes, speed and loss of each, beside the original",
        choices=each("int8", "fp8", "int4", "all"),
    )
    json: bool = own("--json", "print a JSON document")


def command(options: SampleOptions) -> int:
    """Print the text."""
    from torchtally.report.documents.training import ContinuationDocument
    from torchtally.report.keys import dumps, filled
    from torchtally.train.models.quantised import quantise
    from torchtally.train.trained import continue_text, load_trained

    trained = load_trained(options.run, options.step)
    if options.weights == "all":
        return compare(trained, options)
    if options.weights is not None:
        quantise(trained.model, options.weights)
    continuation = continue_text(
        trained,
        options.prompt,
        tokens=options.tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
    )
    if options.json:
        emit(dumps(filled(ContinuationDocument, continuation)))
    else:
        emit(continuation.text + "\n")
    return 0


def compare(trained: "Trained", options: SampleOptions) -> int:
    """Print the table of weights, or its document."""
    import sys

    from torchtally.cli.output import look
    from torchtally.report.formats import render
    from torchtally.report.report import table_report
    from torchtally.train.comparing import compare_weights

    report = table_report(compare_weights(trained, tokens=options.tokens).table())
    drawn = look(sys.stdout)
    emit(render(report, "json" if options.json else "text", drawn), is_coloured=drawn.is_coloured)
    return 0
