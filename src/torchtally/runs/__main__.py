"""`python -m torchtally.runs` is a supervised child, or a server of them: see `children`."""

import sys

from torchtally.runs.child import main

if __name__ == "__main__":
    main(sys.argv[1:])
