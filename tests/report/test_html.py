"""Pages: no stranger's text becomes markup, nothing is loaded or run, and all numbers are there."""

import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec import structs

from tests import calibrations
from tests.builders import TraceBuilder, frame, mm_call, site
from tests.report.test_plot import roof
from torchtally.chips import chip
from torchtally.ledger import account
from torchtally.report.bench import bench_report
from torchtally.report.formats import render
from torchtally.report.ledger import roofline_report
from torchtally.report.page import POLICY, element, join, page, plot_html, table_html
from torchtally.report.report import Look
from torchtally.table import Column, Table
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.units import Unit
from torchtally.views.bench import bench_view

pytestmark = pytest.mark.one_case_in(3)

CORPUS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</svg><script>alert(1)</script>",
    "</td></tr></table><img src=x onerror=alert(1)>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script href=data:,alert(1) />",
    "<svg><animate onbegin=alert(1) attributeName=x dur=1s>",
    "<svg><use href=data:image/svg+xml,x#y>",
    "<iframe src=javascript:alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<body onload=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<a href='https://example.com'>x</a>",
    "<base href='https://example.com/'>",
    "<form action='https://example.com'><input type=submit>",
    "<meta http-equiv=refresh content='0;url=https://example.com'>",
    "<link rel=stylesheet href=https://example.com/x.css>",
    "<style>*{background:url(https://example.com)}</style>",
    "<details open ontoggle=alert(1)>",
    "<math><mtext></table><mglyph><style><img src=x onerror=alert(1)>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<!--><script>alert(1)</script-->",
    "--><script>alert(1)</script><!--",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<?xml version='1.0'?><x>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" style="position:fixed;inset:0',
    "x` onmouseover=alert(1)",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "\x00<scr\x00ipt>alert(1)</scr\x00ipt>",
    "<\u2028script>alert(1)</script>",
    "\u202e>tpircs/<)1(trela>tpircs<",
    "\x1b]8;;https://example.com\x07x",
    "<script>" * 2000,
    "\udcff<b>",
)
HARMLESS = "harmless"
LOADING = frozenset({"src", "href", "srcset", "action", "data", "srcdoc", "xlink:href", "style",
                     "background", "formaction", "poster"})  # fmt: skip


class Nodes(HTMLParser):
    """Every element of a document, in order, and every attribute."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.others: list[str] = []
        self.texts: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.others.append(data)

    def handle_pi(self, data: str) -> None:
        self.others.append(data)

    def unknown_decl(self, data: str) -> None:
        self.others.append(data)


def loading(nodes: Nodes) -> list[str]:
    """Attributes that lead somewhere else than to a term of the same page."""
    return [
        name
        for name, value in nodes.attributes
        if name in LOADING and not (name == "href" and value.startswith("#term-"))
    ]


def injected(document: str, harmless: str) -> list[str]:
    """What a document has that the same one with harmless names has not, or no page may have."""
    actual, expected = Nodes(document), Nodes(harmless)
    extra = Counter(actual.tags)
    extra.subtract(Counter(expected.tags))
    names = {name for name, _ in expected.attributes} | {"title"}
    return [
        *(f"{count} x {tag}" for tag, count in extra.items() if count),
        *(["order"] if actual.tags != expected.tags else []),
        *(name for name, _ in actual.attributes if name not in names),
        *(name for name, _ in actual.attributes if name.startswith("on")),
        *loading(actual),
        *actual.others,
    ]


def trace(text: str) -> Trace:
    """A step whose every name is the same stranger's text."""
    builder = TraceBuilder()
    where = site(frame(text, 7, text), module=text, module_class=text)
    for n in (512, 2048):
        builder.run(mm_call(n, n, n, "bfloat16"), (0, 0), site=where)
    builder.end_step()
    return structs.replace(builder.build(script=text), torch_version=text)


def step_page(text: str) -> str:
    ledger = account(trace(text), roofline=Roofline(chip("H100-SXM")))
    return render(roofline_report(ledger), "html", Look())


def machine_page(text: str) -> str:
    """The pages of a device, a version and a condition of this name."""
    named = structs.replace(
        calibrations.gpu(device=text), torch_version=text, conditions={text: text}
    )
    return render(bench_report(bench_view(named)), "html", Look())


PAGES = (step_page, machine_page)


@pytest.mark.parametrize("make", PAGES)
@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_no_name_becomes_markup(make, text: str) -> None:  # type: ignore[no-untyped-def]
    assert injected(make(text), make(HARMLESS)) == []


def test_the_corpus_is_not_small() -> None:
    assert len(set(CORPUS)) >= 30


