"""Orders of rows by local data, from which a blind adversary guesses columns of other parties.

Columns of a table are often correlated. In a vertical federation, the order of the rows in a local
column is therefore a guess of their order in another party's column. The metrics `column-ranks` and
`column-bins` use these orders as blind baselines.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.statistics import middle_ranks
from fedtrees.guessing.names import likest
from fedtrees.metrics.metric import Case

#: Ids and ranks of rows, shape (n,) each.
Order = tuple[NDArray[np.int64], NDArray[np.float64]]
#: Owner of a column, and its position in the schema.
Key = tuple[str, int]


def orders_of_own(case: Case, columns: Iterable[Key]) -> dict[str, dict[Key, Order]]:
    """Return guesses of the order of rows in columns of other parties.

    Rows are ordered by the labels of a principal, by the first principal component of its columns,
    and by its column with the most similar name. For example, *mean radius* is ordered by *worst
    radius*.

    Parameters
    ----------
    case : Case
        Provides the local data of the principals.
    columns : iterable of (str, int)
        Owner and position of the columns to guess.

    Returns
    -------
    orders : dict of str to dict
        By the name of the guess, ids and ranks of the local rows for every column.
    """
    keys, orders = list(columns), {}
    for name_of_order, order in _common_orders(case).items():
        orders[name_of_order] = dict.fromkeys(keys, order)
    for name in case.principals:
        local_data = case.local_data.get(name)
        if local_data is not None and len(local_data.columns):
            # Missing values are ranked at the mean of their column.
            ranks = [middle_ranks(np.nan_to_num(x, nan=np.nanmean(x))) for x in local_data.X.T]
            similar = {key: likest(case.schema, local_data.columns, key[1]) for key in keys}
            orders[f"names-of-{name}"] = {
                key: (local_data.ids, ranks[position]) for key, position in similar.items()
            }
    return orders


def _common_orders(case: Case) -> dict[str, Order]:
    """Return the orders that are guessed for all columns: by labels, and by the main direction."""
    orders = {}
    for name in case.principals:
        local_data = case.local_data.get(name)
        if local_data is not None and local_data.y is not None:
            orders["own-labels"] = local_data.ids, middle_ranks(local_data.y)
        if local_data is not None and len(local_data.columns):
            orders[f"columns-of-{name}"] = (
                local_data.ids,
                middle_ranks(main_direction(local_data.X)),
            )
    return orders


def misnamed(named: Sequence[tuple[str, int]], case: Case) -> str | None:
    """Return why claims about columns (owner and position) are invalid, None if they are valid."""
    if len(set(named)) < len(named):
        return "it claimed a column more than once"
    for owner, feature in named:
        if owner not in case.victims or feature not in case.victims[owner].columns:
            return f"it claimed column {feature} of {owner!r}; no victim has it"
    return None


def main_direction(X: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the first principal component of the standardised columns, float64, shape (n,).

    Missing values are replaced by the mean. The sign is chosen so that the weights of the columns
    have a non-negative sum.
    """
    centred = X.astype(np.float64) - np.nanmean(X, axis=0, dtype=np.float64)
    spread = np.nanstd(centred, axis=0)
    Z = np.nan_to_num(centred / np.where(spread > 0, spread, 1.0))
    weights = np.linalg.svd(Z, full_matrices=False)[2][0]
    component: NDArray[np.float64] = Z @ weights * (1.0 if weights.sum() >= 0 else -1.0)
    return component
