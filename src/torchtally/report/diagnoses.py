"""Diagnoses in sentences."""

from collections.abc import Iterator, Sequence

from torchtally.diagnosis import Diagnosis
from torchtally.report.prose import in_words
from torchtally.views.lines import short_path


def diagnosis_sentences(diagnoses: Sequence[Diagnosis], root: str) -> Iterator[str]:
    """One for each: the cause, its line from `root`, and what to change."""
    for diagnosis in diagnoses:
        line = diagnosis.line
        place = "" if line is None else f"{short_path(line.file, root)}:{line.line}: "
        yield f"{place}{in_words(diagnosis.cause)} {diagnosis.remedy}"
