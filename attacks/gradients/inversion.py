"""Reconstruct the rows of one batch: algebra first, then a search or draws of likely rows.

An inversion is rehearsed on simulated batches, to decide whether likely rows are a better guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fedtrees.attacks.gradients.exact import exact_rows, restored_counts
from fedtrees.attacks.gradients.gradient_matching import LocalSteps, Matching, batch_gradient
from fedtrees.attacks.gradients.hidden import left_over, rows_by_units
from fedtrees.attacks.gradients.posterior import explain_gradient
from fedtrees.attacks.gradients.search import (
    accepted_errors,
    average_pull,
    null_space,
    pool_restarts,
    search,
)
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.tolerance import Tolerance
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, logits, softmax

#: Noise per coordinate, relative to the gradient's root mean square, above which no direction is
#: free of noise and the span term would pull rows to noise. Less noise is rounding.
_CLEAN = 1e-3
#: Restarts and steps of a search that counts labels, and largest number of such searches.
_SHORT, _RECOUNTS = (3, 150), 3
#: With more rows, or with noise, draws of likely rows are more accurate than a search.
_MANY = 48


@dataclass(frozen=True, eq=False)
class Inversion:
    """Result of an inversion.

    Attributes
    ----------
    table : Table
        B reconstructed rows.
    confidence : float64 array, shape (B, d)
        Confidence of each cell, 0 to 1.
    loss : float
        1 - cos of the best restart, or of the consensus of likely rows.
    """

    table: Table
    confidence: NDArray[np.float64]  # shape (B, d)
    loss: float


def noise_of(target: Any, rows: int, encoding: Encoding) -> float:
    """Return the standard deviation of the noise per coordinate, estimated from a layer.

    A layer's gradient is a sum of outer products over the rows, so that everything beyond this rank
    is noise. If no layer has more dimensions than rows, categories reveal it: the column of a
    category that no row has is that of the bias times -mean / std, and if each row has a value of a
    feature, the sum of all its columns is that of the bias.
    """
    for layer in target:
        if (noise := left_over(layer, rows)) is not None:
            return noise
    both = np.column_stack(target[0]).astype(np.float64)
    n = both.shape[1]
    if not encoding.groups:
        return 0.0
    mean, std = encoding.mean.astype(np.float64), encoding.std.astype(np.float64)
    column_sets = [*np.flatnonzero(encoding.category >= 0)[:, None], *encoding.groups]
    tests = np.zeros((len(column_sets), n))
    for test, columns in zip(tests, column_sets, strict=True):
        test[columns], test[-1] = std[columns], mean[columns].sum()
    tests[-len(encoding.groups) :, -1] -= 1
    off = tests @ both.T / np.linalg.norm(tests, axis=1, keepdims=True)
    return float(np.sqrt((off**2).mean(axis=1)).min())


def drowning(layers: Layers, gradient: NDArray[np.float32], rows: int, encoding: Encoding) -> float:
    """Return the noise of a gradient by `noise_of`, or 0 if it is only rounding.

    Parameters
    ----------
    layers : Layers
        Sizes of the network.
    gradient : float32 array, shape (parameters,)
        Mean gradient.
    rows : int
        Number of rows.
    encoding : Encoding
        Conversion of rows to inputs.
    """
    noise = noise_of(layers.split(gradient), rows, encoding)
    size = float(np.linalg.norm(gradient)) / np.sqrt(len(gradient))
    return noise if noise >= _CLEAN * max(size, 1e-30) else 0.0


def invert(
    layers: Layers,
    weights: NDArray[np.float32],
    gradient: NDArray[np.float32],
    encoding: Encoding,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    rows: int,
    rng: np.random.Generator,
    *,
    labels: NDArray[np.int64] | None = None,
    likely: Table | None = None,
    restarts: int = 0,
    steps: int = 0,
    span: bool = True,
    exact: bool = True,
    shown: NDArray[np.bool_] | None = None,
) -> Inversion:
    """Return the rows whose gradient is closest to the observed one.

    Parameters
    ----------
    layers : Layers
        Sizes of the network.
    weights, gradient : float32 array, shape (parameters,)
        The network and the mean gradient of the batch.
    encoding : Encoding
        Conversion of rows to inputs.
    bounds : pair of float32 array, shape (continuous features,)
        Smallest and largest standardised value of every number.
    rows : int
        Number of rows of the batch.
    rng : numpy.random.Generator
        Randomness of the search.
    labels : int64 array, shape (rows,), optional
        Labels in any order, if they are known.
    likely : Table, optional
        Rows with the distribution of the batch, if the adversary has some.
    restarts, steps : int, default 0
        Effort of the search. 0 means that the number of rows determines it.
    span : bool, default True
        Whether to pull rows to the span of the first layer's gradient, if there are fewer rows than
        dimensions. Otherwise they are pulled to the average row.
    exact : bool, default True
        Whether to find rows by `exact_rows` first, and search only for the remaining ones.
    shown : bool array, shape (parameters,), optional
        Coordinates that were sent. None means all. With some coordinates only, no span is used.
    """
    if not exact or not span or shown is not None:
        span = span and shown is None
        return _search_batch(
            layers, weights, gradient, encoding, bounds, rows, rng, labels, restarts, steps, span,
            shown,
        )  # fmt: skip
    sure, rest, left = _exact(layers, weights, gradient, encoding, rows, rng)
    if not left:
        return Inversion(sure, np.ones(sure.X.shape), 0.0)
    # labels of certain rows are removed from the known counts
    if len(sure) and labels is not None:
        counts = np.bincount(labels) - np.bincount(sure.y, minlength=labels.max() + 1)
        labels = np.repeat(np.arange(len(counts)), counts.clip(0)) if (counts >= 0).all() else None
    noise = drowning(layers, rest, left, encoding)
    if likely is not None and (noise or left > _MANY):
        table, sure_of = explain_gradient(layers, weights, rest, encoding, left, noise, likely, rng)
        gradient_of_rows = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
        size = float(np.linalg.norm(gradient_of_rows) * np.linalg.norm(rest))
        inversion = Inversion(table, sure_of, 1 - float(gradient_of_rows @ rest) / max(size, 1e-30))
    else:
        inversion = _search_batch(
            layers, weights, rest, encoding, bounds, left, rng, labels, restarts, steps, span
        )
    if not len(sure):
        return inversion
    confidence = np.concatenate([np.ones(sure.X.shape), inversion.confidence])
    return Inversion(Table.concat([sure, inversion.table]), confidence, inversion.loss)


def _exact(
    layers: Layers,
    weights: NDArray[np.float32],
    gradient: NDArray[np.float32],
    encoding: Encoding,
    rows: int,
    rng: np.random.Generator,
) -> tuple[Table, NDArray[np.float32], int]:
    """Return the certain rows, the mean gradient of the remaining rows, and their number.

    Rows that are found reduce the number of the remaining ones, so that the search is repeated
    until none is found.
    """
    sure: list[Table] = []
    rest, left = gradient, rows
    no_rows = Table(np.zeros((0, len(encoding.coded)), np.float32), np.zeros(0, np.int64))
    while left and not drowning(layers, rest, left, encoding):
        noise = noise_of(layers.split(rest), left, encoding)
        table = exact_rows(layers, weights, rest, encoding, left, noise, rng)
        if not len(table):
            table = rows_by_units(layers, weights, rest, encoding, left, rng)
        if not len(table):
            break
        if len(table) > left:
            return no_rows, gradient, rows
        gradient_of_rows = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
        sure, left = [*sure, table], left - len(table)
        rest = (rest * (left + len(table)) - gradient_of_rows * len(table)) / np.float32(
            max(left, 1)
        )
    return Table.concat([no_rows, *sure]), rest, left


def _search_batch(
    layers: Layers,
    weights: NDArray[np.float32],
    gradient: NDArray[np.float32],
    encoding: Encoding,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    rows: int,
    rng: np.random.Generator,
    labels: NDArray[np.int64] | None,
    restarts: int,
    steps: int,
    span: bool,
    shown: NDArray[np.bool_] | None = None,
) -> Inversion:
    restarts, steps = restarts or effort(rows)[0], steps or effort(rows)[1]
    network, target = layers.split(weights), layers.split(gradient)
    clean = not drowning(layers, gradient, rows, encoding)
    # the span is only informative with fewer rows than dimensions, and without noise
    few = span and clean and rows < min(target[0][0].shape)
    pull = null_space(*target[0]) if few else average_pull(encoding)
    mask = None if shown is None else layers.split(shown.astype(np.float32))
    matching = Matching(network, target, mask)
    how: dict[str, Any] = {"bounds": bounds, "pull": pull, "rng": rng}
    if labels is None:
        labels = _restore_labels(matching, encoding, rows, how)
    restarts_found = search(matching, encoding, labels, restarts=restarts, steps=steps, **how)
    table, confidence = pool_restarts(restarts_found, encoding, labels)
    return Inversion(table, confidence, float(restarts_found.loss.min()))


def _restore_labels(
    matching: Matching, encoding: Encoding, rows: int, how: dict[str, Any]
) -> NDArray[np.int64]:
    """Return labels from counts, which short searches with these labels correct."""
    X = how["rng"].uniform(-1, 1, (256, len(encoding))).astype(np.float32)
    probability = softmax(logits(matching.layers, X)).mean(axis=0)
    labels = np.zeros(0, dtype=np.int64)
    for _ in range(_RECOUNTS):
        counts = restored_counts(matching.target[-1][1], probability, rows)
        again = np.repeat(np.arange(len(counts)), counts)
        if np.array_equal(again, labels):
            break
        labels = again
        short_search = search(
            matching, encoding, labels, restarts=_SHORT[0], steps=_SHORT[1], **how
        )
        probability = short_search.probability.mean(axis=(0, 1))
    return labels


def effort(rows: int) -> tuple[int, int]:
    """Return restarts and steps, most of them for batches that are neither easy nor hopeless."""
    for limit, spent in ((16, (10, 500)), (64, (20, 600)), (160, (14, 500))):
        if rows <= limit:
            return spent
    return 5, 250


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
        width = accepted_errors(encoding)
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


def rehearse(
    layers: Layers,
    weights: NDArray[np.float32],
    noise: float,
    view: View,
    encoding: Encoding,
    bounds: tuple[NDArray[np.float32], NDArray[np.float32]],
    rows: int,
    local: LocalSteps | None,
    rng: np.random.Generator,
    n_kept: int = 0,
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
    n_kept : int, default 0
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
    if n_kept:
        shown = np.abs(gradient) >= np.sort(np.abs(gradient))[-n_kept]
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
    width = accepted_errors(encoding)
    with np.errstate(invalid="ignore"):
        near = np.abs(truth[:, None] - guess[None]) <= width
    same = (near | (np.isnan(truth)[:, None] & np.isnan(guess)[None])).sum(axis=2)
    a, b = linear_sum_assignment(-same)
    return float(same[a, b].mean() / len(width))
