"""`python -m xlapipe.cli`, for environments where the command `xlapipe` is not on the path."""

import sys

from xlapipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
