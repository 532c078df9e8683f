"""Rows of a table, which notebooks show and pandas reads."""

from html import escape
from typing import TYPE_CHECKING, Any

from xlapipe.errors import XlapipeError

if TYPE_CHECKING:
    import pandas

# A notebook shows the first ones.
_SHOWN = 60


class Rows(list[dict[str, Any]]):
    """The rows of a table, one dictionary each, with the same keys. Bytes are ints."""

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a DataFrame.

        Raises:
          XlapipeError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise XlapipeError(
                "pandas is not installed; fix: pip install pandas, or use the rows, which are "
                "dictionaries"
            ) from None
        return DataFrame(self)

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
