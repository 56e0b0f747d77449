"""Candidate splits at the quantiles of each node's rows, as in Takahashi et al. (2023)."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.protocols.vertical.columns import GlobalBins
from fedtrees.trees.binning import Bins, lower_sentinel, upper_sentinel
from fedtrees.trees.partition import RowPartition


class NodeQuantiles(GlobalBins):
    """The columns of one party, with separate bins at each node.

    A node with at least q values of a column has candidates at the quantiles ``j / q`` for j from 0
    to q - 1, interpolated at position ``n j / q - 1/2`` of n sorted values. A node with fewer
    values has a candidate at every value. Rows up to the candidate go left. This is the behaviour
    of the authors' code. The paper mentions percentiles.

    Parameters
    ----------
    held : LocalData
        Local data of the party.
    quantiles : int
        Number of quantiles q. There are q + 1 bins.
    """

    def __init__(self, held: LocalData, quantiles: int) -> None:
        self.columns = held.columns.astype(np.int32)
        self.cuts = None
        self.n_bins = np.full(len(self.columns), quantiles + 1, dtype=np.int32)
        self.chosen = np.arange(len(self.columns))
        self._X, self._quantiles = held.X, quantiles
        self._cuts: dict[int, list[NDArray[np.float32]]] = {}

    def of_rows(self) -> dict[int, NDArray[np.int64]]:
        """Return an empty mapping, because the bin of a row depends on the node."""
        return {}

    def choose(self, chosen: NDArray[np.intp]) -> None:
        """Choose the columns of the next tree, by position among `columns`, ascending."""
        self.chosen = chosen

    def look(self, rows: RowPartition, nodes: NDArray[np.int32]) -> None:
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
        """The rows of the nodes of the last `look`, in bins."""
        assert self._bins is not None
        return self._bins

    def thresholds(
        self, nodes: NDArray[np.int32], columns: NDArray[np.int32], bin: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the thresholds of splits at nodes of the last `look`, float32, shape (k,).

        Parameters
        ----------
        nodes, columns, bin : int32 array, shape (k,)
            As in `GlobalBins.thresholds`.
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
