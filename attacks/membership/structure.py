"""Membership tests that compare a candidate with values of training rows that messages contain.

`column_overlap` uses the columns of sketches, and `shared_thresholds` the thresholds of a model.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.observations.columns import Column
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.forest.random_forest import ClassTree

Floats = NDArray[np.float64]
#: Weight of the rarity of a candidate's values, which only breaks ties.
_RARE = 1e-6


def shared_thresholds(
    X: NDArray[np.float32], trees: Sequence[Tree | ClassTree], known_rows: Table | None = None
) -> Floats:
    """Return the evidence for membership from thresholds that equal values of a candidate.

    A cut point of a sketch is the value of a training row. Of k candidates with this value at
    least one is a member, and each is with probability 1/2. The value of a non-member must come
    from one of the other candidates, which has the log probability log(1 - 2^(1-k)). A single
    candidate with the value is a member, unless the value is also that of a row that is not a
    candidate. The log-odds are set to log n in this case. Columns are added up.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates.
    trees : sequence of Tree or ClassTree
        The model under attack.
    known_rows : Table or None
        Rows known to be members. Thresholds that are among their values are ignored.

    Returns
    -------
    float64 array, shape (n,)
        Log-odds in nats.
    """
    nats = np.zeros(len(X))
    for column in range(X.shape[1]):
        used = [t.threshold[t.feature == column] for t in trees]
        values = np.unique(np.concatenate([*used, np.zeros(0, dtype=np.float32)]))
        values = values[~np.isnan(values)]
        if known_rows is not None:
            values = np.setdiff1d(values, known_rows.X[:, column])
        x = X[:, column]
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        shared = -np.log1p(-(0.5 ** np.maximum(count - 1, 1)))
        each = np.where(count == 1, np.log(len(x)), shared)
        nats += np.where(np.isin(x, values), each[at.ravel()], 0.0)
    return nats


def column_overlap(X: NDArray[np.float32], owners: Iterable[Sequence[Column]]) -> Floats:
    """Return the largest share of a candidate's values that the sketches of one client contain.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates. A missing value counts as contained.
    owners : iterable of sequence of Column
        The d columns of each client's sketch.

    Returns
    -------
    float64 array, shape (n,)
        At least 1 if one client's sketch contains all values. Among candidates with the same share,
        those with rare values have a score that is greater by at most `_RARE`.
    """
    best, rare = np.zeros(len(X)), np.zeros(len(X))
    for x in X.T:
        _, at, count = np.unique(x, return_inverse=True, return_counts=True)
        rare -= np.log(count / len(X))[at.ravel()]
    for columns in owners:
        contained = [np.isin(x, c.values) | np.isnan(x) for x, c in zip(X.T, columns, strict=True)]
        best = np.maximum(best, np.mean(contained, axis=0))
    return np.asarray(best + _RARE * rare / max(rare.max(initial=0.0), 1.0))