@pytest.mark.parametrize("text", [name for name in CORPUS if "<" in name], ids=repr)
def test_a_page_that_escapes_nothing_is_found(text: str) -> None:
    harmless = step_page(HARMLESS)
    if not re.search(r"<[a-zA-Z/!?]", text):
        pytest.skip("no markup in any browser")
    assert injected(harmless.replace(f"<h1>{HARMLESS}", f"<h1>{text}"), harmless) != []


@pytest.mark.parametrize("text", ['" onmouseover="alert(1)', '" style="position:fixed'])
def test_an_attribute_that_is_not_escaped_is_found(text: str) -> None:
    harmless = step_page(HARMLESS)
    label = 'aria-label="'
    assert label in harmless
    assert injected(harmless.replace(label, f"{label}{text}"), harmless) != []


@pytest.mark.parametrize("make", PAGES)
def test_a_page_loads_and_runs_nothing(make) -> None:  # type: ignore[no-untyped-def]
    document = make(HARMLESS)
    nodes = Nodes(document)
    assert {"script", "iframe", "link", "img", "object", "embed", "base"}.isdisjoint(nodes.tags)
    assert loading(nodes) == []
    assert "://" not in document
    assert "url(" not in document
    assert "@import" not in document
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"
    policies = [value for name, value in nodes.attributes if "default-src" in value]
    assert policies == [POLICY]
    assert document.index("Content-Security-Policy") < document.index("<style>")


def test_every_element_is_closed() -> None:
    stack = []
    for tag in Nodes(step_page(HARMLESS)).tags:
        if tag.startswith("/"):
            assert stack.pop() == tag[1:]
        elif tag != "meta":
            stack.append(tag)
    assert stack == []


def test_the_numbers_are_those_of_the_ledger() -> None:
    text = " ".join(Nodes(step_page(HARMLESS)).texts)
    for said in ("Roofline of H100-SXM", "989.40 TFLOP/s promised", "arithmetic intensity",
                 "FLOPs/byte", "speed (FLOP/s)", "By line of your code", "aten.mm"):  # fmt: skip
        assert said in text, said


def test_a_mark_tells_about_itself_under_the_pointer() -> None:
    titles = re.findall(r"<title>([^<]*)</title>", plot_html(roof()))
    assert (
        "aten.mm; 4 x (2, 2); train.py:7; 100.00 FLOP/s at 10 FLOPs/byte; "
        "75.0 % of the time; bound: compute"
    ) in titles


def test_a_mark_stands_where_its_values_are() -> None:
    """10 is the middle of 0.1 to 1000."""
    drawn = plot_html(roof())
    circle = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    assert circle is not None
    left, right, top, bottom = 66.0, 690.0, 34.0, 378.0
    assert float(circle[1]) == pytest.approx((left + right) / 2, abs=0.01)
    assert float(circle[2]) == pytest.approx(bottom - (bottom - top) / 3, abs=0.01)


def test_a_table_says_what_it_leaves_out() -> None:
    columns = (Column("n", "count", Unit.COUNT), Column("name", "name", Unit.NAME))
    table = Table("T", columns, ((3, "a"), (None, "b")), (3, None), left_out=2, note="So it is.")
    text = " ".join(Nodes(table_html(table)).texts)
    assert text == "T name count a 3 b - total 3 2 more rows. So it is."


def test_light_dark_paper_and_narrow_screens_are_provided_for() -> None:
    document = step_page(HARMLESS)
    for said in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem"):
        assert said in document


def test_an_element_escapes_what_is_no_markup() -> None:
    assert element("p", "a < b", class_='"x"') == '<p class="&quot;x&quot;">a &lt; b</p>'
    assert element("p", element("b", "x"), aria_label="y") == '<p aria-label="y"><b>x</b></p>'
    assert join(["<", element("i", "&")]) == "&lt;<i>&amp;</i>"
    assert element("rect", x=1 / 3) == '<rect x="0.333333"></rect>'


CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.mark.thorough
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: html.parser alone judges")
def test_a_browser_finds_no_injected_node_either(tmp_path: Path) -> None:
    columns = (Column("name", "name", Unit.TEXT), Column("bar", "bar", Unit.BAR))

    def document(texts: tuple[str, ...]) -> str:
        table = Table("".join(texts), columns, tuple((text, text) for text in texts), (None, None))
        return page(texts[0], facts=texts, plots=[roof(title=texts[0])], tables=[table])

    file = tmp_path / "page.html"
    dumps = []
    for texts in (CORPUS, (HARMLESS,) * len(CORPUS)):
        file.write_text(document(texts), encoding="utf-8")
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri(),
             f"--user-data-dir={tmp_path / 'profile'}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        dumps.append(done.stdout)
    assert "<table" in dumps[1]
    assert injected(*dumps) == []
