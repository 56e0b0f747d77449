"""A forest in the format of the attacks, and the likelihoods of its released leaves.

Columns are represented as categorical variables with a few levels each (`Variables`). A forest
contains tests of variables and noisy class counts of leaves (`NoisyForest`). `Noise` and `Labels`
are the likelihoods of a noisy count, and of a released label, given the true class counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.errors import DataError, check_known, check_positive
from fedtrees.core.schema import Schema
from fedtrees.privacy.mechanisms import log_probabilities

Kind = Literal["geometric", "truncated-laplace", "gaussian", "exact", "labels"]
KINDS = get_args(Kind)

#: Units of cost per nat. Costs are integers, so that sums do not depend on the order.
NAT = 1 << 20
#: Cost in nats of a unit difference from an exact count. Sampling begins with a smaller one.
EXACT = 12.0
#: Noisy counts are clipped at this many scales of the noise below 0 and above the number of rows,
#: which bounds the size of the cost table.
_REACH = 60.0


@dataclass(frozen=True)
class Noise:
    """Independent noise on each count.

    Attributes
    ----------
    kind : {"geometric", "truncated-laplace", "gaussian", "exact", "labels"}
        ``"geometric"`` is two-sided geometric noise with pmf proportional to ``exp(-|k| / scale)``.
        ``"truncated-laplace"`` is Laplace noise that is truncated toward zero, as in the code of
        Gorgé et al. ``"gaussian"`` is (discrete) Gaussian noise, and ``"exact"`` no noise. With
        ``"labels"`` there are no counts, but each leaf's label, chosen by permute-and-flip
        (`fedtrees.attacks.forests.structure`).
    scale : float
        Scale of the Laplace and geometric noise in rows (T / epsilon for a total epsilon), or
        standard deviation of the Gaussian noise. Not read if counts are exact.
    draws : float
        Number of draws of geometric noise that were added. It exceeds 1 if clients share the noise
        and one of them may be an insider.

    Raises
    ------
    UsageError
        For an unknown kind, or a scale that is not finite and positive.
    """

    kind: Kind
    scale: float = 1.0
    draws: float = 1.0

    def __post_init__(self) -> None:
        check_known("noise", self.kind, KINDS)
        check_positive("scale of the noise", self.scale)

    @staticmethod
    def of(kind: Kind, epsilon: float, trees: int) -> Noise:
        """Return Laplace or geometric noise of ``epsilon`` for all trees together.

        An infinite epsilon gives exact counts or labels.

        Parameters
        ----------
        kind : str
            Kind of the noise.
        epsilon : float
            Total privacy parameter.
        trees : int
            Number of trees.

        Raises
        ------
        UsageError
            If epsilon is not positive.
        """
        if epsilon == math.inf:
            return Noise("labels", 1.0 / EXACT) if kind == "labels" else Noise("exact")
        check_positive("epsilon", epsilon)
        return Noise(kind, trees / epsilon)

    @property
    def sharpness(self) -> float:
        """Cost of the first unit of a residual, in nats."""
        return EXACT if self.kind == "exact" else 1.0 / self.scale

    def costs(self, residual: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the negative log probability of each residual, relative to that of 0, in nats."""
        a = np.abs(residual).astype(np.float64)
        if self.kind == "gaussian":
            return 0.5 * (a / self.scale) ** 2
        if self.kind == "truncated-laplace":
            # 0 has twice the probability that extrapolation of the geometric decline gives
            return a / self.scale + np.where(a > 0, math.log(2.0), 0.0)
        if self.kind == "geometric" and self.draws != 1:
            log_p = log_probabilities(self.scale, self.draws)
            at = np.minimum(a, len(log_p) - 1).astype(np.int64)
            return log_p[0] - log_p[at] + (a - at) / self.scale
        return a * self.sharpness

    def table(
        self, noisy: NDArray[np.integer], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return counts clipped to the range of a cost table, and the table.

        Parameters
        ----------
        noisy : int array
            Counts.
        n : int
            Number of rows.

        Returns
        -------
        clipped : int64 array like `noisy`
            Zeros if labels were released.
        table : int64 array, shape (2 b + 1,)
            Cost of each residual in 1 / `NAT` nats, with that of 0 in the middle. b is large enough
            for -1 to n + 1 rows in a leaf.
        """
        if self.kind == "labels":
            return np.zeros_like(noisy, dtype=np.int64), np.zeros(1, dtype=np.int64)
        reach = math.ceil(_REACH * self.scale) if self.kind != "exact" else 2 * n
        clipped = np.clip(noisy, -reach, n + reach).astype(np.int64)
        b = int(np.abs(clipped).max(initial=0)) + n + 2
        return clipped, np.round(NAT * self.costs(np.arange(-b, b + 1))).astype(np.int64)


class Labels(NamedTuple):
    """Released labels of leaves. All arrays are empty if counts were released.

    Attributes
    ----------
    label : int64 array, shape (T, 2^d)
        Released class of each leaf.
    power : float64 array, shape (2 m + 3,)
        exp(-epsilon d) for d = 0, 1, ...
    epsilon : float
        Privacy parameter of one leaf.
    node : float64 array, shape (ceil(K / 2),)
        Quadrature nodes in (0, 1).
    weight : float64 array, shape (ceil(K / 2),)
        Quadrature weights with sum 1.
    pair : int64 array, shape (2 m + 5,)
        For two classes, the cost by n_y - n_other.

    Notes
    -----
    Permute-and-flip returns the largest of the counts n_j plus exponential noise of scale 1 /
    epsilon (Ding et al. 2021). With m = max_j (n_j - n_y) >= 0 and c_j = exp(-epsilon (m - n_j +
    n_y)) it chooses y with probability

        exp(-epsilon m) * integral_0^1 prod_{j != y} (1 - c_j s) ds

    The integrand is a polynomial of degree K - 1 in s, which Gauss-Legendre quadrature integrates
    exactly.
    """

    label: NDArray[np.int64]  # int64 (T, 2^d)
    power: NDArray[np.float64]  # float64 (2 m + 3,)
    epsilon: float
    node: NDArray[np.float64]  # float64 (ceil(K / 2),), in (0, 1)
    weight: NDArray[np.float64]
    pair: NDArray[np.int64]  # int64 (2 m + 5,)

    @staticmethod
    def of(noise: Noise, noisy: NDArray[np.integer], m: int) -> Labels:
        """Return the released labels of a forest.

        Parameters
        ----------
        noise : Noise
            Its kind decides whether labels were released.
        noisy : int array, shape (T, 2^d, K)
            1 for the released class of a leaf.
        m : int
            Number of rows.
        """
        if noise.kind != "labels":
            empty = np.zeros(0)
            return Labels(
                np.zeros((0, 0), np.int64), empty, 0.0, empty, empty, np.zeros(0, np.int64)
            )
        node, weight = np.polynomial.legendre.leggauss(-(-noisy.shape[2] // 2))
        power = np.exp(-np.arange(2 * m + 3) / noise.scale)
        label = noisy.argmax(axis=2).astype(np.int64)
        pair = np.zeros(0, np.int64)
        labels = Labels(label, power, 1.0 / noise.scale, (node + 1) / 2, weight / 2, pair)
        if noisy.shape[2] != 2:
            return labels
        ahead = np.arange(-m - 2, m + 3)
        counts = np.stack([np.maximum(ahead, 0), np.maximum(-ahead, 0)], axis=1)
        every = labels._replace(label=np.zeros((1, len(ahead)), np.int64))
        return labels._replace(pair=every.costs(counts[None])[0])

    def costs(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the negative log probability of each leaf's label, int64, shape (T, 2^d).

        The unit is 1 / `NAT` nats. Counts are int64 of shape (T, 2^d, K).
        """
        return np.asarray(_costs(self, -counts))


@inner_kernel
def label_cost(labels, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the cost of one leaf's label in 1 / `NAT` nats. A residual is minus a count."""
    y, classes = labels.label[t, leaf], residual.shape[2]  # no views: they would cost more
    of = residual[t, leaf, y]
    margin = 0
    for j in range(classes):
        margin = max(margin, of - residual[t, leaf, j])
    chance = 0.0
    for q in range(labels.node.shape[0]):
        product = labels.weight[q]
        for j in range(classes):
            if j != y:
                power = labels.power[margin - of + residual[t, leaf, j]]
                product *= 1.0 - power * labels.node[q]
        chance += product
    return np.int64(math.floor((labels.epsilon * margin - math.log(chance)) * NAT + 0.5))


@inner_kernel
def label_cost_of_two(pair, label, residual, t, leaf):  # type: ignore[no-untyped-def]
    """Return the cost of a label for two classes, from a table of the difference of counts."""
    y = label[t, leaf]
    return pair[residual[t, leaf, 1 - y] - residual[t, leaf, y] + pair.shape[0] // 2]


@kernel
def _costs(labels, residual):  # type: ignore[no-untyped-def]
    out = np.empty(residual.shape[:2], dtype=np.int64)
    for t in range(out.shape[0]):
        for leaf in range(out.shape[1]):
            out[t, leaf] = label_cost(labels, residual, t, leaf)
    return out


#: Largest number of levels, because a test is stored as a set of levels in the bits of a word.
MOST_LEVELS = 62


@dataclass(frozen=True, eq=False)
class Variables:
    """Columns of a table as categorical variables.

    Attributes
    ----------
    columns : tuple of tuple of int
        Columns of each variable: one, or those of a one-hot group. Every column has exactly one
        variable.
    levels : tuple of float32 array, shape (r, number of its columns)
        Values of the columns at each level.
    cuts : mapping of int to float array, shape (r - 1,)
        For numeric variables, the smallest value of each level except the first.

    Raises
    ------
    DataError
        If a column belongs to no or several variables, or if a variable does not have 1 to
        `MOST_LEVELS` levels.
    """

    columns: tuple[tuple[int, ...], ...]
    levels: tuple[NDArray[np.float32], ...]
    cuts: Mapping[int, NDArray[np.floating]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [j for columns in self.columns for j in columns]
        twice = sorted({j for j in named if named.count(j) > 1})
        if twice:
            raise DataError(f"columns {twice} belong to two groups; groups must not overlap")
        if sorted(named) != list(range(len(named))):
            raise DataError(f"variables of columns {sorted(named)} leave some out; number them all")
        for columns, levels in zip(self.columns, self.levels, strict=True):
            if levels.ndim != 2 or levels.shape[1] != len(columns):
                raise DataError(f"levels of shape {levels.shape} for {len(columns)} columns")
            if not 1 <= len(levels) <= MOST_LEVELS:
                raise DataError(
                    f"columns {list(columns)} have {len(levels)} levels; 1 to {MOST_LEVELS} are "
                    "supported: declare coarser cut points"
                )

    @staticmethod
    def binary(width: int, groups: Iterable[Sequence[int]] = (), none: bool = False) -> Variables:
        """Return the variables of columns of zeros and ones.

        Parameters
        ----------
        width : int
            Number of columns.
        groups : iterable of sequence of int, optional
            One-hot groups, of whose columns exactly one is 1.
        none : bool, default False
            If True, at most one column of a group is 1.

        Raises
        ------
        DataError
            If groups overlap or contain columns that do not exist.
        """
        group_columns = [tuple(int(j) for j in group) for group in groups]
        unknown = sorted({j for group in group_columns for j in group if not 0 <= j < width})
        if unknown:
            raise DataError(f"groups name columns {unknown}; the table has 0 to {width - 1}")
        grouped = {j for group in group_columns for j in group}
        columns = sorted([*group_columns, *((j,) for j in range(width) if j not in grouped)])
        single = np.array([[0], [1]], dtype=np.float32)
        levels = []
        for of in columns:
            hot = np.eye(len(of), dtype=np.float32)
            hot = np.vstack([hot, np.zeros_like(hot[:1])]) if none else hot
            levels.append(hot if of in group_columns else single)
        return Variables(tuple(columns), tuple(levels))

    @staticmethod
    def of_schema(
        schema: Schema,
        tests: Sequence[NDArray[np.floating]],
        local_rows: NDArray[np.floating] | None = None,
    ) -> Variables:
        """Return the variables of declared columns.

        Parameters
        ----------
        schema : Schema
            A one-hot group becomes one variable. The levels of a categorical column are its codes.
        tests : sequence of float array
            Ascending thresholds of each column, which determine a number up to an interval. Its
            value in the interval is estimated by the median of the known rows, or else by the
            middle.
        local_rows : float array, shape (k, d), optional
            Known rows.
        """
        places = [tuple(map(schema.names.index, group.columns)) for group in schema.groups]
        grouped = {j for columns in places for j in columns}
        variables: list[tuple[tuple[int, ...], NDArray[np.float32]]] = []
        for columns, group in zip(places, schema.groups, strict=True):
            hot = np.eye(len(columns), dtype=np.float32)
            variables.append((columns, np.vstack([hot, 0 * hot[:1]]) if group.empty else hot))
        for j, feature in enumerate(schema.features):
            if j in grouped:
                continue
            if feature.categories:
                values = np.arange(len(feature.categories), dtype=np.float32)
            else:
                values = _middles(np.asarray(tests[j], dtype=np.float64), feature.declared_range)
                values = (
                    values if local_rows is None else _medians(values, tests[j], local_rows[:, j])
                )
            variables.append(((j,), values[:, None]))
        variables.sort(key=lambda variable: variable[0])
        numbers = {
            g: np.asarray(tests[columns[0]])
            for g, (columns, _) in enumerate(variables)
            if columns[0] not in grouped and not schema.features[columns[0]].categories
        }
        return Variables(tuple(c for c, _ in variables), tuple(v for _, v in variables), numbers)

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(map(len, self.columns))

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of levels of each variable, int64, shape (G,)."""
        return np.array([len(levels) for levels in self.levels], dtype=np.int64)

    @cached_property
    def rows_possible(self) -> int:
        """Number of different rows, without labels."""
        return int(np.prod([int(r) for r in self.sizes], dtype=object))

    def variable_of(self, column: int) -> int:
        """Return the variable that a column belongs to."""
        return next(g for g, columns in enumerate(self.columns) if column in columns)

    def right(self, column: int, threshold: float) -> tuple[int, int]:
        """Return the variable of the test ``x >= threshold``, and the passing levels as bits.

        For example, a binary column tested at 0.5 has the passing level 1, which is bit pattern
        0b10.
        """
        g = self.variable_of(column)
        value = self.levels[g][:, self.columns[g].index(column)]
        return g, sum(1 << v for v in np.flatnonzero(value >= threshold).tolist())

    def decode(self, coded: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the columns of coded rows, float32, shape (n, width)."""
        X = np.empty((len(coded), self.width), dtype=np.float32)
        for g, (columns, levels) in enumerate(zip(self.columns, self.levels, strict=True)):
            X[:, columns] = levels[coded[:, g]]
        return X

    def encode(self, X: NDArray[np.floating]) -> NDArray[np.int16]:
        """Return rows as levels, int16, shape (n, G).

        Raises
        ------
        DataError
            If a row has values that no level has.
        """
        if X.ndim != 2 or X.shape[1] != self.width:
            raise DataError(f"rows of shape {X.shape}; the variables have {self.width} columns")
        coded = np.empty((len(X), len(self)), dtype=np.int16)
        for g, (columns, levels) in enumerate(zip(self.columns, self.levels, strict=True)):
            if g in self.cuts:
                number = np.nan_to_num(X[:, columns[0]], nan=-np.inf)  # missing ones go left
                coded[:, g] = np.searchsorted(self.cuts[g], number, side="right")
                continue
            same = (X[:, columns][:, None, :] == levels[None]).all(axis=2)
            if not same.any(axis=1).all():
                row = int(np.flatnonzero(~same.any(axis=1))[0])
                raise DataError(
                    f"row {row} has {X[row, columns].tolist()} in columns {list(columns)}, which "
                    f"is none of its {len(levels)} levels; a binary column contains 0 "
                    "and 1, and in a one-hot group exactly one column is 1"
                )
            coded[:, g] = same.argmax(axis=1)
        return coded


def _middles(
    tests: NDArray[np.float64], declared: tuple[float, float] | None
) -> NDArray[np.float32]:
    """Return one number for each interval between thresholds, including the outer ones."""
    gap = float(np.median(np.diff(tests))) if len(tests) > 1 else 1.0
    outer = tests if len(tests) else np.zeros(1)
    low, high = declared or (outer[0] - gap, outer[-1] + gap)
    ends = np.concatenate([[np.append(tests, low).min()], tests, [np.append(tests, high).max()]])
    return ((ends[:-1] + ends[1:]) / 2).astype(np.float32)


def _medians(
    values: NDArray[np.float32], tests: NDArray[np.floating], known_values: NDArray[np.floating]
) -> NDArray[np.float32]:
    """Return the median of the known values of every level, or else the given value."""
    known_values = known_values[np.isfinite(known_values)]
    level = np.searchsorted(tests, known_values, side="right")
    for g in np.unique(level):
        values[g] = np.percentile(known_values[level == g], 50, method="lower")
    return values


#: Largest depth of a tree. Deeper trees would need tables of gigabytes.
MOST_DEPTH = 14


@dataclass(frozen=True, eq=False)
class NoisyForest:
    """Complete trees with a noisy number of rows per class in each leaf.

    Attributes
    ----------
    variables : Variables
        Variables of the rows.
    variable : int32 array, shape (T, 2^d)
        Variable that each node tests. Node 1 is the root, and the children of node k are 2 k and 2
        k + 1.
    right : int64 array, shape (T, 2^d)
        Levels that go right, as bits.
    noisy : int64 array, shape (T, 2^d, K)
        Counts of the leaves from left to right.
    """

    variables: Variables
    # shape (T, 2^d)
    variable: NDArray[np.int32]
    right: NDArray[np.int64]  # shape (T, 2^d)
    noisy: NDArray[np.int64]  # shape (T, 2^d, K)

    @staticmethod
    def of(
        variables: Variables,
        feature: NDArray[np.integer],
        noisy: NDArray[np.integer],
        threshold: NDArray[np.floating] | None = None,
    ) -> NoisyForest:
        """Construct a forest from its arrays.

        Parameters
        ----------
        variables : Variables
            Variables of the rows.
        feature : int array, shape (T, 2^d - 1)
            Column that each node tests, in heap order from the root.
        noisy : int array, shape (T, 2^d, K)
            Noisy counts of the leaves from left to right.
        threshold : float array, shape (T, 2^d - 1), optional
            A row goes right if and only if its column is not below the threshold. Default 0.5.

        Raises
        ------
        DataError
            If the shapes do not fit, a column does not exist, or counts are not integers.
        """
        feature, noisy = np.asarray(feature), np.asarray(noisy)
        if feature.ndim != 2 or noisy.ndim != 3 or len(feature) != len(noisy) or not len(feature):
            raise DataError(
                f"tests of shape {feature.shape} and counts of shape {noisy.shape}; give "
                "(trees, nodes) and (trees, leaves, classes)"
            )
        T, leaves, K = noisy.shape
        depth = leaves.bit_length() - 1
        if leaves != 1 << depth or feature.shape[1] != leaves - 1 or not 1 <= depth <= MOST_DEPTH:
            raise DataError(
                f"{feature.shape[1]} tests and {leaves} leaves a tree; a complete tree of depth d, "
                f"1 to {MOST_DEPTH}, has 2^d - 1 and 2^d"
            )
        if K < 1 or noisy.dtype.kind not in "iu":
            raise DataError(f"counts are {noisy.dtype} of {K} classes; give whole numbers")
        if feature.min() < 0 or feature.max() >= variables.width:
            raise DataError(
                f"a node tests column {int(feature.min() if feature.min() < 0 else feature.max())};"
                f" the rows have columns 0 to {variables.width - 1}"
            )
        cuts = np.full(feature.shape, 0.5) if threshold is None else np.asarray(threshold)
        if cuts.shape != feature.shape:
            raise DataError(f"thresholds of shape {cuts.shape} for tests of {feature.shape}")
        different = np.unique(np.stack([feature, cuts]).reshape(2, -1).T, axis=0)
        test_of = {(int(j), float(c)): variables.right(int(j), float(c)) for j, c in different}
        tests = [test_of[int(j), float(c)] for j, c in zip(feature.flat, cuts.flat, strict=True)]
        variable, right = np.zeros((T, leaves), np.int32), np.zeros((T, leaves), np.int64)
        variable[:, 1:] = np.array([g for g, _ in tests]).reshape(feature.shape)
        right[:, 1:] = np.array([bits for _, bits in tests]).reshape(feature.shape)
        return NoisyForest(variables, variable, right, noisy.astype(np.int64))

    @property
    def depth(self) -> int:
        """Number of tests on the path to a leaf."""
        return self.noisy.shape[1].bit_length() - 1

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        return int(self.noisy.shape[2])

    @cached_property
    def possible(self) -> NDArray[np.int64]:
        """Levels of every variable that reach each leaf, as bits, shape (T, 2^d, G)."""
        T = len(self.noisy)
        every = np.array([(1 << int(r)) - 1 for r in self.variables.sizes], dtype=np.int64)
        bits = np.broadcast_to(every, (T, 1, len(every))).copy()
        tree = np.arange(T)[:, None]
        for level in range(self.depth):
            nodes = np.arange(1 << level, 2 << level)
            at = np.arange(1 << level)[None, :]
            g, mask = self.variable[:, nodes], self.right[:, nodes]
            below = np.repeat(bits, 2, axis=1)
            below[tree, 2 * at, g] &= ~mask
            below[tree, 2 * at + 1, g] &= mask
            bits = below
        return bits

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Leaves that a row can reach, bool, shape (T, 2^d)."""
        return np.asarray((self.possible != 0).all(axis=2))

    @cached_property
    def tested(self) -> NDArray[np.int8]:
        """Depth of the first test of each variable on the path to a leaf, -1 for none.

        The array is int8 of shape (T, 2^d, G).
        """
        T, leaves, _ = self.noisy.shape
        first = np.full((T, leaves, len(self.variables)), -1, dtype=np.int8)
        tree, leaf = np.arange(T)[:, None], np.arange(leaves)[None, :]
        for level in reversed(range(self.depth)):
            node = (leaf + leaves) >> (self.depth - level)
            first[tree, leaf, self.variable[tree, node]] = level
        return first

    def route(self, coded: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the leaf of each row in each tree, int32, shape (n, T)."""
        return _route(self.variable, self.right, np.ascontiguousarray(coded, dtype=np.int16))

    def counts(self, coded: NDArray[np.integer], label: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of rows of each class in each leaf, int64, shape (T, 2^d, K)."""
        out = np.zeros(self.noisy.shape, dtype=np.int64)
        leaf = self.route(coded)
        np.add.at(out, (np.arange(len(out))[None, :], leaf, np.asarray(label)[:, None]), 1)
        return out

    def estimated_rows(self, least: int = 1) -> int:
        """Return the number of rows according to the counts, at least `least`.

        It is a weighted mean over trees of the sum of the counts of reachable leaves. The weight is
        inverse to their number, which is proportional to the variance of the sum.
        """
        sums = (self.noisy * self.live[:, :, None]).sum(axis=(1, 2))
        weight = 1.0 / self.live.sum(axis=1)
        return max(least, round(float((weight * sums).sum() / weight.sum())))

    def row_interval(self, noise: Noise) -> tuple[int, int]:
        """Return the 95 % confidence interval of the number of rows, at least 1.

        It is the interval of Gorgé et al. (2026), Appendix A: the mean over trees of the sum of all
        counts, plus or minus its standard error times the coefficient of Student's t distribution
        with T - 1 degrees of freedom (of the normal distribution for one tree).

        Parameters
        ----------
        noise : Noise
            Noise on the counts. The deviation of Laplace and geometric noise is approximated by
            that of the continuous Laplace distribution, as in the paper.

        Notes
        -----
        The code of the authors uses one-sided coefficients and does not divide by the square root
        of T, so that its intervals are wider. We follow the text.
        """
        from scipy.stats import norm, t

        trees = len(self.noisy)
        factor = {"exact": 0.0, "gaussian": 1.0}.get(noise.kind, 2.0 * noise.draws)
        error = noise.scale * math.sqrt(factor * self.noisy[0].size / trees)
        error *= t.ppf(0.975, trees - 1) if trees > 1 else norm.ppf(0.975)
        mean = float(self.noisy.sum(axis=(1, 2)).mean())
        return max(1, math.ceil(mean - error)), max(1, math.floor(mean + error))


@kernel
def _route(variable, right, coded):  # type: ignore[no-untyped-def]
    n, T, leaves = coded.shape[0], variable.shape[0], variable.shape[1]
    out = np.empty((n, T), dtype=np.int32)
    for i in range(n):
        for t in range(T):
            node = 1
            while node < leaves:
                node = 2 * node + ((right[t, node] >> coded[i, variable[t, node]]) & 1)
            out[i, t] = node - leaves
    return out
