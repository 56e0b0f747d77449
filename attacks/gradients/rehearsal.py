"""Rehearse an inversion on simulated batches to decide whether likely rows are a better guess."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.inversion import invert
from fedtrees.attacks.gradients.local_steps import LocalSteps, batch_gradient
from fedtrees.attacks.gradients.pooling import accepted
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers

#: Restarts and steps of the rehearsed search, and number of samples for likely rows.
_RESTARTS, _STEPS, _SAMPLES = 3, 150, 20


def likely_rows(
    view: View, encoding: Encoding, rows: int, rng: np.random.Generator, samples: int = _SAMPLES
) -> Table:
    """Return rows of the prior distribution: the consensus of several samples.

    Samples are drawn with replacement from local rows, or from rows of the population
    (`View.prior_rows`). Without either, columns are independent: categories have the frequencies
    that the mean inputs reveal, and numbers are normally distributed.

    Parameters
    ----------
    view : View
        The adversary's view.
    encoding : Encoding
        Conversion of rows to inputs.
    rows : int
        Number of rows to return.
    rng : numpy.random.Generator
        Randomness of the samples.
    samples : int
        Number of samples. With one, this sample is returned.
    """
    prior_rows = view.prior_rows
    if prior_rows is not None and len(prior_rows) >= 2:
        drawn = [prior_rows.take(rng.integers(0, len(prior_rows), rows)) for _ in range(samples)]
        width = Tolerance.of(prior_rows, view.schema).width
    else:
        drawn = [_by_shares(view, encoding, rows, rng) for _ in range(samples)]
        width = accepted(encoding)
    return matched_consensus(drawn, width)


def _by_shares(view: View, encoding: Encoding, rows: int, rng: np.random.Generator) -> Table:
    codes = np.empty((rows, len(encoding.groups)), dtype=np.int64)
    for k, g in enumerate(encoding.groups):
        share = np.clip(encoding.mean[g].astype(np.float64), 1e-9, None)
        codes[:, k] = rng.choice(len(g), rows, p=share / share.sum())
    numbers = rng.standard_normal((rows, len(encoding.continuous)))
    numbers = np.clip(numbers, *encoding.bounds(view.schema))
    y = rng.integers(0, max(len(view.schema.classes), 2), rows)
    return Table(encoding.decode(codes, numbers), y)


def rehearsed(
    layers: Layers,
    weights: NDArray[np.float32],
    noise: float,
    view: View,
    encoding: Encoding,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    rows: int,
    local: LocalSteps | None,
    rng: np.random.Generator,
    kept: int = 0,
) -> tuple[float, float]:
    """Return the accuracy of found rows and of likely rows, on a simulated batch.

    The batch is drawn from likely rows, and the search is shorter than the real one.

    Parameters
    ----------
    layers : Layers
        Sizes of the network.
    weights : float32 array, shape (parameters,)
        The network.
    noise : float
        Standard deviation of the noise that is added to the gradient.
    view : View
        The adversary's view.
    encoding : Encoding
        Conversion of rows to inputs.
    bounds : pair of float32 array
        Smallest and largest standardised value of every number.
    rows : int
        Number of rows of the batch.
    local : LocalSteps or None
        If given, an update of local steps is simulated.
    rng : numpy.random.Generator
        Randomness.
    kept : int, default 0
        If positive, only so many of the largest coordinates are used, without noise.
    """
    batch = likely_rows(view, encoding, rows, rng, samples=1)
    other = likely_rows(view, encoding, rows, rng)
    X = encoding.encode(batch.X)
    if local is None:
        gradient = batch_gradient(layers, weights, X, batch.y)
    else:
        moved = local.update(layers, weights, X, batch.y, local.orders(rows, rng))
        weights, gradient = local.as_gradient(weights, moved, rows)
    shown = None
    if kept:
        shown = np.abs(gradient) >= np.sort(np.abs(gradient))[-kept]
        gradient = np.where(shown, gradient, np.float32(0))
    else:
        gradient = gradient + noise * rng.standard_normal(len(gradient))
    inversion = invert(
        layers, weights, gradient.astype(np.float32), encoding, bounds, rows, rng,
        labels=batch.y, restarts=_RESTARTS, steps=_STEPS, shown=shown,
    )  # fmt: skip
    return accuracy(inversion.table.X, batch.X, encoding), accuracy(other.X, batch.X, encoding)


def accuracy(guess: NDArray[np.float32], truth: NDArray[np.float32], encoding: Encoding) -> float:
    """Return the share of cells that agree under the best matching (Vero et al. 2023, Eq. 7).

    Parameters
    ----------
    guess, truth : float32 array, shape (n, d)
        Rows.
    encoding : Encoding
        Determines the accepted errors.
    """
    width = accepted(encoding)
    with np.errstate(invalid="ignore"):
        near = np.abs(truth[:, None] - guess[None]) <= width
    same = (near | (np.isnan(truth)[:, None] & np.isnan(guess)[None])).sum(axis=2)
    a, b = linear_sum_assignment(-same)
    return float(same[a, b].mean() / len(width))
