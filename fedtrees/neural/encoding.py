"""Rows of a table as inputs of a network: one-hot categories, all columns standardised.

This is the encoding of Vero et al. (2023, Sec. 4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema


@dataclass(frozen=True, eq=False)
class Encoding:
    """Encoding of rows as input columns of a network (Vero et al. 2023, Sec. 4).

    A continuous feature is one column. A categorical feature has a column per category, which is 1
    if the row has this category. All columns are standardised. A missing number is 0 after the
    standardisation. A missing category is 0 in all columns of the feature before it. Vero et al.
    drop rows with missing values.

    Attributes
    ----------
    feature : intp array, shape (D,)
        Index of each column's feature, ascending.
    category : int64 array, shape (D,)
        Category code of each column, -1 for continuous features.
    mean, std : float32 array, shape (D,)
        In the unit of the feature. `std` is not 0.
    """

    feature: NDArray[np.intp]
    category: NDArray[np.int64]
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @staticmethod
    def of(schema: Schema) -> Encoding:
        """Return the encoding of the rows of a schema, with mean 0 and standard deviation 1.

        It raises `DataError` if a categorical feature declares no categories.
        """
        feature, category = list[int](), list[int]()
        for k, f in enumerate(schema.features):
            if f.kind == "categorical" and not f.categories:
                raise DataError(
                    f"feature {f.name!r} is categorical and declares no categories; a network "
                    "needs a column for each: name them in the schema"
                )
            codes = range(len(f.categories)) if f.kind == "categorical" else [-1]
            feature += [k] * len(codes)
            category += codes
        width = len(feature)
        return Encoding(
            np.array(feature, dtype=np.intp),
            np.array(category, dtype=np.int64),
            np.zeros(width, np.float32),
            np.ones(width, np.float32),
        )

    def __post_init__(self) -> None:
        shapes = {np.shape(getattr(self, n)) for n in ("feature", "category", "mean", "std")}
        if len(shapes) != 1 or not len(self.feature):
            raise DataError(
                f"an encoding has one feature, category, mean and std per column; {shapes}"
            )

    def __len__(self) -> int:
        return len(self.feature)

    @cached_property
    def coded(self) -> NDArray[np.bool_]:
        """Which features are categorical, bool, shape (d,)."""
        # Columns are ordered by feature, so that a feature starts where the index changes.
        first = np.flatnonzero(np.diff(self.feature, prepend=-1))
        return np.asarray(self.category[first] >= 0)

    def standardised(self, mean: NDArray[Any], std: NDArray[Any]) -> Encoding:
        """Return the same columns with other means and deviations. A deviation of 0 becomes 1."""
        std = np.where(np.asarray(std) > 0, std, 1.0).astype(np.float32)
        return replace(self, mean=np.asarray(mean, dtype=np.float32), std=std)

    @cached_property
    def continuous(self) -> NDArray[np.intp]:
        """Indices of the columns of continuous features."""
        return np.flatnonzero(self.category < 0)

    @cached_property
    def groups(self) -> list[NDArray[np.intp]]:
        """Indices of the columns of every categorical feature."""
        return [np.flatnonzero(self.feature == k) for k in np.flatnonzero(self.coded)]

    def raw(self, X: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the columns before the standardisation, float32, shape (n, D).

        It raises `DataError` if a category is not declared in the schema, or a number is infinite.
        NaN is a missing value.
        """
        self._check(X)
        values = np.asarray(X, dtype=np.float32)[:, self.feature]
        numbers = self.category < 0
        # Comparing every value with the code of its column gives the one-hot encoding. NaN equals
        # no code.
        codes = np.asarray(values == self.category, dtype=np.float32)
        return np.where(numbers, values, codes)

    def encode(self, X: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the standardised inputs, float32, shape (n, D), of rows, shape (n, d).

        It raises `DataError` as `raw` does.
        """
        # The mean after the standardisation is 0, so that a missing number becomes the mean.
        inputs = (self.raw(X) - self.mean) / self.std
        return np.asarray(np.nan_to_num(inputs, copy=False, nan=0.0), dtype=np.float32)

    def decode(
        self, codes: NDArray[np.integer[Any]], numbers: NDArray[np.floating[Any]]
    ) -> NDArray[np.float32]:
        """Return the features of rows, float32, shape (n, d).

        Parameters
        ----------
        codes : int array, shape (n, number of categorical features)
            Category codes.
        numbers : float array, shape (n, number of continuous features)
            Standardised values.
        """
        X = np.empty((len(codes), len(self.coded)), dtype=np.float32)
        X[:, self.coded] = codes
        k = self.continuous
        X[:, ~self.coded] = numbers * self.std[k] + self.mean[k]
        return X

    def bounds(self, schema: Schema) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the standardised ranges of continuous columns, infinite where undeclared."""
        k = self.continuous
        low, high = (ends[self.feature[k]] for ends in schema.ranges)
        low, high = (low - self.mean[k]) / self.std[k], (high - self.mean[k]) / self.std[k]
        # The schema states undeclared ends as NaN.
        return np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)

    def _check(self, X: NDArray[np.floating[Any]]) -> None:
        if X.ndim != 2 or X.shape[1] != len(self.coded):
            raise DataError(f"rows of shape {X.shape} for {len(self.coded)} features; give (n, d)")
        if np.isinf(X).any():
            raise DataError("an infinite value has no place among inputs; give numbers or NaN")
        # A code that was never declared would be encoded like a missing value.
        for k in np.flatnonzero(self.coded):
            codes, n_categories = X[:, k], int((self.feature == k).sum())
            wrong = codes[~(np.isnan(codes) | np.isin(codes, np.arange(n_categories)))]
            if len(wrong):
                raise DataError(
                    f"column {k} has the code {wrong[0]:g}; its {n_categories} categories are 0 to "
                    f"{n_categories - 1}: declare all that may come, or give NaN"
                )
