"""Orders of rows by what principals hold, which blind adversaries guess others' columns by."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.statistics import middle_ranks
from fedtrees.metrics.metric import Case


def orders_of_own(case: Case) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Return ids and ranks of rows as a principal's own data order them, by what orders them."""
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
