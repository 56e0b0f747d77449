"""Local computations of every party of a vertical protocol: binning, sums per bin, row routing.

Cut points are global or, as in Takahashi et al. (2023), quantiles of the rows of each node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.trees.binning import Bins, Cuts, bin_rows, lower_sentinel, upper_sentinel
from fedtrees.trees.boosted.histogram import build_histogram
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.partition import Decisions, RowPartition


class LocalBins:
    """The columns of one party, with the same bins at all nodes.

    Attributes
    ----------
    columns : int32 array, shape (c,)
        Positions in the schema, ascending.
    cuts : Cuts or None
        Cut points. None if the party has no columns.
    n_bins : int32 array, shape (c,)
        Number of bins of each column.
    chosen : intp array
        Columns of the current tree, by position among `columns`.
    """

    def __init__(self, local_data: LocalData, max_bin: int) -> None:
        self.columns = local_data.columns.astype(np.int32)
        self.cuts: Cuts | None = None
        self.n_bins = np.zeros(0, dtype=np.int32)
        if len(self.columns):
            self.cuts = quantile_cuts(local_data.X, max_bin)
            self.n_bins = self.cuts.n_bins
            self._all = bin_rows(local_data.X, self.cuts)
        self.chosen = np.arange(len(self.columns))
        self._bins: Bins | None = None

    def bins_by_column(self) -> dict[int, NDArray[np.int64]]:
        """Return the bin of every row, int64, by position of the column in the schema.

        A missing value has bin -1.
        """
        if not len(self.columns):
            return {}
        codes = self._all.codes.astype(np.int64)
        codes[codes == self._all.missing] = -1
        return dict(zip(self.columns.tolist(), codes.T, strict=True))

    def choose_columns(self, chosen: NDArray[np.intp]) -> None:
        """Choose the columns of the next tree, by position among `columns`, ascending."""
        self.chosen, self._bins = chosen, None

    @property
    def bins(self) -> Bins:
        """All rows in bins of the chosen columns."""
        if self._bins is None:
            if len(self.chosen) == len(self.columns):
                self._bins = self._all
            else:
                codes = np.ascontiguousarray(self._all.codes[:, self.chosen])
                offsets = np.concatenate([[0], np.cumsum(self.n_bins[self.chosen])])
                self._bins = Bins(codes, self._all.missing, offsets.astype(np.int32))
        return self._bins

    def compute_bins(self, rows: RowPartition, nodes: NDArray[np.int32]) -> None:
        """Do nothing. The bins of all nodes are the same, and are computed at construction."""

    def sums(
        self, statistics: NDArray[np.int64], rows: RowPartition, nodes: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Return the sums of nodes over the bins of the chosen columns.

        Parameters
        ----------
        statistics : int64 array, shape (n, s)
            Statistics of all rows.
        rows : RowPartition
            Rows of each node.
        nodes : int32 array, shape (k,)
            Nodes to sum.

        Returns
        -------
        sums : int64 array, shape (k, bins of the chosen columns, s)
        """
        if not len(self.chosen):
            return np.zeros((len(nodes), 0, statistics.shape[1]), dtype=np.int64)
        ranges, parts = rows.ranges(nodes), []
        # The histogram kernel adds pairs, because a row has a gradient and a hessian.
        for first in range(0, statistics.shape[1], 2):
            pair = statistics[:, first : first + 2]
            if pair.shape[1] == 1:
                pair = np.repeat(pair, 2, axis=1)
            pair_sums = build_histogram(self.bins, pair, rows.rows, ranges)
            parts.append(pair_sums[..., : statistics.shape[1] - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)

    def bins_of_rows(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the bins of some rows, int64, shape (m, chosen columns), -1 for missing values."""
        codes = self.bins.codes[rows].astype(np.int64)
        codes[codes == self.bins.missing] = -1
        return codes

    def goes_left(
        self,
        rows: RowPartition,
        nodes: NDArray[np.int32],
        columns: NDArray[np.int32],
        bin: NDArray[np.int32],
        default_left: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Return which rows of nodes go left, bool, in the order of nodes and rows.

        Parameters
        ----------
        rows : RowPartition
            Rows of each node.
        nodes : int32 array, shape (k,)
            Nodes to split.
        columns : int32 array, shape (k,)
            Positions in the schema, of chosen columns.
        bin : int32 array, shape (k,)
            Last bin that goes left.
        default_left : bool array, shape (k,)
            Whether rows with a missing value go left.
        """
        # Messages use positions in the schema, the bins positions among the chosen columns.
        place = np.searchsorted(self.columns[self.chosen], columns).astype(np.int32)
        nothing: Any = np.zeros(len(nodes))
        return rows.goes_left(
            self.bins, Decisions(nodes, place, bin, nothing, default_left, nothing)
        )

    def thresholds(
        self, nodes: NDArray[np.int32], columns: NDArray[np.int32], bin: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the thresholds of splits, float32, shape (k,).

        A row goes left if ``x < threshold``.

        Parameters
        ----------
        nodes : int32 array, shape (k,)
            Nodes of the splits.
        columns : int32 array, shape (k,)
            Positions in the schema.
        bin : int32 array, shape (k,)
            Last bin that goes left.
        """
        assert self.cuts is not None
        return self.cuts.thresholds(np.searchsorted(self.columns, columns), bin)


class NodeQuantiles(LocalBins):
    """The columns of one party, with separate bins at each node.

    A node with at least q values of a column has candidates at the quantiles ``j / q`` for j from 0
    to q - 1, interpolated at position ``n j / q - 1/2`` of n sorted values. A node with fewer
    values has a candidate at every value. Rows up to the candidate go left. This is the behaviour
    of the authors' code. The paper mentions percentiles.

    Parameters
    ----------
    local_data : LocalData
        Local data of the party.
    quantiles : int
        Number of quantiles q. There are q + 1 bins.
    """

    def __init__(self, local_data: LocalData, quantiles: int) -> None:
        self.columns = local_data.columns.astype(np.int32)
        self.cuts = None
        self.n_bins = np.full(len(self.columns), quantiles + 1, dtype=np.int32)
        self.chosen = np.arange(len(self.columns))
        self._X, self._quantiles = local_data.X, quantiles
        self._cuts: dict[int, list[NDArray[np.float32]]] = {}

    def bins_by_column(self) -> dict[int, NDArray[np.int64]]:
        """Return an empty mapping, because the bin of a row depends on the node."""
        return {}

    def choose_columns(self, chosen: NDArray[np.intp]) -> None:
        """Choose the columns of the next tree, by position among `columns`, ascending."""
        self.chosen = chosen

    def compute_bins(self, rows: RowPartition, nodes: NDArray[np.int32]) -> None:
        """Compute the bins of some nodes. They are valid until the next call."""
        # There are q + 1 bins, so that this code is free.
        missing = self._quantiles + 1
        kind = np.uint8 if missing < 256 else np.uint16
        codes = np.full((len(self._X), len(self.chosen)), missing, dtype=kind)
        self._cuts = {}
        for node, (begin, end) in zip(nodes.tolist(), rows.ranges(nodes).tolist(), strict=True):
            node_rows = rows.rows[begin:end]
            self._cuts[node] = []
            for place, column in enumerate(self.chosen.tolist()):
                x = self._X[node_rows, column]
                cuts = candidate_cuts(x, self._quantiles)
                code = np.searchsorted(cuts, x, side="right")
                codes[node_rows, place] = np.where(np.isnan(x), missing, code)
                self._cuts[node].append(cuts)
        offsets = np.arange(len(self.chosen) + 1, dtype=np.int32) * missing
        self._bins = Bins(codes, missing, offsets)

    @property
    def bins(self) -> Bins:
        """The rows of the nodes of the last call of `compute_bins`, in bins."""
        assert self._bins is not None
        return self._bins

    def thresholds(
        self, nodes: NDArray[np.int32], columns: NDArray[np.int32], bin: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the thresholds of splits, float32, shape (k,).

        The nodes must be among those of the last call of `compute_bins`.

        Parameters
        ----------
        nodes, columns, bin : int32 array, shape (k,)
            As in `LocalBins.thresholds`.
        """
        thresholds = np.zeros(len(nodes), dtype=np.float32)
        places = np.searchsorted(self.columns[self.chosen], columns)
        for k, (node, place) in enumerate(zip(nodes.tolist(), places.tolist(), strict=True)):
            cuts, x = self._cuts[node][place], self._X[:, self.chosen[place]]
            if bin[k] < 0:
                thresholds[k] = lower_sentinel(np.nanmin(x))
            elif bin[k] < len(cuts):
                thresholds[k] = cuts[bin[k]]
            else:  # all rows with a value go left
                thresholds[k] = upper_sentinel(np.nanmax(x))
        return thresholds


def candidate_cuts(x: NDArray[np.float32], quantiles: int) -> NDArray[np.float32]:
    """Return the thresholds of a node's candidates, increasing.

    Rows with ``x < threshold`` go left.

    Parameters
    ----------
    x : float32 array, shape (m,)
        Values of the node, NaN if missing.
    quantiles : int
        Number of quantiles.

    Examples
    --------
    >>> candidate_cuts(np.array([1, 2, 3, 4], dtype=np.float32), 2).round(2).tolist()
    [1.0, 2.5]
    """
    values = np.sort(x[~np.isnan(x)])
    if len(values) > quantiles:
        places = len(values) * np.arange(quantiles) / quantiles - 0.5
        values = np.interp(places, np.arange(len(values)), values).astype(np.float32)
    # Rows up to the candidate go left, but a split tests ``x < threshold``.
    return np.nextafter(np.unique(values), np.float32(np.inf))
