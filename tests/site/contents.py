"""What the site holds, in the order in which it is read."""

from collections.abc import Iterator
from pathlib import Path

from tests.documents import REPOSITORY

CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("README.md", "docs/how_to.md"),
    "The lecture": ("docs/lecture/README.md", "docs/lecture/*.md"),
    "A run": (
        "docs/report.md", "docs/view.md", "docs/memory.md", "docs/time.md", "docs/compile.md",
        "docs/kernels.md", "docs/generation.md", "docs/clusters.md", "docs/files.md",
        "docs/exports.md", "docs/notebooks.md", "docs/summary.md", "docs/gates.md",
    ),
    "A plan": (
        "docs/plan.md", "docs/questions.md", "docs/architectures.md", "docs/inference.md",
        "docs/trainings.md",
    ),
    "Tensors": ("docs/number_formats.md", "docs/tensors.md"),
    "Real hardware": ("docs/explain.md", "docs/real_traces.md", "docs/kernels_by_chip.md",
                      "docs/monitoring.md"),
    "Training": (
        "docs/training.md", "docs/checkpoints.md", "docs/many_gpus.md", "docs/sweep.md",
    ),
    "How it works, and its limits": (
        "docs/how_it_works.md", "docs/glossary.md", "docs/accuracy.md", "docs/limits.md",
        "docs/published.md", "docs/corpus.md",
        "docs/operators.md", "docs/peers.md", "benchmarks/README.md",
    ),
    "Reference": (
        "docs/library.md", "docs/reference/python.md", "docs/reference/commands/*.md",
        "docs/schemas.md", "docs/reference/documents/*.md",
    ),
    "The project": ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
}  # fmt: skip
"""Sections with their pages; a pattern stands for matches that no other entry names."""


def pages(root: Path = REPOSITORY) -> Iterator[tuple[str, list[str]]]:
    """Each section that has pages, with their paths below the root."""
    named = {entry for entries in CONTENTS.values() for entry in entries if "*" not in entry}
    for section, entries in CONTENTS.items():
        paths = [
            path
            for entry in entries
            for path in sorted(str(match.relative_to(root)) for match in root.glob(entry))
            if entry == path or path not in named
        ]
        if paths:
            yield section, paths
