"""Labels of rows, from rates of every visible leaf and the likelihood of every seen split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax

from fedtrees.attacks.labels.choices import Candidates, log_probability
from fedtrees.attacks.labels.evidence import (
    Columns,
    SeenTree,
    boosted,
    candidate_bins,
    outputs,
    seen_trees,
)
from fedtrees.attacks.labels.twins import Twins
from fedtrees.core.view import View

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Pseudo-rows of the overall shares in the label rates of a leaf, and of one that is mostly pure.
PSEUDO_ROWS = 1.0
PSEUDO_ROWS_PURE = 0.02
#: Power of the leaves' likelihood beside that of the splits. Trees follow own columns of rows as
#: well as labels, so that leaves alone are explained best by something other than labels.
LEAF_POWER = 0.1
#: The same where fits from several starts are compared.
CHOICE_POWER = 0.02
#: How likely a leaf that seems to have been left alone was not, or not for want of gain: in a
#: forest it may have been split into two pure ones.
DOUBT = 0.2

STEPS = 80
RATE = 0.2  # of Adam (Kingma and Ba 2015), on logits
COLDEST = 0.25  # labels harden: the last temperature of the softmax
SOFT = 0.3  # of a start
SCORED_EVERY = 20
MOST_LOGIT = 6.0

#: Of the best labels so far, the share that a restart draws anew.
KICKED = 0.25
#: Restarts that gain nothing, one after the other, before the climb counts as converged.
PATIENCE = 5
MOST_KICKS = 30
#: Of more rows than these over the number of restarts, there are only `PATIENCE`.
KICKED_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """How boosted trees turn labels into gradients: public parameters of the protocol."""

    # rate, lam, gamma: learning rate, L2 penalty, least gain of a split
    rate: float
    lam: float
    gamma: float
    outputs: int  # trees of a round: one, or one for each class
    doubt: float = 0.0  # how likely a node that was left alone would have gained


@dataclass(frozen=True, eq=False)
class Mixture:
    """Rows with unknown labels, the leaves they are in, and the splits that made these."""

    leaf: NDArray[np.int32]  # shape (N, T): leaves, numbered through all trees; -1: absent
    pure: NDArray[np.bool_]  # shape (J,): leaves that were left alone early: mostly of one class
    trees: Sequence[SeenTree]
    own: Candidates
    classes: int
    boosting: Boosting | None  # None: a forest
    # int64 array, shape (N,), or None: labels that are known, -1 for others: a climb leaves them as
    # they are
    known: Ints | None = None

    def best(self, starts: Sequence[Ints], rows: int, rng: np.random.Generator) -> Ints:
        """Return the labels (N,) of the greatest `score` that climbs from all starts lead to.

        Where each of them ended is climbed from again, in turn, with a part of the labels drawn
        anew (iterated local search: Lourenço, Martin and Stützle 2003), until that gains nothing
        several times over.

        `starts`: sequence of int64 array, shape (N,). Numbers below that of the classes.
        `rows`: Fit so many at most.
        `rng`: Draws them.
        """
        drawn = np.arange(len(self.leaf))
        if len(drawn) > rows:
            drawn = np.sort(rng.choice(len(drawn), rows, replace=False))
        part = self if len(drawn) == len(self.leaf) else self.restricted(drawn)
        fits = [part.fit(part.named(start[drawn])) for start in starts]
        found = part.kicked([part.fit(labels) for _, labels in fits], rng)
        if part is self:
            return found
        return np.asarray(_log_rates(part, found, self.leaf).argmax(axis=1))

    def kicked(self, fits: Sequence[tuple[float, Ints]], rng: np.random.Generator) -> Ints:
        """Return the best labels that restarts lead to from where climbs ended, (N,)."""
        ends, N = list(fits), len(fits[0][1])
        idle = [0] * len(ends)
        for kick in range(max(PATIENCE, min(MOST_KICKS, KICKED_ROWS // max(N, 1)))):
            left = [at for at, tries in enumerate(idle) if tries < PATIENCE]
            if not left:
                break
            at = left[kick % len(left)]
            anew = rng.random(N) < KICKED
            climbed = self.fit(np.where(anew, rng.integers(self.classes, size=N), ends[at][1]))
            idle[at] += 1
            if climbed[0] > ends[at][0]:
                ends[at], idle[at] = climbed, 0
        return max(ends, key=lambda end: end[0])[1]

    def restricted(self, drawn: NDArray[np.intp]) -> Mixture:
        """Return the same of some rows."""
        place = np.full(len(self.leaf), -1)
        place[drawn] = np.arange(len(drawn))
        own = Candidates(self.own.codes[drawn], self.own.n_bins)
        trees = [_restricted(tree, place, drawn) for tree in self.trees]
        known = None if self.known is None else self.known[drawn]
        return replace(self, leaf=self.leaf[drawn], trees=trees, own=own, known=known)

    def kept(self, labels: Ints) -> Ints:
        """Return labels with those that are known in their place."""
        return labels if self.known is None else np.where(self.known >= 0, self.known, labels)

    def named(self, labels: Ints) -> Ints:
        """Name clusters after classes where every class has trees of its own.

        Each cluster is held against the first tree of each class; the best assignment counts.
        """
        how, K = self.boosting, self.classes
        if how is None or how.outputs == 1:
            return labels
        fit = np.zeros((K, K))
        for tree in self.trees:
            for cluster in range(K) if tree.number < K else ():
                inside = (labels == cluster).astype(np.float64)[:, None]
                p = np.full_like(inside, np.clip(inside.mean(), 1e-3, 1 - 1e-3))
                G, H = p - inside, 2 * p * (1 - p)
                fit[cluster, tree.number] = log_probability(
                    tree, self.own, G, H, how.lam, how.gamma, how.doubt
                )[0]
        return np.asarray(linear_sum_assignment(-fit)[1][labels])

    def fit(self, start: Ints) -> tuple[float, Ints]:
        """Climb from a start; return the score and the best labels on the way, int64 (N,).

        Class shares of rows go up the slope of the splits' log-likelihood, plus what the leaves'
        rates say of them, and are hardened by and by.
        """
        start, sure = self.kept(start), None
        if self.known is not None:
            sure = self.known >= 0
            fixed = np.eye(self.classes)[self.known[sure]]
        r = np.full((len(start), self.classes), SOFT / self.classes)
        r[np.arange(len(start)), start] += 1 - SOFT
        logits = np.log(r)
        speed, square = np.zeros_like(r), np.zeros_like(r)
        power = LEAF_POWER
        if self.boosting is not None:
            power /= np.sqrt(self.boosting.outputs)  # trees of one round tell much the same
        best = (self.score(start), start)
        for i in range(STEPS):
            slope = self.splits(r)[1] + power * self.rates(r)
            slope = r * (slope - (r * slope).sum(axis=1, keepdims=True))
            speed = 0.9 * speed + 0.1 * slope
            square = 0.99 * square + 0.01 * slope**2
            unbiased = speed / (1 - 0.9 ** (i + 1)), square / (1 - 0.99 ** (i + 1))
            logits = logits + RATE * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
            logits -= logits.mean(axis=1, keepdims=True)
            logits = np.clip(logits, -MOST_LOGIT, MOST_LOGIT)
            r = softmax(logits / COLDEST ** (i / STEPS), axis=1)
            if sure is not None:
                r[sure] = fixed
            if i % SCORED_EVERY == SCORED_EVERY - 1:
                labels = r.argmax(axis=1)
                best = max(best, (self.score(labels), labels), key=lambda found: found[0])
        return best

    def score(self, labels: Ints) -> float:
        """Return the log-likelihood of splits, and a power of that of leaves, in nats."""
        r = np.eye(self.classes)[labels]
        told = self.rates(r)[np.arange(len(labels)), labels].sum()
        return float(self.splits(r)[0] + CHOICE_POWER * told)

    def lost(self, labels: Ints) -> float:
        """Return the nats that labels lose to the best ones, on average over splits seen."""
        seen = sum(len(tree.begin) for tree in self.trees)
        return -self.splits(np.eye(self.classes)[labels])[0] / max(seen, 1)

    def rates(self, r: Floats) -> Floats:
        """Return the logits of every row's class by the label rates of its leaves, (N, K)."""
        return _log_rates(self, r, self.leaf)

    def splits(self, r: Floats) -> tuple[float, Floats]:
        """Return the log-likelihood of all splits under class shares (N, K), and its slope."""
        total, slope = 0.0, np.zeros_like(r)
        if self.boosting is None:
            sizes = np.ones_like(r)
            for tree in self.trees:
                fit, up = log_probability(tree, self.own, r, sizes, 0.0, 0.0, DOUBT)
                total += fit
                slope += up
            return total, slope
        how, K = self.boosting, self.classes
        margin = np.tile(np.log(r.mean(axis=0) + 1e-9), (len(r), 1))
        every = [1] if K == 2 else list(range(K))
        p = softmax(margin, axis=1)
        for tree in self.trees:
            number = tree.number % how.outputs
            columns = every if how.outputs == 1 else [number]
            p = softmax(margin, axis=1) if number == 0 else p
            G = p[:, columns] - r[:, columns]
            H = (1.0 if K == 2 else 2.0) * np.maximum(p * (1 - p), 1e-9)[:, columns]
            fit, up = log_probability(tree, self.own, G, H, how.lam, how.gamma, how.doubt)
            total += fit
            slope[:, columns] -= up
            _advance(margin, tree, G, H, how, columns)
        return total, slope


