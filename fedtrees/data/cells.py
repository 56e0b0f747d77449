"""What the cells of a text table stand for: missing values, numbers, dates."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

#: Cells read as a missing value (case-insensitive, spaces around them ignored).
MISSING = frozenset(
    {"", "na", "n/a", "n.a.", "#n/a", "#n/d", "nan", "nat", "null", "none", "?", "-", "--", "."}
)
#: A column of cells of which this share are numbers is one of numbers.
MOSTLY = 0.75

_EXPONENT = r"(?:[eE][+-]?\d+)?"
# One character between groups of three digits, the same throughout: comma or point, an apostrophe,
# or one of three spaces.
_GROUPS = r"\d{{1,3}}([{}'’ \u00a0\u202f])\d{{3}}(?:\1\d{{3}})*"
_PLAIN = {
    d: re.compile(rf"[+-]?(?:\d+{c}?\d*|{c}\d+){_EXPONENT}") for d, c in ((".", r"\."), (",", ","))
}
_GROUPED = {
    d: re.compile(rf"[+-]?{_GROUPS.format(other)}(?:{c}\d*)?")
    for d, c, other in ((".", r"\.", ","), (",", ",", "."))
}
# Day before month where nothing tells: the first of two readings that fits every cell is taken.
_DATES = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y",
    "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
_MICROSECONDS = 86_400_000_000  # of a day
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
_DATE_LIKE = re.compile(
    r"(?=.*\d)(?:\d{1,4}[-/. ]\w{1,9}[-/., ]+\d{1,4}|[A-Za-z]{3,9} \d{1,2}, \d{4})"
)


def missing(cell: str) -> bool:
    """Tell whether a cell stands for a missing value."""
    return cell.lower() in MISSING


def number(cell: str, decimal: str = ".") -> float | None:
    """Return the number that a cell holds, None where it holds no finite one.

    `decimal`: Point or comma; the other one may then stand between groups of three digits.
    """
    if _PLAIN[decimal].fullmatch(cell):
        text = cell
    elif found := _GROUPED[decimal].fullmatch(cell):
        text = cell.replace(found[1], "")
    else:
        return None
    value = float(text.replace(",", "."))
    return value if math.isfinite(value) else None


def numbers(cells: Collection[str], decimal: str = ".") -> dict[str, float]:
    """Return the cells that are numbers, with their values."""
    values = plain(cells) if decimal == "." else None
    if values is not None:
        return dict(zip(cells, values, strict=True))
    found = ((cell, number(cell, decimal)) for cell in cells)
    return {cell: value for cell, value in found if value is not None}


def plain(cells: Collection[str]) -> list[float] | None:
    """Return the values of cells, None unless all are numbers as Python writes them.

    Most columns are, and this is ten times as fast as `number`.
    """
    try:
        values = list(map(float, cells))
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) and "_" not in "".join(cells) else None


def decimal_of(cells: Mapping[str, int]) -> tuple[str, dict[str, float]]:
    """Return how the numbers of a column may be written, of its present cells with their counts.

    Returns
    -------
    str
        ``"."`` or ``","`` where only that makes most cells numbers; ``".,"`` where both do and the
        values differ (``1.234``); ``"="`` where they do not (``12``); empty: no column of numbers.
    dict of str to float
        The numbers, if one way to write them was found.
    """
    if not cells:
        return "", {}
    point = numbers(cells, ".")
    if len(point) == len(cells) and "," not in "".join(cells):
        dotted = next((cell for cell in cells if "." in cell), None)
        if dotted is None or number(dotted, ",") is None:
            return "." if dotted else "=", point
    comma = numbers(cells, ",")
    if point == comma:
        return ("=", point) if _most(cells, point) else ("", {})
    fits = {d: found for d, found in ((".", point), (",", comma)) if _most(cells, found)}
    if len(fits) == 2 and len(point) != len(comma):
        return (".", point) if len(point) > len(comma) else (",", comma)
    return "".join(fits), next(iter(fits.values())) if len(fits) == 1 else {}


def _most(cells: Mapping[str, int], found: Mapping[str, float]) -> bool:
    return 0 < MOSTLY * sum(cells.values()) <= sum(cells[cell] for cell in found)


def dates(cells: Iterable[str]) -> dict[str, float] | None:
    """Return the days since 1970-01-01 of every cell, None unless all of them are dates.

    Forms may be mixed. Where day and month could be either, the day comes first unless the other
    order reads more cells of the column.
    """
    left = list(cells)
    if not left or not all(_DATE_LIKE.match(c) or _compact(c) for c in left[:50]):
        return None
    import pandas as pd

    series = pd.Series(left, dtype=object).str.replace(r"(?<=\d)T(?=\d)", " ", regex=True)
    series = series.str.replace(r"(?<=:\d\d)(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)$", "", regex=True)
    shapes = {_shape(cell) for cell in series}
    if not all("0" in shape for shape in shapes):  # pandas reads "now" as a date
        return None
    named = any(map(str.isalpha, "".join(shapes)))
    forms = ["%Y%m%d"] if _compact(left[0]) else [
        form for form in (d + t for d in _DATES for t in _TIMES)
        if (named if "%b" in form.lower() else _shape(form) in shapes)
    ]  # fmt: skip
    # What reads none of the first cells may still read a later one, but is not asked first.
    fit = {f: _fit(series[:200], f) for f in forms}
    if len(series) > 200:
        fit = {f: count and _fit(series, f) for f, count in fit.items()}
    days = pd.Series(math.nan, index=series.index)
    for form in sorted(forms, key=lambda f: -fit[f]):
        at = days.isna()
        if not at.any():
            return dict(zip(left, days.tolist(), strict=True))
        read = pd.to_datetime(series[at], format=form, errors="coerce").dropna()
        # not as a difference of timestamps, which ends in 2262: cells may say 3021
        since = read.to_numpy().astype("datetime64[us]").astype(np.int64)
        days[read.index] = since / _MICROSECONDS
    return None if days.isna().any() else dict(zip(left, days.tolist(), strict=True))


def _fit(series: Any, form: str) -> int:
    """Return how many cells a form reads."""
    import pandas as pd

    return int(pd.to_datetime(series, format=form, errors="coerce").notna().sum())


def _shape(text: str) -> str:
    """Return a cell, or a form of numbers alone, with 0 for every number of it."""
    return re.sub(r"%[a-zA-Z]|\d+", "0", " ".join(text.split()))


def _compact(cell: str) -> bool:
    """Tell whether a cell may be a day written in eight digits."""
    return len(cell) == 8 and cell.isdigit() and "1900" <= cell[:4] <= "2100"
