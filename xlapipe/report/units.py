"""Bytes as text with units. All other modules use bytes as ints."""

import re

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_WRITTEN = re.compile(
    r"(?P<number>\d[\d_,]{0,24}(?:\.\d{1,9})?) ?"
    r"(?P<prefix>[KMGT]?)(?P<binary>i?)(?P<unit>B|bytes)?",
    re.IGNORECASE,
)

# Share of a size. A smaller error does not change a reader's decision.
_LEAST_ERROR = 0.01


def has_error(size_bytes: int, error_bytes: int) -> bool:
    """Whether the error of a size is large enough to be shown beside it."""
    return error_bytes > 0 and error_bytes >= _LEAST_ERROR * abs(size_bytes)


def with_error(size_bytes: int, error_bytes: int) -> str:
    """Rounded bytes, with their error if it is a hundredth or more.

    >>> with_error(9 << 30, 512 << 20), with_error(9 << 30, 32 << 20)
    ('9.00 GiB ± 512.0 MiB', '9.00 GiB')
    """
    is_shown = has_error(size_bytes, error_bytes)
    error = f" ± {rounded(error_bytes)}" if is_shown else ""
    return f"{rounded(size_bytes)}{error}"


def exact(size_bytes: int) -> str:
    """Every digit, e.g. `4,194,304 B`."""
    return f"{size_bytes:,} B"


def parse_bytes(text: str) -> int:
    """The bytes of a size that a person writes.

    >>> parse_bytes("16GB"), parse_bytes("1.5 GiB"), parse_bytes("17179869184")
    (16000000000, 1610612736, 17179869184)
    """
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size; fix: write e.g. 16GB, 16GiB or 17179869184")
    number, prefix = match["number"].replace("_", "").replace(",", ""), match["prefix"].upper()
    if prefix and not match["unit"] and not match["binary"]:
        raise ValueError(
            f"expected a unit such as GB or GiB; fix: write {number}{prefix}B (powers of 1000) or "
            f"{number}{prefix}iB (powers of 1024)"
        )
    power = "KMGT".index(prefix) + 1 if prefix else 0
    unit: int = (1024 if match["binary"] else 1000) ** power
    return round(float(number) * unit) if "." in number else int(number) * unit


def rounded(size_bytes: int) -> str:
    """At most four digits, in binary units.

    >>> rounded(4_194_304), rounded(391_545_684), rounded(40), rounded(-607_744)
    ('4.00 MiB', '373.4 MiB', '40 B', '-593.5 KiB')
    """
    size, unit = float(abs(size_bytes)), 0
    # A size that would be rounded to 1024 is shown in the next unit.
    while size >= 1023.95 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    digits = 0 if unit == 0 else 2 if size < 10 else 1
    return f"{'-' if size_bytes < 0 else ''}{size:,.{digits}f} {_UNITS[unit]}"


def change_class(name: str, difference: int) -> str:
    """`better` or `worse`: fewer bytes are better, except those that are updated in place.

    >>> change_class("temp_bytes", 8), change_class("aliased_bytes", 8), change_class("temp", -1)
    ('worse', 'better', 'better')
    """
    more_is_better = name.startswith("aliased")
    return "better" if (difference > 0) == more_is_better else "worse"


def share(part: float, whole: float) -> str:
    """A share in percent; `<0.1 %` for a share that would be rounded to 0."""
    if not part or not whole:
        return "0 %"
    percent = 100 * part / whole
    return "<0.1 %" if percent < 0.05 else f"{percent:.1f} %"


def unit_for(size_bytes: int) -> int:
    """The power of 1024 in which a column of sizes up to this one is shown."""
    power = 0
    while abs(size_bytes) >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    return power


def in_unit(size_bytes: int, power: int) -> str:
    """A size in a given unit, for columns of sizes that are compared.

    >>> in_unit(1_505_894_000, 3), in_unit(28_092, 3), in_unit(17, 0)
    ('1.402 GiB', '0.000 GiB', '17 B')
    """
    return f"{size_bytes / 1024**power:,.{3 if power else 0}f} {_UNITS[power]}"


def seconds_text(seconds: float) -> str:
    """A time with three digits.

    >>> [seconds_text(seconds) for seconds in (3.21, 0.0123, 0.064, 2.5e-5, 2e-8)]
    ['3.21 s', '12.3 ms', '64.0 ms', '25.0 µs', '0.02 µs']
    """
    if seconds >= 1:
        return f"{_three_digits(seconds)} s"
    if seconds >= 1e-3:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{seconds * 1e6:.1g} µs" if 0 < seconds < 5e-8 else f"{seconds * 1e6:.1f} µs"


def microseconds(seconds: float | None) -> str:
    """Microseconds with one decimal; `-` if unknown.

    >>> microseconds(1234.56e-6), microseconds(None)
    ('1,234.6 µs', '-')
    """
    return "-" if seconds is None else f"{seconds * 1e6:,.1f} µs"


def _three_digits(number: float) -> str:
    return f"{number:,.{2 if number < 9.995 else 1 if number < 99.95 else 0}f}"
