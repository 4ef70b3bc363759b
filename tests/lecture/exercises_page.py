"""Parts of the pages about exercises, made from the exercises themselves."""

from itertools import groupby

from tests.lecture.charts import number
from torchtally.integrations.lecture import EXERCISES, Exercise


def page_of(exercise: Exercise) -> int:
    return exercise.page


def questions_list() -> str:
    """All questions, by page."""
    return "\n\n".join(
        f"**Page {page}**\n\n"
        + "\n".join(f"- **{each.number}** {each.question} *({each.unit})*" for each in exercises)
        for page, exercises in groupby(EXERCISES.values(), page_of)
    )


def answers_table() -> str:
    """All answers, with how they come about; those about a script are its own."""
    rows = [
        f"| {each.number} | {answer_text(each)} | {each.working} |" for each in EXERCISES.values()
    ]
    return "\n".join(("| exercise | answer | how |", "|---|---|---|", *rows))


def answer_text(exercise: Exercise) -> str:
    if callable(exercise.answer):
        return f"your script's, in {exercise.unit}"
    is_short = exercise.answer < 1e6
    return f"{number(exercise.answer) if is_short else f'{exercise.answer:.4g}'} {exercise.unit}"
