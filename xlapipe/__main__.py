"""`python -m xlapipe`: the command line."""

import sys

from xlapipe.cli import main

sys.exit(main())
