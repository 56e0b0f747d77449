"""Maximum-likelihood labels, given the visible leaves and splits of vertical trees.

The likelihood has two parts: the visible splits were better than all local candidates
(`log_probability`), and rows of a leaf tend to have equal labels (label rates per leaf). The
labels are relaxed to class shares, optimised by gradient ascent (Adam), and hardened by a falling
temperature. Restarts from perturbed optima follow (iterated local search). Noisy labels are
corrected with the local columns and the channel of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import softmax

from fedtrees.attacks.labels.communities import Twins
from fedtrees.attacks.labels.evidence import (
    Candidates,
    Columns,
    SeenTree,
    candidate_bins,
    is_boosted,
    log_probability,
    outputs,
    seen_trees,
)
from fedtrees.core.channel import Channel, VaryingChannel, chained
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams

#: Largest mean loss per visible split, in nats (`Mixture.lost`), at which the found labels are
#: considered those that the trees were grown on. The value lies between the losses measured on
#: breast cancer and on obesity.
MOST_LOST = 1.5
#: Smallest prior probability of a class.
LEAST_SHARE = 1e-3
FOLDS = 5
FOREST = ForestParams(trees=50, max_depth=8, min_samples_leaf=10, max_bin=32)


def response_of(view: View) -> Channel | None:
    """Return the channel of the labels, None if labels are not changed.

    For a response that differs by row (`VaryingChannel`), the usual channel is used.
    """
    channels = [
        c.usual if isinstance(c, VaryingChannel) else c for c in view.changes("labels", "y")
    ]
    return chained(c for c in channels if c is not None)


def denoise_labels(
    noisy_labels: NDArray[np.int64],
    X: NDArray[np.float32],
    classes: int,
    law: Channel,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the most probable true label of every row, int64, shape (N,).

    A random forest on the local columns, trained on the noisy labels of other folds, predicts the
    noisy label. Inverting the channel turns the prediction into a prior of the true label. The
    noisy label of the row contributes its likelihood under the channel.

    Randomised response among the top classes has a different matrix for every row, which is unknown
    here. It is approximated by randomised response over all classes.

    Parameters
    ----------
    noisy_labels : int64 array, shape (N,)
        Noisy labels.
    X : float32 array, shape (N, F)
        Local columns.
    classes : int
        Number of classes.
    law : Channel
        Distribution of a noisy label given the true one.
    rng : numpy.random.Generator
        Draws the folds and the forests.
    """
    each = np.arange(classes)
    log_channel = law.log_likelihood(
        each[None, :, None], each[:, None, None]
    )  # by label and answer
    back = np.linalg.pinv(np.exp(log_channel))
    if len(noisy_labels) < FOLDS or np.ptp(log_channel, axis=0).max() == 0:
        return noisy_labels
    cuts, fold = quantile_cuts(X, FOREST.max_bin), rng.permutation(len(noisy_labels)) % FOLDS
    shares = np.empty((len(noisy_labels), classes))
    for f in range(FOLDS):
        training = fold != f
        randomness = Streams(int(rng.integers(2**31)))
        forest = grow_random_forest(
            X[training], noisy_labels[training], cuts, FOREST, n_classes=classes, seed=randomness
        )
        shares[~training] = forest.probabilities(X[~training])
    # The inverse of the channel can produce negative values from estimated shares.
    true = np.maximum(shares @ back, 0)
    true /= true.sum(axis=1, keepdims=True)
    log_posterior = np.log(np.maximum(true, LEAST_SHARE)) + log_channel.T[noisy_labels]
    return np.asarray(log_posterior.argmax(axis=1))


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Pseudo-rows of the overall class shares in the label rates of a leaf, and of a mostly pure leaf.
PSEUDO_ROWS = 1.0
PSEUDO_ROWS_PURE = 0.02
#: Exponent of the likelihood of leaves relative to that of the splits. Trees depend on the local
#: columns as well as on labels, so that clusters other than the labels explain the leaves best.
LEAF_POWER = 0.1
#: The same exponent when fits from several starts are compared.
CHOICE_POWER = 0.02
#: Probability that the lack of a visible split has another reason than a lack of gain. For example,
#: a node of a forest may have been split into two pure leaves.
DOUBT = 0.2