def mixture_of(
    view: View,
    columns: Columns,
    twins: Twins,
    numbers: NDArray[np.intp],
    classes: int,
    known: Ints | None = None,
) -> Mixture:
    """Return the model of a view.

    `columns`: The principals' own.
    `twins`: Of the visible leaves.
    `numbers`: intp array, shape (T,). Which trees these are of.
    `known`: int64 array, shape (N,). Labels that are known, -1 for others.
    """
    trees = seen_trees(view, columns.positions)
    told, leaf = view.parameters, twins.leaf[twins.of_row]
    pure = np.zeros(len(twins.tree), dtype=bool)
    for tree in trees:
        (at,) = np.nonzero(numbers == tree.number)
        pure[leaf[tree.early][:, at].ravel()] = True
    boosting = None
    if boosted(view):
        boosting = Boosting(
            rate=told["learning_rate"],
            lam=max(told["reg_lambda"], 1e-9),
            gamma=told["gamma"],
            outputs=outputs(view),
            doubt=DOUBT if told.get("pure_leaves") else 0.0,
        )
    own = Candidates(*candidate_bins(columns.X, told["max_bin"]))
    return Mixture(leaf, pure, trees, own, classes, boosting, known)


def _log_rates(model: Mixture, found: NDArray, leaf: NDArray[np.int32]) -> Floats:  # type: ignore[type-arg]
    """Return logits of the classes of rows in some leaves, by the rates among the model's rows."""
    K, J = model.classes, len(model.pure)
    r = np.eye(K)[found] if found.ndim == 1 else found
    share = r.mean(axis=0) + 1e-9
    share /= share.sum()
    counts = np.zeros((J + 1, K))
    for t in range(leaf.shape[1]):
        at = np.where(model.leaf[:, t] >= 0, model.leaf[:, t], J)
        for k in range(K):
            counts[:, k] += np.bincount(at, r[:, k], J + 1)
    pseudo = np.append(np.where(model.pure, PSEUDO_ROWS_PURE, PSEUDO_ROWS), 1.0)[:, None]
    rate = (counts + pseudo * share) / (counts.sum(axis=1, keepdims=True) + pseudo)
    told = np.log(rate / share)
    told[J] = 0.0
    return np.asarray(np.log(share) + told[leaf].sum(axis=1))


def _advance(
    margin: Floats, tree: SeenTree, G: Floats, H: Floats, how: Boosting, columns: list[int]
) -> None:
    """Add a tree's leaf values, as far as its leaves are seen, to the margins."""
    inside = tree.leaf >= 0
    code = tree.leaf[inside]
    J = int(code.max(initial=-1)) + 1
    for c, column in enumerate(columns):
        g, h = (np.bincount(code, S[inside, c], J) for S in (G, H))
        margin[inside, column] -= (how.rate * g / (h + how.lam))[code]


def _restricted(tree: SeenTree, place: NDArray[np.intp], drawn: NDArray[np.intp]) -> SeenTree:
    kept = place[tree.rows] >= 0
    before = np.concatenate([[0], np.cumsum(kept)])
    begin, end = before[tree.begin], before[tree.end]
    middle = np.where(tree.middle < 0, -1, before[tree.middle])
    some = (end > begin) & ((middle < 0) | ((middle > begin) & (middle < end)))
    return replace(
        tree,
        rows=place[tree.rows[kept]].astype(np.int32),
        begin=begin[some],
        middle=middle[some],
        end=end[some],
        leaf=tree.leaf[drawn],
    )
