"""Others' columns as own columns of the same rows and a few known values make them likely."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import KnownEntries, LocalData

#: Of standardised columns, a ridge for every known value.
RIDGE = 1.0


def regressed(
    columns: Mapping[int, tuple[float, float]],
    told: KnownEntries,
    own: LocalData,
    together: bool = False,
) -> dict[int, NDArray[np.float64]]:
    """Return ridge regressions of columns on own columns of the same rows.

    Together: first all standardised columns at once along the own columns' first principal
    component, as columns of a table go along with each other; then what is left, column by column.

    `columns`: Mean and standard deviation of every column sought, by its position in the schema.

    Returns: dict of int to float64 array, shape (m,). By column, in the order of own rows; those
    without a known value are missing, unless ``together``.
    """
    Z = own.X.astype(np.float64)
    spread = np.nanstd(Z, axis=0)
    Z = np.nan_to_num((Z - np.nanmean(Z, axis=0)) / np.where(spread > 0, spread, 1.0))
    place = {i: k for k, i in enumerate(own.ids.tolist())}
    known = [
        (place[i], f, float(v))
        for i, f, v in zip(told.ids.tolist(), told.columns.tolist(), told.values, strict=True)
        if i in place and f in columns
    ]
    shared = np.zeros(Z.shape[1])
    if together:
        usable = [(k, f, v) for k, f, v in known if columns[f][1] > 0]
        along = np.linalg.svd(Z, full_matrices=False)[2][0]
        along /= max(float((Z @ along).std()), 1e-9)
        x = Z[[k for k, _, _ in usable]] @ along
        z = np.array([(v - columns[f][0]) / columns[f][1] for _, f, v in usable])
        shared = along * (x @ z) / (x @ x + RIDGE)
    found = {}
    for feature, (mean, deviation) in columns.items():
        given = [(k, v) for k, f, v in known if f == feature]
        if not given and not together:
            continue
        A, common = Z[[k for k, _ in given]], deviation * shared
        rest = np.array([v for _, v in given]) - mean - A @ common
        slope = common + A.T @ np.linalg.solve(A @ A.T + RIDGE * np.eye(len(A)), rest)
        found[feature] = mean + Z @ slope
    return found
