"""What the adversary observed of a boosted forest, in one format for all protocols.

The module also routes rows through the observed trees and computes their gradients in the
arithmetic of the training.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel
from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import Softmax, logistic_gradients
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.routing import Routes

Level = Literal["histograms", "statistics", "values"]
#: Levels of detail in ascending order.
LEVELS: tuple[Level, ...] = ("values", "statistics", "histograms")


@dataclass(frozen=True, eq=False)
class Targets:
    """Knowledge about the victims' numeric targets, binned like a column.

    Attributes
    ----------
    edges : float32 array, shape (K - 1,)
        Ascending borders between the cells.
    values : float64 array, shape (K,)
        Mean target in each cell.
    sizes : int64 array, shape (K,)
        Estimated number of rows in each cell.
    """

    edges: NDArray[np.float32]
    values: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @staticmethod
    def unknown() -> Targets:
        """Return an object without cells. It states only that the targets are numeric."""
        empty = np.zeros(0)
        return Targets(empty.astype(np.float32), empty, empty.astype(np.int64))

    @property
    def variance(self) -> float:
        """Variance of the targets."""
        share = self.sizes / max(self.sizes.sum(), 1)
        return float(share @ (self.values - share @ self.values) ** 2)


@dataclass(frozen=True, eq=False)
class NodeHistograms:
    """Gradient histograms of the nodes of one tree, summed over clients.

    Attributes
    ----------
    nodes : int32 array, shape (k,)
        Node numbers in the tree.
    sums : float64 array, shape (k, total_bins, 2)
        Sums of gradients and hessians per bin.
    totals : float64 array, shape (k, 2)
        Sums over the node. A row whose value is missing is contained in the total, but in no bin.
    slack : float64 array, shape (k,), or None
        Largest error of the sums of each node, apart from noise on single rows. None means that the
        sums are exact.
    sent : bool array, shape (k,), or None
        Whether the histogram of each node was sent. Otherwise, it is the difference between those
        of the parent and of the sibling. None means that all histograms were sent.
    """

    nodes: NDArray[np.int32]
    sums: NDArray[np.float64]
    totals: NDArray[np.float64]
    slack: NDArray[np.float64] | None = None
    sent: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        k = self.nodes.shape[0]
        if self.sums.ndim != 3 or self.sums.shape[0] != k or self.totals.shape != (k, 2):
            raise DataError(
                f"node histograms need sums (k, bins, 2) and totals (k, 2) for k = {k} nodes; "
                f"got {self.sums.shape} and {self.totals.shape}"
            )

    @property
    def errors(self) -> NDArray[np.float64]:
        """Largest error of the sums of each node, 0 if they are exact."""
        return np.zeros(len(self.nodes)) if self.slack is None else self.slack

    @property
    def is_sent(self) -> NDArray[np.bool_]:
        """Whether the histogram of each node was sent, bool, shape (k,)."""
        return np.ones(len(self.nodes), dtype=bool) if self.sent is None else self.sent


@dataclass(frozen=True, eq=False)
class SumVariance:
    """Known variance of the noise on the statistics of one tree.

    Attributes
    ----------
    g, h : float64 array, shape (n_nodes,)
        Variance of the noise on the gradient sum and on the hessian sum of each node.
    cell_g, cell_h : float or float64 array, shape (n_nodes,)
        Variance of the noise on one bin of a node's histogram, apart from ``row_g``.
    row_g : float
        Variance of the noise on the gradient of one row. All sums over the row share this noise.
    """

    g: NDArray[np.float64]
    h: NDArray[np.float64]
    cell_g: float | NDArray[np.float64] = 0.0
    cell_h: float | NDArray[np.float64] = 0.0
    row_g: float = 0.0


@dataclass(frozen=True, eq=False)
class ObservedSums:
    """Statistics of the nodes that were visible, and whose rows they contain.

    Attributes
    ----------
    level : {"histograms", "statistics", "values"}
        Most detailed statistics that were visible: bins, node sums, or only leaf values.
    histograms : tuple of NodeHistograms, or None
        One per tree.
    cuts : Cuts or None
        Bins of the histograms.
    includes_own : {"all", "leaves", "none"}
        Which sums contain the adversary's rows. "leaves": the sums of leaves do, but the messages
        of the adversary's parties were subtracted from histograms.
    own_sums : tuple of float64 array, shape (J, 2), or None
        Per tree, the contribution of the adversary's rows to the sums of each leaf, if it is in the
        transcript. None means that it is computed from the rows.
    """

    level: Level
    histograms: tuple[NodeHistograms, ...] | None = None
    cuts: Cuts | None = None
    includes_own: Literal["all", "leaves", "none"] = "all"
    own_sums: tuple[NDArray[np.float64], ...] | None = None

    def __post_init__(self) -> None:
        check_known("level", self.level, get_args(Level))
        if self.level == "histograms" and (self.histograms is None or self.cuts is None):
            raise UsageError("level 'histograms' needs histograms and cuts; got None")

    @property
    def own_inside(self) -> bool:
        """Whether the trees were grown on the adversary's rows as well."""
        return self.includes_own != "none"

    @property
    def own_in_bins(self) -> bool:
        """Whether histograms contain the adversary's rows."""
        return self.includes_own == "all"


