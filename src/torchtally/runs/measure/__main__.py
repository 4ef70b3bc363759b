"""`python -m torchtally.runs.measure` is a process that `tally audit` starts."""

import sys

from torchtally.runs.measure.main import main

if __name__ == "__main__":
    sys.exit(main())
