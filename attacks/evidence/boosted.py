"""What the adversary has seen of a boosted forest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel
from fedtrees.core.errors import DataError, UsageError, did_you_mean
from fedtrees.core.schema import Table
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.forest import Tree

Level = Literal["histograms", "statistics", "values"]


@dataclass(frozen=True, eq=False)
class Targets:
    """What is known of victims' numeric targets, in cells like those of a column.

    `edges`: float32 array, shape (K - 1,). Between the cells, ascending.
    `values`: float64 array, shape (K,). What a target in each cell is on average.
    `sizes`: int64 array, shape (K,). Likely number of rows in each.
    """

    edges: NDArray[np.float32]
    values: NDArray[np.float64]
    sizes: NDArray[np.int64]

    @staticmethod
    def unknown() -> Targets:
        """Return no cells: all that is known is that targets are numbers."""
        none = np.zeros(0)
        return Targets(none.astype(np.float32), none, none.astype(np.int64))

    @property
    def variance(self) -> float:
        """Variance of the targets."""
        share = self.sizes / max(self.sizes.sum(), 1)
        return float(share @ (self.values - share @ self.values) ** 2)


@dataclass(frozen=True, eq=False)
class NodeHistograms:
    """Gradient histograms of the nodes of one tree, summed over clients.

    `nodes`: int32 array, shape (k,). Node numbers in the tree.
    `sums`: float64 array, shape (k, total_bins, 2). Sums of gradients and hessians per bin.
    `totals`: float64 array, shape (k, 2). Sums over the node; a row whose value is missing is in
    the total and in no bin.
    `slack`: float64 array, shape (k,), or None. How far from the truth sums may be, but for the
    noise on rows; None: they are exact.
    """

    nodes: NDArray[np.int32]
    sums: NDArray[np.float64]
    totals: NDArray[np.float64]
    slack: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        k = self.nodes.shape[0]
        if self.sums.ndim != 3 or self.sums.shape[0] != k or self.totals.shape != (k, 2):
            raise DataError(
                f"node histograms need sums (k, bins, 2) and totals (k, 2) for k = {k} nodes; "
                f"got {self.sums.shape} and {self.totals.shape}"
            )


@dataclass(frozen=True, eq=False)
class NodeNoise:
    """Known variance of the noise on the statistics of one tree.

    `g, h`: float64 array, shape (n_nodes,). Variance of the noise on each node's sum of gradients
    and of hessians.
    `cell_g, cell_h`: float or float64 array, shape (n_nodes,). Variance of the noise on one bin of
    a node's histogram, but for ``row_g``.
    `row_g`: Variance of the noise on one row's gradient, which all sums over the row share.
    """

    g: NDArray[np.float64]
    h: NDArray[np.float64]
    cell_g: float | NDArray[np.float64] = 0.0
    cell_h: float | NDArray[np.float64] = 0.0
    row_g: float = 0.0


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything the transcript told the adversary; own rows are not in here.

    Attributes
    ----------
    trees : tuple of Tree
        In training order, ``g`` and ``h`` per node where they were visible.
    level : {"histograms", "statistics", "values"}
        The most that was visible: bins, node sums, or leaf values alone.
    base_margin : float32, or float32 array, shape (K,)
        Log-odds every row starts from; of more than two classes, a margin for each. Tree t then
        adds to the margin of class ``t % K``.
    learning_rate, reg_lambda, min_child_weight : float
        Public training parameters (eta and lambda of the paper).
    histograms : tuple of NodeHistograms, or None
        One per tree.
    cuts : Cuts or None
        Bins of the histograms.
    ranges_told : bool
        Whether these tell the rows' ranges: not where they were merged of values that a mechanism
        drew.
    n_rows : int or None
        Declared number of the rows the trees were grown on, own ones among them or not
        (``own_inside``).
    noise : tuple of NodeNoise, or None
        One per tree; None means exact sums.
    rounding : Channel or None
        What was done to leaf values; None: nothing.
    constant_hessian : bool
        True where the protocol uses h = 1 for every row (FedTree under differential privacy).
    foreign : tuple of bool, or None
        True for trees grown on rows of others: they move the margins of the rows sought and say
        nothing else about them. Whole rounds each. None: none.
    restart : tuple (int, float32 array of shape (K,)), or None
        From this tree on, margins are so much higher: the first trees started from another base.
    own_inside : bool
        Whether own rows are among those the trees were grown on.
    most_rows : int or None
        Where the number of rows is not declared: there are no more than so many.
    mean_start : bool
        Whether the base margin is known to be that of the label mean of the rows.
    sizes : tuple of int, or None
        Rows of each class, as far as can be told, where the first tree is foreign.
    likely : Table or None
        Rows whose columns are the victims', where sketches told these
        (`fedtrees.attacks.evidence.marginals.likely_rows`). None: own rows stand for them.
    sketched : bool
        Whether these have the victims' own values; else values are of the cells of a grid.
    reg_alpha : float
        L1 penalty of the leaf values.
    subsample : float
        How likely a row is in a round; which are in is not known.
    held_out : float
        How likely a row is in no round at all.
    own_sums : tuple of float64 array, shape (J, 2), or None
        Per tree, what own rows brought to the sums of each leaf, where that was told; None: what
        follows from the rows.
    suppressed : bool
        Whether bins of few rows were left out of the sums.
    row_law : Channel or None
        What was done to the gradient of every row, once a tree.
    targets : Targets or None
        Of numeric targets, which are the last column of all rows once there are cells of them
        (`fedtrees.attacks.evidence.targets.with_targets`); None: rows have classes.
    own_in_bins : bool
        Whether histograms are of own rows, too: not where what the principals sent was taken off.
    population : Table or None
        Rows of the same population that no party has (`fedtrees.core.view.View.population`). They
        are the prior of an adversary without own rows, and are in no sum. Once targets have cells,
        numeric targets are their last column, too.
    """

    trees: tuple[Tree, ...]
    level: Level
    base_margin: np.float32 | NDArray[np.float32]
    learning_rate: float
    reg_lambda: float
    min_child_weight: float = 1.0
    histograms: tuple[NodeHistograms, ...] | None = None
    cuts: Cuts | None = None
    ranges_told: bool = True
    n_rows: int | None = None
    noise: tuple[NodeNoise, ...] | None = None
    rounding: Channel | None = None
    constant_hessian: bool = False
    foreign: tuple[bool, ...] | None = None
    restart: tuple[int, NDArray[np.float32]] | None = None
    own_inside: bool = True
    most_rows: int | None = None
    mean_start: bool = False
    sizes: tuple[int, ...] | None = None
    likely: Table | None = None
    sketched: bool = False
    reg_alpha: float = 0.0
    subsample: float = 1.0
    held_out: float = 0.0
    own_sums: tuple[NDArray[np.float64], ...] | None = None
    suppressed: bool = False
    row_law: Channel | None = None
    own_in_bins: bool = True
    targets: Targets | None = None
    population: Table | None = None

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise UsageError(
                f"unknown level {self.level!r}{did_you_mean(self.level, get_args(Level))}"
            )
        if not self.learning_rate > 0:
            raise UsageError(f"learning_rate {self.learning_rate} must be positive")
        if self.level == "histograms" and (self.histograms is None or self.cuts is None):
            raise UsageError("level 'histograms' needs histograms and cuts; got None")
        for name in ("histograms", "noise", "foreign", "own_sums"):
            part: tuple[Any, ...] | None = getattr(self, name)
            if part is not None and len(part) != len(self.trees):
                raise DataError(
                    f"{name} has {len(part)} entries for {len(self.trees)} trees; give one per tree"
                )
        if len(self.trees) % self.outputs:
            raise DataError(f"{len(self.trees)} trees do not make rounds of {self.outputs}")

    @property
    def row_variance(self) -> float:
        """Variance of one row's gradient for who knows nothing of it: a fair coin's, of classes."""
        return 0.25 if self.targets is None else self.targets.variance

    @property
    def first_own(self) -> int:
        """The first tree that is not foreign, 0 where all are."""
        return 0 if self.foreign is None else int(np.argmin(self.foreign))

    @property
    def outputs(self) -> int:
        """Trees per round: 1, or one for every class beyond two classes."""
        return int(np.size(self.base_margin))

    @property
    def share(self) -> float:
        """How likely a row is in the first round, 1 where all are."""
        return self.subsample * (1 - self.held_out)

    def class_of(self, t: int) -> int:
        """Return the class whose rows have gradients ``p - 1`` in tree ``t``."""
        return 1 if self.outputs == 1 else t % self.outputs

    def start(self, n: int) -> NDArray[np.float32]:
        """Return the margins of n rows before the first tree, float32, (n,) or (n, K)."""
        shape = (n,) if self.outputs == 1 else (n, self.outputs)
        start = np.asarray(self.base_margin, dtype=np.float32)
        return np.full(shape, start.reshape(()) if self.outputs == 1 else start)

    def prior_rows(self, own: Table) -> Table:
        """Return the rows from which a prior is estimated: own rows, else the population's.

        The result is empty if there are neither.
        """
        return own if len(own) or self.population is None else self.population

    def is_foreign(self, t: int) -> bool:
        """Tell whether tree ``t`` was grown on rows of others."""
        return self.foreign is not None and self.foreign[t]

    def rounds(self, first: int) -> Evidence:
        """Return the evidence of the first rounds, not counting foreign ones."""
        n = first * self.outputs
        if self.foreign is not None:
            grown = np.flatnonzero(~np.array(self.foreign, dtype=bool))
            n = 0 if not n else int(grown[n - 1]) + 1 if n <= len(grown) else len(self.trees)
        return replace(
            self,
            trees=self.trees[:n],
            histograms=None if self.histograms is None else self.histograms[:n],
            noise=None if self.noise is None else self.noise[:n],
            foreign=None if self.foreign is None else self.foreign[:n],
            own_sums=None if self.own_sums is None else self.own_sums[:n],
        )
