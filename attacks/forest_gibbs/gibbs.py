"""Gibbs sampling of tables, given the class counts or class shares of all leaves.

A bootstrap draws rows with replacement, so that the counts of a tree are multinomial. If k of n
rows are in a leaf and class, each draw is there with probability k / n. The log-likelihood of a
table is therefore the sum of ``N log k`` over all leaves and classes of all trees, with the counts
N of the model. Without a bootstrap k equals N, which also maximises this sum. A step draws one
value of a row from its conditional distribution given everything else (Geman and Geman 1984).

If leaves contain only class shares, the number of draws is an additional part of the state. Shares
restrict it: for example, a share of 1/3 needs a multiple of three draws, while a pure leaf can have
any number. Given the rows of the table in the leaf, the number has the probability of the resulting
class counts. A bootstrap draws from k rows a Poisson number with mean k times the draws per row.

Trees that were grown on the same rows form one `TargetForest`: those of one client, or those of all
clients together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedtrees.attacks.observations.applicability import shows
from fedtrees.attacks.observations.forests import grown_trees
from fedtrees.attacks.solvers.sampling import below
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.core.view import View
from fedtrees.messages.forests import ForestModel, LeafClasses, LocalForest, PooledForest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TargetForest:
    """Trees that were grown on the same rows.

    Attributes
    ----------
    rows : int
        Number of rows. It is an estimate if the trees belong to one client and contain shares.
    owner : str or None
        The client. None: the trees were grown on the rows of all clients, principals included.
    drawn : bool
        Whether trees were grown on bootstrap samples.
    rate : float
        Number of draws of a tree per row.
    step : float or None
        None if leaves contain counts. Otherwise leaves contain shares that are rounded to this
        step, 0 if they are not rounded.
    least : int
        Smallest number of draws in a leaf.
    """

    trees: tuple[ClassTree, ...]
    rows: int
    owner: str | None
    drawn: bool
    rate: float = 1.0
    step: float | None = None
    least: int = 1


def read_target_forests(view: View) -> list[TargetForest]:
    """Return the victims' forests in a view, empty if it contains no class counts or shares."""
    local = [(s.sender, m) for s, m in view.messages(LocalForest) if type(m) is LocalForest]
    local = [(o, m) for o, m in local if o not in view.principals]
    if local:
        return _apart(
            view, [(o, RandomForest.from_arrays(vars(m)).trees) for o, m in local if len(m.sizes)]
        )
    if not shows(view, PooledForest, ForestModel):
        return [_source(view, trees, view.n_rows, None)] if (trees := grown_trees(view)) else []
    released: list[PooledForest | ForestModel] = [m for _, m in view.messages(PooledForest)]
    released = released or [m for _, m in view.messages(ForestModel)]
    trees = RandomForest.from_arrays(vars(released[-1])).trees
    if view.protocol != "local-forests":
        return [_source(view, trees, view.n_rows, None)]
    # Every client with rows grew the same number of trees. They are in the order of the clients.
    each = int(view.parameters["trees"])
    clients = [name for name, role in view.roles.items() if role == "client"]
    blocks = [trees[k : k + each] for k in range(0, len(trees), each)]
    if len(blocks) == len(clients):
        parts = zip(clients, blocks, strict=True)
        return _apart(view, [(o, block) for o, block in parts if o not in view.principals])
    # A client without rows sent no trees. The principals recognise the trees that they sent.
    sent = [
        RandomForest.from_arrays(vars(m)).trees
        for s, m in view.messages(LocalForest)
        if type(m) is LocalForest and s.sender in view.principals and len(m.sizes)
    ]
    blocks = [
        block
        for block in blocks
        if not any(_same_splits(block, local_forest) for local_forest in sent)
    ]
    other_clients = [name for name in clients if name not in view.principals]
    # If also other clients have no rows, the owners are unknown.
    owners = other_clients if len(other_clients) == len(blocks) else [""] * len(blocks)
    return _apart(view, list(zip(owners, blocks, strict=True)))


def _same_splits(one: Sequence[ClassTree], other: Sequence[ClassTree]) -> bool:
    """Return whether two forests have the same splits."""
    return len(one) == len(other) and all(
        np.array_equal(a.feature, b.feature) and np.array_equal(a.threshold, b.threshold)
        for a, b in zip(one, other, strict=True)
    )


