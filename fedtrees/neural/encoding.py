"""Rows of a table as inputs of a network: one-hot categories, all columns standardised."""

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
    """What every input column of a network says of a row (Vero et al. 2023, Sec. 4).

    A continuous feature is one column; a categorical one has a column per category, 1 where the row
    has it. All are standardised. A missing value is 0 after that where it is a number, and 0 before
    it in all columns of a category: they dropped such rows.
    """

    feature: NDArray[np.intp]  # shape (D,): which feature every column is of, ascending
    # shape (D,): code that the column stands for; -1: the feature is continuous
    category: NDArray[np.int64]
    # mean, std, shape (D,): in units of the feature; std is not 0
    mean: NDArray[np.float32]
    std: NDArray[np.float32]

    @staticmethod
    def of(schema: Schema) -> Encoding:
        """Return the encoding of such rows, without standardisation.

        Raises `DataError` if a categorical feature declares no categories.
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
        first = np.flatnonzero(np.diff(self.feature, prepend=-1))
        return np.asarray(self.category[first] >= 0)

    def standardised(self, mean: NDArray[Any], std: NDArray[Any]) -> Encoding:
        """Return the same columns with another mean and standard deviation; 0 becomes 1."""
        std = np.where(np.asarray(std) > 0, std, 1.0).astype(np.float32)
        return replace(self, mean=np.asarray(mean, dtype=np.float32), std=std)

    @cached_property
    def continuous(self) -> NDArray[np.intp]:
        """Columns of continuous features."""
        return np.flatnonzero(self.category < 0)

    @cached_property
    def groups(self) -> list[NDArray[np.intp]]:
        """Columns of every categorical feature."""
        return [np.flatnonzero(self.feature == k) for k in np.flatnonzero(self.coded)]

    def raw(self, X: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the columns before they are standardised, float32, shape (n, D).

        Raises `DataError` if a category is not among those that the schema declares, or a number is
        infinite.
        """
        self._check(X)
        values = np.asarray(X, dtype=np.float32)[:, self.feature]
        numbers = self.category < 0
        codes = np.asarray(values == self.category, dtype=np.float32)
        return np.where(numbers, values, codes)

    def encode(self, X: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the inputs of rows, float32, shape (n, D), for features of shape (n, d).

        Raises `DataError` as `raw`.
        """
        found = (self.raw(X) - self.mean) / self.std
        return np.asarray(np.nan_to_num(found, copy=False, nan=0.0), dtype=np.float32)

    def decode(
        self, codes: NDArray[np.integer[Any]], numbers: NDArray[np.floating[Any]]
    ) -> NDArray[np.float32]:
        """Return features, float32, shape (n, d).

        `codes`: int array, shape (n, categorical features)
        `numbers`: float array, shape (n, continuous features). Standardised.
        """
        X = np.empty((len(codes), len(self.coded)), dtype=np.float32)
        X[:, self.coded] = codes
        k = self.continuous
        X[:, ~self.coded] = numbers * self.std[k] + self.mean[k]
        return X

    def bounds(self, schema: Schema) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the declared ends of continuous columns, standardised; infinite: not declared."""
        k = self.continuous
        low, high = (ends[self.feature[k]] for ends in schema.ranges)
        low, high = (low - self.mean[k]) / self.std[k], (high - self.mean[k]) / self.std[k]
        return np.nan_to_num(low, nan=-np.inf), np.nan_to_num(high, nan=np.inf)

    def _check(self, X: NDArray[np.floating[Any]]) -> None:
        if X.ndim != 2 or X.shape[1] != len(self.coded):
            raise DataError(f"rows of shape {X.shape} for {len(self.coded)} features; give (n, d)")
        if np.isinf(X).any():
            raise DataError("an infinite value has no place among inputs; give numbers or NaN")
        for k in np.flatnonzero(self.coded):
            codes, most = X[:, k], int((self.feature == k).sum())
            wrong = codes[~(np.isnan(codes) | np.isin(codes, np.arange(most)))]
            if len(wrong):
                raise DataError(
                    f"column {k} has the code {wrong[0]:g}; its {most} categories are 0 to "
                    f"{most - 1}: declare all that may come, or give NaN"
                )
