"""Group the cells of a column into categories, by value and not by spelling.

Every reader of a table uses these functions. Therefore training, audit and the sites of a
federation give a cell the same code.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation

from fedtrees.data.cells import MOSTLY

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
