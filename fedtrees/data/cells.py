"""Parse single cells of a text table: numbers, dates, missing values, and categories.

Cells are grouped into categories by value and not by spelling. Every reader of a table uses these
functions. Therefore training, audit and the sites of a federation give a cell the same code.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Marks of a missing value in text files (compared without case and surrounding white space).
MISSING = frozenset(
    {"", "na", "n/a", "n.a.", "#n/a", "#n/d", "nan", "nat", "null", "none", "?", "-", "--", "."}
)
#: A column is numeric if at least this share of its present cells are numbers.
MOSTLY = 0.75

_EXPONENT = r"(?:[eE][+-]?\d+)?"
# Groups of three digits are separated by one character, which is the same throughout: the comma or
# point that is not the decimal mark, an apostrophe, or one of three spaces. The first group never
# starts with a zero, so that 0.637 is not read as 637.
_GROUPS = r"[1-9]\d{{0,2}}([{}'’ \u00a0\u202f])\d{{3}}(?:\1\d{{3}})*"
_PLAIN = {
    d: re.compile(rf"[+-]?(?:\d+{c}?\d*|{c}\d+){_EXPONENT}") for d, c in ((".", r"\."), (",", ","))
}
_GROUPED = {
    d: re.compile(rf"[+-]?{_GROUPS.format(other)}(?:{c}\d*)?")
    for d, c, other in ((".", r"\.", ","), (",", ",", "."))
}
_CURRENCIES = (
    "AUD BGN BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF IDR ILS INR ISK JPY KRW MXN MYR NOK NZD PHP "
    "PLN RON RUB SEK SGD THB TRY UAH USD ZAR"
)
_CURRENCY = rf"(?:[A-Z]{{0,2}}[$€£¥₹₽₩₺₪₫฿₴]|Fr\.|kr\.?|zł|Kč|Ft|{_CURRENCIES.replace(' ', '|')})"
_WITH_UNIT = re.compile(
    rf"(\(?)\s*([+-]?)\s*({_CURRENCY}?)\s*([+-]?)\s*"
    rf"((?:\d[\d.,'’ \u00a0\u202f]*|[.,])\d{_EXPONENT}|\d[.,]?{_EXPONENT})"
    rf"\s*({_CURRENCY}|%|‰|)\s*(\)?)"
)
# Further characters for a minus: the minus sign, the en dash and two compatibility characters.
_MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-"))
# If both orders fit equally many cells, the form with the day before the month is tried first.
_DATES = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y",
    "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y",
)  # fmt: skip
_MICROSECONDS = 86_400_000_000  # per day
_MINUTES = 1_440  # per day
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f")
_DATE_LIKE = re.compile(
    r"(?=.*\d)(?:\d{1,4}[-/. ]\w{1,9}[-/., ]+\d{1,4}|[A-Za-z]{3,9} \d{1,2}, \d{4})"
)
_ZONE = re.compile(r"(?<=:\d\d)(?:\.\d+)? ?(?:Z|UTC|GMT|([+-])(\d\d):?(\d\d))$")
_NINES = re.compile(r"[-\u2212]?9{2,}(?:[.,]0*)?")
_ZERO_GAP = 4  # see `suspicious_zeros`
_OTHERS = 5  # distinct numbers besides marks, of which the range says something


def missing(cell: str) -> bool:
    """Return whether a cell is a default mark of a missing value."""
    return cell.lower() in MISSING


def number(cell: str, decimal: str = ".") -> float | None:
    """Return the number that a cell contains, None if it contains no finite number.

    `decimal` is a point or a comma. The other one may then separate groups of three digits.
    """
    text = plain_number(cell, decimal)
    value = math.inf if text is None else float(text)
    return value if math.isfinite(value) else None


def plain_number(cell: str, decimal: str) -> str | None:
    """Return a number with a decimal point and without groups, None if the cell is not a number."""
    if _PLAIN[decimal].fullmatch(cell):
        return cell.replace(",", ".")
    if match := _GROUPED[decimal].fullmatch(cell):
        return cell.replace(match[1], "").replace(",", ".")
    return None


def split_unit(cell: str) -> tuple[str, str] | None:
    """Return the unit of a cell and its number without the unit, None if it is not a number.

    A unit is a currency or a percent sign. Parentheses and the Unicode minus sign become a minus.
    For example, ``($1,234.50)`` becomes ``("$", "-1,234.50")``.
    """
    match = _WITH_UNIT.fullmatch(cell.translate(_MINUS))
    if match is None:
        return None
    opening, sign, before, inner_sign, digits, after, closing = match.groups()
    signs = sign + inner_sign
    if bool(opening) != bool(closing) or len(signs + opening) > 1 or (before and after):
        return None
    return before or after, ("-" if opening else signs) + digits


def numbers(cells: Collection[str]) -> dict[str, float]:
    """Return the cells that are numbers with a decimal point, with their values."""
    values = plain(cells)
    if values is not None:
        return dict(zip(cells, values, strict=True))
    pairs = ((cell, number(cell)) for cell in cells)
    return {cell: value for cell, value in pairs if value is not None}


def plain(cells: Collection[str]) -> list[float] | None:
    """Return the values of cells, None unless all of them are numbers in Python's notation.

    This is the usual case, and ten times as fast as `number`.
    """
    try:
        values = list(map(float, cells))
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) and "_" not in "".join(cells) else None


def dates(cells: Iterable[str]) -> dict[str, float] | None:
    """Return the days since 1970-01-01 (UTC) for every cell, None unless all of them are dates.

    A column may contain several date formats. It may not contain cells both with and without a time
    zone, because their order would be unknown. If day and month are ambiguous, the day comes first
    unless the other order reads more cells of the column. `assumptions_of_dates` reports this
    choice.
    """
    left = list(cells)
    if not left or not all(_DATE_LIKE.match(c) or _compact(c) for c in left[:50]):
        return None
    import pandas as pd

    series = pd.Series(left, dtype=object).str.replace(r"(?<=\d)T(?=\d)", " ", regex=True)
    zones = [_ZONE.search(cell) for cell in series]
    if any(zones) and not all(zones):
        return None
    series = series.str.replace(_ZONE, "", regex=True)
    shapes = {_shape(cell) for cell in series}
    if not all("0" in shape for shape in shapes):  # pandas would read "now" as a date
        return None
    named = any(map(str.isalpha, "".join(shapes)))
    forms = ["%Y%m%d"] if _compact(left[0]) else [
        form for form in (d + t for d in _DATES for t in _TIMES)
        if (named if "%b" in form.lower() else _shape(form) in shapes)
    ]  # fmt: skip
    # A form that reads none of the first cells may still read a later one, but is tried last.
    fit = {f: _fit(series[:200], f) for f in forms}
    if len(series) > 200:
        fit = {f: count and _fit(series, f) for f, count in fit.items()}
    days = pd.Series(math.nan, index=series.index)
    for form in sorted(forms, key=lambda f: -fit[f]):
        at = days.isna()
        if not at.any():
            break
        read = pd.to_datetime(series[at], format=form, errors="coerce").dropna()
        # A difference of nanosecond timestamps would end in 2262, but cells may contain the year
        # 3021.
        since = read.to_numpy().astype("datetime64[us]").astype(np.int64)
        days[read.index] = since / _MICROSECONDS
    if days.isna().any():
        return None
    days -= [_offset(zone) / _MINUTES for zone in zones]
    return dict(zip(left, days.tolist(), strict=True))


def assumptions_of_dates(cells: Collection[str]) -> str:
    """Return the assumption with which `dates` reads ambiguous cells, empty if there is none."""
    parts = [re.match(r"(\d{1,2})([-/.])(\d{1,2})\2(\d\d|\d{4})(?!\d)", cell) for cell in cells]
    parted = [match for match in parts if match]
    texts = []
    if parted and parted[0][2] != ".":
        firsts, seconds = ([int(match[k]) for match in parted] for k in (1, 3))
        if max(firsts) > 12 and max(seconds) > 12:
            texts.append("some cells start with the day, other cells with the month")
        elif max(firsts) <= 12 and max(seconds) <= 12:
            texts.append("the first number is read as the day, and the second one as the month")
    if any(len(match[4]) == 2 for match in parted):
        texts.append("years of two digits are read as 1969 to 2068")
    return "; ".join(texts)


def _offset(zone: re.Match[str] | None) -> int:
    """Return how many minutes the clock of a time zone is ahead of UTC."""
    if zone is None or not zone[1]:
        return 0
    return int(zone[1] + "1") * (60 * int(zone[2]) + int(zone[3]))


def _fit(series: Any, form: str) -> int:
    """Return the number of cells that a form reads."""
    import pandas as pd

    return int(pd.to_datetime(series, format=form, errors="coerce").notna().sum())


def _shape(text: str) -> str:
    """Return a cell, or a numeric date format, with 0 in place of every number."""
    return re.sub(r"%[a-zA-Z]|\d+", "0", " ".join(text.split()))


def _compact(cell: str) -> bool:
    """Return whether a cell may be a date of eight digits."""
    return len(cell) == 8 and cell.isdigit() and "1900" <= cell[:4] <= "2100"


def probable_marks(cells: Sequence[str], values: NDArray[np.float64]) -> list[str]:
    """Return numbers such as -999 that probably mark missing values, as the column spells them.

    They consist of nines, occur twice or more, and are negative in a column without other negative
    numbers, or farther from all other numbers than twice their range.

    Parameters
    ----------
    cells : sequence of str
        Cells of a column of numbers, n of them.
    values : float64 array, shape (n,)
        Their numbers, NaN if missing.
    """
    spelled: dict[float, set[str]] = {}
    for cell, value in set(zip(cells, values.tolist(), strict=True)):
        if _NINES.fullmatch(cell) and not math.isnan(value):
            spelled.setdefault(value, set()).add(cell)
    remaining_values = values[~np.isnan(values) & ~np.isin(values, list(spelled))]
    if len(np.unique(remaining_values)) < _OTHERS:
        return []
    low, high = float(remaining_values.min()), float(remaining_values.max())
    marks: list[str] = []
    for value, texts in sorted(spelled.items()):
        away = max(low - value, value - high)
        alone = value < 0 <= low or away > 2 * (high - low)
        if alone and int((values == value).sum()) > 1:
            marks += sorted(texts)
    return marks


def suspicious_zeros(values: NDArray[np.float64]) -> int:
    """Return the number of zeros that probably mark missing values, 0 if there are none.

    All other numbers of the column are positive and have at least `_OTHERS` different values. The
    smallest one exceeds a tenth of their median, and it is more than `_ZERO_GAP` times as large as
    the median distance between neighbouring values. For example, half of the values of `Insulin` in
    the Pima table are 0, and the smallest other one is 14. In a column of counts (0, 1, 2, ...),
    zero is no gap.

    Parameters
    ----------
    values : float64 array, shape (n,)
        Numbers of a column, NaN if missing.
    """
    zeros = int((values == 0).sum())
    other_values = values[~np.isnan(values) & (values != 0)]
    distinct = np.unique(other_values)
    if zeros < 2 or len(distinct) < _OTHERS or distinct[0] <= 0:
        return 0
    typical_gap = float(np.median(np.diff(distinct)))
    limit = max(float(np.median(other_values)) / 10, _ZERO_GAP * typical_gap)
    return zeros if distinct[0] > limit else 0


def marks_note(name: str, marks: Sequence[str]) -> str:
    """Return what a reader should know of numbers that probably mark missing values."""
    shown = ", ".join(marks)
    return (
        f"{name}: {shown} is read as a number, but looks like a mark of missing values; if it is "
        f"one: --missing={','.join(marks)}"
    )


#: Spellings of yes and no, without case. The signs are laboratory results, for example Rh + and -.
YES = frozenset({"yes", "y", "true", "t", "ja", "oui", "si", "sí", "sì", "sim", "tak", "+"})
NO = frozenset({"no", "n", "false", "f", "nein", "non", "não", "nie", "nej", "-"})
_ZERO, _ONE = Decimal(0), Decimal(1)
_ANSWERS = YES | NO
_ZERO_FIRST = re.compile(r"[+-]?0\d")


def value_of(cell: str) -> Decimal | None:
    """Return the exact value of a category that is a number, None if its spelling matters.

    ``1``, ``1.0`` and ``1e0`` are one value. Codes with a leading zero are not numbers, because
    ``007`` and ``7`` may be two persons.
    """
    if _ZERO_FIRST.match(cell) or "_" in cell:
        return None
    try:
        value = Decimal(cell)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def categories_of(cells: Mapping[str, int]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the categories of a column in the order of their codes, and their other spellings.

    If the cells are spellings of yes and no, no has code 0. If most cells are numbers (`MOSTLY`),
    the numbers are ordered by value and come before the remaining cells. All remaining columns are
    in alphabetical order.

    Parameters
    ----------
    cells : mapping of str to int
        The present cells with their counts.

    Returns
    -------
    order : tuple of str
        One spelling per category: the most frequent one of yes and of no, and the shortest one of a
        number.
    merged : dict of str to str
        The category of every cell that has another spelling.
    """
    if pair := yes_and_no(cells):
        return pair
    values = {cell: value_of(cell) for cell in cells}
    names: dict[Decimal, str] = {}
    # The shortest spelling of a number comes first and becomes the name of its category.
    for cell in sorted(cells, key=lambda c: (len(c), c)):
        if (value := values[cell]) is not None:
            names.setdefault(value, cell)
    texts = sorted(cell for cell, value in values.items() if value is None)
    order = (*(names[value] for value in sorted(names)), *texts)
    in_text = sum(cells[cell] for cell in texts)
    if in_text > (1 - MOSTLY) * sum(cells.values()) or with_leading_zeros(cells):
        order = tuple(sorted(order))
    merged = {c: names[v] for c, v in values.items() if v is not None and names[v] != c}
    return order, merged


