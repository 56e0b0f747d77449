"""Infer shares of rows in bins: exactly satisfied sums, and noisy, suppressed or missing ones.

`LinearConstraints` are linear equations that shares of rows in bins satisfy (linear reconstruction,
Dinur and Nissim 2003). The other functions treat randomised response (rows with similar values in
other columns share evidence), sums that a passive party's defenses changed, and rows that the sums
leave open, whose likely bins follow from the adversary's columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.special import ndtr

from fedtrees.attacks.solvers.subset_sum import Certain, Column
from fedtrees.core.channel import Change, chained
from fedtrees.core.compilation import kernel
from fedtrees.core.statistics import middle_ranks

Floats = NDArray[np.float64]

STEPS = 100
#: Relative eigenvalue below which a direction counts as undetermined.
SLIGHT = 1e-11
#: Largest number of open rows that are solved for, because work grows with its square.
MOST_ROWS = 5000


@dataclass(frozen=True, eq=False)
class LinearConstraints:
    """Orthonormalised linear equations for the bins of the open rows.

    Attributes
    ----------
    open : int64 array, shape (m,)
        Rows whose bin is not certain.
    sides : float64 array, shape (m, r)
        Left-hand sides.
    sums : float64 array, shape (r, B + 1)
        Right-hand sides.
    allowed : bool array, shape (m, B + 1)
        Possible bins.
    """

    open: NDArray[np.int64]  # shape (m,)
    sides: Floats  # float64 array, shape (m, r)
    sums: Floats  # float64 array, shape (r, B + 1)
    allowed: NDArray[np.bool_]  # shape (m, B + 1)

    def nearest(self, start: Floats) -> Floats:
        """Return shares (m, B + 1) close to ``start`` that satisfy the sums and the allowed bins.

        Douglas-Rachford iterations alternate between shares that add up to 1 in every row and
        shares that satisfy the sums (Eckstein and Bertsekas 1992). They converge to a point of both
        sets if there is one.
        """
        at, shares = start.copy(), np.empty_like(start)
        across = np.ascontiguousarray(self.sides.T)
        for _ in range(STEPS):
            _on_simplex(at, self.allowed, shares)
            beyond = 2 * shares - at
            at += beyond + self.sides @ (self.sums - across @ beyond) - shares
        _on_simplex(at, self.allowed, shares)
        return shares

    def condition_ranks(self, rank: Floats, middle: Floats) -> Floats:
        """Return the expected ranks of all rows given the sums, for a normal prior.

        Parameters
        ----------
        rank : float64 array, shape (N,)
            Prior means.
        middle : float64 array, shape (B + 1,)
            Rank of every bin.
        """
        out = rank.copy()
        gap = self.sums @ middle - self.sides.T @ rank[self.open]
        out[self.open] += self.sides @ gap
        return out

    @property
    def even(self) -> Floats:
        """Uniform distribution over the allowed bins, shape (m, B + 1)."""
        return np.asarray(self.allowed / self.allowed.sum(axis=1, keepdims=True))


def constrain_open_rows(column: Column, certain: Certain) -> LinearConstraints:
    """Return the equations for the open rows, after subtracting the rows with certain bins."""
    open = np.flatnonzero(certain.bin < 0)
    place = np.full(len(certain.bin), -1)
    place[open] = np.arange(len(open))
    left, right = [], []
    for node in column.nodes:
        here, certain_bin = place[node.rows], certain.bin[node.rows]
        free = here >= 0
        if not free.any():
            continue
        rest = node.sums.copy()
        np.subtract.at(rest, certain_bin[~free], node.contributions[~free])
        statistics = node.contributions[free].astype(np.float64)
        length = np.linalg.norm(statistics, axis=0)
        for s in np.flatnonzero(length > 0).tolist():
            side = np.zeros(len(open))
            side[here[free]] = statistics[:, s] / length[s]
            left.append(side)
            right.append(rest[:, s] / length[s])
    nothing = np.zeros((0, len(open))), np.zeros((0, certain.allowed.shape[1]))
    sides, sums = _orthonormal(*((np.array(left), np.array(right)) if left else nothing))
    return LinearConstraints(open, sides, sums, np.ascontiguousarray(certain.allowed[open]))


def _orthonormal(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return equivalent equations with orthonormal left-hand sides (m, r)."""
    if len(left) < left.shape[1]:
        values, vectors = np.linalg.eigh(left @ left.T)
        is_determined = values > SLIGHT * values.max(initial=0.0)
        vectors = vectors[:, is_determined] / np.sqrt(values[is_determined])
        return np.ascontiguousarray(left.T @ vectors), vectors.T @ right
    values, vectors = np.linalg.eigh(left.T @ left)
    is_determined = values > SLIGHT * values.max(initial=0.0)
    sides = np.ascontiguousarray(vectors[:, is_determined])
    return sides, (sides.T @ (left.T @ right)) / values[is_determined][:, None]


