"""What leaf sums reveal although clients suppressed small bins of the histograms.

Under a defense such as `min-bin`, a client sends the sums of a bin as zeros if its hessian sum is
below a limit. The server then treats the rows of the bin like rows with a missing value: it counts
them in the child to which the split sends missing values, although the rows themselves are in the
child of their value. The histogram of a sibling is the difference between two histograms whose bins
were suppressed separately. The sums of a leaf are therefore linear in the rows, but a row
contributes to leaves that it does not reach, and not to others that it does reach.

A client suppresses a bin according to the rows that it has in it, which the adversary does not
know. A candidate's expected contribution follows from the binomial distribution of the number of
other rows in its bins (`leaf_contributions`). The remaining variation of the sums is estimated from
random draws of the members and their clients (`draw_leaf_sums`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from fedtrees.attacks.observations.boosting import relatives
from fedtrees.attacks.observations.replay import bins_left
from fedtrees.core.schema import Schema
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.cut_points import quantile_cuts

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Number of random draws of the members and their clients.
DRAWS = 1000
#: Relative error of sums that are compared with the limit.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class SuppressedTree:
    """One tree that was grown from histograms of which clients suppressed small bins.

    Attributes
    ----------
    tree : Tree
        The tree.
    cuts : Cuts
        Bins of the histograms.
    code : int64 array, shape (d, n)
        Bin of every value within its column, -1 if it is missing.
    inside : bool array, shape (n, nodes)
        Nodes that each candidate reaches.
    gh : float64 array, shape (n, 2)
        Gradient and hessian of each candidate.
    limit : float
        A client suppresses a bin with a smaller hessian sum.
    clients : int
        Number of clients with the candidates.
    """

    tree: Tree
    cuts: Cuts
    code: Longs
    inside: Bools
    gh: Floats
    limit: float
    clients: int

    def draw_leaf_sums(self, member: Bools, client: Longs) -> tuple[Floats, Bools]:
        """Return the leaf sums if these candidates are members.

        Parameters
        ----------
        member : bool array, shape (m, n)
            The members of each of m draws.
        client : int64 array, shape (m, n)
            The client of each candidate.

        Returns
        -------
        sums : float64 array, shape (m, J, 2)
            Gradient and hessian sums of the J leaves.
        is_sent : bool array, shape (nodes,)
            Nodes whose histograms were sent. Those of their siblings are differences.
        """
        m, part = len(member), np.arange(len(member))[:, None] * self.clients + client

        def sent(node: int, feature: int) -> Floats:
            code, size = self.code[feature], len(self.cuts.of(feature))
            rows = np.flatnonzero(self.inside[:, node] & (code >= 0))
            used = member[:, rows]
            place = (part[:, rows] * size + code[rows])[used]
            shape = (m, self.clients, size)
            sums = np.stack(
                [
                    np.bincount(place, np.broadcast_to(x[rows], used.shape)[used], np.prod(shape))
                    for x in self.gh.T
                ],
                axis=1,
            ).reshape(*shape, 2)
            is_large = sums[..., 1:] >= self.limit * (1 - _ROUNDING)
            return np.asarray((sums * is_large).sum(axis=1), dtype=np.float64)

        def left_part(node: int, histogram: Floats) -> tuple[Floats, Floats]:
            left = bins_left(self.tree, node, self.cuts)
            return histogram[:, left].sum(axis=1), histogram.sum(axis=1)

        is_sent = np.zeros(len(self.tree), dtype=bool)
        sums = self._distribute(np.asarray(member @ self.gh), sent, left_part, is_sent)
        return np.stack([sums[leaf] for leaf in self.tree.leaves.tolist()], axis=1), is_sent

    def leaf_contributions(self, x: Floats, prior: float, is_sent: Bools) -> Floats:
        """Return the expected change of the leaf sums if a candidate is a member.

        Parameters
        ----------
        x : float64 array, shape (n,)
            Gradient or hessian of every candidate.
        prior : float
            Probability that a candidate is a member.
        is_sent : bool array, shape (nodes,)
            Nodes whose histograms were sent.

        Returns
        -------
        float64 array, shape (n, J)
        """

        def sent(node: int, feature: int) -> Floats:
            # A bin of other rows that lacks one row is sent because of the candidate. Its
            # contribution then includes these rows.
            code = self.code[feature]
            rows = np.flatnonzero(self.inside[:, node] & (code >= 0))
            bins = code[rows]
            n_bins = np.bincount(bins)
            hessian = np.bincount(bins, self.gh[rows, 1]) / np.maximum(n_bins, 1)
            needed = np.ceil(self.limit / np.maximum(hessian, 1e-16) - 1e-6)[bins]
            n_other_rows = n_bins[bins] - 1
            below = _at_most(needed - 2, n_other_rows, prior / self.clients)
            exactly = _at_most(needed - 1, n_other_rows, prior / self.clients) - below
            mean = (np.bincount(bins, x[rows])[bins] - x[rows]) / np.maximum(n_other_rows, 1)
            out = np.zeros(len(x))
            out[rows] = (1 - below) * x[rows] + exactly * (needed - 1) * mean
            return out

        def left_part(node: int, histogram: Floats) -> tuple[Floats, Floats]:
            code = self.code[self.tree.feature[node]]
            is_left = bins_left(self.tree, node, self.cuts)[np.maximum(code, 0)] & (code >= 0)
            return histogram * is_left, histogram

        sums = self._distribute(x, sent, left_part, is_sent.copy())
        return np.stack([sums[leaf] for leaf in self.tree.leaves.tolist()], axis=1)

    def _distribute(
        self,
        root: Floats,
        sent: Callable[[int, int], Floats],
        left_part: Callable[[int, Floats], tuple[Floats, Floats]],
        is_sent: Bools,
    ) -> dict[int, Floats]:
        """Return the sums of every node, as the server computes them from the root down.

        Parameters
        ----------
        root : float64 array
            Sums of the root, which are sent without suppression.
        sent : callable
            Returns the histogram of a node and a feature, as it is sent.
        left_part : callable
            Returns the sums of a node's histogram over the bins of the left child, and over all
            bins.
        is_sent : bool array, shape (nodes,)
            Nodes whose histograms were sent. If the root is not marked, the nodes are marked here:
            of two siblings, the one with the smaller hessian sum.
        """
        tree, pairs, sums = self.tree, relatives(self.tree), {0: root}
        is_known, histograms = bool(is_sent[0]), dict[tuple[int, int], Floats]()
        is_sent[0] = True

        def histogram(node: int, feature: int) -> Floats:
            key = node, feature
            if key not in histograms:
                if is_sent[node]:
                    histograms[key] = sent(node, feature)
                else:
                    parent, other = pairs[node].tolist()
                    histograms[key] = histogram(parent, feature) - histogram(other, feature)
            return histograms[key]

        for node in np.flatnonzero(tree.feature >= 0).tolist():  # children come after their parent
            left, right = int(tree.left[node]), int(tree.right[node])
            part, total = left_part(node, histogram(node, int(tree.feature[node])))
            if tree.default_left[node]:
                part = part + sums[node] - total
            sums[left], sums[right] = part, sums[node] - part
            if not is_known:
                weights = [
                    sums[child][..., 1].mean() if tree.h is None else tree.h[child]
                    for child in (left, right)
                ]
                is_sent[right if weights[1] < weights[0] else left] = True
        return sums


def _at_most(k: Floats, n: NDArray[Any], probability: float) -> Floats:
    """Return the probability that a binomial count of n rows is at most k."""
    inside = bdtr(np.maximum(k, 0.0), np.maximum(n, 1).astype(np.int64), probability)
    return np.where(k < 0, 0.0, np.where(k >= n, 1.0, inside))


def draw_members(
    n: int, members: int, clients: int, rng: np.random.Generator
) -> tuple[Bools, Longs]:
    """Return random members among n candidates, and a random client of every candidate.

    Parameters
    ----------
    n : int
        Number of candidates.
    members : int
        Number of members, at most n.
    clients : int
        Number of clients.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    member : bool array, shape (DRAWS, n)
    client : int64 array, shape (DRAWS, n)
    """
    order = rng.random((DRAWS, n)).argsort(axis=1)
    return order < members, rng.integers(0, clients, (DRAWS, n))


def independent_sums(
    contribution: Floats, draws: Floats, member: Bools, total: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return combinations of sums whose variation beyond the contributions is uncorrelated.

    Parameters
    ----------
    contribution : float64 array, shape (n, K)
        Expected contribution of each candidate to each sum.
    draws : float64 array, shape (m, K)
        Sums of random draws.
    member : bool array, shape (m, n)
        Members of these draws.
    total : float64 array, shape (K,)
        Released sums.

    Returns
    -------
    contribution : float64 array, shape (n, L)
    total, variance : float64 array, shape (L,)
    """
    scale = draws.std(axis=0)
    used = scale > 1e-9 * max(float(scale.max(initial=0.0)), 1e-300)
    A, S, y = (part[..., used] / scale[used] for part in (contribution, draws, total))
    rest = S - member @ A
    variance, directions = np.linalg.eigh(np.atleast_2d(np.cov(rest.T)))
    return A @ directions, (y - rest.mean(axis=0)) @ directions, np.maximum(variance, 0.0)


