"""Ridge regression of another party's columns on local columns, from a few known values.

An adversary in vertical federated learning may know single values of another party's columns, for
example from a public source. It can then predict the remaining values from its local columns of the
same rows, without using any message. This is a blind baseline of the metric `entries`, and the
attack on regressions starts from it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import KnownEntries, LocalData

#: Ridge penalty. The local columns are standardised first.
RIDGE = 1.0


def predict_columns(
    columns: Mapping[int, tuple[float, float]],
    known_entries: KnownEntries,
    local_data: LocalData,
    together: bool = False,
) -> dict[int, NDArray[np.float64]]:
    """Predict columns of another party by ridge regression on the local columns.

    Parameters
    ----------
    columns : mapping of int to (float, float)
        Mean and standard deviation of every column to predict, by its position in the schema.
    known_entries : KnownEntries
        Known values. Values of unknown rows or other columns are ignored.
    local_data : LocalData
        Columns of m rows.
    together : bool
        If True, first fit one slope for all standardised columns along the first principal
        component of the local columns, because columns of a table are often correlated with it.
        The residuals are then regressed column by column.

    Returns
    -------
    predictions : dict of int to float64 array, shape (m,)
        Predicted values by column, in the order of the local rows. Without `together`, columns
        without a known value are omitted.
    """
    Z = local_data.X.astype(np.float64)
    spread = np.nanstd(Z, axis=0)
    Z = np.nan_to_num((Z - np.nanmean(Z, axis=0)) / np.where(spread > 0, spread, 1.0))
    position = {i: k for k, i in enumerate(local_data.ids.tolist())}
    known_values = [
        (position[i], f, float(v))
        for i, f, v in zip(
            known_entries.ids.tolist(),
            known_entries.columns.tolist(),
            known_entries.values,
            strict=True,
        )
        if i in position and f in columns
    ]
    shared = np.zeros(Z.shape[1])
    if together:
        usable = [(k, f, v) for k, f, v in known_values if columns[f][1] > 0]
        direction = np.linalg.svd(Z, full_matrices=False)[2][0]
        direction /= max(float((Z @ direction).std()), 1e-9)
        x = Z[[k for k, _, _ in usable]] @ direction
        z = np.array([(v - columns[f][0]) / columns[f][1] for _, f, v in usable])
        shared = direction * (x @ z) / (x @ x + RIDGE)
    predictions = {}
    for feature, (mean, deviation) in columns.items():
        known_of_feature = [(k, v) for k, f, v in known_values if f == feature]
        if not known_of_feature and not together:
            continue
        A, common = Z[[k for k, _ in known_of_feature]], deviation * shared
        residual = np.array([v for _, v in known_of_feature]) - mean - A @ common
        slope = common + A.T @ np.linalg.solve(A @ A.T + RIDGE * np.eye(len(A)), residual)
        predictions[feature] = mean + Z @ slope
    return predictions