def _apart(view: View, parts: list[tuple[str, tuple[ClassTree, ...]]]) -> list[TargetForest]:
    """Return one source per client, given its name and trees."""
    n_local = 0 if view.rows is None else len(view.rows)
    # A client with more rows has trees with more leaves. Without counts this is the only evidence
    # about its number of rows.
    leaves = [sum(len(t.leaves) for t in trees) for _, trees in parts]
    n_rows = [(view.n_rows - n_local) * n / max(sum(leaves), 1) for n in leaves]
    return [_source(view, t, max(1, round(n)), o) for (o, t), n in zip(parts, n_rows, strict=True)]


def _source(view: View, trees: tuple[ClassTree, ...], rows: int, owner: str | None) -> TargetForest:
    public = view.parameters
    rate = float(public.get("max_samples") or 1.0)
    drawn = bool(public.get("bootstrap", True)) or rate < 1
    if any(t.counts is None for t in trees):
        step = _step(view)
        least = max(int(public.get("min_samples_leaf", 1)), view.defense.requirements.min_leaf_rows)
        return TargetForest(trees, rows, owner, drawn, rate, step, least)
    totals = np.stack([t.counts[0] for t in trees if t.counts is not None])
    if owner is not None:
        rows = max(1, round(int(totals[0].sum()) / rate))
    # trees of all rows have equal class totals, bootstrap samples do not
    return TargetForest(trees, rows, owner, bool((totals != totals[0]).any()), rate)


def _step(view: View) -> float:
    """Return the width of the interval of shares that are rounded to the same value, 0 if exact."""
    sites = ((LocalForest, "client"), (LeafClasses, "server"), (PooledForest, "server"))
    laws = (view.channel(kind, "probability", role) for kind, role in sites)
    widths = (law.bounds(np.array([0.5])) for law in laws if law is not None)
    return max((float((high - low)[0]) for low, high in widths), default=0.0)


@dataclass(frozen=True, eq=False)
class FlatForest:
    """All trees in one array, with thresholds replaced by their rank within the feature.

    The *level* of a value is the number of thresholds of its feature that are not above it. For
    example, with the thresholds 1 and 5, the values 0, 1 and 7 have the levels 0, 1 and 2. A row
    goes left if its level does not exceed the rank of the threshold.

    Attributes
    ----------
    start : int32 array, shape (T,)
        Root of each tree.
    nodes : int32 array, shape (n_nodes, 3)
        Feature (-1 at a leaf), rank of the threshold, left child. The right child follows it.
    counts : int64 array, shape (n_nodes, K)
        Class counts. If leaves contain only shares, they are 0 until
        `fedtrees.attacks.forest_gibbs.gibbs` fills them in.
    share : float64 array, shape (n_nodes, K)
        Class shares.
    thresholds : tuple of float32 array
        Thresholds of each feature in ascending order.
    """

    start: Ints
    nodes: Ints
    counts: NDArray[np.int64]
    share: NDArray[np.float64]
    thresholds: tuple[NDArray[np.float32], ...]

    @staticmethod
    def of(trees: tuple[ClassTree, ...], features: int) -> FlatForest:
        """Flatten trees over the given number of features."""
        sizes = [len(t) for t in trees]
        start = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        feature = np.concatenate([t.feature for t in trees])
        threshold = np.concatenate([t.threshold for t in trees])
        left = np.concatenate([t.left for t in trees]) + np.repeat(start, sizes)
        thresholds = tuple(np.unique(threshold[feature == f]) for f in range(features))
        cut = np.zeros(len(feature), dtype=np.int32)
        for f in range(features):
            at = feature == f
            cut[at] = np.searchsorted(thresholds[f], threshold[at])
        nodes = np.stack([feature, cut, left], axis=1).astype(np.int32)
        zero = np.zeros_like
        counts = [zero(t.probability, np.int64) if t.counts is None else t.counts for t in trees]
        share = np.concatenate([t.probability for t in trees])
        return FlatForest(start, nodes, np.concatenate(counts), share, thresholds)

    def level(self, X: NDArray[np.float32]) -> Ints:
        """Return the levels of rows, int32, shape (n, d). A missing value has the largest level."""
        each = zip(self.thresholds, X.T, strict=True)
        return np.stack([np.searchsorted(t, x, side="right") for t, x in each], axis=1).astype(
            np.int32
        )

    @property
    def levels(self) -> NDArray[np.int64]:
        """Number of levels of every feature, int64, shape (d,)."""
        return np.array([len(t) + 1 for t in self.thresholds], dtype=np.int64)


