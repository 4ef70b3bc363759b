"""The interactive page of a run, with the text of the cells that ran."""

import linecache
import os

from torchtally.cli.sources import source_texts
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.browser.page import browser_page
from torchtally.timing.targets import known_roofline
from torchtally.trace import Trace
from torchtally.tracer.texts import cell_names
from torchtally.views.model_summary import ModelSummary


def page(value: Ledger | Trace | ModelSummary) -> str:
    """A whole document. A trace is accounted as `tally report` does it.

    Raises UsageError for a run in which nothing ran on the device.
    """
    if isinstance(value, Trace):
        value = account(value, roofline=known_roofline(value.chip))
    ledger = value.ledger if isinstance(value, ModelSummary) else value
    if not ledger.entries:
        raise UsageError("no operator ran on the device: there is no page to show.")
    return browser_page(ledger, {**cell_texts(ledger), **source_texts(ledger)})


def cell_texts(ledger: Ledger) -> dict[str, str]:
    """The text of the notebook's cells that ran in a ledger, by the files of its frames."""
    originals = {name: file for names in cell_names for file, name in names().items()}
    files = {frame.file for site in ledger.trace.sites for frame in site.frames}
    names = {file: os.path.basename(file) for file in files}
    return {
        file: "".join(linecache.getlines(originals.get(name, name)))
        for file, name in names.items()
        if name in originals or name in linecache.cache
    }
