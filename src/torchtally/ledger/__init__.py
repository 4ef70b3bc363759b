"""The account of a trace: what each operator costs, and the totals of one training step.

Costs are those of the *reported period*: a training step that others are like, as far as there is
one (the first one also allocates optimizer state), or the step or steps that were asked for, or the
whole run. Memory is that
of the whole run, since a peak may come before or after that step. Time is predicted, by a roofline
of the chip that the run was traced for or of any other; without a roofline there are no times.
"""

from torchtally.ledger.accounting import account, narrow
from torchtally.ledger.groups import (
    Key,
    is_copy,
    is_view,
    kernel_of,
    library_line_of,
    line_of,
    module_of,
    once_per_site,
    op_of,
    own_line_of,
    sums,
)
from torchtally.ledger.ledger import GROUPINGS, ConservationError, Ledger
from torchtally.ledger.running import PlaceholderKey, RunningAccount, SoFar
from torchtally.ledger.total import Coverage, Entry, Line, Path, Total, Uncounted, Untimed