@dataclass(frozen=True, eq=False)
class Distortion:
    """Mechanisms that changed the sums and values before the adversary saw them.

    Attributes
    ----------
    noise : tuple of SumVariance, or None
        One per tree. None means exact sums.
    rounding : Channel or None
        Mechanism that was applied to leaf values. None means that they are exact.
    row_law : Channel or None
        Mechanism that was applied to the gradient of every row, once per tree.
    hides_small_bins : bool
        Whether bins of few rows were left out of the sums.
    """

    noise: tuple[SumVariance, ...] | None = None
    rounding: Channel | None = None
    row_law: Channel | None = None
    hides_small_bins: bool = False

    @property
    def exact(self) -> bool:
        """Whether every sum is that of the rows in its node."""
        return self.noise is None and not self.hides_small_bins

    def value_error(self, value: np.float32) -> float:
        """Return the largest error of a leaf value by rounding."""
        if self.rounding is None:
            return 0.0
        low, high = self.rounding.bounds(np.asarray(value, dtype=np.float64))
        return float(np.maximum(value - low, high - value))

    @property
    def marks_rows(self) -> bool:
        """Whether noise on the gradients of single rows is in all sums that contain the row."""
        return any(noise.row_g for noise in self.noise or ())


@dataclass(frozen=True)
class RowCounts:
    """What is known of the number of training rows.

    Attributes
    ----------
    n_rows : int or None
        Declared number of training rows. It includes the adversary's rows if the trees were grown
        on them.
    most_rows : int or None
        Upper bound on the number of rows, used if their number is not declared.
    sizes : tuple of int, or None
        Estimated number of rows of each class if the first tree is foreign.
    mean_start : bool
        Whether the base margin is known to be the log-odds of the label mean of the rows.
    held_out : float
        Probability that a row takes part in no round.
    """

    n_rows: int | None = None
    most_rows: int | None = None
    sizes: tuple[int, ...] | None = None
    mean_start: bool = False
    held_out: float = 0.0


@dataclass(frozen=True, eq=False)
class ColumnKnowledge:
    """What is known of the distribution of the victims' rows.

    Attributes
    ----------
    sketch_rows : Table or None
        Rows whose columns have the victims' distribution, if sketches reveal it
        (`fedtrees.attacks.observations.rows_from_columns.likely_rows`). None means that the local
        rows replace them.
    sketched : bool
        Whether ``sketch_rows`` contains values of the victims. Otherwise its values are those of
        the cells of a grid.
    cuts_reveal_ranges : bool
        Whether the cut points reveal the ranges of the columns. False if they were computed from
        values that a mechanism randomised.
    population : Table or None
        Rows of the same population that no party has (`fedtrees.core.view.View.population`). They
        are the prior of an adversary without local rows, and are contained in no sum. Once targets
        have cells, numeric targets are their last column, too.
    """

    sketch_rows: Table | None = None
    sketched: bool = False
    cuts_reveal_ranges: bool = True
    population: Table | None = None


