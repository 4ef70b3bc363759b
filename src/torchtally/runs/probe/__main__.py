"""`python -m torchtally.runs.probe` is a process that `fit` starts."""

import sys

from torchtally.runs.probe.main import main

if __name__ == "__main__":
    sys.exit(main())
