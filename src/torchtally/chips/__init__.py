"""Chips: what each one promises, and where each number comes from.

The table is `chips.toml`. Two rules hold everywhere. A peak is dense: a
rate with sparsity is recorded beside it and never used. And an unknown chip, or a number that no
source gives, is an error: no chip stands in for another. The name of a family means its commonest
variant, and the command line says which.

    chip("H100-SXM").peak_flop_per_s("bfloat16")    989.4e12
    chip("H100")                                    a family's commonest variant: H100-SXM
    chip(torch.cuda.get_device_name())              by what the driver calls it
    cluster("1024xH100-SXM").nodes                  128

Chips of the user's own stand in a file of the same form, which the environment variable TALLY_CHIPS
names. One with the name of ours takes its place. `OWN_CHIP` is all that a chip needs.
"""

from torchtally.chips.chip import SAME_RATE, Chip, Link, Offer, Peak, Price
from torchtally.chips.clusters import Cluster, cluster
from torchtally.chips.families import DEFAULT
from torchtally.chips.lookup import (
    OWN_CHIP,
    USERS_TABLE,
    chip,
    family_variant,
    find_chip,
    known_chips,
)
from torchtally.chips.table import TABLE, load_chips