@dataclass(frozen=True, eq=False)
class BoostingObservations:
    """Everything that the transcript revealed to the adversary. It does not contain local rows.

    Attributes
    ----------
    trees : tuple of Tree
        In training order, with ``g`` and ``h`` of a node where they were visible.
    base_margin : float32, or float32 array, shape (K,)
        Log-odds before the first tree. With more than two classes, one margin for each class. Tree
        t then adds to the margin of class ``t % K``.
    params : TreeParams
        Public training parameters.
    observed : ObservedSums
        Visible statistics.
    distortion : Distortion
        Mechanisms that changed them.
    row_counts : RowCounts
        What is known of the number of rows.
    columns : ColumnKnowledge
        What is known of the distribution of the rows.
    foreign : tuple of bool, or None
        True for trees of which only the change of the margins is used, because they were grown
        without the victims' rows or because their sums could not be restored. All trees of a round
        have the same value. None means that no tree is foreign.
    restart : tuple (int, float32 array of shape (K,)), or None
        From this tree on, margins are higher by this amount, because the first trees started from
        another base margin.
    constant_hessian : bool
        True if the protocol uses h = 1 for every row (FedTree under differential privacy).
    targets : Targets or None
        Knowledge about numeric targets. Once they have cells, the targets are the last column of
        all rows (`fedtrees.attacks.reconstruction.targets.with_targets`). None means that rows have
        classes.
    """

    trees: tuple[Tree, ...]
    base_margin: np.float32 | NDArray[np.float32]
    params: TreeParams
    observed: ObservedSums
    distortion: Distortion = field(default_factory=Distortion)
    row_counts: RowCounts = field(default_factory=RowCounts)
    columns: ColumnKnowledge = field(default_factory=ColumnKnowledge)
    foreign: tuple[bool, ...] | None = None
    restart: tuple[int, NDArray[np.float32]] | None = None
    constant_hessian: bool = False
    targets: Targets | None = None

    def __post_init__(self) -> None:
        for name, part in self._per_tree.items():
            if part is not None and len(part) != len(self.trees):
                raise DataError(
                    f"{name} has {len(part)} entries for {len(self.trees)} trees; give one per tree"
                )
        # with several classes, incomplete rounds would have margins of different rounds
        if len(self.trees) % self.outputs:
            raise DataError(f"{len(self.trees)} trees do not make rounds of {self.outputs}")

    @property
    def _per_tree(self) -> dict[str, tuple[Any, ...] | None]:
        """Fields that have one entry per tree, by name."""
        return {
            "histograms": self.observed.histograms,
            "noise": self.distortion.noise,
            "foreign": self.foreign,
            "own_sums": self.observed.own_sums,
        }

    def change(self, **fields: Any) -> BoostingObservations:
        """Return a copy with other values of fields, which may be fields of its parts.

        For example, ``change(trees=trees, n_rows=100)`` also replaces ``row_counts.n_rows``.
        """
        changes = {k: fields.pop(k) for k in [*fields] if k in self.__dataclass_fields__}
        for name in ("params", "observed", "distortion", "row_counts", "columns"):
            part = getattr(self, name)
            of_part = {k: fields.pop(k) for k in [*fields] if k in part.__dataclass_fields__}
            if of_part:
                changes[name] = replace(part, **of_part)
        return replace(self, **changes, **fields)

    @property
    def row_variance(self) -> float:
        """Prior variance of one row's gradient.

        With classes it is 1/4, that of a fair coin. For numeric targets it is the variance of the
        targets.
        """
        return 0.25 if self.targets is None else self.targets.variance

    @property
    def first_own(self) -> int:
        """Index of the first tree that is not foreign. It is 0 if all trees are foreign."""
        return 0 if self.foreign is None else int(np.argmin(self.foreign))

    @property
    def outputs(self) -> int:
        """Number of trees per round: 1, or the number of classes if there are more than two."""
        return int(np.size(self.base_margin))

    @property
    def share(self) -> float:
        """Probability that a row takes part in the first round. It is 1 without subsampling."""
        return self.params.subsample * (1 - self.row_counts.held_out)

    def class_of(self, t: int) -> int:
        """Return the class whose rows have gradients ``p - 1`` in tree ``t``."""
        return 1 if self.outputs == 1 else t % self.outputs

    def start(self, n: int) -> NDArray[np.float32]:
        """Return the margins of n rows before the first tree, float32, (n,) or (n, K)."""
        shape = (n,) if self.outputs == 1 else (n, self.outputs)
        start = np.asarray(self.base_margin, dtype=np.float32)
        return np.full(shape, start.reshape(()) if self.outputs == 1 else start)

    def prior_rows(self, local_rows: Table) -> Table:
        """Return the rows from which a prior is estimated: local rows, else the population's.

        The result is empty if there are neither.
        """
        population = self.columns.population
        return local_rows if len(local_rows) or population is None else population

    def is_foreign(self, t: int) -> bool:
        """Return whether tree ``t`` only changes margins (`BoostingObservations.foreign`)."""
        return self.foreign is not None and self.foreign[t]

    def rounds(self, first: int) -> BoostingObservations:
        """Return the observations of the first ``first`` rounds that are not foreign."""
        n = first * self.outputs
        if self.foreign is not None:
            # foreign trees between the first rounds are kept, because they change the margins
            grown = np.flatnonzero(~np.array(self.foreign, dtype=bool))
            n = 0 if not n else int(grown[n - 1]) + 1 if n <= len(grown) else len(self.trees)
        parts = {name: part and part[:n] for name, part in self._per_tree.items()}
        return self.change(trees=self.trees[:n], **parts)

    def at_most(self, level: Level) -> BoostingObservations:
        """Return the observations without statistics that are more detailed than a level."""
        if LEVELS.index(self.observed.level) <= LEVELS.index(level):
            return self
        trees = self.trees
        if level == "values":
            trees = tuple(replace(t, g=None, h=None) for t in trees)
        return self.change(trees=trees, level=level, histograms=None)


