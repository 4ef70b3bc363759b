"""The napkin as a page: closed forms as data, recomputed in the browser for other numbers.

A formula is sent as its syntax tree and as its text: the tree is evaluated, the text is shown.
"""

import ast
import json
from collections.abc import Mapping
from functools import lru_cache
from math import isnan
from typing import Any

from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.napkin import FormulaByChoice, Input, Napkin
from torchtally.report.browser.page import App, shell

NAPKIN = App(
    ("app/format.js", "app/dom.js", "napkin/formulas.js", "napkin/amounts.js", "napkin/main.js"),
    has_charts=False,
)
TITLE = "Napkin math"
SENTENCES = (
    "What does training cost in time, memory and money? Change any number, and everything that "
    "follows from it is recomputed.",
)


def napkin_page(napkin: Napkin) -> str:
    """One file without a request: a browser opens it anywhere."""
    data = json.dumps(napkin_document(napkin), separators=(",", ":"), allow_nan=False)
    return shell(TITLE, SENTENCES, data, NAPKIN)


def napkin_document(napkin: Napkin) -> dict[str, Any]:
    """Inputs, choices, cards, and the formulas as a table of nodes."""
    nodes = Nodes(napkin)
    cards = [
        {
            "title": card.title,
            "figures": [nodes.number(figure) for figure in card.figures],
            "note": card.note,
        }
        for card in napkin.cards
    ]
    return {
        "inputs": [input_document(row) for row in napkin.inputs],
        "choices": [
            {
                "word": choice.word,
                "title": choice.title,
                "chosen": choice.chosen,
                "options": {
                    name: {word: number_or_none(value) for word, value in values.items()}
                    for name, values in choice.options.items()
                },
            }
            for choice in napkin.choices
        ],
        "cards": cards,
        "nodes": nodes.rows,
    }


def input_document(row: Input) -> dict[str, Any]:
    quantity = row.quantity
    return {
        "word": row.word,
        "name": quantity.name,
        "unit": str(quantity.unit),
        "value": quantity.value if row.is_known else None,
        "least": row.least,
        "most": row.most,
        "is_logarithmic": row.is_logarithmic,
        "group": row.group,
    }


def number_or_none(value: float) -> float | None:
    return None if isnan(value) else value


class Nodes:
    """Quantities by number, each once, terms before what is made of them."""

    def __init__(self, napkin: Napkin) -> None:
        self.rows: list[dict[str, Any]] = []
        self._numbers: dict[str, int] = {}
        self._by_id: dict[int, int] = {}
        self._napkin = napkin
        self._variants: Mapping[int, FormulaByChoice] = {
            id(each.of): each for each in napkin.variants
        }

    def number(self, quantity: Quantity) -> int:
        known_number = self._by_id.get(id(quantity))
        if known_number is None:
            known_number = self._by_id[id(quantity)] = self._keep(self._row(quantity))
        return known_number

    def _keep(self, row: dict[str, Any]) -> int:
        key = json.dumps(row, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]

    def _row(self, quantity: Quantity) -> dict[str, Any]:
        variant = self._variants.get(id(quantity))
        if variant is not None:
            otherwise = self._plain(quantity) if variant.is_known_otherwise else None
            return {
                "name": quantity.name,
                "unit": str(quantity.unit),
                "note": quantity.note,
                "choice": variant.choice,
                "by_option": {
                    option: self.number(each) for option, each in variant.by_option.items()
                },
                "otherwise": None if otherwise is None else self._keep(otherwise),
            }
        return self._plain(quantity)

    def _plain(self, quantity: Quantity) -> dict[str, Any]:
        row: dict[str, Any] = {"name": quantity.name, "unit": str(quantity.unit)}
        row |= {
            key: text
            for key, text in (("source", quantity.source), ("note", quantity.note))
            if text
        }
        if quantity.is_given:
            word = self._napkin.input_of(quantity)
            return {**row, "value": quantity.value} if word is None else {**row, "input": word}
        return {
            **row,
            "formula": quantity.formula,
            "tree": tree_of(quantity.formula),
            "terms": {word: self.number(term) for word, term in quantity.terms},
            "is_whole": quantity.unit.is_whole,
        }


OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=",
}  # fmt: skip


@lru_cache(maxsize=1024)
def tree_of(formula: str) -> Any:
    """A formula's syntax tree: a number, a word, or an operator before its operands."""
    return _tree(ast.parse(formula, mode="eval").body)


def _tree(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=word):
            return word
        case ast.BinOp(left=left, op=op, right=right):
            return [OPERATORS[type(op)], _tree(left), _tree(right)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ["neg", _tree(operand)]
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return [OPERATORS[type(op)], _tree(left), _tree(right)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ["if", _tree(test), _tree(body), _tree(orelse)]
        case ast.Call(func=ast.Name(id=function), args=args):
            return [function, *map(_tree, args)]
    raise AssertionError(f"a formula uses what pages cannot compute: {ast.unparse(node)}")