STEPS = 80
RATE = 0.2  # of Adam (Kingma and Ba 2015), on logits
COLDEST = 0.25  # last temperature of the softmax
SOFT = 0.3  # mass of the uniform distribution in the class shares of a start
SCORED_EVERY = 20
MOST_LOGIT = 6.0

#: Share of the labels that a restart redraws.
KICKED = 0.25
#: Number of restarts without improvement after which a start counts as converged.
PATIENCE = 5
MOST_KICKS = 30
#: Limit on restarts times rows, but there are at least `PATIENCE` restarts.
KICKED_ROWS = 50_000


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """Public parameters that determine how labels become gradients of boosted trees."""

    # rate, lam, gamma: learning rate, L2 penalty, smallest gain of a split
    rate: float
    lam: float
    gamma: float
    outputs: int  # trees per round: one, or one per class
    doubt: float = 0.0  # as of `log_probability`


@dataclass(frozen=True, eq=False)
class Mixture:
    """Rows with unknown labels, with their visible leaves and splits.

    Attributes
    ----------
    leaf : int32 array, shape (N, T)
        Leaf of every row, numbered over all trees, -1 if absent.
    pure : bool array, shape (J,)
        Leaves above the last two levels (`SeenTree.early`). They are mostly of one class.
    trees : sequence of SeenTree
        Visible splits.
    candidates : Candidates
        Local candidate splits.
    classes : int
        Number of classes, K.
    boosting : Boosting or None
        None for a random forest.
    known_labels : int64 array, shape (N,), or None
        Known labels, which stay fixed, -1 for unknown ones. None: no label is known.
    """

    leaf: NDArray[np.int32]
    pure: NDArray[np.bool_]
    trees: Sequence[SeenTree]
    candidates: Candidates
    classes: int
    boosting: Boosting | None
    known_labels: Ints | None = None

    def best(self, starts: Sequence[Ints], rows: int, rng: np.random.Generator) -> Ints:
        """Return the labels with the largest `score` that the search finds, shape (N,).

        Every start is optimised. Each optimum is then optimised again after a part of its labels
        was redrawn, until several such restarts bring no improvement (iterated local search:
        Lourenço, Martin and Stützle 2003).

        Parameters
        ----------
        starts : sequence of int64 array, shape (N,)
            Initial labels, or cluster numbers below the number of classes.
        rows : int
            Largest number of rows to fit. In a larger table, all rows are then classified by the
            label rates of their leaves.
        rng : numpy.random.Generator
            Draws the rows and the restarts.
        """
        drawn = np.arange(len(self.leaf))
        if len(drawn) > rows:
            drawn = np.sort(rng.choice(len(drawn), rows, replace=False))
        part = self if len(drawn) == len(self.leaf) else self.restrict(drawn)
        fits = [part.fit(part.name_clusters(start[drawn])) for start in starts]
        best_labels = part.restart([part.fit(labels) for _, labels in fits], rng)
        if part is self:
            return best_labels
        return np.asarray(_log_rates(part, best_labels, self.leaf).argmax(axis=1))

    def restart(self, fits: Sequence[tuple[float, Ints]], rng: np.random.Generator) -> Ints:
        """Return the best labels after restarts from the given optima, shape (N,)."""
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

    def restrict(self, drawn: NDArray[np.intp]) -> Mixture:
        """Return the model of the rows ``drawn``."""
        place = np.full(len(self.leaf), -1)
        place[drawn] = np.arange(len(drawn))
        candidates = Candidates(self.candidates.codes[drawn], self.candidates.n_bins)
        trees = [_restrict_tree(tree, place, drawn) for tree in self.trees]
        fixed_labels = None if self.known_labels is None else self.known_labels[drawn]
        return replace(
            self,
            leaf=self.leaf[drawn],
            trees=trees,
            candidates=candidates,
            known_labels=fixed_labels,
        )

    def insert_known_labels(self, labels: Ints) -> Ints:
        """Return the labels with known labels inserted."""
        return (
            labels
            if self.known_labels is None
            else np.where(self.known_labels >= 0, self.known_labels, labels)
        )

    def name_clusters(self, labels: Ints) -> Ints:
        """Rename clusters to classes if every class has separate trees.

        The first tree of each class is explained by each cluster in turn. The assignment with the
        largest total likelihood is chosen.
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
                    tree, self.candidates, G, H, how.lam, how.gamma, how.doubt
                )[0]
        return np.asarray(linear_sum_assignment(-fit)[1][labels])

    def fit(self, start: Ints) -> tuple[float, Ints]:
        """Optimise a start. Return the best score and its labels, int64, shape (N,).

        The class shares of the rows follow the gradient of the log-likelihood of the splits, plus
        the logits of the label rates of leaves, while the temperature falls.
        """
        start, sure = self.insert_known_labels(start), None
        if self.known_labels is not None:
            sure = self.known_labels >= 0
            fixed = np.eye(self.classes)[self.known_labels[sure]]
        r = np.full((len(start), self.classes), SOFT / self.classes)
        r[np.arange(len(start)), start] += 1 - SOFT
        logits = np.log(r)
        speed, square = np.zeros_like(r), np.zeros_like(r)
        power = LEAF_POWER
        if self.boosting is not None:
            power /= np.sqrt(self.boosting.outputs)  # trees of the same round are correlated
        best = (self.score(start), start)
        for i in range(STEPS):
            slope = self.splits(r)[1] + power * self.rates(r)
            # gradient with respect to the logits, through the softmax
            slope = r * (slope - (r * slope).sum(axis=1, keepdims=True))
            # Adam: moving averages of the gradient and of its square, corrected for their start
            speed = 0.9 * speed + 0.1 * slope
            square = 0.99 * square + 0.01 * slope**2
            unbiased = speed / (1 - 0.9 ** (i + 1)), square / (1 - 0.99 ** (i + 1))
            logits = logits + RATE * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
            logits -= logits.mean(axis=1, keepdims=True)
            logits = np.clip(logits, -MOST_LOGIT, MOST_LOGIT)
            r = softmax(logits / COLDEST ** (i / STEPS), axis=1)
            if sure is not None:  # known labels stay fixed
                r[sure] = fixed
            if i % SCORED_EVERY == SCORED_EVERY - 1:
                labels = r.argmax(axis=1)
                best = max(best, (self.score(labels), labels), key=lambda fit: fit[0])
        return best

    def score(self, labels: Ints) -> float:
        """Return the log-likelihood of splits plus the weighted one of leaves, in nats."""
        r = np.eye(self.classes)[labels]
        leaf_fit = self.rates(r)[np.arange(len(labels)), labels].sum()
        return float(self.splits(r)[0] + CHOICE_POWER * leaf_fit)

    def lost(self, labels: Ints) -> float:
        """Return the mean negative log-likelihood of a visible split under the labels, in nats."""
        seen = sum(len(tree.begin) for tree in self.trees)
        return -self.splits(np.eye(self.classes)[labels])[0] / max(seen, 1)

    def rates(self, r: Floats) -> Floats:
        """Return class logits of every row from the label rates of its leaves, shape (N, K)."""
        return _log_rates(self, r, self.leaf)

    def splits(self, r: Floats) -> tuple[float, Floats]:
        """Return the log-likelihood of all splits under class shares (N, K), and its gradient."""
        total, slope = 0.0, np.zeros_like(r)
        if self.boosting is None:
            sizes = np.ones_like(r)
            for tree in self.trees:
                fit, up = log_probability(tree, self.candidates, r, sizes, 0.0, 0.0, DOUBT)
                total += fit
                slope += up
            return total, slope
        how, K = self.boosting, self.classes
        # Start from the log shares, which equal the base score up to a constant of all classes.
        margin = np.tile(np.log(r.mean(axis=0) + 1e-9), (len(r), 1))
        every = [1] if K == 2 else list(range(K))
        # Boosting is replayed on the present class shares, as far as leaves are visible.
        p = softmax(margin, axis=1)
        for tree in self.trees:
            number = tree.number % how.outputs
            columns = every if how.outputs == 1 else [number]
            p = softmax(margin, axis=1) if number == 0 else p
            G = p[:, columns] - r[:, columns]
            H = (1.0 if K == 2 else 2.0) * np.maximum(p * (1 - p), 1e-9)[:, columns]
            fit, up = log_probability(tree, self.candidates, G, H, how.lam, how.gamma, how.doubt)
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
    known_labels: Ints | None = None,
) -> Mixture:
    """Return the model of a view.

    Parameters
    ----------
    view : View
        Messages of a vertical training.
    columns : Columns
        Local columns of the principals.
    twins : Twins
        The record-id graph of the visible leaves.
    numbers : intp array, shape (T,)
        Numbers of its trees.
    classes : int
        Number of classes.
    known_labels : int64 array, shape (N,), or None
        Known labels, -1 for unknown ones.
    """
    trees = seen_trees(view, columns.positions)
    public, leaf = view.parameters, twins.leaf[twins.of_row]
    pure = np.zeros(len(twins.tree), dtype=bool)
    for tree in trees:
        (at,) = np.nonzero(numbers == tree.number)
        pure[leaf[tree.early][:, at].ravel()] = True
    boosting = None
    if is_boosted(view):
        boosting = Boosting(
            rate=public["learning_rate"],
            lam=max(public["reg_lambda"], 1e-9),
            gamma=public["gamma"],
            outputs=outputs(view),
            doubt=DOUBT if public.get("pure_leaves") else 0.0,
        )
    candidates = Candidates(*candidate_bins(columns.X, public["max_bin"]))
    return Mixture(leaf, pure, trees, candidates, classes, boosting, known_labels)


def _log_rates(model: Mixture, assignment: NDArray, leaf: NDArray[np.int32]) -> Floats:  # type: ignore[type-arg]
    """Return class logits of rows in the given leaves, from the label rates of the model's rows."""
    K, J = model.classes, len(model.pure)
    r = np.eye(K)[assignment] if assignment.ndim == 1 else assignment
    share = r.mean(axis=0) + 1e-9
    share /= share.sum()
    # The additional leaf J collects rows that are absent from a tree. It contains no evidence.
    counts = np.zeros((J + 1, K))
    for t in range(leaf.shape[1]):
        at = np.where(model.leaf[:, t] >= 0, model.leaf[:, t], J)
        for k in range(K):
            counts[:, k] += np.bincount(at, r[:, k], J + 1)
    pseudo = np.append(np.where(model.pure, PSEUDO_ROWS_PURE, PSEUDO_ROWS), 1.0)[:, None]
    rate = (counts + pseudo * share) / (counts.sum(axis=1, keepdims=True) + pseudo)
    evidence = np.log(rate / share)
    evidence[J] = 0.0
    return np.asarray(np.log(share) + evidence[leaf].sum(axis=1))


def _advance(
    margin: Floats, tree: SeenTree, G: Floats, H: Floats, how: Boosting, columns: list[int]
) -> None:
    """Add the leaf values of a tree to the margins of rows in visible leaves, in place."""
    inside = tree.leaf >= 0
    code = tree.leaf[inside]
    J = int(code.max(initial=-1)) + 1
    for c, column in enumerate(columns):
        g, h = (np.bincount(code, S[inside, c], J) for S in (G, H))
        margin[inside, column] -= (how.rate * g / (h + how.lam))[code]


def _restrict_tree(tree: SeenTree, place: NDArray[np.intp], drawn: NDArray[np.intp]) -> SeenTree:
    selected = place[tree.rows] >= 0
    before = np.concatenate([[0], np.cumsum(selected)])
    begin, end = before[tree.begin], before[tree.end]
    middle = np.where(tree.middle < 0, -1, before[tree.middle])
    # Without the omitted rows, a split with an empty child is no evidence.
    some = (end > begin) & ((middle < 0) | ((middle > begin) & (middle < end)))
    return replace(
        tree,
        rows=place[tree.rows[selected]].astype(np.int32),
        begin=begin[some],
        middle=middle[some],
        end=end[some],
        leaf=tree.leaf[drawn],
    )
