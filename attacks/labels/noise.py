"""Estimate true labels from noisy ones, with the local columns and the channel of the noise."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Channel, Memory, chained
from fedtrees.core.streams import Streams
from fedtrees.core.view import View
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.sketch import quantile_cuts

#: Largest mean loss per visible split, in nats (`Mixture.lost`), at which the found labels are
#: considered those that the trees were grown on. The value lies between the losses measured on
#: breast cancer and on obesity.
MOST_LOST = 1.5
#: Smallest prior probability of a class.
LEAST_SHARE = 1e-3
FOLDS = 5
FOREST = ForestParams(trees=50, max_depth=8, min_samples_leaf=10, max_bin=32)


def response_of(view: View) -> Channel | None:
    """Return the channel of the labels, None if labels are not changed.

    For a response that differs by row (`Memory`), the usual channel is used.
    """
    channels = [c.usual if isinstance(c, Memory) else c for c in view.changes("labels", "y")]
    return chained(c for c in channels if c is not None)


def denoised(
    said: NDArray[np.int64],
    X: NDArray[np.float32],
    classes: int,
    law: Channel,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the most probable true label of every row, int64, shape (N,).

    A random forest on the local columns, trained on the noisy labels of other folds, predicts the
    noisy label. Inverting the channel turns the prediction into a prior of the true label. The
    noisy label of the row contributes its likelihood under the channel.

    Randomised response among the top classes has a different matrix for every row, which is unknown
    here. It is approximated by randomised response over all classes.

    Parameters
    ----------
    said : int64 array, shape (N,)
        Noisy labels.
    X : float32 array, shape (N, F)
        Local columns.
    classes : int
        Number of classes.
    law : Channel
        Distribution of a noisy label given the true one.
    rng : numpy.random.Generator
        Draws the folds and the forests.
    """
    each = np.arange(classes)
    log_channel = law.log_likelihood(
        each[None, :, None], each[:, None, None]
    )  # by label and answer
    back = np.linalg.pinv(np.exp(log_channel))
    if len(said) < FOLDS or np.ptp(log_channel, axis=0).max() == 0:
        return said
    cuts, fold = quantile_cuts(X, FOREST.max_bin), rng.permutation(len(said)) % FOLDS
    shares = np.empty((len(said), classes))
    for f in range(FOLDS):
        training = fold != f
        randomness = Streams(int(rng.integers(2**31)))
        forest = grow_random_forest(
            X[training], said[training], cuts, FOREST, n_classes=classes, seed=randomness
        )
        shares[~training] = forest.probabilities(X[~training])
    # The inverse of the channel can produce negative values from estimated shares.
    true = np.maximum(shares @ back, 0)
    true /= true.sum(axis=1, keepdims=True)
    log_posterior = np.log(np.maximum(true, LEAST_SHARE)) + log_channel.T[said]
    return np.asarray(log_posterior.argmax(axis=1))
