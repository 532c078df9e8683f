"""A module that does not import."""

import no_such_package_of_anybody  # noqa: F401