@kernel
def _on_simplex(at, allowed, out):  # type: ignore[no-untyped-def]
    """Project rows on distributions over the allowed bins (Held, Wolfe and Crowder 1974)."""
    n, B = at.shape
    few = np.empty(B)
    for i in range(n):
        k = 0
        for b in range(B):
            if allowed[i, b]:
                few[k] = at[i, b]
                k += 1
        ordered, total, least = np.sort(few[:k]), 0.0, 0.0
        for j in range(k - 1, -1, -1):
            total += ordered[j]
            if ordered[j] <= (total - 1) / (k - j):
                break
            least = (total - 1) / (k - j)
        for b in range(B):
            out[i, b] = max(at[i, b] - least, 0.0) if allowed[i, b] else 0.0


#: Number of columns that are tried, most correlated ones first.
_COLUMNS = 3
#: Grids of parameters: neighbours of a row in halves of a bin's rows, widths of the kernel over
#: bins, and weights of the overall distribution.
_ROWS, _SPREADS, _SHARES = (1, 2, 4), (0.01, 1.0, 2.0), (0.02, 0.1, 0.3)
_FEWEST = 5


def likeliest(
    reported: NDArray[np.int64], bins: int, odds: float, local_columns: Floats
) -> NDArray[np.int64]:
    """Return the most probable true bin of every row, given the reported bins.

    The prior of a row's bin is a mixture of two distributions, both corrected for randomised
    response: that of rows with similar values in one other column, and that of all rows. The column
    and the mixture that maximise the likelihood of the reports are used.

    Parameters
    ----------
    reported : int64 array, shape (n,)
        Reported bins, 0 to `bins` - 1.
    bins : int
        Number of bins.
    odds : float
        Odds of reporting the true bin against each other bin.
    local_columns : float64 array, shape (n, c)
        Other columns of the same rows.
    """
    n = len(reported)
    all_rows = _true(np.bincount(reported, minlength=bins)[None] / n, odds)
    rows, answer = np.arange(n), np.ones((n, bins))
    answer[rows, reported] = odds
    best, most_probable = -np.inf, np.zeros(n, dtype=np.int64)
    for expected in (
        np.repeat(all_rows, n, axis=0),
        *_candidate_priors(reported, bins, odds, local_columns, all_rows),
    ):
        expected_reports = expected[rows, reported]
        likelihood = float(np.log(odds * expected_reports + 1 - expected_reports).sum())
        if likelihood > best:
            best, most_probable = likelihood, (answer * expected).argmax(axis=1)
    return most_probable


