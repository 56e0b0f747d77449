"""Candidates that are quantiles of the rows of each node, as Takahashi et al. (2023) take them."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.protocols.vertical.columns import GlobalBins
from fedtrees.trees.binning import Bins, lower_sentinel, upper_sentinel
from fedtrees.trees.partition import RowPartition


class NodeQuantiles(GlobalBins):
    """The columns of one party in bins of each node's own.

    A node with q values or more of a column has candidates at ``j / q``, j from 0 to q - 1, each a
    value or between two (at place ``n j / q - 1/2`` of n values in order); one with fewer, at every
    value. Rows of at most the candidate go left. That is what the authors' code does, where the
    paper speaks of percentiles.

    `quantiles`: q: there is a bin more.
    """

    def __init__(self, held: LocalData, quantiles: int) -> None:
        self.columns = held.columns.astype(np.int32)
        self.cuts = None
        self.n_bins = np.full(len(self.columns), quantiles + 1, dtype=np.int32)
        self.chosen = np.arange(len(self.columns))
        self._X, self._quantiles = held.X, quantiles
        self._cuts: dict[int, list[NDArray[np.float32]]] = {}

    def of_rows(self) -> dict[int, NDArray[np.int64]]:
        """Return nothing: a row is in another bin at every node."""
        return {}

    def choose(self, chosen: NDArray[np.intp]) -> None:
        """Let the next tree use some of the columns, by place, ascending."""
        self.chosen = chosen

    def look(self, rows: RowPartition, nodes: NDArray[np.int32]) -> None:
        """Lay out the bins of some nodes, until it is asked about others."""
        missing = self._quantiles + 1
        kind = np.uint8 if missing < 256 else np.uint16
        codes = np.full((len(self._X), len(self.chosen)), missing, dtype=kind)
        self._cuts = {}
        for node, (begin, end) in zip(nodes.tolist(), rows.ranges(nodes).tolist(), strict=True):
            here = rows.rows[begin:end]
            self._cuts[node] = []
            for place, column in enumerate(self.chosen.tolist()):
                x = self._X[here, column]
                cuts = candidate_cuts(x, self._quantiles)
                code = np.searchsorted(cuts, x, side="right")
                codes[here, place] = np.where(np.isnan(x), missing, code)
                self._cuts[node].append(cuts)
        offsets = np.arange(len(self.chosen) + 1, dtype=np.int32) * missing
        self._bins = Bins(codes, missing, offsets)

    @property
    def bins(self) -> Bins:
        """The rows of the nodes looked at, in their bins."""
        assert self._bins is not None
        return self._bins

    def thresholds(
        self, nodes: NDArray[np.int32], columns: NDArray[np.int32], bin: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the thresholds of splits at nodes that were looked at last."""
        found = np.zeros(len(nodes), dtype=np.float32)
        places = np.searchsorted(self.columns[self.chosen], columns)
        for k, (node, place) in enumerate(zip(nodes.tolist(), places.tolist(), strict=True)):
            cuts, x = self._cuts[node][place], self._X[:, self.chosen[place]]
            if bin[k] < 0:
                found[k] = lower_sentinel(np.nanmin(x))
            elif bin[k] < len(cuts):
                found[k] = cuts[bin[k]]
            else:  # all that have a value
                found[k] = upper_sentinel(np.nanmax(x))
        return found


def candidate_cuts(x: NDArray[np.float32], quantiles: int) -> NDArray[np.float32]:
    """Return the thresholds of a node's candidates, increasing: ``x < threshold`` goes left.

    `x`: float32 array, shape (m,). Values of the node; NaN marks a missing one.
    """
    values = np.sort(x[~np.isnan(x)])
    if len(values) > quantiles:
        places = len(values) * np.arange(quantiles) / quantiles - 0.5
        values = np.interp(places, np.arange(len(values)), values).astype(np.float32)
    return np.nextafter(np.unique(values), np.float32(np.inf))
