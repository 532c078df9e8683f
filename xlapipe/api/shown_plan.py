"""What the plans of every compiler offer to programs and notebooks: figures, tables, a page."""

from abc import ABC, abstractmethod
from functools import cached_property
from html import escape
from typing import Any

from xlapipe.errors import XlapipeError

_FRAME_HEIGHT = 620  # pixels
# A notebook shows the first ones.
_SHOWN = 60


class Rows(list[dict[str, Any]]):
    """The rows of a table, one dictionary each, with the same keys. Bytes are ints."""

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {', '.join(self[0]) if self else 'nothing':.400}>"

    def _repr_html_(self) -> str:
        more = f"<p>and {len(self) - _SHOWN:,} more rows</p>" if len(self) > _SHOWN else ""
        return html_table(self[:_SHOWN]) + more


def html_table(rows: list[dict[str, Any]]) -> str:
    """An HTML table of rows; numbers have separators and are aligned to the right."""
    head = "".join(f"<th>{escape(str(key))}</th>" for key in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(map(_cell, row.values()))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value:,}</td>'
    return f'<td style="text-align:left">{escape("" if value is None else str(value))}</td>'


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
          A list of dictionaries, as `pandas.DataFrame` takes it.

        Raises:
          XlapipeError: there is no such list.
        """
        rows = self.figures.get(name)
        if not isinstance(rows, list):
            known = [key for key, value in self.figures.items() if isinstance(value, list)]
            names = ", ".join([*known, *self._further_tables])
            raise XlapipeError(f"no table {name!r}; fix: choose one of {names}")
        return Rows(rows)


def framed(page: str) -> str:
    """A document in a frame, in which its scripts run alone."""
    return (
        f'<iframe srcdoc="{escape(page, quote=True)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{_FRAME_HEIGHT}px;border:0"></iframe>'
    )
