"""The document of `tally sample --json`."""

from torchtally.report.document import Document, dumps


def continuation_document(values: Document) -> str:
    """A prompt with its continuation: where the model is from, seed, token ids and text."""
    return dumps(
        "continuation",
        {"token_ids" if name == "tokens" else name: value for name, value in values.items()},
    )
