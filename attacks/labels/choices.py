"""How likely the splits that were seen are, if rows had given labels.

Every node of a tree takes the best of its candidate splits. A party without labels knows its own
candidates and which partition was taken instead; so the true labels make that partition gain at
least as much as every candidate of its own. As a likelihood: of a partition chosen with
probabilities proportional to exp(beta * gain).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.evidence import SeenTree
from fedtrees.core.compilation import kernel

Floats = NDArray[np.float64]

#: Inverse temperatures that are tried, per unit of gain.
BETAS = 4.0 ** np.arange(-4, 3)
#: Gains this close, relative to the node's, are of one partition in another guise.
SAME = 1e-9


@dataclass(frozen=True, eq=False)
class Candidates:
    """The own candidate splits: bins of all rows."""

    codes: NDArray[np.int64]  # shape (N, F)
    n_bins: NDArray[np.int64]  # shape (F,)


def log_probability(
    tree: SeenTree, own: Candidates, G: Floats, H: Floats, lam: float, floor: float, doubt: float
) -> tuple[float, Floats]:
    """Return how probable the splits of one tree are, and how that changes with G.

    `G, H`: float64 array, shape (N, C). Sums over a node S gain ``sum_c G_S^2 / (H_S + lam)``; with
    class shares for G, ones for H and no lam that is Gini impurity times rows, with gradients and
    hessians XGBoost's gain.
    `floor`: What a split must gain: nodes that were left alone gained no more.
    `doubt`: Probability that a node that seems left alone was not.

    Returns
    -------
    log_likelihood : float
        In nats, at the best inverse temperature of `BETAS`.
    slope : float64 array, shape (N, C)
        Derivative by G.
    """
    B = int(own.n_bins.max(initial=0))
    slope = np.zeros_like(G)
    V = len(tree.begin)
    if not V or B < 2 or not tree.usable.any():
        return 0.0, slope
    used = np.flatnonzero(tree.usable)
    codes = np.ascontiguousarray(own.codes[:, used])
    n_bins = own.n_bins[used]
    nodes = (tree.rows, tree.begin, tree.middle, tree.end, codes, n_bins)
    taken, gains, left_g, left_h, total_g, total_h, own_g, own_h = _gains(*nodes, G, H, lam, B)
    split = tree.middle >= 0
    taken = np.where(split, taken, floor)
    scale = np.abs(taken)[:, None, None] + 1e-12
    twice = split[:, None, None] & (np.abs(gains - taken[:, None, None]) <= SAME * scale)
    gains = np.where(twice, -np.inf, gains)
    every = np.concatenate([taken[:, None], gains.reshape(V, -1)], axis=1) - taken[:, None]
    chances, away_at = _odds(every, split)
    fits = [float(np.log(_softened(chance, split, doubt)).sum()) for chance in chances]
    best = int(np.argmax(fits))
    chance, away = chances[best], away_at(best)
    sure = np.where(split, 1.0, (1 - doubt) * chance / _softened(chance, split, doubt))
    away = (away * sure[:, None]).reshape(gains.shape)
    pull = (away.sum(axis=(1, 2)), away)
    _pulls(*nodes, left_g, left_h, total_g, total_h, own_g, own_h, *pull, lam, slope)
    return fits[best], BETAS[best] * slope


def _odds(excess: Floats, split: NDArray[np.bool_]) -> tuple[list[Floats], Callable[[int], Floats]]:
    """Return how probable every choice is, and by how much candidates lower its logarithm.

    `excess`: float64 array, shape (V, 1 + candidates). What each gains more than what was taken,
    which comes first.
    `split`: bool array, shape (V,). Of a node that was left alone, only candidates that gain more
    count.

    Returns
    -------
    chances : list of float64 array, shape (V,)
        For each of `BETAS`.
    away : callable
        Returns, for one of them, derivatives of the logarithm by the gains, times -1 / beta,
        float64 (V, candidates).
    """
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
        found = np.exp(BETAS[at] * (excess[:, 1:] - top))
        return np.asarray(found * counts / wholes[at][:, None])

    return chances, away


def _softened(chance: Floats, split: NDArray[np.bool_], doubt: float) -> Floats:
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
                if b > 0:
                    for c in range(C):
                        left_g[v, f, b, c] += left_g[v, f, b - 1, c]
                        left_h[v, f, b, c] += left_h[v, f, b - 1, c]
                if count[f, b] == 0 or seen == n:
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
                # rows of a bin stand left of candidates from there on, right of those before
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
            drop[c] = toward[v] * 2 * g / (h + lam)  # where nothing was taken, of all rows
        for q in range(begin[v], end[v]):
            i = rows[q]
            for c in range(C):
                s = lift[c] if q < middle[v] else drop[c]
                for f in range(F):
                    s -= bins[f, codes[i, f], c]
                slope[i, c] += s