def yes_and_no(cells: Mapping[str, int]) -> tuple[tuple[str, str], dict[str, str]] | None:
    """Return the categories no and yes of a column, None if it contains other cells, too.

    Cells are compared without case. If both words occur, 0 and 1 are also spellings of them.
    """
    answers = {cell: _answer(cell) for cell in cells}
    words = {answers[cell] for cell in cells if value_of(cell) is None}
    if words != {False, True} or None in answers.values():
        return None
    # Words come before 0 and 1, frequent spellings before rare ones.
    by_count = sorted(cells, key=lambda c: (value_of(c) is not None, -cells[c], c))
    names = {answer: next(c for c in by_count if answers[c] is answer) for answer in (False, True)}
    merged = {c: names[bool(a)] for c, a in answers.items() if names[bool(a)] != c}
    return (names[False], names[True]), merged


def _answer(cell: str) -> bool | None:
    """Return True for a spelling of yes, False for a spelling of no, None for any other cell."""
    word, value = cell.casefold(), value_of(cell)
    if value is not None:
        return {_ZERO: False, _ONE: True}.get(value)
    return word in YES if word in _ANSWERS else None


def codes_of_cells(cells: Iterable[str], order: Sequence[str]) -> dict[str, int]:
    """Return the code of every cell whose category is in `order`.

    A cell belongs to a category if it equals its name, has the same numeric value, or if the
    categories are no and yes and the cell is another spelling of one of them.
    """
    codes = {name: code for code, name in enumerate(order)}
    values = {value_of(name): code for name, code in codes.items()}
    answers = {_answer(name): code for name, code in codes.items()}
    if len(order) != 2 or {*answers} != {False, True}:
        answers = {}
    answers.pop(None, None)
    values.pop(None, None)
    known_cells = {}
    for cell in cells:
        code = codes.get(cell)
        code = values.get(value_of(cell)) if code is None else code
        code = answers.get(_answer(cell)) if code is None else code
        if code is not None:
            known_cells[cell] = code
    return known_cells


