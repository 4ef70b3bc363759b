"""What all tests share.

Every annotation of `torchtally.train` is checked, shapes by jaxtyping and types by beartype, from
whichever test imports it first. Outside of tests annotations are documentation and cost nothing.
"""

from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("torchtally.train", "beartype.beartype")

# A busy machine is no failure: what a test may take is measured in benchmarks.
settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")
