"""The page as one file: a browser opens it anywhere, and it asks nothing of any network.

Its policy allows the scripts and the one style that are in it, by their hashes, and nothing else.
Script and data are compressed: a short one (`start.js`) unpacks them and adds the script to the
page, which the policy allows since its hash is known.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from torchtally.ledger import Ledger
from torchtally.report.browser.document import facts, page_document
from torchtally.report.page import Html, element
from torchtally.report.text import opening_sentences
from torchtally.views.summary import summarise

STYLES = ("uplot.min.css", "style.css")
STARTER = "start.js"
LIBRARY = "uplot.iife.min.js"
SCRIPTS = (
    "app/format.js",
    "app/dom.js",
    "app/data.js",
    "app/table.js",
    "app/overview.js",
    "app/source.js",
    "app/memory.js",
    "app/treemap.js",
    "app/modules.js",
    "app/operators.js",
    "app/roofline.js",
    "app/streams.js",
    "app/notes.js",
    "app/main.js",
)
"""Of the folder `static`, in their order: each uses what those before it define."""


class App(NamedTuple):
    """What makes a page of its data."""

    scripts: tuple[str, ...]
    has_charts: bool
    """With the library that draws them."""


REPORT = App(SCRIPTS, True)
NO_SCRIPTS = "This page needs JavaScript to draw its tables and charts."


def browser_page(ledger: Ledger, sources: Mapping[str, str]) -> str:
    """The interactive report of a run. `sources` are texts of files that ran, by their path."""
    document = page_document(ledger, sources)
    sentences = (*opening_sentences(summarise(ledger), is_titled=True), *facts(ledger))
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return shell(ledger.trace.script, sentences, data)


def compress(text: str) -> str:
    """gzip, base64: letters and digits, whatever names are in it."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")


@cache
def packed_script(app: App) -> str:
    return compress(script_text(app))


@cache
def policy(app: App) -> str:
    """The page's own scripts and style, told by their hashes; no other, and nothing else."""
    scripts = f"{hash_of(_static(STARTER))} {hash_of(script_text(app))}"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {hash_of(style_text())}; "
        "base-uri 'none'; form-action 'none'"
    )


def shell(title: str, sentences: Sequence[str], data: str, app: App = REPORT) -> str:
    """The page around its data; `sentences` are what it says before its script has drawn it."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(app)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="generator", content="torchtally"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} - torchtally"),
        element("style", Html(style_text())),
    )
    body = element(
        "body",
        element("div", *(element("p", sentence) for sentence in sentences), id="page"),
        element("noscript", element("p", NO_SCRIPTS)),
        element("script", Html(compress(data)), id="data", type="application/gzip"),
        element("script", Html(packed_script(app)), id="app", type="application/gzip"),
        element("script", Html(_static(STARTER))),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


@cache
def style_text() -> str:
    return "".join(_static(name) for name in STYLES)


@cache
def script_text(app: App = REPORT) -> str:
    """The library and our own files as one script, whose names are nobody else's."""
    own = "".join(_static(name) for name in app.scripts)
    program = f'(() => {{\n"use strict";\n{own}}})();\n'
    if not app.has_charts:
        return program
    licence = _static("uplot.LICENSE").strip()
    _banner, _, library = _static(LIBRARY).partition("\n")  # an address, and the page has none
    return f"/*! uPlot 1.6.32\n{licence}\n*/\n{library}\n{program}"


def hash_of(text: str) -> str:
    """Hash as a policy has it: 'sha256-...'."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _static(name: str) -> str:
    return (files(__package__) / "static" / name).read_text(encoding="utf-8")