def _candidate_priors(
    reported: NDArray[np.int64], bins: int, odds: float, features: Floats, all_rows: Floats
) -> Iterator[Floats]:
    """Yield candidate prior distributions of the true bins, shape (n, bins)."""
    n, ranks = len(reported), np.array([middle_ranks(x) for x in features.T if np.ptp(x) > 0])
    along = np.abs(
        [np.corrcoef(rank, reported)[0, 1] for rank in ranks] if np.ptp(reported) else []
    )
    one_hot = np.eye(bins)[reported]
    apart = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    for rank in ranks[np.argsort(-along)[:_COLUMNS]]:
        order, place = np.argsort(rank, kind="stable"), np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        reached = np.vstack([np.zeros(bins), one_hot[order].cumsum(axis=0)])
        for times in _ROWS:
            m = max(n * times // (2 * bins), _FEWEST)
            low, high = np.maximum(place - m, 0), np.minimum(place + m + 1, n)
            near = _true(
                (reached[high] - reached[low] - one_hot) / np.maximum(high - low - 1, 1)[:, None],
                odds,
            )
            for spread in _SPREADS:
                weight = np.exp(-0.5 * (apart / spread) ** 2)
                smooth = near @ (weight / weight.sum(axis=0)).T
                for share in _SHARES:
                    yield (1 - share) * smooth + share * all_rows


def _true(reported: Floats, odds: float) -> Floats:
    """Return the distribution of true bins for that of reported bins, shape (k, bins)."""
    true = np.maximum((reported * (odds + reported.shape[1] - 1) - 1) / (odds - 1), 1e-12)
    return np.asarray(true / true.sum(axis=1, keepdims=True))


SWEEPS = 12
_STEP = 0.5  # damping of a sweep, without which nodes of few rows oscillate
_SMALLEST_VARIANCE = 1e-6  # smallest variance, in squared gradients


def shares_of_changed(
    column: Column, changes: Sequence[Change], unit: float, sweeps: int = SWEEPS
) -> Floats:
    """Return the probability of every bin for every row.

    The start is a least-squares solution over all nodes of all trees, weighted by the variance that
    the channel states. Sweeps of a mean-field approximation then use that a row is in exactly one
    bin. Cells of zeros are ignored if bins of few rows are suppressed.

    Parameters
    ----------
    column : Column
        Sums of one column.
    changes : sequence of Change
        Mechanisms applied to the sums.
    unit : float
        Number of units per gradient.
    sweeps : int
        Number of mean-field sweeps.

    Returns
    -------
    float64 array, shape (N, B + 1)
        The last column, no value, is 0.
    """
    law = chained(changes)
    n = len(column.allowed)
    A = np.zeros((len(column.nodes), n, column.nodes[0].contributions.shape[1]))
    for at, node in enumerate(column.nodes):
        A[at, node.rows] = node.contributions / unit
    sums = np.stack([node.sums[:-1] for node in column.nodes]) / unit  # (nodes, B, s)
    mean, variance = (sums, np.zeros(sums.shape)) if law is None else law.posterior_moments(sums)
    weight = 1 / np.maximum(variance, _SMALLEST_VARIANCE)
    if law is None or law.suppresses or len(changes) > 1:
        weight = weight * (sums != 0).any(axis=2, keepdims=True)
    start = column.allowed[:, :-1] / column.allowed[:, :-1].sum(axis=1, keepdims=True)
    shares = np.clip(_least_squares(A, mean, weight, start), 1e-4, None) * (start > 0)
    shares /= shares.sum(axis=1, keepdims=True)
    statistics = [np.ascontiguousarray(A[:, :, s]) for s in range(A.shape[2])]
    parts = [(a, a**2) for a in statistics]
    for _ in range(sweeps):
        log_odds = np.where(start > 0, _odds(parts, mean, weight, shares), -np.inf)
        now = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
        shares += _STEP * (now / now.sum(axis=1, keepdims=True) - shares)
    return np.column_stack([shares, np.zeros(n)])


def _least_squares(A: Floats, mean: Floats, weight: Floats, start: Floats) -> Floats:
    """Return the posterior mean of shares whose prior variance is that of one draw of a bin."""
    out, flat = start.copy(), A.transpose(0, 2, 1).reshape(-1, A.shape[1])  # (nodes s, n)
    before = gram = np.zeros(0)
    for b in range(start.shape[1]):
        w = weight[:, b].reshape(-1)
        free = np.maximum(start[:, b] * (1 - start[:, b]), 1e-9)
        if not np.array_equal(w, before):
            is_released = w > 0
            before, gram = w, (flat[is_released] * w[is_released, None]).T @ flat[is_released]
        off = flat.T @ (w * (mean[:, b].reshape(-1) - flat @ start[:, b]))
        out[:, b] += solve(gram + np.diag(1 / free), off, assume_a="pos")
    return out


def _odds(
    parts: Sequence[tuple[Floats, Floats]], mean: Floats, weight: Floats, p: Floats
) -> Floats:
    """Return log odds of rows being in bins, (n, B), given the present shares of other rows.

    `parts` contains the row statistics in each node, (nodes, n), and their squares, for every
    statistic.
    """
    log_odds = np.zeros(p.shape)
    for s, (a, square) in enumerate(parts):
        rest = mean[:, :, s] - a @ p  # (nodes, B)
        with np.errstate(divide="ignore"):
            w = 1 / (1 / weight[:, :, s] + square @ (p * (1 - p)))
        log_odds += a.T @ (w * rest) + square.T @ w * (p - 0.5)
    return log_odds


_RIDGE = 1.0  # prior precision of every coefficient, in rows
_STEPS = 20
_SMALLEST_SHARE = 1e-9  # smallest probability of a bin
_MISSING = 1e-6  # probability of a missing value, which the regression does not model
_SMALLEST_SPREAD = 1e-3  # smallest standard deviation of ranks
_SMALLEST_REST = 1e-4  # smallest remaining share of their variance


def ranks_of(shares: Floats) -> tuple[Floats, Floats]:
    """Return the rank at the ends of every bin (B + 1,), and the expected rank of every row (N,).

    ``shares`` (float64, (N, B + 1)) contains the probability of every bin for every row. The last
    column is a missing value, which has the middle rank.
    """
    rows = shares[:, :-1].sum(axis=0)
    ends = np.concatenate([[0.0], np.cumsum(rows)]) / max(float(rows.sum()), _SMALLEST_SHARE)
    valued = shares[:, :-1].sum(axis=1)
    middle = (ends[1:] + ends[:-1]) / 2
    rank = np.where(valued > 0, shares[:, :-1] @ middle / np.maximum(valued, _SMALLEST_SHARE), 0.5)
    return ends, rank


def likely_shares(
    local_ranks: Floats,
    shares: Floats,
    allowed: NDArray[np.bool_],
    equations: LinearConstraints | None,
) -> Floats:
    """Return the probability of every bin by a regression of ranks on the adversary's columns.

    Ranks are normally distributed around a quadratic function. The sums change the expected ranks
    of the open rows, and the regression is fitted again to these (EM).

    Parameters
    ----------
    local_ranks : float64 array, shape (N, c)
        Centred ranks of the adversary's columns, and labels.
    shares : float64 array, shape (N, B + 1)
        Shares that satisfy the sums.
    allowed : bool array, shape (N, B + 1)
        Possible bins.
    equations : LinearConstraints or None
        Equations for the open rows. None if there are none.

    Returns
    -------
    float64 array, shape (N, B + 1)
    """
    ends, rank = ranks_of(shares)
    low, high = rank_interval(ends, allowed)
    X = np.column_stack([np.ones(len(local_ranks)), local_ranks, local_ranks**2])
    weight = shares[:, :-1].sum(axis=1)
    gram = (X * weight[:, None]).T @ X + _RIDGE * np.eye(X.shape[1])
    middle = middles(ends)
    within = np.where(allowed.sum(axis=1) > 1, 1.0, 0.0)  # remaining share of the variance
    if equations is not None:
        within[equations.open] -= (equations.sides**2).sum(axis=1)
    spread = 1.0
    for _ in range(_STEPS):
        mean = X @ np.linalg.solve(gram, (X * weight[:, None]).T @ rank)
        error = (
            weight @ ((rank - mean) ** 2 + within * spread**2) / max(weight.sum(), _SMALLEST_SHARE)
        )
        spread = max(float(np.sqrt(error)), _SMALLEST_SPREAD)
        if equations is not None:
            mean = equations.condition_ranks(mean, middle)
        rank = np.clip(mean, low, high)
    doubt = spread * np.sqrt(np.clip(within, _SMALLEST_REST, 1.0))
    inside = np.diff(ndtr((ends - mean[:, None]) / doubt[:, None]), axis=1) + _SMALLEST_SHARE
    return np.column_stack([inside, np.full(len(inside), _MISSING)])


def middles(ends: Floats) -> Floats:
    """Return the middle rank of every bin and, last, that of a missing value, shape (B + 1,)."""
    return np.append((ends[1:] + ends[:-1]) / 2, 0.5)


def rank_interval(ends: Floats, allowed: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return the smallest and largest rank that the allowed bins permit, float64, (N,) each."""
    valued = allowed[:, :-1]
    some, bins = valued.any(axis=1), valued.shape[1]
    low = ends[np.where(some, valued.argmax(axis=1), 0)]
    high = ends[np.where(some, bins - valued[:, ::-1].argmax(axis=1), bins)]
    return low, high
