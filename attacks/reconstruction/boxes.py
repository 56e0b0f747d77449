"""Rows as boxes of integer cells, which end at thresholds that the trees use.

A box contains the cells that a reconstructed row may have. The class counts of the first round
initialise the boxes, and each tree narrows them to the cells of the leaf that the attack assigns to
the row (Di Gennaro et al. 2025, Sec. 5).

A feature that trees split by sets of categories has one cell per code. Its possible codes form a
set instead of an interval: bit k of a uint64 represents code k. For all other features every bit is
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.leaf_sums import Counts
from fedtrees.attacks.observations.applicability import MOST_CODES
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.core.compilation import inner_kernel, kernel
from fedtrees.trees.boosted.forest import Tree

ANY = np.uint64(2**64 - 1)  # no code is excluded


@inner_kernel
def has(codes, cell):  # type: ignore[no-untyped-def]
    """Return whether the set contains this cell."""
    return codes == ANY or (codes >> np.uint64(cell)) & np.uint64(1) == np.uint64(1)


def allowed(codes: NDArray[np.uint64], cells: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether sets contain the given non-negative cells, as broadcast bools."""
    bit = np.minimum(cells, MOST_CODES - 1).astype(np.uint64)
    return (codes == ANY) | ((codes >> bit) & np.uint64(1)).astype(bool)


