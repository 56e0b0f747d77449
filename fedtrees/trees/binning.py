"""Cut points and binned rows."""

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

MOST_BINS = 65534  # of a feature: a code and the mark of a missing value fit in 16 bits
_MARGIN = np.float32(1e-5)  # XGBoost's distance from the extremes to the outermost cuts


def check_max_bin(max_bin: int) -> None:
    """Raise UsageError unless a feature may have that many bins."""
    check_whole("max_bin", max_bin, 2, MOST_BINS)


def upper_sentinel(high: np.float32) -> np.float32:
    """Return a last cut above every value up to ``high``, as XGBoost places it."""
    return np.float32(high + (abs(high) + _MARGIN))


def lower_sentinel(low: np.float32) -> np.float32:
    """Return a threshold below every value down to ``low``, as XGBoost places it."""
    return np.float32(low - abs(low) - _MARGIN)


@dataclass(frozen=True, eq=False)
class Cuts:
    """Bin borders of every feature. Bin ``b`` holds ``cut[b-1] <= x < cut[b]``.

    A split after bin ``b`` sends a row left iff ``x < cut[b]``. Values from the last cut on belong
    to the last bin.

    Raises `DataError` if the arrays do not describe increasing finite cuts.

    `values`: float32 array, shape (total_bins,). Upper border of every bin, strictly increasing
    within a feature.
    `offsets`: int32 array, shape (d + 1,). Bins of feature ``f`` are ``offsets[f]:offsets[f + 1]``;
    at least one each.
    `minimum`: float32 array, shape (d,). A threshold below every value: splits "any value" from
    "missing" (XGBoost's sentinel).
    `categorical`: bool array, shape (d,), or None. Features split by sets of categories: codes 0,
    1, ..., one bin each, so that the cuts are 1, 2, ... None: all are split by thresholds.
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
        if not np.isfinite(values).all() or (np.diff(values, prepend=0)[inner] <= 0).any():
            raise DataError("cut values must be finite and strictly increasing within a feature")
        if self.categorical is not None:
            self._check_categories()

    def _check_categories(self) -> None:
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
        """Bins per feature, int32, shape (d,)."""
        return np.diff(self.offsets)

    def of(self, feature: int) -> NDArray[np.float32]:
        """Return the cuts of one feature, float32, shape (bins of the feature,)."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def thresholds(self, feature: ArrayLike, bin: ArrayLike) -> NDArray[np.float32]:
        """Return the threshold of splits after ``bin`` (-1: below every value), float32."""
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
        """Return cuts from one array per feature."""
        parts = [np.asarray(p, dtype=np.float32) for p in per_feature]
        offsets = np.concatenate([[0], np.cumsum([len(p) for p in parts])])
        values = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
        starts = offsets.astype(np.int32)
        return Cuts(values, starts, np.asarray(minimum, dtype=np.float32), categorical)

    def with_categories(self, sizes: ArrayLike) -> Cuts:
        """Return cuts that give every category of some features a bin of its own.

        `sizes`: int array, shape (d,). Number of categories of every feature; 0: its cuts stay as
        they are.
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
        """Return cuts that tell bins apart and nothing else: the threshold of bin b reads b + 1.

        For whoever chooses among the bins of somebody else's features.
        """
        counts = np.asarray(n_bins, dtype=np.int32)
        return Cuts.join([np.arange(1, c + 1) for c in counts], np.zeros(len(counts)))

    @staticmethod
    def from_xgboost(
        indptr: NDArray[Any], values: NDArray[Any], categorical: ArrayLike | None = None
    ) -> Cuts:
        """Return the cuts that ``QuantileDMatrix.get_quantile_cut()`` reports.

        Its first entry per feature is the minimum sentinel, the others are cuts; of a categorical
        feature (bool, shape (d,)) it reports the codes.
        """
        pointers = np.asarray(indptr).astype(np.int64)
        values = np.asarray(values, dtype=np.float32)
        parts = [values[a + 1 : b] for a, b in pairwise(pointers)]
        if categorical is None:
            return Cuts.join(parts, values[pointers[:-1]])
        sizes = np.where(categorical, np.diff(pointers), 0)
        some = [part if len(part) else np.ones(1) for part in parts]
        return Cuts.join(some, values[pointers[:-1]]).with_categories(sizes)


@dataclass(frozen=True, eq=False)
class Bins:
    """Binned rows.

    `codes`: uint8 or uint16 array, shape (n, d). Bin within the feature, or ``missing``.
    `missing`: Code of a missing value: the largest number of bins of any feature, so that it equals
    no bin. With 256 bins it does not fit uint8; uint8 is then used only if nothing is missing.
    `offsets`: int32 array, shape (d + 1,). Where the bins of every feature start in a histogram
    (``Cuts.offsets``).
    """

    codes: NDArray[Any]
    missing: int
    offsets: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.codes.shape[0])

    @cached_property
    def columns(self) -> NDArray[Any]:
        """The codes, shape (d, n), C-contiguous: a split reads one feature of many rows."""
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
    # Binary search for many rows at once, one halving at a time: every row takes the same steps,
    # so that nothing branches on data and the loops over rows become vector instructions.
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
            left = borders.shape[0] - 1  # the last border is no limit: its bin takes what is above
            while left > 0:
                half = np.uint32((left + 1) >> 1)
                for i in range(m):
                    at = low[i]
                    low[i] = at + half if borders[at + half - np.uint32(1)] <= x[i] else at
                left -= half
            for i in range(m):
                codes[begin + i, f] = missing if x[i] != x[i] else low[i]


def check_rows(X: NDArray[Any], n_features: int | None = None) -> NDArray[np.float32]:
    """Return X as C-contiguous float32, shape (n, d).

    Raises `DataError` if X is not a matrix of the expected width, or holds an infinite value.
    """
    X = np.asarray(X)
    if X.ndim != 2 or (n_features is not None and X.shape[1] != n_features):
        wanted = "(n, d)" if n_features is None else f"(n, {n_features})"
        raise DataError(f"expected rows of shape {wanted}, got {X.shape}")
    with np.errstate(over="ignore"):  # too large for float32: reported below as infinite
        X32 = np.ascontiguousarray(X, dtype=np.float32)
    if np.isinf(X32).any():
        raise DataError("X holds an infinite value (in float32); clip it or mark it missing (NaN)")
    return X32


def _check_codes(X: NDArray[np.float32], cuts: Cuts, features: NDArray[np.intp]) -> None:
    for f in features.tolist():
        n, present = cuts.n_bins[f], X[~np.isnan(X[:, f]), f]
        wrong = present[(present < 0) | (present >= n) | (present != np.floor(present))]
        if len(wrong):
            raise DataError(
                f"feature {f} has {n} categories and a value {wrong[0]}: give codes 0 to {n - 1}"
            )


def bin_rows(X: NDArray[Any], cuts: Cuts) -> Bins:
    """Assign every value to its bin.

    `X`: float array, shape (n, d). Rows; NaN marks a missing value.

    Raises `DataError` if the width differs from the cuts', a value is infinite, or a category is no
    known code.
    """
    X = check_rows(X, cuts.n_features)
    if cuts.categorical is not None:
        _check_codes(X, cuts, np.flatnonzero(cuts.categorical))
    missing = int(cuts.n_bins.max())
    small = missing < 256 or (missing == 256 and not np.isnan(X).any())
    codes = np.empty(X.shape, dtype=np.uint8 if small else np.uint16)
    _bin(X, cuts.values, cuts.offsets, missing, codes)
    return Bins(codes, missing, cuts.offsets)
