"""Guesses of an attack: claims about the victims' local data, or the reason why there is none.

Each subclass of `Claim` is one kind of claim, for example reconstructed records or class counts of
leaves. A metric for this type compares claims with the ground truth (`fedtrees.metrics`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table

C = TypeVar("C", bound="Claim")


class _Rules(NamedTuple):
    """Rules for one array of a claim, which `Claim` checks."""

    kind: type
    axes: str
    within: tuple[float, float] | None
    finite: bool
    unique: bool

    def check(self, values: Any, sizes: dict[str, int]) -> NDArray[Any]:
        """Convert values to an array of the declared type. Raise `ValueError` for a broken rule."""
        array = np.asarray(values)
        if array.ndim != len(self.axes) or any(
            sizes.setdefault(axis, size) != size
            for axis, size in zip(self.axes, array.shape, strict=True)
        ):
            shape = ", ".join(
                f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in self.axes
            )
            raise ValueError(f"has the shape {array.shape}; give one of shape ({shape})")
        if array.size and array.dtype.kind not in {int: "iu", bool: "b"}.get(self.kind, "iuf"):
            raise ValueError(f"is {array.dtype}; give {_KINDS.get(self.kind, 'numbers')}")
        array = array.astype(self.kind, copy=False)
        if self.within and ((array < self.within[0]) | (array > self.within[1])).any():
            raise ValueError("has values outside of {:g} to {:g}".format(*self.within))
        if self.finite and not np.isfinite(array).all():
            raise ValueError("has infinite or missing values; leave them out")
        if self.unique and len(np.unique(array)) < len(array):
            raise ValueError("has a value twice; give every row once")
        return array


_KINDS = {int: "whole numbers", bool: "booleans"}


def _array(
    kind: type,
    axes: str,
    *,
    within: tuple[float, float] | None = None,
    finite: bool = False,
    unique: bool = False,
    default: Any = MISSING,
) -> Any:
    """Declare an array field of a claim.

    Each letter of `axes` is one axis. Axes with the same letter have the same length in all arrays
    of the claim, where m and d are the numbers of rows and columns of its table.
    """
    rules = _Rules(kind, axes, within, finite, unique)
    return field(default=default, metadata={"rules": rules})


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(_array, field))
def _claim(cls: type[C]) -> type[C]:
    """Declare a claim, whose arrays are declared with `_array`."""
    return dataclass(frozen=True, eq=False)(cls)


@dataclass(frozen=True, eq=False)
class Claim:
    """Base class of all claims.

    The metrics of its type define the ground truth and the blind baseline
    (`fedtrees.metrics.metric.Metric`). The arrays of a claim are checked and converted at its
    construction.

    Examples
    --------
    >>> from fedtrees import Claim, Records
    >>> issubclass(Records, Claim)
    True
    """

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        if hasattr(self, "table"):
            if not isinstance(self.table, Table):
                raise ProtocolError(f"guessed rows are a {type(self.table).__name__}, not a Table")
            sizes = dict(zip("md", self.table.X.shape, strict=True))
        for item in fields(self):
            value = getattr(self, item.name)
            if "rules" in item.metadata and not (value is None and item.default is None):
                try:
                    checked = item.metadata["rules"].check(value, sizes)
                except ValueError as err:
                    raise ProtocolError(f"{type(self).__name__}.{item.name} {err}") from None
                object.__setattr__(self, item.name, checked)

    @property
    def certain(self) -> bool:
        """Whether the attack guarantees that the claim is correct."""
        return False

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row, leaf, value or other entry that could be scored."""
        parts = (getattr(self, item.name) for item in fields(self))
        return any(
            len(part) == 0 if isinstance(part, Table) else part.size == 0
            for part in parts
            if isinstance(part, (Table, np.ndarray))
        )


