"""torch's private names, all that this package uses, and what differs between its releases.

`needs.toml` says of each name what it is for. All are looked up here, before anything else is:
where torch has lost one, that is the message, and not an AttributeError on the way.
"""

from torchtally.torch_private.needs import check_names

check_names()

from torchtally.torch_private.flex import *  # noqa: E402, F403 (once they are known to be there)
from torchtally.torch_private.gpu import *  # noqa: E402, F403
from torchtally.torch_private.groups import *  # noqa: E402, F403
from torchtally.torch_private.names import *  # noqa: E402, F403
from torchtally.torch_private.shards import *  # noqa: E402, F403