Longs = NDArray[np.int64]
#: Number of rows that replaces 0. A leaf with draws but without rows in the table is then unlikely
#: instead of impossible, so that the chain can pass through such tables.
NONE = 0.1
#: Logarithms are multiples of this unit, so that their sums are exact.
UNIT = 2.0**-24


@dataclass(frozen=True, eq=False)
class State:
    """Table of a chain. Arrays change in place.

    Attributes
    ----------
    level : int32 array, shape (n, d)
        Level of every value, see `FlatForest`.
    y : int64 array, shape (n,)
        Class of every row.
    leaf : int32 array, shape (n, T)
        Leaf of every row in every tree.
    occupancy : int64 array, shape (n_nodes, K)
        Rows of the table in each leaf and class.
    free : int
        The first `free` rows change. The remaining ones are known.
    """

    level: Ints
    y: Longs
    leaf: Ints
    occupancy: Longs
    free: int

    @staticmethod
    def of(boxes: FlatForest, level: Ints, y: Longs, free: int) -> State:
        """Route the rows to the leaves of all trees, and count them."""
        leaf = np.empty((len(level), len(boxes.start)), dtype=np.int32)
        occupancy = np.zeros(boxes.counts.shape, dtype=np.int64)
        _place(boxes.start, boxes.nodes, level, y, leaf, occupancy)
        return State(level, y, leaf, occupancy, free)


def start(boxes: FlatForest, y: Longs, rng: np.random.Generator) -> Ints:
    """Draw initial levels of rows with given classes, int32, shape (n, d).

    Each row is uniformly distributed in the box of a random leaf of its class. A leaf is chosen
    with probability proportional to its count in the model.

    Parameters
    ----------
    boxes : FlatForest
        Leaves of the model and their counts.
    y : int64 array, shape (n,)
        Class of every row.
    rng : numpy.random.Generator
        Randomness of the draw.
    """
    d = len(boxes.thresholds)
    box = np.zeros((len(boxes.nodes), d, 2), dtype=np.int32)
    box[boxes.start, :, 1] = boxes.levels - 1
    for v in np.flatnonzero(boxes.nodes[:, 0] >= 0):
        f, cut, left = boxes.nodes[v]
        box[left], box[left + 1] = box[v], box[v]
        box[left, f, 1] = cut
        box[left + 1, f, 0] = cut + 1
    leaves = np.flatnonzero(boxes.nodes[:, 0] < 0)
    out = np.empty((len(y), d), dtype=np.int32)
    for k in np.unique(y):
        weight = boxes.counts[leaves, k] + 1e-9
        rows = np.flatnonzero(y == k)
        chosen = box[rng.choice(leaves, len(rows), p=weight / weight.sum())]
        out[rows] = rng.integers(chosen[:, :, 0], chosen[:, :, 1] + 1)
    return out


def likelihood(boxes: FlatForest, state: State) -> float:
    """Return the log-likelihood of a table and its counts up to a constant, in nats."""
    leaves = boxes.nodes[:, 0] < 0
    fit = boxes.counts * np.log(np.maximum(state.occupancy, NONE)) - gammaln(boxes.counts + 1)
    return float(fit[leaves].sum())


def advance(
    boxes: FlatForest, state: State, beta: float, draws: int, bits: NDArray[np.uint64]
) -> None:
    """Redraw values of random free rows in place.

    Parameters
    ----------
    boxes : FlatForest
        Trees and counts.
    state : State
        The table. Changed in place.
    beta : float
        Factor on the log-likelihood.
    draws : int
        Number of values to redraw.
    bits : uint64 array, shape (1,)
        State of the random number generator.
    """
    log = [NONE, *range(1, len(state.level) + 2)]
    fixed = np.array([round(math.log(x) * beta / UNIT) for x in log], dtype=np.int64)
    trees = (boxes.start, boxes.nodes, boxes.counts, boxes.levels)
    _advance(
        *trees, state.level, state.y, state.leaf, state.occupancy, state.free, fixed, draws, bits
    )


