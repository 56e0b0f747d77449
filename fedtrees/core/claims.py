"""Guesses of an attack: claims about the victims' local data, or the reason why there is none.

Each subclass of `Claim` is one kind of claim, for example reconstructed records or class counts of
leaves. A metric for this type compares claims with the ground truth (`fedtrees.metrics`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table


@dataclass(frozen=True, eq=False)
class Claim:
    """Base class of all claims.

    The metrics of its type define the ground truth and the blind baseline
    (`fedtrees.metrics.metric.Metric`).
    """

    @property
    def certain(self) -> bool:
        """Whether the attack guarantees that the claim is correct."""
        return False

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row, leaf, value or other entry that could be scored."""
        return False


C = TypeVar("C", bound=Claim)


@dataclass(frozen=True, eq=False)
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
    """

    table: Table
    confidence: NDArray[np.float64] | None = None
    owner: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, Table):
            raise ProtocolError(f"guessed records are a {type(self.table).__name__}, not a Table")
        m = len(self.table)
        if self.confidence is not None:
            c = np.asarray(self.confidence, dtype=np.float64)
            object.__setattr__(self, "confidence", c)
            if c.shape != (m,) or not ((c >= 0) & (c <= 1)).all():
                raise ProtocolError(
                    f"confidence of shape {c.shape} for {m} guessed rows; give one probability, "
                    "0 to 1, per row"
                )
        if self.owner is not None and not (
            len(self.owner) == m and all(isinstance(o, str) for o in self.owner)
        ):
            raise ProtocolError(
                f"{len(self.owner)} owners for {m} guessed rows; give one party name per row"
            )

    @property
    def certain(self) -> bool:
        """Whether the attack returned only rows that it is certain of."""
        return self.confidence is not None

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return len(self.table) == 0


@dataclass(frozen=True, eq=False)
class EveryRecord(Records):
    """Rows of all parties, including the principals' local rows, as some papers score them."""


@dataclass(frozen=True, eq=False)
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
    confidence: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.table, Table):
            raise ProtocolError(f"guessed rows are a {type(self.table).__name__}, not a Table")
        if not self.owner or not all(isinstance(o, str) for o in self.owner):
            raise ProtocolError(f"owners of a batch are {self.owner!r}; name one party at least")
        if self.confidence is not None:
            c = np.asarray(self.confidence, dtype=np.float64)
            object.__setattr__(self, "confidence", c)
            if c.shape != self.table.X.shape or not ((c >= 0) & (c <= 1)).all():
                raise ProtocolError(
                    f"confidence of shape {c.shape} for rows of shape {self.table.X.shape}; give "
                    "one number, 0 to 1, per cell"
                )

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return len(self.table) == 0


@dataclass(frozen=True, eq=False)
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
    """

    tree: int
    leaf: NDArray[np.intp]
    counts: NDArray[np.int64]
    certified: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        leaf, counts = np.shape(self.leaf), np.shape(self.counts)
        if len(leaf) != 1 or len(counts) != 2 or counts[0] != leaf[0]:
            raise ProtocolError(
                f"counts of shape {counts} for leaves of shape {leaf}; give one row of class "
                "counts, (leaves, classes), per leaf"
            )
        for name in ("leaf", "counts"):
            if np.asarray(getattr(self, name)).dtype.kind not in "iu" and leaf[0]:
                raise ProtocolError(f"{name} of leaf counts are whole numbers; round them")
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))
        if self.certified is not None:
            certified = np.asarray(self.certified)
            if certified.dtype != np.bool_ or certified.shape != leaf:
                raise ProtocolError(
                    f"certified is {certified.dtype} of shape {certified.shape} for {leaf[0]} "
                    "leaves; give one boolean per leaf"
                )
            object.__setattr__(self, "certified", certified)

    @property
    def certain(self) -> bool:
        """Whether the counts of all leaves are certified."""
        return self.certified is not None and bool(self.certified.all())

    @property
    def empty(self) -> bool:
        """Whether the claim contains no leaf."""
        return len(self.leaf) == 0


@dataclass(frozen=True, eq=False)
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
    values: NDArray[np.float32]
    counts: NDArray[np.int64]
    exact: bool

    def __post_init__(self) -> None:
        values, counts = np.asarray(self.values), np.asarray(self.counts)
        if values.ndim != 1 or counts.shape != values.shape:
            raise ProtocolError(
                f"column values of shape {values.shape} with counts of shape {counts.shape}; give "
                "one count per value"
            )
        if not np.isfinite(values).all() or (np.diff(values) <= 0).any():
            raise ProtocolError("column values are finite and ascending; add up equal ones")
        if len(counts) and (counts.dtype.kind not in "iu" or counts.min() < 1):
            raise ProtocolError("counts of column values are whole numbers of 1 or more")
        object.__setattr__(self, "values", values.astype(np.float32))
        object.__setattr__(self, "counts", counts.astype(np.int64))

    @property
    def certain(self) -> bool:
        """Whether the claim contains all values of the owner."""
        return self.exact

    @property
    def empty(self) -> bool:
        """Whether the claim contains no value, without claiming that the owner has none."""
        return len(self.values) == 0 and not self.exact


@dataclass(frozen=True, eq=False)
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
    """

    ids: NDArray[np.int64]
    cluster: NDArray[np.int64]
    probability: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        shapes = [np.shape(self.ids), np.shape(self.cluster)]
        if self.probability is not None:
            shapes.append(np.shape(self.probability)[:1])
        if len(shapes[0]) != 1 or len(set(shapes)) != 1:
            raise ProtocolError(
                f"labels of ids of shape {shapes[0]} with clusters (and probabilities) of shape "
                f"{', '.join(map(str, shapes[1:]))}; give one of each per id"
            )

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return np.size(self.ids) == 0


