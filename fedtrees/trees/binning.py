"""Cut points of features, and rows that are assigned to bins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedtrees.core.compilation import kernel
from fedtrees.core.errors import DataError, check_whole

# Largest number of bins of a feature, so that a code and the marker of a missing value fit in 16
# bits.
MOST_BINS = 65534
_MARGIN = np.float32(1e-5)  # XGBoost's distance between the extreme values and the outermost cuts


def check_max_bin(max_bin: int) -> None:
    """Raise `UsageError` unless a feature may have that many bins (2 to 65534)."""
    check_whole("max_bin", max_bin, 2, MOST_BINS)


def upper_sentinel(high: np.float32) -> np.float32:
    """Return a last cut above every value up to ``high``, with the formula of XGBoost."""
    return np.float32(high + (abs(high) + _MARGIN))


def lower_sentinel(low: np.float32) -> np.float32:
    """Return a threshold below every value down to ``low``, with the formula of XGBoost."""
    return np.float32(low - abs(low) - _MARGIN)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Bin borders of every feature. Bin ``b`` contains ``cut[b-1] <= x < cut[b]``.

    A split after bin ``b`` sends a row left if and only if ``x < cut[b]``. Values at or above the
    last cut belong to the last bin.

    Attributes
    ----------
    values : float32 array, shape (total_bins,)
        Upper border of every bin, strictly increasing within a feature.
    offsets : int32 array, shape (d + 1,)
        The bins of feature ``f`` are ``offsets[f]:offsets[f + 1]``, at least one per feature.
    minimum : float32 array, shape (d,)
        A threshold below every value, which separates "any value" from "missing" (the sentinel of
        XGBoost).
    categorical : bool array, shape (d,), or None
        Features that are split by sets of categories. Their codes are 0, 1, ... with one bin each,
        so that the cuts are 1, 2, ... None if all features are split by thresholds.

    Raises
    ------
    DataError
        If the arrays do not describe increasing finite cuts.
    """

    values: NDArray[np.float32]
    offsets: NDArray[np.int32]
    minimum: NDArray[np.float32]
    categorical: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name, kind in (("values", np.float32), ("offsets", np.int32), ("minimum", np.float32)):
            array = np.ascontiguousarray(getattr(self, name), dtype=kind).view()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        offsets, values = self.offsets, self.values
        if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(values):
            raise DataError(f"cut offsets {offsets[:8]}... do not span {len(values)} cuts")
        if (np.diff(offsets) < 1).any() or self.minimum.shape != (self.n_features,):
            raise DataError("every feature needs at least one bin and one minimum")
        inner = np.ones(len(values), dtype=bool)
        inner[offsets[:-1]] = False
        # The first cut of a feature may be smaller than the last one of the feature before.
        if not np.isfinite(values).all() or (np.diff(values, prepend=0)[inner] <= 0).any():
            raise DataError("cut values must be finite and strictly increasing within a feature")
        if self.categorical is not None:
            self._check_categories()

    def _check_categories(self) -> None:
        """Check that every categorical feature has one bin per code."""
        mask = np.asarray(self.categorical, dtype=bool)
        if mask.shape != (self.n_features,):
            raise DataError(f"a mask of shape {mask.shape} for {self.n_features} features")
        for f in np.flatnonzero(mask).tolist():
            if not np.array_equal(self.of(f), np.arange(1, self.n_bins[f] + 1)):
                raise DataError(f"categorical feature {f} needs one bin per code: cuts 1, 2, ...")
        object.__setattr__(self, "categorical", mask if mask.any() else None)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return len(self.offsets) - 1

    @property
    def total_bins(self) -> int:
        """Number of bins over all features."""
        return len(self.values)

    @property
    def n_bins(self) -> NDArray[np.int32]:
        """Number of bins of each feature, int32, shape (d,)."""
        return np.diff(self.offsets)

    def of(self, feature: int) -> NDArray[np.float32]:
        """Return the cuts of one feature, float32, shape (bins of the feature,)."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def thresholds(self, feature: ArrayLike, bin: ArrayLike) -> NDArray[np.float32]:
        """Return the threshold of splits after ``bin``, float32. Bin -1 is below every value."""
        f, b = np.asarray(feature), np.asarray(bin)
        after = self.values[self.offsets[f] + np.maximum(b, 0)]
        chosen: NDArray[np.float32] = np.where(b < 0, self.minimum[f], after)
        return chosen

    def select(self, features: ArrayLike) -> Cuts:
        """Return the cuts of some features, in the given order."""
        columns = np.asarray(features, dtype=np.intp)
        categorical = None if self.categorical is None else self.categorical[columns]
        return Cuts.join([self.of(int(f)) for f in columns], self.minimum[columns], categorical)

    @staticmethod
    def join(
        per_feature: Iterable[ArrayLike],
        minimum: ArrayLike,
        categorical: NDArray[np.bool_] | None = None,
    ) -> Cuts:
        """Return cuts from one array per feature.

        Parameters
        ----------
        per_feature : iterable of float arrays
            Cuts of each feature.
        minimum : float array, shape (d,)
            A threshold below every value of each feature.
        categorical : bool array, shape (d,), optional
            Features that are split by sets of categories.
        """
        parts = [np.asarray(p, dtype=np.float32) for p in per_feature]
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
        values = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
        starts = offsets.astype(np.int32)
        return Cuts(values, starts, np.asarray(minimum, dtype=np.float32), categorical)

    def with_categories(self, sizes: ArrayLike) -> Cuts:
        """Return cuts that give every category of some features a separate bin.

        Parameters
        ----------
        sizes : int array, shape (d,)
            Number of categories of every feature. 0: its cuts stay unchanged.

        Raises
        ------
        DataError
            If the shape is wrong, or a feature has more than 65534 categories.
        """
        counts = np.asarray(sizes, dtype=np.int32)
        if counts.shape != (self.n_features,) or (counts > MOST_BINS).any():
            raise DataError(
                f"categories {counts.tolist()[:8]}: give {self.n_features} numbers of at most "
                f"{MOST_BINS}"
            )
        if not counts.any():
            return self
        parts = [np.arange(1, n + 1) if n else self.of(f) for f, n in enumerate(counts.tolist())]
        return Cuts.join(parts, np.where(counts > 0, 0, self.minimum), counts > 0)

    @staticmethod
    def hidden(n_bins: ArrayLike) -> Cuts:
        """Return cuts for a party that knows only the number of bins of each feature.

        Such a party chooses among the bins of another party's features. The threshold after bin b
        is b + 1, and does not reveal a value.
        """
        counts = np.asarray(n_bins, dtype=np.int32)
        return Cuts.join([np.arange(1, c + 1) for c in counts], np.zeros(len(counts)))

    @staticmethod
    def from_xgboost(
        indptr: NDArray[Any], values: NDArray[Any], categorical: ArrayLike | None = None
    ) -> Cuts:
        """Return the cuts that ``QuantileDMatrix.get_quantile_cut()`` of XGBoost reports.

        Parameters
        ----------
        indptr : int array, shape (d + 1,)
            Entries of each feature.
        values : float array
            The first entry of a feature is its minimum sentinel, and the remaining entries are
            cuts. For a categorical feature, the entries are the codes.
        categorical : bool array, shape (d,), optional
            Categorical features.
        """
        pointers = np.asarray(indptr).astype(np.int64)
        values = np.asarray(values, dtype=np.float32)
        parts = [values[a + 1 : b] for a, b in pairwise(pointers)]
        if categorical is None:
            return Cuts.join(parts, values[pointers[:-1]])
        sizes = np.where(categorical, np.diff(pointers), 0)
        # A feature with a single code has no cut, but needs one bin.
        some = [part if len(part) else np.ones(1) for part in parts]
        return Cuts.join(some, values[pointers[:-1]]).with_categories(sizes)


@dataclass(frozen=True, eq=False)
class Bins:
    """Binned rows.

    Attributes
    ----------
    codes : uint8 or uint16 array, shape (n, d)
        Bin within the feature, or ``missing``.
    missing : int
        Code of a missing value: the largest number of bins of any feature, so that it equals no
        bin. With 256 bins it does not fit uint8, which is then used only if no value is missing.
    offsets : int32 array, shape (d + 1,)
        Position of the first bin of every feature in a histogram (``Cuts.offsets``).
    """

    codes: NDArray[Any]
    missing: int
    offsets: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.codes.shape[0])

    @cached_property
    def columns(self) -> NDArray[Any]:
        """The codes, shape (d, n), C-contiguous, because a split reads one feature of many rows."""
        return np.ascontiguousarray(self.codes.T)

    @property
    def total_bins(self) -> int:
        """Number of bins over all features."""
        return int(self.offsets[-1])

    def take(self, rows: NDArray[Any] | slice) -> Bins:
        """Return the bins of the given rows (indices, mask, or a slice, which copies nothing)."""
        return Bins(np.ascontiguousarray(self.codes[rows]), self.missing, self.offsets)


@kernel
def _bin(
    X: NDArray[np.float32],
    values: NDArray[np.float32],
    offsets: NDArray[np.int32],
    missing: int,
    codes: NDArray[Any],
) -> None:
    """Find the bin of every value by a branch-free binary search."""
    # The search processes a block of rows at once, one halving step at a time. Every row takes the
    # same steps, so that no branch depends on data, and the loops over rows become vector
    # instructions.
    block = 512
    x = np.empty(block, dtype=np.float32)
    low = np.empty(block, dtype=np.uint32)
    for begin in range(0, X.shape[0], block):
        m = min(block, X.shape[0] - begin)
        for f in range(X.shape[1]):
            borders = values[offsets[f] : offsets[f + 1]]
            for i in range(m):
                x[i] = X[begin + i, f]
                low[i] = 0
            # The last border is no limit: values above it belong to the last bin.
            left = borders.shape[0] - 1
            while left > 0:
                half = np.uint32((left + 1) >> 1)
                for i in range(m):
                    at = low[i]
                    low[i] = at + half if borders[at + half - np.uint32(1)] <= x[i] else at
                left -= half
            for i in range(m):
                # Only NaN differs from itself.
                codes[begin + i, f] = missing if x[i] != x[i] else low[i]


def check_rows(X: NDArray[Any], n_features: int | None = None) -> NDArray[np.float32]:
    """Return X as a C-contiguous float32 array, shape (n, d).

    Raises
    ------
    DataError
        If X is not a matrix of the expected width, or contains an infinite value.
    """
    X = np.asarray(X)
    if X.ndim != 2 or (n_features is not None and X.shape[1] != n_features):
        shape = "(n, d)" if n_features is None else f"(n, {n_features})"
        raise DataError(f"expected rows of shape {shape}, got {X.shape}")
    # Values too large for float32 become infinite and are reported below.
    with np.errstate(over="ignore"):
        X32 = np.ascontiguousarray(X, dtype=np.float32)
    if np.isinf(X32).any():
        raise DataError(
            "X contains an infinite value (in float32); clip it or mark it missing (NaN)"
        )
    return X32


def _check_codes(X: NDArray[np.float32], cuts: Cuts, features: NDArray[np.intp]) -> None:
    """Raise `DataError` if a categorical feature has a value that is no known code."""
    for f in features.tolist():
        n, present = cuts.n_bins[f], X[~np.isnan(X[:, f]), f]
        wrong = present[(present < 0) | (present >= n) | (present != np.floor(present))]
        if len(wrong):
            raise DataError(
                f"feature {f} has {n} categories and a value {wrong[0]}: give codes 0 to {n - 1}"
            )


def bin_rows(X: NDArray[Any], cuts: Cuts) -> Bins:
    """Assign every value to its bin.

    Parameters
    ----------
    X : float array, shape (n, d)
        Rows. NaN marks a missing value.
    cuts : Cuts
        Borders of the bins.

    Raises
    ------
    DataError
        If the number of columns differs from the cuts, a value is infinite, or a category is not a
        known code.
    """
    X = check_rows(X, cuts.n_features)
    if cuts.categorical is not None:
        _check_codes(X, cuts, np.flatnonzero(cuts.categorical))
    missing = int(cuts.n_bins.max())
    # One byte per code halves the memory that histograms read.
    small = missing < 256 or (missing == 256 and not np.isnan(X).any())
    codes = np.empty(X.shape, dtype=np.uint8 if small else np.uint16)
    _bin(X, cuts.values, cuts.offsets, missing, codes)
    return Bins(codes, missing, cuts.offsets)
