"""`python -m torchtally.probe` is a process that `fit` starts."""

import sys

from torchtally.probe.main import main

if __name__ == "__main__":
    sys.exit(main())
