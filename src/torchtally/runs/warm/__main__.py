"""`python -m torchtally.runs.warm DIGEST IDLE_S`: the server, and in its forks `tally`."""

import sys
from importlib import import_module

from torchtally.runs.warm.server import serve

if __name__ == "__main__":
    serve(sys.argv[1], float(sys.argv[2]))
    sys.exit(import_module("torchtally.cli").main())  # by name, as `child` starts what is above us
