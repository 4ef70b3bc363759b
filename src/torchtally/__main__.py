"""`tally` and `python -m torchtally`: the command line, imported where Ctrl-C ends it in a line."""

import sys


def main() -> int:
    """Run the command line and return the exit status."""
    try:
        from torchtally.runs.warm.client import run_warm

        if (code := run_warm()) is not None:
            return code
        from torchtally.cli import main as run
    except KeyboardInterrupt:
        print("tally: interrupted", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