@_claim
class Records(Claim):
    """Reconstructed rows of the victims.

    Attributes
    ----------
    table : Table
        m rows with labels, in no particular order.
    confidence : float64 array, shape (m,), or None
        Probability, according to the attack, that each row is correct. Attacks that return only
        rows they are certain of set it.
    owner : tuple of str, length m, or None
        Name of the party that has each row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Records, Table
    >>> claim = Records(Table(np.array([[1.0, 2.0]], dtype=np.float32), np.array([1])))
    >>> len(claim.table)
    1
    """

    table: Table
    confidence: NDArray[np.float64] | None = _array(
        float, "m", within=(0.0, 1.0), finite=True, default=None
    )
    owner: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.owner is not None and not (
            len(self.owner) == len(self.table) and all(isinstance(o, str) for o in self.owner)
        ):
            raise ProtocolError(
                f"{len(self.owner)} owners for {len(self.table)} guessed rows; give one party "
                "name per row"
            )

    @property
    def certain(self) -> bool:
        """Whether the attack states a probability of every row."""
        return self.confidence is not None


@_claim
class EveryRecord(Records):
    """Rows of all parties, including the principals' local rows, as some papers score them.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import EveryRecord, Table
    >>> rows = Table(np.zeros((3, 2), dtype=np.float32), np.array([0, 1, 1]))
    >>> len(EveryRecord(rows).table)
    3
    """


