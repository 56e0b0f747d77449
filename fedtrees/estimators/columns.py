"""Convert the input of scikit-learn's users to float32 rows, public ranges and cut points."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.core.schema import Feature
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.boosting import checked_weights

#: Categories by column name, in the order of their codes.
Categories = Mapping[Hashable, tuple[Any, ...]]


def _is_frame(X: Any) -> bool:
    """Return whether X is a pandas DataFrame."""
    return type(X).__module__.partition(".")[0] == "pandas" and hasattr(X, "columns")


def categories_of(X: Any) -> dict[Hashable, tuple[Any, ...]]:
    """Return the categories of every column of dtype ``category``, {} if X is not a DataFrame."""
    if not _is_frame(X):
        return {}
    return {
        name: tuple(dtype.categories)
        for name, dtype in X.dtypes.items()
        if hasattr(dtype, "categories")
    }


def coded(X: Any, categories: Categories) -> Any:
    """Return a DataFrame with its categories replaced by codes, NaN for a missing value.

    Any other input is returned unchanged, because the columns of an array already contain codes.

    Raises
    ------
    DataError
        If two columns have the same name, if a value is not a category of its column, or if a
        column without categories contains text, dates or intervals.
    """
    if not _is_frame(X):
        return X
    import pandas as pd

    if not X.columns.is_unique:
        name = X.columns[X.columns.duplicated()][0]
        raise DataError(f"two columns are called {name!r}; give every column its own name")
    out = X.copy(deep=False)
    for name in X.columns:
        values = X[name]
        if name in categories:
            index = pd.Index(categories[name], dtype=object)
            # Categories may have any type, so that they are compared as Python objects.
            codes = index.get_indexer(pd.Index(values.astype(object)))
            unknown = values[(codes < 0) & values.notna().to_numpy()]
            if len(unknown):
                hint = did_you_mean(str(unknown.iloc[0]), map(str, index))
                raise DataError(f"column {name!r} contains the unknown {unknown.iloc[0]!r}{hint}")
            out[name] = np.where(codes < 0, np.nan, codes.astype(np.float64))
        elif values.ndim == 1 and len(values) and pd.api.types.is_string_dtype(values):
            example = values.dropna().iloc[:1].tolist()
            raise DataError(
                f"column {name!r} contains text ({example}); make it a category: "
                f"X.astype({{{name!r}: 'category'}})"
            )
        elif values.dtype.kind in "mM" or isinstance(
            values.dtype, (pd.PeriodDtype, pd.IntervalDtype)
        ):
            raise DataError(
                f"column {name!r} contains dates, times or intervals ({values.dtype}); give a "
                "number, such as days since a fixed date, or leave the column out"
            )
    return out


def validated(estimator: Any, X: Any, y: Any = None, *, fit: bool, numeric_y: bool = False) -> Any:
    """Return X, and y in a fit, after scikit-learn's checks: finite or NaN, float, two-dimensional.

    Names and number of the columns are stored by a fit and compared later.

    Parameters
    ----------
    estimator : estimator
        The estimator.
    X : array or DataFrame, shape (n, d)
        Rows.
    y : array, shape (n,)
        Targets, for a fit.
    fit : bool
        Whether this is a fit.
    numeric_y : bool
        Whether the target must be numeric.
    """
    options: dict[str, Any] = {"dtype": [np.float64, np.float32]}
    if fit:
        options |= {"y": y, "y_numeric": numeric_y, "ensure_min_samples": 2}
    try:
        from sklearn.utils.validation import validate_data
    except ImportError:  # scikit-learn before 1.6
        options["force_all_finite"] = "allow-nan"
        return estimator._validate_data(X, reset=fit, **options)
    return validate_data(estimator, X, reset=fit, ensure_all_finite="allow-nan", **options)


def float32_rows(X: NDArray[Any], names: Sequence[str]) -> NDArray[np.float32]:
    """Return rows as float32, shape (n, d).

    Raises
    ------
    DataError
        If a value is out of the range of float32.
    """
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(X, dtype=np.float32)
    at = np.argwhere(np.isinf(rows))
    if len(at):
        i, k = at[0]
        raise DataError(
            f"feature {names[k]!r} is {X[i, k]} in row {i}: infinite as float32; rescale it, or "
            "make the value missing (NaN)"
        )
    return rows


def row_weights(sample_weight: Any, n: int) -> NDArray[np.float32] | None:
    """Return sample weights as float32, shape (n,), None without weights.

    Raises
    ------
    DataError
        As in `checked_weights`, or if all weights are 0.
    """
    if sample_weight is None:
        return None
    weight = checked_weights(sample_weight, n)
    if not weight.any():
        raise DataError("all sample weights are zero; give some row a weight")
    return weight


def features_of(
    names: Sequence[str],
    categories: Mapping[int, tuple[Any, ...]],
    ranges: Mapping[str, tuple[float, float]] | None,
    cuts: Sequence[tuple[float, ...]] | None,
) -> tuple[Feature, ...]:
    """Return the public description of the columns.

    Parameters
    ----------
    names : sequence of str, shape (d,)
        Names of the columns.
    categories : mapping of int to tuple
        Categories by column number.
    ranges : mapping of str to (float, float), optional
        Declared public ranges by name.
    cuts : sequence of tuple of float, shape (d,), optional
        Declared public cut points, see `Feature`.

    Raises
    ------
    UsageError
        If a range is invalid, or is given for an unknown column.
    """
    limits = _limits(ranges or {}, names)
    features = []
    for k, name in enumerate(names):
        declared = cuts[k] if cuts is not None else ()
        if k in categories:
            texts = tuple(map(str, categories[k]))
            features.append(Feature(name, "categorical", categories=texts, cuts=declared))
        else:
            low, high = limits.get(name, (None, None))
            features.append(Feature(name, "continuous", low, high, cuts=declared))
    return tuple(features)


def _limits(ranges: Any, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return declared ranges by column name."""
    try:
        limits = {name: (float(low), float(high)) for name, (low, high) in ranges.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"ranges={ranges!r}: give {{name: (low, high), ...}}") from error
    for name in limits:
        if name not in names:
            raise UsageError(f"ranges: no column {name!r}{did_you_mean(str(name), names)}")
    return limits


def read_cuts(cuts: Any, n_features: int) -> tuple[str | None, list[tuple[float, ...]] | None]:
    """Return the protocol's method, and the public cut points of every feature if they are given.

    Parameters
    ----------
    cuts : None, str, Cuts, or (indptr, values)
        A method, or cut points. The pair is the result of XGBoost's
        ``QuantileDMatrix.get_quantile_cut()``.
    n_features : int
        Number of features.

    Raises
    ------
    UsageError
        If `cuts` has another type.
    DataError
        If the cut points are invalid, or for another number of features.
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
