"""Sweeps, files of tokens, continuations."""

from typing import Annotated, Any

from msgspec import field

from torchtally.report.keys import Bytes, Count, Document, DocumentPart, Loss, Number, Seconds, key


class SweepRunPart(DocumentPart, frozen=True):
    name: str
    status: Annotated[str, key("How a run ended")]
    has_risen: Annotated[
        bool | None,
        key(
            "Whether the loss ended higher than it began, "
            "on validation data where there are two evaluations"
        ),
    ]
    steps: Count
    first_loss: Annotated[Loss | None, key("The first loss of training")]
    final_loss: Annotated[Loss | None, key("The last loss of training")]
    best_loss: Annotated[Loss | None, key("The least loss of training")]
    validation_loss: Annotated[Loss | None, key("The last loss of validation")]
    best_validation_loss: Annotated[Loss | None, key("The least loss of validation")]
    wall_s: Seconds | None
    exit_code: Annotated[Count | None, key("Of a process")]
    message: str
    values: Annotated[dict[str, Any], key("That were converted; of a sweep's run, varying keys")]


class SweepDocument(Document, tag="sweep/1", frozen=True):
    """Runs of a sweep: `tally sweep`."""

    config: Annotated[str, key("File of a training's config")]
    varying: Annotated[list[str], key("Keys of the config that a sweep varies")]
    ranked_by: Annotated[str, key("What the runs of a sweep are ordered by")]
    runs: list[SweepRunPart]


class TokenFilePart(DocumentPart, frozen=True):
    file: str
    format: Annotated[str, key("Of a file; of numbers, its name")]
    dtype: Annotated[str, key("As torch spells it")]
    tokens: Annotated[Count, key("Tokens")]
    token_bytes: Annotated[Bytes, key("Of all tokens of a file")]
    offset_bytes: Annotated[Bytes, key("Where in a file the tokens begin")]
    documents: Annotated[Count | None, key("Documents of a file of tokens")]
    tokens_looked_at: Annotated[Count, key("Tokens that were examined")]
    least_token: Annotated[Number | None, key("The smallest token id")]
    greatest_token: Annotated[Number | None, key("The largest token id")]


class TokensDocument(Document, tag="tokens/1", frozen=True):
    """Files of tokens: `tally data show`."""

    files: Annotated[list[TokenFilePart], key("Of tokens")]


class ContinuationDocument(Document, tag="continuation/1", frozen=True):
    """Prompt with its continuation: `tally sample`."""

    source: str
    step: Annotated[Count | None, key("Of a training, counted from 1")]
    seed: Annotated[Count, key("Of the random numbers")]
    prompt_tokens: Annotated[Count, key("Tokens of the prompt")]
    tokens: Annotated[list[int], key("Of prompt and continuation")] = field(name="token_ids")
    text: str