@inner_kernel
def _route(start, nodes, x, out):  # type: ignore[no-untyped-def]
    for t in range(start.shape[0]):
        v = start[t]
        while nodes[v, 0] >= 0:
            v = nodes[v, 2] + (x[nodes[v, 0]] > nodes[v, 1])
        out[t] = v


@kernel
def _place(start, nodes, level, y, leaf, occupancy):  # type: ignore[no-untyped-def]
    for i in range(level.shape[0]):
        _route(start, nodes, level[i], leaf[i])
        for t in range(start.shape[0]):
            occupancy[leaf[i, t], y[i]] += 1


@inner_kernel
def _gains(start, nodes, counts, level, i, f, k, leaf, occupancy, log, levels, gain, stack):  # type: ignore[no-untyped-def]
    """Compute the change of the log-likelihood for each level of feature f of row i.

    A depth-first search visits all leaves that the row can reach by another value of f. Changes are
    stored as differences of neighbouring levels, and summed up at the end.
    """
    for g in range(levels + 1):
        gain[g] = 0
    for t in range(start.shape[0]):
        a = leaf[i, t]
        # change of the log-likelihood if the row leaves its present leaf
        leaves = counts[a, k] * (log[occupancy[a, k] - 1] - log[occupancy[a, k]])
        stack[0, 0], stack[0, 1], stack[0, 2] = start[t], 0, levels - 1
        n = 1
        while n > 0:
            n -= 1
            v, lo, hi = stack[n, 0], stack[n, 1], stack[n, 2]
            while nodes[v, 0] >= 0:
                g = nodes[v, 0]
                if g != f:
                    v = nodes[v, 2] + (level[i, g] > nodes[v, 1])
                elif hi <= nodes[v, 1]:
                    v = nodes[v, 2]
                elif lo > nodes[v, 1]:
                    v = nodes[v, 2] + 1
                else:
                    stack[n, 0], stack[n, 1], stack[n, 2] = nodes[v, 2] + 1, nodes[v, 1] + 1, hi
                    n += 1
                    hi = nodes[v, 1]
                    v = nodes[v, 2]
            if v != a:
                change = leaves
                if counts[v, k] > 0:
                    change += counts[v, k] * (log[occupancy[v, k] + 1] - log[occupancy[v, k]])
                gain[lo] += change
                gain[hi + 1] -= change
    for g in range(1, levels):
        gain[g] += gain[g - 1]


@inner_kernel
def choose(gain, weight, levels, bits):  # type: ignore[no-untyped-def]
    """Draw a level with the given log-probabilities, up to a constant, in units of `UNIT`."""
    best = gain[0]
    for g in range(1, levels):
        best = max(best, gain[g])
    total = np.int64(0)
    for g in range(levels):
        weight[g] = np.int64(math.exp((gain[g] - best) * UNIT) * 2.0**30)
        total += weight[g]
    rest = below(bits, total)
    for g in range(levels):
        rest -= weight[g]
        if rest < 0:
            return g
    return levels - 1


@kernel
def _advance(  # type: ignore[no-untyped-def]
    start, nodes, counts, levels, level, y, leaf, occupancy, free, log, draws, bits
):
    d, trees = level.shape[1], start.shape[0]
    max_levels = levels.max()
    gain = np.empty(max_levels + 1, dtype=np.int64)
    weight = np.empty(max_levels, dtype=np.int64)
    stack = np.empty((max_levels + 2, 3), dtype=np.int64)
    to = np.empty(trees, dtype=np.int32)
    for _ in range(draws):
        i = below(bits, free)
        f = below(bits, d)
        m, k = levels[f], y[i]
        if m < 2:
            continue
        _gains(start, nodes, counts, level, i, f, k, leaf, occupancy, log, m, gain, stack)
        g = choose(gain, weight, m, bits)
        if g == level[i, f]:
            continue
        level[i, f] = g
        _route(start, nodes, level[i], to)
        for t in range(trees):
            if leaf[i, t] != to[t]:
                occupancy[leaf[i, t], k] -= 1
                occupancy[to[t], k] += 1
                leaf[i, t] = to[t]


