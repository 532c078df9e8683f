"""A module that ends its process, as scripts do."""

import sys

sys.exit(0)