def likely_cuts(
    X: NDArray[np.float32], trees: Sequence[Tree], max_bin: int, schema: Schema
) -> Cuts:
    """Return likely cut points of a training: quantiles of the candidates, and the thresholds.

    Parameters
    ----------
    X : float32 array, shape (n, d)
        Candidates.
    trees : sequence of Tree
        The trees. Each threshold replaces the quantile that is nearest to it.
    max_bin : int
        Largest number of bins of a column.
    schema : Schema
        A column of categories has one bin per category.
    """
    quantiles, columns = quantile_cuts(X, max_bin), list[NDArray[np.float32]]()
    for f, feature in enumerate(schema.features):
        if feature.categories:
            columns.append(np.arange(1, len(feature.categories) + 1, dtype=np.float32))
            continue
        thresholds = np.concatenate([t.threshold[t.feature == f] for t in trees])
        used = np.unique(thresholds[np.isfinite(thresholds)])
        values = quantiles.of(f)
        for value in np.setdiff1d(used, values):
            free = np.flatnonzero(~np.isin(values[:-1], used))  # the last one is above all values
            nearest = free[np.argmin(np.abs(values[free] - value))] if len(free) else []
            values = np.union1d(np.delete(values, nearest), value)
        columns.append(values.astype(np.float32))
    return Cuts.join(columns, quantiles.minimum)