@dataclass(frozen=True, eq=False)
class RoutedLabels(Claim):
    """Labels of rows that a model was asked to predict, identified by their position among these.

    Attributes
    ----------
    rows : int64 array, shape (n,)
        Positions of the rows.
    probability : float64 array, shape (n, K)
        Probability of each class, in any order: the claim does not assign columns to classes.
    """

    rows: NDArray[np.int64]
    probability: NDArray[np.float64]

    def __post_init__(self) -> None:
        rows, p = np.asarray(self.rows), np.asarray(self.probability, dtype=np.float64)
        if rows.ndim != 1 or p.ndim != 2 or len(p) != len(rows) or not np.isfinite(p).all():
            raise ProtocolError(
                f"routed labels of rows of shape {rows.shape} with probabilities of shape "
                f"{p.shape}; give one finite number per row and class"
            )
        if len(np.unique(rows)) < len(rows):
            raise ProtocolError("a row is claimed twice; give every place once")
        object.__setattr__(self, "probability", p)

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return np.size(self.rows) == 0


@dataclass(frozen=True, eq=False)
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

    rows: NDArray[np.int64]
    tree: NDArray[np.int64]
    node: NDArray[np.int64]
    left: NDArray[np.float64]

    def __post_init__(self) -> None:
        n, k, left = len(self.rows), len(self.tree), np.asarray(self.left, dtype=np.float64)
        if left.shape != (n, k) or np.shape(self.node) != (k,):
            raise ProtocolError(
                f"branches of shape {left.shape} for {n} rows and {k} splits; give one probability "
                "per row and split"
            )
        if ((left < 0) | (left > 1)).any() or len(np.unique(self.rows)) < n:
            raise ProtocolError("probabilities of branches are 0 to 1, and a row is claimed once")
        object.__setattr__(self, "left", left)

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row or no split."""
        return np.size(self.left) == 0


@dataclass(frozen=True, eq=False)
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

    tree: NDArray[np.int64]
    node: NDArray[np.int64]
    feature: NDArray[np.int64]
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __post_init__(self) -> None:
        _same_length(self, ("tree", "node", "feature"), ("value", "low", "high"))
        if not (self.low <= self.high).all():
            raise ProtocolError("a threshold is claimed in an interval whose low end is above high")

    @property
    def empty(self) -> bool:
        """Whether the claim contains no threshold."""
        return np.size(self.value) == 0


@dataclass(frozen=True, eq=False)
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
    ids: NDArray[np.int64]
    rank: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def __post_init__(self) -> None:
        _same_length(self, ("ids",), ("rank", "low", "high"))
        if not (np.isfinite(self.rank).all() and (self.low <= self.high).all()):
            raise ProtocolError("ranks are finite, and low is not above high")
        if len(np.unique(self.ids)) < len(self.ids):
            raise ProtocolError("a row is ranked twice; give every id once")

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return np.size(self.ids) == 0


@dataclass(frozen=True, eq=False)
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
    ids: NDArray[np.int64]
    bin: NDArray[np.int64]

    def __post_init__(self) -> None:
        _same_length(self, ("ids", "bin"), ())
        if len(np.unique(self.ids)) < len(self.ids):
            raise ProtocolError("a row is claimed twice; give every id once")

    @property
    def empty(self) -> bool:
        """Whether the claim contains no row."""
        return np.size(self.ids) == 0


@dataclass(frozen=True, eq=False)
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
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts = np.asarray(self.counts)
        if counts.ndim != 2 or counts.dtype.kind not in "iu":
            raise ProtocolError(
                f"class counts of bins are {counts.dtype} of shape {counts.shape}; give whole "
                "numbers, one row per bin and one column per class"
            )
        object.__setattr__(self, "counts", counts.astype(np.int64))

    @property
    def empty(self) -> bool:
        """Whether the claim contains no bin."""
        return np.size(self.counts) == 0


@dataclass(frozen=True, eq=False)
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
    share: NDArray[np.float64]

    def __post_init__(self) -> None:
        share = np.asarray(self.share, dtype=np.float64)
        if share.ndim != 1 or not ((share >= 0).all() and abs(share.sum() - 1) < 1e-6):
            raise ProtocolError("shares of classes are numbers from 0 that add up to 1")
        object.__setattr__(self, "share", share)


@dataclass(frozen=True, eq=False)
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

    feature: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    tree: NDArray[np.int64]

    def __post_init__(self) -> None:
        _same_length(self, ("feature", "tree"), ("low", "high"))

    @property
    def empty(self) -> bool:
        """Whether the claim contains no interval."""
        return np.size(self.feature) == 0


@dataclass(frozen=True, eq=False)
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
    ids: NDArray[np.int64]
    feature: NDArray[np.int64]
    value: NDArray[np.float64]

    def __post_init__(self) -> None:
        _same_length(self, ("ids", "feature"), ("value",))
        if not np.isfinite(self.value).all():
            raise ProtocolError("claimed values must be finite; leave out unknown values")
        # Duplicate entries would count twice in a score.
        if len(np.unique(np.stack([self.ids, self.feature]), axis=1).T) < len(self.ids):
            raise ProtocolError("an entry is claimed twice; give every row and column once")

    @property
    def empty(self) -> bool:
        """Whether the claim contains no value."""
        return np.size(self.value) == 0


@dataclass(frozen=True, eq=False)
class Membership(Claim):
    """Score of each candidate for being a training row, by one test.

    Attributes
    ----------
    test : str
        Name of the test. The first claim of a guess is the main test of the attack.
    score : float64 array, shape (n,)
        Finite score of each candidate. A higher score means a more likely training row.
    """

    test: str
    score: NDArray[np.float64]

    def __post_init__(self) -> None:
        score = np.asarray(self.score, dtype=np.float64)
        if score.ndim != 1 or not np.isfinite(score).all():
            raise ProtocolError("scores of membership are finite numbers, one per candidate")
        object.__setattr__(self, "score", score)

    @property
    def empty(self) -> bool:
        """Whether the claim contains no candidate."""
        return np.size(self.score) == 0


def _same_length(
    claim: Claim, integer_fields: tuple[str, ...], float_fields: tuple[str, ...]
) -> None:
    """Convert fields of a claim to int64 or float64 arrays, and check that their lengths agree."""
    shapes = {np.shape(getattr(claim, name)) for name in (*integer_fields, *float_fields)}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ProtocolError(
            f"{type(claim).__name__} has arrays of shape {', '.join(map(str, sorted(shapes)))}; "
            "give one value of each per entry"
        )
    for name in integer_fields:
        if np.asarray(getattr(claim, name)).dtype.kind not in "iu" and next(iter(shapes))[0]:
            raise ProtocolError(f"{name} of {type(claim).__name__} are whole numbers")
    for names, kind in ((integer_fields, np.int64), (float_fields, np.float64)):
        for name in names:
            object.__setattr__(claim, name, np.asarray(getattr(claim, name), dtype=kind))


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
    the principals see neither leaf values nor histograms of boosted trees
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
        """
        nonempty = tuple(c for c in claims if not c.empty)
        return cls(nonempty, notes or {}) if nonempty else cls.none(otherwise, notes)

    def all(self, kind: type[C]) -> tuple[C, ...]:
        """Return the claims of one type, in order."""
        return tuple(c for c in self.claims if isinstance(c, kind))

    def first(self, kind: type[C]) -> C | None:
        """Return the first claim of one type, None if there is none."""
        return next(iter(self.all(kind)), None)
