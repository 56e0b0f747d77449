"""A mixture model of labels: rates of every visible leaf, and the likelihood of every split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.choices import Candidates, log_probability
from fedtrees.attacks.labels.evidence import SeenTree
from fedtrees.attacks.labels.twins import Twins

Floats = NDArray[np.float64]

#: Pseudo-rows of the overall shares in the label rates of a leaf; of one that is mostly pure.
PSEUDO_ROWS = 1.0
PSEUDO_ROWS_PURE = 0.02
STEP = 0.3  # of the way to the new logits in each iteration
ITERATIONS = 60


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """How boosted trees turn labels into gradients: public parameters of the protocol.

    Attributes
    ----------
    rate, lam, gamma : float
        Learning rate, L2 penalty, least gain of a split.
    outputs : int
        Trees of a round: one, or one for each class.
    """

    rate: float
    lam: float
    gamma: float
    outputs: int


@dataclass(frozen=True, eq=False)
class Mixture:
    """Rows with unknown labels, the leaves they are in, and the splits that made these.

    Attributes
    ----------
    twins : Twins
        Leaves of all rows.
    pure : bool array, shape (J,)
        Leaves that were not split early.
    trees : sequence of SeenTree
    own : Candidates
    classes : int
    boosting : Boosting or None
        None: a forest.
    """

    twins: Twins
    pure: NDArray[np.bool_]
    trees: Sequence[SeenTree]
    own: Candidates
    classes: int
    boosting: Boosting | None

    def fit(self, start: NDArray[np.int64]) -> tuple[Floats, float]:
        """Improve labels from a start; return class shares (N, K) and the log-likelihood.

        Mean-field updates: the logits of a row are what its leaves' rates say plus the slope of the
        splits' log-likelihood, whose temperature is fitted anew each time. The best hard labels on
        the way count.
        """
        r = np.full((len(start), self.classes), 0.1 / self.classes)
        r[np.arange(len(start)), start] += 0.9
        logits = np.log(r)
        best, found = -np.inf, r
        for _ in range(ITERATIONS):
            fits, slope = self.splits(r)
            leaves = self.rates(r)
            logits += STEP * (leaves + slope - logits)
            r = _softmax(logits)
            score = self.log_likelihood(r)
            if score > best:
                best, found = score, r
        return found, best

    def log_likelihood(self, r: Floats) -> float:
        """Return the log-likelihood of the likeliest labels, in nats: of splits and of leaves."""
        hard = np.eye(self.classes)[r.argmax(axis=1)]
        return self.splits(hard)[0]

    def rates(self, r: Floats) -> Floats:
        """Return the log-odds that the leaves of every row tell of its class, (N, K)."""
        share = r.mean(axis=0) + 1e-9
        share /= share.sum()
        leaf = self.twins.leaf[self.twins.of_row]
        J = len(self.twins.tree)
        counts = np.zeros((J + 1, self.classes))
        for t in range(leaf.shape[1]):
            at = np.where(leaf[:, t] >= 0, leaf[:, t], J)
            for k in range(self.classes):
                counts[:, k] += np.bincount(at, r[:, k], J + 1)
        pseudo = np.append(np.where(self.pure, PSEUDO_ROWS_PURE, PSEUDO_ROWS), 1.0)[:, None]
        rate = (counts + pseudo * share) / (counts.sum(axis=1, keepdims=True) + pseudo)
        told = np.log(rate / share)
        told[J] = 0.0
        return np.asarray(np.log(share) + told[leaf].sum(axis=1))

    def splits(self, r: Floats) -> tuple[float, Floats]:
        """Return the log-likelihood of all splits under class shares, and its derivative."""
        if self.boosting is None:
            return self._forest(r)
        return self._boosted(r, self.boosting)

    def _forest(self, r: Floats) -> tuple[float, Floats]:
        total, slope = 0.0, np.zeros_like(r)
        ones = np.ones_like(r)
        for tree in self.trees:
            fit, _, s = log_probability(tree, self.own, r, ones, 0.0, 0.0)
            total += fit
            slope += s
        return total, slope

    def _boosted(self, r: Floats, how: Boosting) -> tuple[float, Floats]:
        total, slope, K = 0.0, np.zeros_like(r), self.classes
        share = r.mean(axis=0)
        margin = np.tile(np.log(share + 1e-9), (len(r), 1))
        p, h = r, r
        for tree in self.trees:
            k = tree.number % how.outputs
            if k == 0:
                p = _softmax(margin)
                h = np.maximum(p * (1 - p), 1e-9)
            if K == 2 or how.outputs == 1:
                columns = [1] if K == 2 else list(range(K))
            else:
                columns = [k]
            G = p[:, columns] - r[:, columns]
            H = h[:, columns] * (1.0 if K == 2 else 2.0)
            fit, _, s = log_probability(tree, self.own, G, H, how.lam, how.gamma)
            total += fit
            slope[:, columns] -= s
            self._advance(tree, G, H, how, margin, columns)
        return total, slope

    def _advance(
        self, tree: SeenTree, G: Floats, H: Floats, how: Boosting, margin: Floats, columns: list[int]
    ) -> None:
        told = tree.leaf >= 0
        code = tree.leaf[told]
        J = int(code.max(initial=-1)) + 1
        for c, column in enumerate(columns):
            g = np.bincount(code, G[told, c], J)
            h = np.bincount(code, H[told, c], J)
            value = -how.rate * g / (h + how.lam)
            margin[told, column] += value[code]


def _softmax(a: Floats) -> Floats:
    e = np.exp(a - a.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))
