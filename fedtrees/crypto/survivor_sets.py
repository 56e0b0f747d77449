"""Whose sums were opened, and which further sum would tell one party's part.

Sums of one run are sums of the same rows, and hang together: a node's is that of its children, the
gradients of all classes cancel, constant hessians count the same rows in every tree, and label sums
are the totals of the first root. So all sums that a party helped to open count as of one quantity.
Two whose survivors differ by one party tell that party's part by subtraction; three, over a and b,
b and c, a and c, tell everybody's (So et al. 2023).
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from fedtrees.sealing.errors import ExposureError

_Row = Mapping[str, Fraction]


class SurvivorSets:
    """The sets of survivors whose sums one party knows to be opened.

    `exposing`: Admit every set, whatever the sums tell together.
    """

    def __init__(self, *, exposing: bool = False) -> None:
        self._exposing = exposing
        self._known: dict[frozenset[str], None] = {}  # in order
        self._rows: dict[str, _Row] = {}  # their span in reduced echelon form, by pivot

    def admit(self, survivors: Iterable[str]) -> None:
        """Enter a set whose sum is about to be opened.

        Raises `ExposureError` if some combination of its sum and those before is the part of one
        party, and that was not allowed. The set is not entered then.
        """
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            told = told_alone(_spanned(self._rows, names))
            if told:
                before = "; ".join(", ".join(sorted(one)) for one in self._known) or "nobody"
                raise ExposureError(
                    f"the sum over {', '.join(sorted(names))}, with those opened before over "
                    f"{before}, would tell what {', '.join(told)} sent alone. Wait for who is "
                    "missing, or allow it: exposing=true. To start anew with fewer on the same "
                    "rows tells as much"
                )
        self.note(names)

    def note(self, survivors: Iterable[str]) -> None:
        """Enter a set whose sum others opened."""
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            self._rows = _spanned(self._rows, names)
        self._known[names] = None

    @property
    def told(self) -> list[str]:
        """Parties whose part some combination of the opened sums is."""
        rows: dict[str, _Row] = {}
        for names in self._known:
            rows = _spanned(rows, names)
        return told_alone(rows)


def told_alone(rows: Mapping[str, _Row]) -> list[str]:
    """Return the parties whose unit vector is in a span: those with a row of one entry.

    A vector of the span is the sum of its values at the pivots times the rows. A unit vector at a
    pivot is that pivot's row, therefore, and at any other place it would be nothing.
    """
    return sorted(pivot for pivot, row in rows.items() if len(row) == 1)


def _spanned(rows: Mapping[str, _Row], names: frozenset[str]) -> dict[str, _Row]:
    """Return the reduced echelon form with the indicator vector of a set among the rows."""
    new: _Row = dict.fromkeys(sorted(names), Fraction(1))
    for pivot, row in rows.items():
        new = _less(new, new.get(pivot, Fraction(0)), row)
    if not new:
        return dict(rows)
    first = min(new)
    lead = new[first]
    new = {name: value / lead for name, value in new.items()}
    reduced = {pivot: _less(row, row.get(first, Fraction(0)), new) for pivot, row in rows.items()}
    return {**reduced, first: new}


def _less(row: _Row, factor: Fraction, other: _Row) -> dict[str, Fraction]:
    """Return ``row - factor * other`` without zeros."""
    found = dict(row)
    if factor:
        for name, value in other.items():
            found[name] = found.get(name, Fraction(0)) - factor * value
    return {name: value for name, value in found.items() if value}
