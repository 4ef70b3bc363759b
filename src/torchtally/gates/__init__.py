"""Limits that a run, a model or a plan must keep: `peak < 24GiB`.

limits = parse_limits(["peak < 24GiB", "step < 200ms"])
findings = check(ledger, limits)           # each says whether its limit holds, and why not
"""

from torchtally.gates.check import Finding as Finding
from torchtally.gates.check import Findings as Findings
from torchtally.gates.check import check as check
from torchtally.gates.limits import Limit as Limit
from torchtally.gates.limits import parse_limits as parse_limits

GATE_EXIT = 3
"""Of a command whose limits do not hold, while everything else went well."""
