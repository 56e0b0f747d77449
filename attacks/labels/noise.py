"""True labels from noisy ones: what own columns say of rows, and the odds of the noise."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel, Memory, chained
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.sketch import quantile_cuts

#: Nats that labels lose to the best ones at a split that was seen; those that lose more are not the
#: ones that trees were grown on. Between what was measured on breast cancer and on obesity.
MOST_LOST = 1.5
#: What a class keeps of a row of which own columns say that it is another's.
LEAST_SHARE = 1e-3
FOLDS = 5
FOREST = ForestParams(trees=50, max_depth=8, min_samples_leaf=10, max_bin=32)


def response_of(view: View) -> Channel | None:
    """Return the channel of the labels; of a response that differs by row the usual one."""
    found = [c.usual if isinstance(c, Memory) else c for c in view.changes("labels", "y")]
    return chained(c for c in found if c is not None)


def denoised(
    said: NDArray[np.int64],
    X: NDArray[np.float32],
    classes: int,
    law: Channel,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the likeliest true label of every row, int64, shape (N,).

    A forest over own columns, grown on the noisy labels of other rows, says how likely each noisy
    label is; less the noise, that is the prior. The row's own noisy label speaks by its
    channel. Where randomised response is among the likeliest few, its matrix is another for
    every row, and not known here: it is taken as that over all classes.

    `said`: int64 array, shape (N,). Noisy labels.
    `X`: float32 array, shape (N, F). Own columns.
    `law`: Of a label.
    """
    each = np.arange(classes)
    told = law.log_likelihood(each[None, :, None], each[:, None, None])  # by label and answer
    back = np.linalg.pinv(np.exp(told))
    if len(said) < FOLDS or np.ptp(told, axis=0).max() == 0:
        return said
    cuts, fold = quantile_cuts(X, FOREST.max_bin), rng.permutation(len(said)) % FOLDS
    shares = np.empty((len(said), classes))
    for f in range(FOLDS):
        others = fold != f
        randomness = Streams(int(rng.integers(2**31)))
        forest = grow_random_forest(
            X[others], said[others], cuts, FOREST, n_classes=classes, seed=randomness
        )
        shares[~others] = forest.probabilities(X[~others])
    true = np.maximum(shares @ back, 0)
    true /= true.sum(axis=1, keepdims=True)
    found = np.log(np.maximum(true, LEAST_SHARE)) + told.T[said]
    return np.asarray(found.argmax(axis=1))
