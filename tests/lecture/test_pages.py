"""Every item of the lecture is on a page, and every page has what a page of it has."""

import re
from pathlib import Path

import pytest

from tests.documents import stale_pictures
from tests.lecture.charts import caption_of, round_numbers
from tests.lecture.figures import (
    PRODUCT_ROW,
    missing_phrases,
    unheld_figures,
    unprinted_predictions,
)
from tests.lecture.notebooks import FOLDER, PAGES

ITEM = re.compile(
    r"^\| (?P<number>\d+) \| .+ \| \[\d+\]\((?P<page>\S+)#item-(?P=number)\) \| (?P<words>.+) \|$",
    re.M,
)
PARTS = {
    "a picture": r"^!\[.+\]\(pictures/\w+\.svg\)$",
    "code": r"^```(python|console)$",
    "a slip of the source": r"^\*\*Slips? of the source\.\*\*",
    "an exercise, folded": (
        r'^<details markdown="1">\n<summary>Exercise: .+</summary>\n\n(?s:.)+?\n</details>$'
    ),
}


def missing_items(index: str) -> list[str]:
    """What the table says is on a page, and is not."""
    return [
        f"{item['number']}: {item['words']!r} does not follow its anchor on {item['page']}"
        for item in ITEM.finditer(index)
        for page in [(FOLDER / item["page"]).read_text(encoding="utf-8")]
        if item["words"] not in page.partition(f'<a id="item-{item["number"]}"></a>')[2]
    ]


def missing_parts(page: str) -> list[str]:
    return [name for name, pattern in PARTS.items() if not re.search(pattern, page, re.M)]


def test_each_of_the_39_items_is_on_a_page() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [int(item["number"]) for item in ITEM.finditer(index)] == list(range(1, 40))
    assert missing_items(index) == []
    assert re.findall(r"^\d+\. \[.+\]\((.+)\)$", index, re.M) == [page.name for page in PAGES]


def test_an_item_that_is_not_on_its_page_is_found() -> None:
    row = "| {0} | training time | [1](01_napkin_math.md#item-{0}) | {1} |\n"
    assert missing_items(row.format(1, "143.93 days")) == []
    assert missing_items(row.format(1, "146.93 days")) != []
    assert missing_items(row.format(3, "143.93 days")) != []  # no such anchor there


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_all_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_parts(text) == []
    assert text.startswith(f"# {int(page.name[:2])}. ")
    for picture in re.findall(r"\(pictures/(\w+\.svg)\)", text):
        assert (FOLDER / "pictures" / picture).stat().st_size < 100_000


@pytest.mark.parametrize("part", PARTS)
def test_a_page_without_a_part_is_found(part: str) -> None:
    page = PAGES[0].read_text(encoding="utf-8")
    assert missing_parts(re.sub(PARTS[part], "", page, flags=re.M)) == [part]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_figure_of_a_page_is_printed_computed_or_given(page: Path) -> None:
    number, text = int(page.name[:2]), page.read_text(encoding="utf-8")
    assert missing_phrases(number, text) == []
    assert unheld_figures(number, text) == []


def test_a_figure_that_nothing_holds_is_found() -> None:
    page = PAGES[13].read_text(encoding="utf-8")
    assert unheld_figures(14, f"{page}\nIt takes 168 s.\n") == ["168"]
    assert missing_phrases(14, page.replace("16,384", "16,000")) != []


def test_the_list_of_numbers_says_what_its_commands_print() -> None:
    numbers = (FOLDER / "numbers.md").read_text(encoding="utf-8")
    assert len(PRODUCT_ROW.findall(numbers)) == 7
    assert unprinted_predictions(numbers) == []
    stale = numbers.replace("| 51.4e12 |", "| 52.1e12 |").replace("11.21 ms", "11.25 ms")
    assert unprinted_predictions(stale) == ["52.1e12", "predicted are 11.21 ms for one"]


def test_a_caption_that_says_something_else_is_found(tmp_path: Path) -> None:
    picture = FOLDER / "pictures" / "optimizer_state.svg"
    caption = caption_of(picture.read_text(encoding="utf-8"))
    assert "adamw 8 bytes a parameter" in caption
    says = f"![{caption}](pictures/{picture.name})\n"
    assert stale_pictures(says, tmp_path) == ""
    assert stale_pictures(says.replace("adamw 8", "adamw 12"), tmp_path) != ""


def test_ticks_are_round() -> None:
    assert round_numbers(20, 80) == [20, 30, 40, 50, 60, 70, 80]
    assert round_numbers(0, 139, past_end=True)[-1] == 140
    assert round_numbers(512, 16384, step=4096) == [4096, 8192, 12288, 16384]
    assert round_numbers(1, 10) == [2, 4, 6, 8, 10]
