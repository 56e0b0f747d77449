"""Which rows and which columns a tree is grown on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.params import TreeParams


def dropped_rows(n: int, share: float, streams: Streams, round: int) -> NDArray[np.bool_] | None:
    """Return which of an owner's rows a round leaves out, bool, shape (n,); None: none of them.

    Each row is drawn by itself. A row whose gradients are set to 0 is not seen by any sum, yet
    stays in the partition and gets its leaf's value in the end: so XGBoost does it.

    `share`: Probability that a row is kept.
    `streams`: The row owner's.
    """
    if share >= 1:
        return None
    dropped: NDArray[np.bool_] = streams.rng("subsample", round).random(n) >= share
    return dropped


def drop_rows(gh: NDArray[Any], share: float, streams: Streams, round: int) -> None:
    """Zero the gradients, shape (K, n, 2), of the rows a round leaves out, in place."""
    dropped = dropped_rows(gh.shape[1], share, streams, round)
    if dropped is not None:
        gh[:, dropped] = 0


class ColumnSampler:
    """The features one tree may split on: some of all, some of these per level, of these per node.

    As in XGBoost, a share of m features is ``max(1, floor(share * m))`` of them.

    `streams`: Of whoever decides on splits.
    """

    def __init__(self, cuts: Cuts, params: TreeParams, streams: Streams, tree: int) -> None:
        self._rng = streams.rng("columns", tree)
        self._n_bins, self._params = cuts.n_bins, params
        every = np.arange(cuts.n_features)
        self._of_tree = self._draw(every, params.colsample_bytree)
        self._of_level: dict[int, NDArray[np.intp]] = {}

    def _draw(self, features: NDArray[np.intp], share: float) -> NDArray[np.intp]:
        if share >= 1:
            return features
        count = max(1, int(share * len(features)))
        return np.sort(self._rng.choice(features, count, replace=False))

    def mask(
        self, depths: NDArray[np.int32], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits nodes at these depths may choose, bool, shape (k, total_bins).

        None where everything is allowed. `allowed`, of the same shape, is a further restriction.
        """
        p = self._params
        if not p.samples_columns:
            return allowed
        chosen = np.zeros((len(depths), len(self._n_bins)), dtype=bool)
        for k, depth in enumerate(depths.tolist()):
            if depth not in self._of_level:
                self._of_level[depth] = self._draw(self._of_tree, p.colsample_bylevel)
            chosen[k, self._draw(self._of_level[depth], p.colsample_bynode)] = True
        mask = np.repeat(chosen, self._n_bins, axis=1)
        return mask if allowed is None else mask & allowed