def codes_right(tree: Tree, node: int) -> np.uint64:
    """Return the set of codes that go right at a split by categories."""
    assert tree.categories is not None
    codes = np.flatnonzero(tree.categories[node]).astype(np.uint64)
    return np.bitwise_or.reduce(np.uint64(1) << codes, initial=np.uint64(0))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class LeafConstraints:
    """The intervals that lead to each leaf of one tree, in compressed sparse rows.

    Attributes
    ----------
    node : int32 array, shape (J,)
        Node number of leaf ``j``.
    offsets : int32 array, shape (J + 1,)
        Constraints ``offsets[j]:offsets[j + 1]`` belong to leaf ``j``.
    feature, lo, hi : int32 array, shape (c,)
        Each constraint is ``lo <= cell < hi`` of the feature.
    missing : bool array, shape (c,)
        Whether a row without a value of the feature also reaches the leaf.
    codes : uint64 array, shape (c,)
        Set of codes that reach the leaf.
    """

    node: NDArray[np.int32]
    offsets: NDArray[np.int32]
    feature: NDArray[np.int32]
    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    missing: NDArray[np.bool_]
    codes: NDArray[np.uint64]

    def __len__(self) -> int:
        return int(self.node.shape[0])

    def boxes(self, width: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return all cells ``lo <= cell < hi`` of each leaf, int32, shape (J, d) each.

        ``width``, int32 of shape (d,), is the number of cells per feature.
        """
        lo, hi = np.zeros((len(self), len(width)), dtype=np.int32), np.tile(width, (len(self), 1))
        at = self._at()
        lo[at], hi[at] = self.lo, self.hi
        return lo, hi

    def sets(self, d: int) -> NDArray[np.uint64]:
        """Return the codes of each leaf, uint64, shape (J, d)."""
        codes = np.full((len(self), d), ANY)
        codes[self._at()] = self.codes
        return codes

    def _at(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        return np.repeat(np.arange(len(self)), np.diff(self.offsets)), self.feature


@dataclass(frozen=True, eq=False)
class Grid:
    """Sorted thresholds per feature. The cell of x is the number of thresholds ``<= x``.

    A feature with ``m`` thresholds has cells ``0 .. m``. Cell ``k`` contains
    ``edges[k-1] <= x < edges[k]``.

    Attributes
    ----------
    edges : tuple of float32 array
        Ascending thresholds of each feature.
    missing : bool array, shape (d,)
        Features whose value may be missing, at first none.
    """

    edges: tuple[NDArray[np.float32], ...]
    missing: NDArray[np.bool_]
    # Cache of `leaves`, because every one of several reconstructions needs the same trees.
    _leaves: dict[int, tuple[Tree, LeafConstraints]] = field(default_factory=dict, init=False)

    @staticmethod
    def of(trees: tuple[Tree, ...], d: int, codes: Sequence[int] = ()) -> Grid:
        """Collect the thresholds of the trees.

        Parameters
        ----------
        trees : tuple of Tree
            The trees.
        d : int
            Number of features.
        codes : sequence of int, optional
            Number of codes of each feature. It is only read for features that are split by sets of
            categories.
        """
        edges_of: list[list[NDArray[np.float32]]] = [[] for _ in range(d)]
        for tree in trees:
            for f in np.unique(tree.feature[tree.feature >= 0]):
                cuts = tree.threshold[tree.feature == f]
                if np.isnan(cuts).any():
                    cuts = np.arange(1, codes[f], dtype=np.float32)
                edges_of[f].append(cuts)
        # a feature without splits has one cell
        empty = np.zeros(0, dtype=np.float32)
        edges = tuple(np.unique(np.concatenate([empty, *parts])) for parts in edges_of)
        return Grid(edges, np.zeros(d, dtype=bool))

    @property
    def width(self) -> NDArray[np.int32]:
        """Number of cells per feature, int32, shape (d,)."""
        return np.array([e.shape[0] + 1 for e in self.edges], dtype=np.int32)

    def cells(self, X: NDArray[np.float32]) -> NDArray[np.int32]:
        """Return the cell of every value, int32, shape (n, d); -1 where it is missing."""
        out = np.empty(X.shape, dtype=np.int32)
        for f, edges in enumerate(self.edges):
            out[:, f] = np.searchsorted(edges, X[:, f], side="right")
        out[np.isnan(X)] = -1
        return out

    def bounds(
        self, lo: NDArray[np.int32], hi: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return half-open boxes as float32 bounds, shape (n, d) each, infinite where open."""
        low = np.empty(lo.shape, dtype=np.float32)
        high = np.empty(hi.shape, dtype=np.float32)
        for f, edges in enumerate(self.edges):
            padded = np.concatenate([[-np.inf], edges, [np.inf]]).astype(np.float32)
            low[:, f] = padded[lo[:, f]]
            high[:, f] = padded[hi[:, f]]
        return low, high

    def leaves(self, tree: Tree) -> LeafConstraints:
        """Return the intervals on the path to each leaf, in ascending node order."""
        if id(tree) not in self._leaves:
            self._leaves[id(tree)] = tree, self._constraints(tree)
        return self._leaves[id(tree)][1]

    def _constraints(self, tree: Tree) -> LeafConstraints:
        boxes: dict[int, _Box] = {}
        stack: list[tuple[int, _Box]] = [(0, {})]
        while stack:
            node, box = stack.pop()
            f = int(tree.feature[node])
            if f < 0:
                boxes[node] = box
                continue
            unrestricted = (0, self.edges[f].shape[0] + 1, bool(self.missing[f]), ANY)
            lo, hi, may, codes = box.get(f, unrestricted)
            left = may and bool(tree.default_left[node])
            right = may and not left
            if np.isnan(tree.threshold[node]):
                to_right = codes_right(tree, node)
                sides = (lo, hi, left, codes & ~to_right), (lo, hi, right, codes & to_right)
            else:
                cut = int(np.searchsorted(self.edges[f], tree.threshold[node])) + 1
                sides = (lo, min(hi, cut), left, codes), (max(lo, cut), hi, right, codes)
            stack.append((int(tree.left[node]), {**box, f: sides[0]}))
            stack.append((int(tree.right[node]), {**box, f: sides[1]}))
        # the ascending order is that of `Tree.leaves`
        nodes = sorted(boxes)
        parts = [(f, part) for n in nodes for f, part in sorted(boxes[n].items())]
        flat = np.array([(f, *part[:3]) for f, part in parts], dtype=np.int32).reshape(-1, 4)
        offsets = np.concatenate([[0], np.cumsum([len(boxes[n]) for n in nodes])])
        feature, lo, hi = (np.ascontiguousarray(flat[:, k]) for k in range(3))
        return LeafConstraints(
            np.array(nodes, dtype=np.int32),
            offsets.astype(np.int32),
            feature,
            lo,
            hi,
            flat[:, 3].astype(bool),
            np.array([part[3] for _, part in parts], dtype=np.uint64),
        )


# Per feature: cells ``lo <= cell < hi``, whether a missing value is possible, set of codes.
_Box = dict[int, tuple[int, int, bool, np.uint64]]


Floats = NDArray[np.float64]
# int64 (K,) each: per class, the number of rows that did not take part in the first round, and the
# number of those that take part in no round.
Rest = tuple[NDArray[np.int64], NDArray[np.int64]]


@dataclass(eq=False)
class FeatureBoxes:
    """The state of a reconstruction of n rows. Arrays change in place from tree to tree.

    Attributes
    ----------
    lo, hi : int32 array, shape (n, d)
        Cells ``lo <= cell < hi`` that each feature of a row may have.
    y : int64 array, shape (n,)
        Class of every row.
    margin : float32 array, shape (n,) or (n, K)
        Log-odds after the trees that were followed. With more than two classes, one margin for
        each.
    history : int64 array, shape (n,)
        Rows with equal label and equal leaves up to now have the same number.
    residual : list of float
        L1 distance from the broadcast sums, one entry per tree.
    margin_variance : float64 array or None
        Variance of the margins that trees grown on other parties' rows cause, in the shape of
        `margin`. None if no such tree was followed so far.
    missing : bool array, shape (n, d)
        Whether the value may be missing, at first False. A value must be missing if ``lo == hi`` or
        if no code is possible.
    codes : uint64 array, shape (n, d)
        Set of possible codes, at first all.
    in_first_round : bool array, shape (n,), or None
        Rows that took part in the first round. None means all.
    participation : float64 array, shape (n,), or None
        Probability that a row takes part in any later round. None means 1.
    participants : list of bool array, shape (n,)
        Rows that took part, one array per followed tree. Empty if rounds are not subsampled.
    """

    lo: NDArray[np.int32]
    hi: NDArray[np.int32]
    y: NDArray[np.int64]
    margin: NDArray[np.float32]
    history: NDArray[np.int64]
    residual: list[float] = field(default_factory=list)
    margin_variance: Floats | None = None
    missing: NDArray[np.bool_] = field(init=False)
    codes: NDArray[np.uint64] = field(init=False)
    in_first_round: NDArray[np.bool_] | None = None
    participation: Floats | None = None
    participants: list[NDArray[np.bool_]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.missing = np.zeros(self.lo.shape, dtype=bool)
        self.codes = np.full(self.lo.shape, ANY)

    def copy(self) -> FeatureBoxes:
        """Return a copy in which no value may be missing and no tree has a residual."""
        boxes = FeatureBoxes(
            self.lo.copy(),
            self.hi.copy(),
            self.y.copy(),
            self.margin.copy(),
            self.history.copy(),
            in_first_round=self.in_first_round,
            participation=self.participation,
        )
        boxes.codes = self.codes.copy()
        return boxes


def stack_boxes(parts: Sequence[FeatureBoxes]) -> FeatureBoxes:
    """Concatenate the rows of several reconstructions. Their residuals are dropped."""
    names = ("lo", "hi", "y", "margin", "history", "missing", "codes")
    joined = {name: np.concatenate([getattr(b, name) for b in parts]) for name in names}
    boxes = FeatureBoxes(
        joined["lo"], joined["hi"], joined["y"], joined["margin"], joined["history"]
    )
    boxes.missing, boxes.codes = joined["missing"], joined["codes"]
    return boxes


def open_boxes(sizes: Sequence[int], grid: Grid, evidence: BoostingObservations) -> FeatureBoxes:
    """Return boxes without bounds for the given number of rows of each class.

    Parameters
    ----------
    sizes : sequence of int
        Number of rows of each class.
    grid : Grid
        Cells of the features.
    evidence : BoostingObservations
        Base margin and subsampling rate.
    """
    n, d = int(sum(sizes)), len(grid.edges)
    y = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    boxes = FeatureBoxes(
        lo=np.zeros((n, d), dtype=np.int32),
        hi=np.tile(grid.width, (n, 1)),
        y=y,
        margin=evidence.start(n),
        history=y.copy(),
    )
    boxes.missing |= grid.missing
    if evidence.params.subsample < 1:
        boxes.participation = np.full(n, evidence.params.subsample)
    return boxes


def boxes_after_first_tree(
    evidence: BoostingObservations, grid: Grid, counts: Counts, rest: Rest | None = None
) -> FeatureBoxes:
    """Initialise the rows from the first tree's counts (Di Gennaro et al. 2025, Sec. 5.1, Fig. 6).

    Parameters
    ----------
    evidence : BoostingObservations
        The trees.
    grid : Grid
        Cells of the features.
    counts : Counts
        Victims' rows of each class in the leaves of the first tree.
    rest : Rest, optional
        Rows that the first tree was not grown on. Their boxes remain open and their margins do not
        change.
    """
    tree = evidence.trees[0]
    leaves = grid.leaves(tree)
    boxes = _with_rest([int(counts.n0.sum()), int(counts.n1.sum())], rest, grid, evidence)
    position = np.arange(len(leaves), dtype=np.int32)
    chosen = np.concatenate([np.repeat(position, counts.n0), np.repeat(position, counts.n1)])
    rows = (
        np.arange(len(boxes.y))
        if boxes.in_first_round is None
        else np.flatnonzero(boxes.in_first_round)
    )
    narrow_to_leaves(boxes, leaves, chosen, rows)
    boxes.margin[rows] += tree.value[leaves.node][chosen]
    return boxes


def boxes_by_class(
    evidence: BoostingObservations, grid: Grid, counts: Sequence[Counts], rest: Rest | None = None
) -> FeatureBoxes:
    """Initialise the rows of every class from the first-round tree of that class.

    Parameters
    ----------
    evidence : BoostingObservations
        The trees, one per class and round.
    grid : Grid
        Cells of the features.
    counts : sequence of Counts
        Counts in the leaves of each class's first tree.
    rest : Rest, optional
        Rows that the first round was not grown on.

    Returns
    -------
    FeatureBoxes
        Margins are unchanged, because the leaves of the rows in the trees of the other classes are
        not yet determined.

    References
    ----------
    Di Gennaro et al. (2025), App. E.
    """
    boxes = _with_rest([int(c.n1.sum()) for c in counts], rest, grid, evidence)
    in_round = boxes.y >= 0 if boxes.in_first_round is None else boxes.in_first_round
    for k, class_counts in enumerate(counts):
        leaves = grid.leaves(evidence.trees[k])
        position = np.arange(len(leaves), dtype=np.int32)
        rows = np.flatnonzero((boxes.y == k) & in_round)
        narrow_to_leaves(boxes, leaves, np.repeat(position, class_counts.n1), rows)
    return boxes


def _with_rest(
    sizes: Sequence[int], rest: Rest | None, grid: Grid, evidence: BoostingObservations
) -> FeatureBoxes:
    """Return open boxes of the rows of the first round and of the remaining rows, by class."""
    if rest is None:
        return open_boxes(sizes, grid, evidence)
    out, never = rest
    boxes = open_boxes((np.asarray(sizes) + out).tolist(), grid, evidence)
    in_class = [np.arange(n + m) for n, m in zip(sizes, out.tolist(), strict=True)]
    boxes.in_first_round = np.concatenate([a < n for a, n in zip(in_class, sizes, strict=True)])
    held_out = np.concatenate([a >= len(a) - m for a, m in zip(in_class, never, strict=True)])
    boxes.participation = np.where(held_out, 0.0, evidence.params.subsample)
    # rows of different sampling groups must never share a number
    boxes.history = boxes.y * 3 + np.where(boxes.in_first_round, 0, 1 + held_out)
    return boxes


def narrow_to_leaves(
    boxes: FeatureBoxes,
    leaves: LeafConstraints,
    chosen: NDArray[np.int32],
    rows: NDArray[np.intp] | None = None,
) -> None:
    """Narrow the boxes of rows to the boxes of their leaves, and extend `history`, in place.

    A row whose box and leaf have no cell in common keeps its box. Noisy sums can cause this.

    Parameters
    ----------
    boxes : FeatureBoxes
        The reconstruction.
    leaves : LeafConstraints
        Leaves of one tree.
    chosen : int32 array, shape (m,)
        Position of the leaf of each row.
    rows : intp array, shape (m,), optional
        Rows to narrow. None means all.
    """
    if rows is None:
        rows = np.arange(len(boxes.y))
    constraints = (leaves.feature, leaves.lo, leaves.hi, leaves.missing, leaves.codes)
    box = (boxes.lo, boxes.hi, boxes.missing, boxes.codes)
    _narrow(*box, rows, chosen, leaves.offsets, *constraints)
    # combine the history with the new leaf, and renumber to keep the numbers small
    path = boxes.history * (len(leaves) + 1)
    path[rows] += chosen + 1
    boxes.history = np.unique(path, return_inverse=True)[1].astype(np.int64)


@kernel
def _narrow(  # type: ignore[no-untyped-def]
    lo, hi, missing, codes, rows, chosen,
    offsets, feature, leaf_lo, leaf_hi, leaf_missing, leaf_codes,
):  # fmt: skip
    for r in range(chosen.shape[0]):
        i, first, last = rows[r], offsets[chosen[r]], offsets[chosen[r] + 1]
        inside = True
        for k in range(first, last):
            f = feature[k]
            empty = max(lo[i, f], leaf_lo[k]) >= min(hi[i, f], leaf_hi[k])
            empty = empty or codes[i, f] & leaf_codes[k] == np.uint64(0)
            if empty and not (missing[i, f] and leaf_missing[k]):
                inside = False  # noisy counts can assign rows to a leaf that no value reaches
        if inside:
            for k in range(first, last):
                f = feature[k]
                lo[i, f] = max(lo[i, f], leaf_lo[k])
                hi[i, f] = max(min(hi[i, f], leaf_hi[k]), lo[i, f])
                missing[i, f] = missing[i, f] and leaf_missing[k]
                codes[i, f] &= leaf_codes[k]
