"""Samples of rows and columns on which a tree is grown."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts
from fedtrees.trees.boosted.params import TreeParams


def dropped_rows(n: int, share: float, streams: Streams, round: int) -> NDArray[np.bool_] | None:
    """Return which of a party's rows a round leaves out, bool, shape (n,), None if it uses all.

    Rows are drawn independently. As in XGBoost, a row that is left out has gradients of 0. It
    therefore changes no sum, but stays in the partition and receives the value of its leaf.

    Parameters
    ----------
    n : int
        Number of rows.
    share : float
        Probability that a row is used.
    streams : Streams
        Streams of the party with the rows.
    round : int
        Number of the round.
    """
    if share >= 1:
        return None
    dropped: NDArray[np.bool_] = streams.rng("subsample", round).random(n) >= share
    return dropped


def drop_rows(gh: NDArray[Any], share: float, streams: Streams, round: int) -> None:
    """Set the gradients of the rows that a round leaves out to 0, in place.

    Parameters
    ----------
    gh : array, shape (K, n, 2)
        Gradients and hessians.
    share : float
        Probability that a row is used.
    streams : Streams
        Streams of the party with the rows.
    round : int
        Number of the round.
    """
    dropped = dropped_rows(gh.shape[1], share, streams, round)
    if dropped is not None:
        gh[:, dropped] = 0


class ColumnSampler:
    """Draws the features that one tree may use.

    It draws a sample for the tree, of these a sample for each level, and of these a sample for each
    node. As in XGBoost, a share of m features is ``max(1, floor(share * m))`` features.

    Parameters
    ----------
    cuts : Cuts
        Borders of the bins.
    params : TreeParams
        Hyperparameters.
    streams : Streams
        Streams of the party that decides on splits.
    tree : int
        Number of the tree.
    """

    def __init__(self, cuts: Cuts, params: TreeParams, streams: Streams, tree: int) -> None:
        self._rng = streams.rng("columns", tree)
        self._n_bins, self._params = cuts.n_bins, params
        every = np.arange(cuts.n_features)
        self._of_tree = self._draw(every, params.colsample_bytree)
        self._of_level: dict[int, NDArray[np.intp]] = {}

    def _draw(self, features: NDArray[np.intp], share: float) -> NDArray[np.intp]:
        """Draw a share of features without replacement, in ascending order."""
        if share >= 1:
            return features
        count = max(1, int(share * len(features)))
        return np.sort(self._rng.choice(features, count, replace=False))

    def mask(
        self, depths: NDArray[np.int32], allowed: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which splits nodes at these depths may use, bool, shape (k, total_bins).

        None if all splits are allowed. `allowed`, of the same shape, is a further restriction.
        """
        params = self._params
        if not params.samples_columns:
            return allowed
        chosen = np.zeros((len(depths), len(self._n_bins)), dtype=bool)
        for k, depth in enumerate(depths.tolist()):
            # All nodes of a level share one sample, which is drawn at the first of them.
            if depth not in self._of_level:
                self._of_level[depth] = self._draw(self._of_tree, params.colsample_bylevel)
            chosen[k, self._draw(self._of_level[depth], params.colsample_bynode)] = True
        mask = np.repeat(chosen, self._n_bins, axis=1)
        return mask if allowed is None else mask & allowed
