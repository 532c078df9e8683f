"""What the plans of every compiler offer to programs and notebooks."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

from xlapipe.api.rows import Rows
from xlapipe.errors import XlapipeError


class ShownPlan(ABC):
    """A plan that was read. Bytes are ints, on one device."""

    # Names that `table` takes beside those of lists of `figures`.
    _further_tables: tuple[str, ...] = ()

    @cached_property
    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """What `xlapipe show --json` prints."""

    @abstractmethod
    def to_html(self) -> str:
        """The page of `xlapipe report`: one HTML document that needs no network."""

    def table(self, name: str) -> Rows:
        """The rows of one list of `figures`, e.g. `allocations`.

        Returns:
          A list of dictionaries; its `to_pandas()` is a DataFrame.

        Raises:
          XlapipeError: there is no such list.
        """
        rows = self.figures.get(name)
        if not isinstance(rows, list):
            known = [key for key, value in self.figures.items() if isinstance(value, list)]
            names = ", ".join([*known, *self._further_tables])
            raise XlapipeError(f"no table {name!r}; fix: choose one of {names}")
        return Rows(rows)
