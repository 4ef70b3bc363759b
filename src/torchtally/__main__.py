"""`python -m torchtally` is `tally`."""

import sys

from torchtally.cli import main

if __name__ == "__main__":
    sys.exit(main())