@_claim
class BatchRows(Claim):
    """Rows that one round of training was computed on.

    Attributes
    ----------
    owner : tuple of str
        Parties that the rows belong to. Several if the adversary only saw their sum.
    round : int
        Number of the round.
    table : Table
        m rows with labels, in no particular order.
    confidence : float64 array, shape (m, d), or None
        Confidence in each cell, 0 to 1. Only the order of the values matters.
    """

    owner: tuple[str, ...]
    round: int
    table: Table
    confidence: NDArray[np.float64] | None = _array(
        float, "md", within=(0.0, 1.0), finite=True, default=None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.owner or not all(isinstance(o, str) for o in self.owner):
            raise ProtocolError(f"owners of a batch are {self.owner!r}; name one party at least")


@_claim
class LeafCounts(Claim):
    """Number of the victims' rows of each class in each leaf of one tree.

    Attributes
    ----------
    tree : int
        Index of the tree in the released model.
    leaf : int array, shape (J,)
        Node numbers of the leaves.
    counts : int64 array, shape (J, K)
        Guessed number of rows of each class. If a boosted model has more than two classes, K is 2:
        the rows of all remaining classes, then those of the tree's class.
    certified : bool array, shape (J,), or None
        True for leaves whose counts the attack has proved, so that a wrong count is an error in the
        attack. None if it has proved none.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import LeafCounts
    >>> LeafCounts(tree=0, leaf=np.array([1, 2]), counts=np.array([[5, 0], [1, 9]])).counts.sum()
    np.int64(15)
    """

    tree: int
    leaf: NDArray[np.intp] = _array(int, "l")
    counts: NDArray[np.int64] = _array(int, "lK")
    certified: NDArray[np.bool_] | None = _array(bool, "l", default=None)

    @property
    def certain(self) -> bool:
        """Whether all counts are certified."""
        return self.certified is not None and bool(self.certified.all())


@_claim
class ColumnValues(Claim):
    """Values of one victim in one column, without their rows.

    Attributes
    ----------
    owner : str
        Party that has the values.
    feature : int
        Position of the column in the schema.
    values : float32 array, shape (k,)
        Distinct values in ascending order, without missing values.
    counts : int64 array, shape (k,)
        Number of rows of the owner with each value, at least 1.
    exact : bool
        True if these are all values of the owner with exact counts. False if they are some of its
        values. A count then includes the rows between neighbouring values.
    """

    owner: str
    feature: int
    values: NDArray[np.float32] = _array(np.float32, "n", finite=True)
    counts: NDArray[np.int64] = _array(int, "n", within=(1, np.inf))
    exact: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if (np.diff(self.values) <= 0).any():
            raise ProtocolError("values of a column are ascending; add up the counts of equal ones")

    @property
    def certain(self) -> bool:
        """Whether the claim is declared as exact."""
        return self.exact

    @property
    def empty(self) -> bool:
        """Whether the claim contains no value, and does not state that there is none."""
        return super().empty and not self.exact


@_claim
class Labels(Claim):
    """Labels of rows of which the principals know the ids but not the labels.

    Attributes
    ----------
    ids : int64 array, shape (n,)
        Ids of the rows.
    cluster : int64 array, shape (n,)
        Rows with equal numbers are claimed to have equal labels. Only `probability` assigns numbers
        to classes.
    probability : float64 array, shape (n, K), or None
        Probability of each class.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Labels
    >>> claim = Labels(ids=np.array([7, 8]), cluster=np.array([0, 1]))
    >>> claim.cluster.tolist()
    [0, 1]
    """

    ids: NDArray[np.int64] = _array(int, "n")
    cluster: NDArray[np.int64] = _array(int, "n")
    probability: NDArray[np.float64] | None = _array(float, "nK", default=None)


@_claim
class RoutedLabels(Claim):
    """Labels of rows that a model was asked to predict, identified by their position among these.

    Attributes
    ----------
    rows : int64 array, shape (n,)
        Positions of the rows.
    probability : float64 array, shape (n, K)
        Probability of each class, in any order: the claim does not assign columns to classes.
    """

    rows: NDArray[np.int64] = _array(int, "n", unique=True)
    probability: NDArray[np.float64] = _array(float, "nK", finite=True)


@_claim
class Branches(Claim):
    """Direction of rows at the splits of other parties.

    The probabilities assume that a row reaches the split.

    Attributes
    ----------
    rows : int64 array, shape (n,)
        Positions among the rows to predict.
    tree, node : int64 array, shape (k,)
        Tree and node of each split.
    left : float64 array, shape (n, k)
        Probability that a row goes left. NaN if nothing is claimed.
    """

    rows: NDArray[np.int64] = _array(int, "n", unique=True)
    tree: NDArray[np.int64] = _array(int, "k")
    node: NDArray[np.int64] = _array(int, "k")
    left: NDArray[np.float64] = _array(float, "nk", within=(0.0, 1.0))


@_claim
class Thresholds(Claim):
    """Thresholds of the splits of other parties.

    Attributes
    ----------
    tree, node : int64 array, shape (k,)
        Tree and node of each split.
    feature : int64 array, shape (k,)
        Column of each split, as a position in the schema.
    value : float64 array, shape (k,)
        Estimated threshold.
    low, high : float64 array, shape (k,)
        Interval that contains the threshold according to the attack: above ``low``, and at most
        ``high``.
    """

    tree: NDArray[np.int64] = _array(int, "k")
    node: NDArray[np.int64] = _array(int, "k")
    feature: NDArray[np.int64] = _array(int, "k")
    value: NDArray[np.float64] = _array(float, "k")
    low: NDArray[np.float64] = _array(float, "k")
    high: NDArray[np.float64] = _array(float, "k")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_intervals(self.low, self.high)


@_claim
class ColumnRanks(Claim):
    """Order of rows in another party's column. The principals know the ids of the rows.

    Attributes
    ----------
    owner : str
        Party that has the column.
    feature : int
        Position of the column in the schema.
    ids : int64 array, shape (n,)
        Ids of the rows.
    rank : float64 array, shape (n,)
        Share of the rows with a smaller value, 0 to 1.
    low, high : float64 array, shape (n,)
        Interval that contains the rank according to the attack.
    """

    owner: str
    feature: int
    ids: NDArray[np.int64] = _array(int, "n", unique=True)
    rank: NDArray[np.float64] = _array(float, "n", finite=True)
    low: NDArray[np.float64] = _array(float, "n")
    high: NDArray[np.float64] = _array(float, "n")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_intervals(self.low, self.high)


@_claim
class ColumnBins(Claim):
    """Bins of rows in another party's column. The principals know the ids of the rows.

    Attributes
    ----------
    owner : str
        Party that has the column.
    feature : int
        Position of the column in the schema.
    ids : int64 array, shape (n,)
        Ids of the rows.
    bin : int64 array, shape (n,)
        Number of the bin, from 0 in the order of values, -1 for a missing value.
    """

    owner: str
    feature: int
    ids: NDArray[np.int64] = _array(int, "n", unique=True)
    bin: NDArray[np.int64] = _array(int, "n")


@_claim
class BinClassCounts(Claim):
    """Number of rows of each class that one victim has in every bin of every column.

    Attributes
    ----------
    owner : str
        Party that has the rows.
    counts : int64 array, shape (total_bins, K)
        Rows by bin and class. Bins are in the order of the announced cut points.
    """

    owner: str
    counts: NDArray[np.int64] = _array(int, "bK")


@_claim
class ClassShares(Claim):
    """Share of each class among the rows of one victim.

    Attributes
    ----------
    owner : str
        Party that has the rows.
    share : float64 array, shape (K,)
        Shares that add up to 1.
    """

    owner: str
    share: NDArray[np.float64] = _array(float, "K", within=(0.0, np.inf))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not abs(self.share.sum() - 1) < 1e-6:
            raise ProtocolError("shares of classes are numbers from 0 that add up to 1")


@_claim
class CutWindows(Claim):
    """Intervals to which dishonest principals moved cut points, or the splits of roots.

    Attributes
    ----------
    feature : int64 array, shape (k,)
        Columns, as positions in the schema.
    low, high : float64 array, shape (k,)
        Ends of the intervals, which belong to them.
    tree : int64 array, shape (k,)
        Tree whose root is split in the interval. -1 if cut points are meant.
    """

    feature: NDArray[np.int64] = _array(int, "k")
    low: NDArray[np.float64] = _array(float, "k")
    high: NDArray[np.float64] = _array(float, "k")
    tree: NDArray[np.int64] = _array(int, "k")


@_claim
class Entries(Claim):
    """Single values of one victim, by row and column.

    Attributes
    ----------
    owner : str
        Party that has the values. Empty: the party that has the row.
    ids : int64 array, shape (k,)
        Ids of the rows.
    feature : int64 array, shape (k,)
        Columns, as positions in the schema.
    value : float64 array, shape (k,)
        Finite values.
    """

    owner: str
    ids: NDArray[np.int64] = _array(int, "k")
    feature: NDArray[np.int64] = _array(int, "k")
    value: NDArray[np.float64] = _array(float, "k", finite=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Duplicate entries would count twice in a score.
        if len(np.unique(np.stack([self.ids, self.feature]), axis=1).T) < len(self.ids):
            raise ProtocolError("an entry is claimed twice; give every row and column once")


@_claim
class Membership(Claim):
    """Score of each candidate for being a training row, by one test.

    Attributes
    ----------
    test : str
        Name of the test. The first claim of a guess is the main test of the attack.
    score : float64 array, shape (n,)
        Finite score of each candidate. A higher score means a more likely training row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Membership
    >>> Membership("loss", np.array([0.9, 0.1])).score.tolist()
    [0.9, 0.1]
    """

    test: str
    score: NDArray[np.float64] = _array(float, "n", finite=True)


def _check_intervals(low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
    """Raise `ProtocolError` if a lower end is above its upper end."""
    if not (low <= high).all():
        raise ProtocolError("an interval is claimed whose low end is above its high end")


@dataclass(frozen=True, eq=False)
class Guess:
    """All claims of an attack, or the reason why it makes none.

    An attack that finds nothing must state a reason with `Guess.none`, because an empty result is
    no evidence that nothing leaks. The process that runs the attack refuses a guess with neither
    claims nor a reason. This also holds for views for which `Attack.inapplicable` returns a reason,
    because `Attack.run` can be called with any view.

    Attributes
    ----------
    claims : tuple of Claim
        The claims, in the order of the attack.
    notes : mapping of str to float
        Diagnostics that the attack computes itself, such as residuals or seconds per stage.
    reason : Reason or None
        Reason for an empty guess. None if there are claims.

    Examples
    --------
    >>> Guess.none("no tree has more than one leaf").claims
    ()
    >>> print(Guess.of([], otherwise=Reason("no-trees")).reason)
    the parties of the adversary received neither leaf values nor histograms of boosted trees
    """

    claims: tuple[Claim, ...] = ()
    notes: Mapping[str, float] = field(default_factory=dict)
    reason: Reason | None = None

    def __post_init__(self) -> None:
        claims: Any = self.claims
        if not isinstance(claims, tuple) or not all(isinstance(c, Claim) for c in claims):
            raise ProtocolError(
                f"a guess is a tuple of claims; got {type(claims).__name__}: write "
                "Guess((Records(table),))"
            )
        for key, value in self.notes.items():
            if not isinstance(value, (int, float, np.number)):
                raise ProtocolError(f"note {key!r} is {value!r}; notes are numbers")
        if self.reason is None:
            return
        if not isinstance(self.reason, Reason) or self.reason.ok:
            raise ProtocolError(
                f"the reason of an empty guess is {self.reason!r}; give a Reason, or a sentence to "
                "Guess.none"
            )
        if claims:
            raise ProtocolError(
                f"a guess has {len(claims)} claims and a reason for having none ({self.reason}); "
                "leave one of them out"
            )

    @classmethod
    def none(cls, reason: Reason | str | None, notes: Mapping[str, float] | None = None) -> "Guess":
        """Return a guess without claims.

        Parameters
        ----------
        reason : Reason or str
            Why the attack claims nothing: a code of ``fedtrees/core/reasons.csv``, or a sentence.
            The type permits None, the return value of `Attack.inapplicable`, but None is refused.
        notes : mapping of str to float, optional
            Diagnostics.

        Returns
        -------
        guess : Guess
            The empty guess with its reason.

        Raises
        ------
        ProtocolError
            If there is no reason.
        """
        if not reason:
            raise ProtocolError(
                "an attack claims nothing and gives no reason; write Guess.none(Reason(code)), or "
                'Guess.none("a sentence")'
            )
        # A sentence is stored under a common code.
        no_claim_reason = (
            reason if isinstance(reason, Reason) else Reason("no-claim", text=str(reason))
        )
        return cls((), notes or {}, no_claim_reason)

    @classmethod
    def of(
        cls,
        claims: Iterable[Claim],
        notes: Mapping[str, float] | None = None,
        *,
        otherwise: Reason | str,
    ) -> "Guess":
        """Return a guess with claims, or with a reason if all of the claims are empty.

        Parameters
        ----------
        claims : iterable of Claim
            Claims that are `empty` are left out.
        notes : mapping of str to float, optional
            Diagnostics.
        otherwise : Reason or str
            Reason for the empty guess, used if no claim remains.

        Returns
        -------
        guess : Guess
            The remaining claims, or none with the reason.
        """
        nonempty = tuple(c for c in claims if not c.empty)
        return cls(nonempty, notes or {}) if nonempty else cls.none(otherwise, notes)

    def all(self, kind: type[C]) -> tuple[C, ...]:
        """Return the claims of one type, in order.

        Parameters
        ----------
        kind : type of Claim
            Type of the claims, including subclasses.

        Returns
        -------
        claims : tuple of Claim
            Empty if there are none.
        """
        return tuple(c for c in self.claims if isinstance(c, kind))

    def first(self, kind: type[C]) -> C | None:
        """Return the first claim of one type, None if there is none.

        Parameters
        ----------
        kind : type of Claim
            Type of the claim, including subclasses.

        Returns
        -------
        claim : Claim or None
            The first one in the order of `claims`.
        """
        return next(iter(self.all(kind)), None)
