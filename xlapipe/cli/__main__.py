"""`python -m xlapipe.cli`, where the command itself is not installed."""

import sys

from xlapipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