#: Tolerance of an unrounded share, which is a float64 quotient of two integers.
_EXACT = 1e-12


@dataclass(frozen=True, eq=False)
class Numbers:
    """Possible numbers of draws in ``leaves`` with class shares.

    Attributes
    ----------
    off : float
        Largest rounding error of a share.
    rate : float
        Number of draws of a tree per row.
    max_draws, min_draws : int
        Bounds on the draws in a leaf.
    """

    leaves: NDArray[np.int64]
    off: float
    rate: float
    max_draws: int
    min_draws: int

    @staticmethod
    def of(boxes: FlatForest, source: TargetForest) -> Numbers:
        """Initialise the counts of a source with shares, with leaves of equal size if possible."""
        assert source.step is not None
        leaves = np.flatnonzero(boxes.nodes[:, 0] < 0).astype(np.int64)
        off, draws = source.step / 2 + _EXACT, max(1, round(source.rows * source.rate))
        numbers = Numbers(leaves, off, source.rate, draws, source.least)
        each = draws * len(boxes.start) / max(len(leaves), 1)
        near = np.zeros(draws + 1, dtype=np.int64)
        near[:] = -np.abs(np.arange(draws + 1) - each) / UNIT
        sharp = np.zeros(1, dtype=np.int64), np.zeros(draws + 1, dtype=np.int64), near
        numbers._put(boxes, np.zeros_like(boxes.counts), *sharp, np.zeros(1, dtype=np.uint64))
        return numbers

    def draw(
        self, boxes: FlatForest, state: State, weight: float, bits: NDArray[np.uint64]
    ) -> None:
        """Redraw the counts of all leaves, given the rows in them, in place.

        Parameters
        ----------
        boxes : FlatForest
            Its counts change in place.
        state : State
            The table.
        weight : float
            Factor on the log-likelihood.
        bits : uint64 array, shape (1,)
            State of the random number generator.
        """
        log = [math.log(self.rate * x) for x in (NONE, *range(1, len(state.level) + 2))]
        terms = np.array(log), -_log_factorials(self.max_draws), np.zeros(self.max_draws + 1)
        fixed = (np.rint(t * weight / UNIT).astype(np.int64) for t in terms)
        self._put(boxes, state.occupancy, *fixed, bits)

    def _put(
        self,
        boxes: FlatForest,
        occupancy: NDArray[np.int64],
        *terms: NDArray[np.int64] | NDArray[np.uint64],
    ) -> None:
        limits = self.off, self.min_draws, self.max_draws
        _redraw(self.leaves, boxes.share, *limits, occupancy, boxes.counts, *terms)


def _log_factorials(largest: int) -> NDArray[np.float64]:
    """Return ``log n!`` for n from 0 to ``largest``, float64, shape (largest + 1,)."""
    return np.array([math.lgamma(n + 1) for n in range(largest + 1)])


@kernel
def _redraw(leaves, share, off, least, largest, occupancy, counts, log, each, by_size, bits):  # type: ignore[no-untyped-def]
    """Draw the counts of every leaf in place.

    A count c of k rows adds ``c log[k] + each[c]`` to the log-probability, and the total number n
    of draws adds ``by_size[n]``. A leaf for which no number of draws fits the shares is unchanged.
    """
    classes = share.shape[1]
    gain = np.empty(largest + 1, dtype=np.int64)
    number = np.empty(largest + 1, dtype=np.int64)
    weight = np.empty(largest + 1, dtype=np.int64)
    for v in leaves:
        m = 0
        for n in range(least, largest + 1):
            total, value = np.int64(0), by_size[n]
            for k in range(classes):
                c = np.int64(share[v, k] * n + 0.5)
                if abs(c - share[v, k] * n) > off * n:
                    total = np.int64(-1)
                    break
                total += c
                value += c * log[occupancy[v, k]] + each[c]
            if total == n:
                gain[m], number[m] = value, n
                m += 1
        if m == 0:
            continue
        n = number[choose(gain, weight, m, bits)]
        for k in range(classes):
            counts[v, k] = np.int64(share[v, k] * n + 0.5)
