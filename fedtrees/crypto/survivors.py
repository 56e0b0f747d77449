"""Which sets of survivors of masked sums together expose the reply of one party.

All sums of a run are sums over the same rows, and depend on one another: the sum of a node is that
of its children, the gradients of all classes cancel, constant hessians count the same rows in every
tree, and label sums are the totals of the first root. All sums that a party helped to open are
therefore treated as sums of the same quantity. Two sums whose survivors differ by one party expose
the reply of this party by subtraction. Three sums, over a and b, b and c, a and c, expose all
replies (So et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from fedtrees.crypto.primitives import ExposureError

# Fractions make the elimination exact.
_Row = Mapping[str, Fraction]


class SurvivorSets:
    """Sets of survivors whose sums one party knows to be opened.

    With `exposing` every set is admitted, even if the sums together expose a reply.

    >>> sets = SurvivorSets(exposing=True)
    >>> sets.admit(["a", "b"])
    >>> sets.admit(["a", "b", "c"])
    >>> sets.exposed
    ['c']
    """

    def __init__(self, *, exposing: bool = False) -> None:
        self._exposing = exposing
        self._known: dict[frozenset[str], None] = {}  # in the order of the sums
        # Basis of the span of the sets in reduced row echelon form, by pivot.
        self._rows: dict[str, _Row] = {}

    def admit(self, survivors: Iterable[str]) -> None:
        """Add a set whose sum is about to be opened.

        Raises
        ------
        ExposureError
            If a linear combination of this sum and earlier ones is the reply of one party, unless
            `exposing`. The set is not added then.
        """
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            exposed = exposed_parties(_spanned(self._rows, names))
            if exposed:
                earlier = (
                    "; ".join(", ".join(sorted(set_names)) for set_names in self._known)
                    or "no party"
                )
                raise ExposureError(
                    f"the sum over {', '.join(sorted(names))}, with those opened before over "
                    f"{earlier}, would reveal the array of {', '.join(exposed)}. Wait "
                    "for the missing parties, or allow it: exposing=true. A new run with fewer "
                    "parties on the same rows would reveal the same"
                )
        self.note(names)

    def note(self, survivors: Iterable[str]) -> None:
        """Add a set whose sum was opened by further parties."""
        names = frozenset(survivors)
        if not self._exposing and names not in self._known:
            self._rows = _spanned(self._rows, names)
        self._known[names] = None

    @property
    def exposed(self) -> list[str]:
        """Parties whose reply is a linear combination of the opened sums."""
        rows: dict[str, _Row] = {}
        for names in self._known:
            rows = _spanned(rows, names)
        return exposed_parties(rows)


def exposed_parties(rows: Mapping[str, _Row]) -> list[str]:
    """Return the parties whose unit vector is in a span: the pivots of rows with a single entry.

    A vector of the span is the sum of its values at the pivots times the rows. A unit vector at a
    pivot is therefore the row of this pivot. A unit vector at another position would be zero.
    """
    return sorted(pivot for pivot, row in rows.items() if len(row) == 1)


def _spanned(rows: Mapping[str, _Row], names: frozenset[str]) -> dict[str, _Row]:
    """Add the indicator vector of a set to a basis in reduced row echelon form."""
    new: _Row = dict.fromkeys(sorted(names), Fraction(1))
    for pivot, row in rows.items():
        # Eliminate the pivot of this row from the new vector.
        new = _less(new, new.get(pivot, Fraction(0)), row)
    if not new:
        return dict(rows)
    # The vector is linearly independent: make it a row with the pivot `first`.
    first = min(new)
    lead = new[first]
    new = {name: value / lead for name, value in new.items()}
    # Eliminate the new pivot from all rows.
    reduced = {pivot: _less(row, row.get(first, Fraction(0)), new) for pivot, row in rows.items()}
    return {**reduced, first: new}


def _less(row: _Row, factor: Fraction, other: _Row) -> dict[str, Fraction]:
    """Return ``row - factor * other`` without zeros."""
    difference = dict(row)
    if factor:
        for name, value in other.items():
            difference[name] = difference.get(name, Fraction(0)) - factor * value
    return {name: value for name, value in difference.items() if value}
