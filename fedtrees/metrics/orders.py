"""Orders of rows by what principals hold, which blind adversaries guess others' columns by."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.statistics import middle_ranks
from fedtrees.guessing.names import likest
from fedtrees.metrics.metric import Case

#: Ids and ranks of rows.
Order = tuple[NDArray[np.int64], NDArray[np.float64]]
#: Owner and position of a column.
Key = tuple[str, int]


def orders_of_own(case: Case, columns: Iterable[Key]) -> dict[str, dict[Key, Order]]:
    """Return how a principal's own data order the rows in others' columns, by what orders them.

    That is their labels, what own columns have in common, and for each of others' columns the own
    one whose name is most like its name: *mean radius* goes with *worst radius*.
    """
    keys, found = list(columns), {}
    for what, order in _of_all(case).items():
        found[what] = dict.fromkeys(keys, order)
    for name in case.principals:
        held = case.local_data.get(name)
        if held is not None and len(held.columns):
            ranks = [middle_ranks(np.nan_to_num(x, nan=np.nanmean(x))) for x in held.X.T]
            like = {key: likest(case.schema, held.columns, key[1]) for key in keys}
            found[f"names-of-{name}"] = {key: (held.ids, ranks[at]) for key, at in like.items()}
    return found


def _of_all(case: Case) -> dict[str, Order]:
    found = {}
    for name in case.principals:
        held = case.local_data.get(name)
        if held is not None and held.y is not None:
            found["own-labels"] = held.ids, middle_ranks(held.y)
        if held is not None and len(held.columns):
            found[f"columns-of-{name}"] = held.ids, middle_ranks(main_direction(held.X))
    return found


def misnamed(named: Sequence[tuple[str, int]], case: Case) -> str | None:
    """Return what is wrong with the owners and features of claims, None if nothing is."""
    if len(set(named)) < len(named):
        return "it claimed a column more than once"
    for owner, feature in named:
        if owner not in case.victims or feature not in case.victims[owner].columns:
            return f"it claimed column {feature} of {owner!r}; no victim has it"
    return None


def main_direction(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first principal component of the standardised columns, float64, shape (n,)."""
    centred = X.astype(np.float64) - np.nanmean(X, axis=0, dtype=np.float64)
    spread = np.nanstd(centred, axis=0)
    Z = np.nan_to_num(centred / np.where(spread > 0, spread, 1.0))
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    found: NDArray[np.float64] = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return found
