"""Likelihood of the visible splits, given labels of the rows.

Every node of a tree takes the best of all candidate splits. A party without labels knows its local
candidates and the partition that was chosen instead. Under the true labels, the chosen partition
gains at least as much as every local candidate. The likelihood is a softmax: a partition is chosen
with a probability proportional to exp(beta * gain).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.evidence import SeenTree
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]

#: Inverse temperatures that are tried, per unit of gain.
BETAS = 4.0 ** np.arange(-4, 3)
#: Relative difference of gains up to which a local candidate is considered the chosen partition.
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Candidates:
    """The local candidate splits, which lie between neighbouring bins."""

    codes: NDArray[np.int64]  # shape (N, F): bin of every value
    n_bins: NDArray[np.int64]  # shape (F,): bins per column


def log_probability(
    tree: SeenTree,
    local_candidates: Candidates,
    G: Floats,
    H: Floats,
    lam: float,
    floor: float,
    doubt: float,
) -> tuple[float, Floats]:
    """Return the log-likelihood of the splits of one tree, and its derivative with respect to G.

    Parameters
    ----------
    tree : SeenTree
        Visible nodes.
    local_candidates : Candidates
        Local candidate splits.
    G, H : float64 array, shape (N, C)
        The score of a node S is ``sum_c G_S^2 / (H_S + lam)``, with sums over its rows. Class
        shares for G, ones for H and lam = 0 give the Gini criterion times the number of rows.
        Gradients and hessians give the gain of XGBoost.
    lam : float
        L2 penalty.
    floor : float
        Smallest gain of a split. The best candidate of a node without split gains at most this.
    doubt : float
        Probability that the lack of a visible split has another reason than a lack of gain.

    Returns
    -------
    log_likelihood : float
        In nats, at the best inverse temperature of `BETAS`.
    slope : float64 array, shape (N, C)
        Derivative with respect to G.
    """
    B = int(local_candidates.n_bins.max(initial=0))
    slope = np.zeros_like(G)
    V = len(tree.begin)
    if not V or B < 2 or not tree.usable.any():
        return 0.0, slope
    used = np.flatnonzero(tree.usable)
    codes = np.ascontiguousarray(local_candidates.codes[:, used])
    n_bins = local_candidates.n_bins[used]
    nodes = (tree.rows, tree.begin, tree.middle, tree.end, codes, n_bins)
    taken, gains, left_g, left_h, total_g, total_h, own_g, own_h = _gains(*nodes, G, H, lam, B)
    split = tree.middle >= 0
    taken = np.where(split, taken, floor)
    scale = np.abs(taken)[:, None, None] + 1e-12
    # A local candidate with the same gain is the chosen partition itself, and must not compete.
    twice = split[:, None, None] & (np.abs(gains - taken[:, None, None]) <= SAME * scale)
    gains = np.where(twice, -np.inf, gains)
    every = np.concatenate([taken[:, None], gains.reshape(V, -1)], axis=1) - taken[:, None]
    chances, away_at = _odds(every, split)
    fits = [float(np.log(_soften(chance, split, doubt)).sum()) for chance in chances]
    best = int(np.argmax(fits))
    chance, away = chances[best], away_at(best)
    sure = np.where(split, 1.0, (1 - doubt) * chance / _soften(chance, split, doubt))
    away = (away * sure[:, None]).reshape(gains.shape)
    pull = (away.sum(axis=(1, 2)), away)
    _pulls(*nodes, left_g, left_h, total_g, total_h, own_g, own_h, *pull, lam, slope)
    return fits[best], BETAS[best] * slope


def _odds(excess: Floats, split: NDArray[np.bool_]) -> tuple[list[Floats], Callable[[int], Floats]]:
    """Return the probability of every choice, and its logarithmic derivatives.

    Parameters
    ----------
    excess : float64 array, shape (V, 1 + candidates)
        Gain of each candidate minus that of the chosen partition, which comes first.
    split : bool array, shape (V,)
        Whether the node was split. At other nodes only candidates with a larger gain count.

    Returns
    -------
    chances : list of float64 array, shape (V,)
        Probabilities of the choices, for each of `BETAS`.
    away : callable
        ``away(k)`` returns the derivatives of the log probabilities with respect to the gains of
        the candidates, times -1 / beta, for ``BETAS[k]``, float64, shape (V, candidates).
    """
    # Powers of the smallest inverse temperature give all larger ones, because each is four times
    # the previous one. This replaces further calls of exp.
    top = np.maximum(excess.max(axis=1, keepdims=True), 0.0)
    counts = split[:, None] | (excess[:, 1:] > 0)
    spared = np.where(split, 0, counts.sum(axis=1))
    odds, spare = np.exp(BETAS[0] * (excess - top)), np.exp(-BETAS[0] * top[:, 0])
    odds[:, 1:] *= counts
    wholes, chances = list[Floats](), list[Floats]()
    for _ in BETAS:  # each is four times the one before
        wholes.append(odds.sum(axis=1) - spared * spare)
        chances.append(odds[:, 0] / wholes[-1])
        odds, spare = odds**2, spare**4
        odds *= odds

    def away(at: int) -> Floats:
        odds_at = np.exp(BETAS[at] * (excess[:, 1:] - top))
        return np.asarray(odds_at * counts / wholes[at][:, None])

    return chances, away


def _soften(chance: Floats, split: NDArray[np.bool_], doubt: float) -> Floats:
    return np.maximum(np.where(split, chance, (1 - doubt) * chance + doubt), 1e-300)


@kernel
def _gains(rows, begin, middle, end, codes, n_bins, G, H, lam, B):  # type: ignore[no-untyped-def]
    V, F, C = len(begin), codes.shape[1], G.shape[1]
    taken = np.zeros(V)
    gains = np.full((V, F, B), -np.inf)
    left_g, left_h = np.zeros((V, F, B, C)), np.zeros((V, F, B, C))
    total_g, total_h = np.zeros((V, C)), np.zeros((V, C))
    own_g, own_h = np.zeros((V, C)), np.zeros((V, C))
    count = np.empty((F, B))
    for v in range(V):
        count[:] = 0
        for q in range(begin[v], end[v]):
            i = rows[q]
            for c in range(C):
                total_g[v, c] += G[i, c]
                total_h[v, c] += H[i, c]
                if q < middle[v]:
                    own_g[v, c] += G[i, c]
                    own_h[v, c] += H[i, c]
            for f in range(F):
                b = codes[i, f]
                count[f, b] += 1
                for c in range(C):
                    left_g[v, f, b, c] += G[i, c]
                    left_h[v, f, b, c] += H[i, c]
        # The gain of a partition is the score of both children minus that of the node.
        base = 0.0
        for c in range(C):
            base += total_g[v, c] ** 2 / (total_h[v, c] + lam)
        taken[v] = -base
        for c in range(C):
            g, h = total_g[v, c] - own_g[v, c], total_h[v, c] - own_h[v, c]
            taken[v] += own_g[v, c] ** 2 / (own_h[v, c] + lam) + g * g / (h + lam)
        n = end[v] - begin[v]
        for f in range(F):
            seen = 0
            for b in range(n_bins[f] - 1):
                seen += count[f, b]
                if b > 0:  # cumulative sums over bins are the sums of the left child
                    for c in range(C):
                        left_g[v, f, b, c] += left_g[v, f, b - 1, c]
                        left_h[v, f, b, c] += left_h[v, f, b - 1, c]
                if count[f, b] == 0 or seen == n:  # same partition as before, or an empty child
                    continue
                gains[v, f, b] = -base
                for c in range(C):
                    a, d = left_g[v, f, b, c], left_h[v, f, b, c]
                    g, h = total_g[v, c] - a, total_h[v, c] - d
                    gains[v, f, b] += a * a / (d + lam) + g * g / (h + lam)
    return taken, gains, left_g, left_h, total_g, total_h, own_g, own_h


@kernel
def _pulls(  # type: ignore[no-untyped-def]
    rows, begin, middle, end, codes, n_bins,
    left_g, left_h, total_g, total_h, own_g, own_h, toward, away, lam, slope,
):  # fmt: skip
    V, F, C = len(begin), codes.shape[1], slope.shape[1]
    B = left_g.shape[2]
    bins = np.zeros((F, B, C))
    lift, drop = np.zeros(C), np.zeros(C)
    for v in range(V):
        for f in range(F):
            for c in range(C):
                # rows of a bin are left of the candidates from this bin on, right of earlier ones
                below = 0.0
                for b in range(n_bins[f]):
                    bins[f, b, c] = below
                    g, h = total_g[v, c] - left_g[v, f, b, c], total_h[v, c] - left_h[v, f, b, c]
                    if away[v, f, b] > 0:
                        below += away[v, f, b] * 2 * g / (h + lam)
                above = 0.0
                for b in range(n_bins[f] - 1, -1, -1):
                    if away[v, f, b] > 0:
                        above += away[v, f, b] * 2 * left_g[v, f, b, c] / (left_h[v, f, b, c] + lam)
                    bins[f, b, c] += above
        for c in range(C):
            g, h = own_g[v, c], own_h[v, c]
            lift[c] = toward[v] * 2 * g / (h + lam)
            g, h = total_g[v, c] - g, total_h[v, c] - h
            drop[c] = toward[v] * 2 * g / (h + lam)  # for a node without split, of all its rows
        for q in range(begin[v], end[v]):
            i = rows[q]
            for c in range(C):
                s = lift[c] if q < middle[v] else drop[c]
                for f in range(F):
                    s -= bins[f, codes[i, f], c]
                slope[i, c] += s
