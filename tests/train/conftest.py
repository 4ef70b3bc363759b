"""Every annotation of `torchtally.train` is checked in these tests: shapes by jaxtyping, types by
beartype. Outside of them annotations are documentation and cost nothing.
"""

from jaxtyping import install_import_hook

install_import_hook("torchtally.train", "beartype.beartype")
