"""The `cuts` parameter: a method by name, or cut points made elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedtrees.core.errors import DataError, UsageError
from fedtrees.trees.binning import Cuts


def read_cuts(cuts: Any, n_features: int) -> tuple[str | None, list[tuple[float, ...]] | None]:
    """Return the protocol's method, and the public cut points of every feature where given.

    Parameters
    ----------
    cuts : None, str, Cuts, or (indptr, values)
        The pair is what XGBoost's ``QuantileDMatrix.get_quantile_cut()`` returns.
    n_features : int

    Raises
    ------
    UsageError
        Something else.
    DataError
        Cut points of another number of features, or that are none.
    """
    if cuts is None or isinstance(cuts, str):
        return cuts, None
    if isinstance(cuts, tuple | list) and len(cuts) == 2:
        try:
            cuts = Cuts.from_xgboost(np.asarray(cuts[0]), np.asarray(cuts[1]))
        except (TypeError, IndexError) as error:
            raise DataError(f"cuts are no pair (indptr, values) of cut points ({error})") from error
    if not isinstance(cuts, Cuts):
        raise UsageError(
            f"cuts={cuts!r}: give a method such as 'sketch', XGBoost's get_quantile_cut() or Cuts"
        )
    if cuts.n_features != n_features:
        raise DataError(f"cuts of {cuts.n_features} features for {n_features} columns")
    points = [(float(cuts.minimum[f]), *map(float, cuts.of(f))) for f in range(n_features)]
    return "public", points
