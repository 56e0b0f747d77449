"""What every party vertically does: bin its columns, add rows up over bins, move rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.local_data import LocalData
from fedtrees.trees.binning import Bins, Cuts, bin_rows
from fedtrees.trees.boosted.histogram import build_histogram
from fedtrees.trees.partition import Decisions, RowPartition
from fedtrees.trees.sketch import quantile_cuts


class GlobalBins:
    """The columns of one party in bins that hold for all nodes.

    `columns`: int32 array, shape (c,). Positions in the schema, ascending.
    `cuts`: None where there are no columns.
    `n_bins`: int32 array, shape (c,).
    """

    def __init__(self, held: LocalData, max_bin: int) -> None:
        self.columns = held.columns.astype(np.int32)
        self.cuts: Cuts | None = None
        self.n_bins = np.zeros(0, dtype=np.int32)
        if len(self.columns):
            self.cuts = quantile_cuts(held.X, max_bin)
            self.n_bins = self.cuts.n_bins
            self._all = bin_rows(held.X, self.cuts)
        self.chosen = np.arange(len(self.columns))
        self._bins: Bins | None = None

    def of_rows(self) -> dict[int, NDArray[np.int64]]:
        """Return the bin of every row, int64, by position of the column; -1: no value."""
        if not len(self.columns):
            return {}
        codes = self._all.codes.astype(np.int64)
        codes[codes == self._all.missing] = -1
        return dict(zip(self.columns.tolist(), codes.T, strict=True))

    def choose(self, chosen: NDArray[np.intp]) -> None:
        """Let the next tree use some of the columns, by place, ascending."""
        self.chosen, self._bins = chosen, None

    @property
    def bins(self) -> Bins:
        """The rows, in bins of the chosen columns."""
        if self._bins is None:
            if len(self.chosen) == len(self.columns):
                self._bins = self._all
            else:
                codes = np.ascontiguousarray(self._all.codes[:, self.chosen])
                offsets = np.concatenate([[0], np.cumsum(self.n_bins[self.chosen])])
                self._bins = Bins(codes, self._all.missing, offsets.astype(np.int32))
        return self._bins

    def look(self, rows: RowPartition, nodes: NDArray[np.int32]) -> None:
        """Prepare for sums over some nodes."""

    def sums(
        self, statistics: NDArray[np.int64], rows: RowPartition, nodes: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Return the sums of some nodes over the bins of the chosen columns.

        `statistics`: int64 array, shape (n, s)
        `nodes`: int32 array, shape (k,)

        Returns: int64 array, shape (k, bins of the chosen columns, s).
        """
        if not len(self.chosen):
            return np.zeros((len(nodes), 0, statistics.shape[1]), dtype=np.int64)
        ranges, parts = rows.ranges(nodes), []
        for first in range(0, statistics.shape[1], 2):  # two at a time, as gradients come
            pair = statistics[:, first : first + 2]
            if pair.shape[1] == 1:
                pair = np.repeat(pair, 2, axis=1)
            found = build_histogram(self.bins, pair, rows.rows, ranges)
            parts.append(found[..., : statistics.shape[1] - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)

    def codes(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the bins of some rows, int64, shape (m, chosen columns); -1: no value."""
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
        """Return where the rows of nodes go, bool, in the order of nodes and rows.

        ``columns`` are positions in the schema, of chosen columns.
        """
        place = np.searchsorted(self.columns[self.chosen], columns).astype(np.int32)
        nothing: Any = np.zeros(len(nodes))
        return rows.goes_left(
            self.bins, Decisions(nodes, place, bin, nothing, default_left, nothing)
        )

    def thresholds(
        self, nodes: NDArray[np.int32], columns: NDArray[np.int32], bin: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Return the thresholds of splits at nodes: a row goes left iff ``x < threshold``."""
        assert self.cuts is not None
        return self.cuts.thresholds(np.searchsorted(self.columns, columns), bin)