def with_leading_zeros(cells: Iterable[str]) -> bool:
    """Return whether all cells are codes of one length, some of which start with a zero.

    For example, ``01069`` and ``80331`` are postal codes, and the number 1069 would be another
    code.
    """
    cells = list(cells)
    lengths = {len(cell) for cell in cells}
    return (
        len(lengths) == 1
        and lengths != {1}
        and all(cell.isdigit() for cell in cells)
        and any(cell[0] == "0" for cell in cells)
    )


def look_alikes(names: Iterable[str]) -> list[str]:
    """Return sentences on names that look equal but differ in case, white space or characters."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(look(name), []).append(name)
    texts = []
    for first, *similar in groups.values():
        texts += [f"{first!r} and {other!r} differ only in {difference(first, other)}"
                  for other in similar]  # fmt: skip
    return texts


def look(name: str) -> str:
    """Return a key that is equal for names that look equal to a reader."""
    text = unicodedata.normalize("NFKC", name).casefold()
    # Control and format characters, for example a soft hyphen, are invisible.
    visible = "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Cc"))
    return "".join(visible.split())


def difference(first: str, other: str) -> str:
    """Return how two names differ that look equal."""
    if value_of(first) is not None or value_of(other) is not None:
        return "the spelling of a number"
    if first.casefold() == other.casefold():
        return "upper and lower case"
    if "".join(first.split()) == "".join(other.split()):
        return "white space"
    only = [Counter(a) - Counter(b) for a, b in ((first, other), (other, first))]
    shown = [", ".join(f"U+{ord(c):04X}" for c in side) or "nothing" for side in only]
    return f"characters: {shown[0]} against {shown[1]}"