def gradients(
    margin: NDArray[np.float32], y: NDArray[Any], constant_hessian: bool = False, output: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return first and second derivatives of the log loss (Di Gennaro et al. 2025, Eqs. 3, 18).

    They are computed in float32, as training libraries do, and returned as float64.

    Parameters
    ----------
    margin : float32 array, shape (n,) or (n, K)
        Log-odds of class 1, or one margin per class.
    y : array, shape (n,)
        Classes.
    constant_hessian : bool, default False
        If True, the second derivative is replaced by 1.
    output : int, default 0
        Class whose margin is differentiated. With several classes, XGBoost's h is twice the p(1-p)
        of the paper.

    Returns
    -------
    g, h : float64 array, shape (n,) each
    """
    if margin.ndim == 1:
        gh = logistic_gradients(margin, y).astype(np.float64)
    else:
        objective = Softmax(margin.shape[1])
        gh = objective.gradients(np.ascontiguousarray(margin.T), y)[output].astype(np.float64)
    return gh[:, 0], np.ones(len(gh)) if constant_hessian else gh[:, 1]


def gradients_of(
    evidence: BoostingObservations,
    margin: NDArray[np.float32],
    y: NDArray[Any],
    target: NDArray[Any],
    output: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the derivatives of the loss of the evidence, for classes or numeric targets.

    Parameters
    ----------
    evidence : BoostingObservations
        Determines the loss.
    margin : float32 array, shape (n,) or (n, K)
        Predictions before the tree.
    y : array, shape (n,)
        Classes, read if targets are not numeric.
    target : array, shape (n,)
        Numeric targets.
    output : int, default 0
        Class whose margin is differentiated.
    """
    if evidence.targets is None:
        return gradients(margin, y, evidence.constant_hessian, output)
    g = (margin - target.astype(np.float32)).astype(np.float64)
    return g, np.ones(len(g))


def of_output(margin: NDArray[Any], output: int) -> NDArray[Any]:
    """Return one output's part of margins of shape (n,) or (n, K), as a NumPy view."""
    return margin if margin.ndim == 1 else margin[:, output]


def add_values(margin: NDArray[Any], output: int, value: NDArray[Any]) -> None:
    """Add a tree's leaf values to the margins of its output, in place.

    Parameters
    ----------
    margin : array, shape (n,) or (n, K)
        Margins to change.
    output : int
        Class that the tree belongs to.
    value : array, shape (n,)
        Leaf values of the rows.
    """
    part = of_output(margin, output)
    part += value


def at_tree(
    evidence: BoostingObservations, X: NDArray[np.float32], t: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the leaves of rows in tree ``t`` and their margins before this tree.

    Parameters
    ----------
    evidence : BoostingObservations
        The trees.
    X : float32 array, shape (n, d)
        Feature values.
    t : int
        The tree.

    Returns
    -------
    leaf : int32 array, shape (n,)
        Node numbers.
    margin : float32 array, shape (n,) or (n, K)
    """
    nodes, margin = Routes.of(evidence.trees[: t + 1]).apply(X), evidence.start(len(X))
    # The values are added tree by tree in float32, as in the training, so that roundings agree.
    for k in range(t):
        add_values(margin, k % evidence.outputs, evidence.trees[k].value[nodes[:, k]])
    return nodes[:, t], margin


def leaves_below(tree: Tree) -> NDArray[np.float64]:
    """Return which leaves are below each node, float64, shape (n_nodes, J)."""
    return sums_below(tree, np.eye(len(tree.leaves)))


def relatives(tree: Tree) -> NDArray[np.intp]:
    """Return parent and sibling of each node, shape (n_nodes, 2), -1 for the root."""
    out = np.full((len(tree), 2), -1, dtype=np.intp)
    inner = np.flatnonzero(tree.feature >= 0)
    left, right = tree.left[inner], tree.right[inner]
    out[left], out[right] = np.stack([inner, right], axis=1), np.stack([inner, left], axis=1)
    return out


def sums_below(tree: Tree, of_leaves: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the sum over the leaves below each node, float64, shape (n_nodes, ...).

    Parameters
    ----------
    tree : Tree
        The tree.
    of_leaves : float array, shape (J, ...)
        Numbers of its leaves.
    """
    out = np.zeros((len(tree), *of_leaves.shape[1:]))
    out[tree.leaves] = of_leaves
    for node in np.flatnonzero(tree.feature >= 0)[::-1]:  # children come after their parent
        out[node] = out[tree.left[node]] + out[tree.right[node]]
    return out
