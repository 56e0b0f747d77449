"""Reconstruct the rows of one batch: algebra first, then a search or draws of likely rows.

An inversion is rehearsed on simulated batches, to decide whether likely rows are a better guess.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.exact import exact_rows, restored_counts
from fedtrees.attacks.gradients.observed import (
    BatchGradient,
    LocalSteps,
    accepted_errors,
    batch_gradient,
    no_rows,
)
from fedtrees.attacks.gradients.posterior import explain_gradient
from fedtrees.attacks.gradients.search import (
    Matching,
    average_pull,
    null_space,
    pool_restarts,
    search,
)
from fedtrees.attacks.gradients.second_layer_solve import rows_by_units
from fedtrees.blind_baselines.consensus import matched_consensus
from fedtrees.blind_baselines.matching import match_cells
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import logits, softmax

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
    confidence: NDArray[np.float64]
    loss: float


def invert(
    batch: BatchGradient,
    rng: np.random.Generator,
    *,
    labels: NDArray[np.int64] | None = None,
    likely: Table | None = None,
    restarts: int = 0,
    steps: int = 0,
    span: bool = True,
    exact: bool = True,
) -> Inversion:
    """Return the rows whose gradient is closest to the observed one.

    Parameters
    ----------
    batch : BatchGradient
        The observed gradient. If only some coordinates were sent, no span is used.
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
    """
    if not exact or not span or batch.shown is not None:
        span = span and batch.shown is None
        return _search_batch(batch, rng, labels, restarts, steps, span)
    sure, rest = _exact(batch, rng)
    if not rest.rows:
        return Inversion(sure, np.ones(sure.X.shape), 0.0)
    # labels of certain rows are removed from the known counts
    if len(sure) and labels is not None:
        counts = np.bincount(labels) - np.bincount(sure.y, minlength=labels.max() + 1)
        labels = np.repeat(np.arange(len(counts)), counts.clip(0)) if (counts >= 0).all() else None
    if likely is not None and (rest.added_noise or rest.rows > _MANY):
        table, sure_of = explain_gradient(rest, likely, rng)
        gradient = rest.of(table)
        size = float(np.linalg.norm(gradient) * np.linalg.norm(rest.gradient))
        loss = 1 - float(gradient @ rest.gradient) / max(size, 1e-30)
        inversion = Inversion(table, sure_of, loss)
    else:
        inversion = _search_batch(rest, rng, labels, restarts, steps, span)
    if not len(sure):
        return inversion
    confidence = np.concatenate([np.ones(sure.X.shape), inversion.confidence])
    return Inversion(Table.concat([sure, inversion.table]), confidence, inversion.loss)


def _exact(batch: BatchGradient, rng: np.random.Generator) -> tuple[Table, BatchGradient]:
    """Return the certain rows, and the gradient of the remaining rows.

    Rows that are found reduce the number of the remaining ones, so that the search is repeated
    until none is found.
    """
    sure, rest = [no_rows(batch.encoding)], batch
    while rest.rows and not rest.added_noise:
        table = exact_rows(rest, rng)
        if not len(table):
            table = rows_by_units(rest, rng)
        if not len(table):
            break
        if len(table) > rest.rows:
            return sure[0], batch
        sure, rest = [*sure, table], rest.without(table)
    return Table.concat(sure), rest


def _search_batch(
    batch: BatchGradient,
    rng: np.random.Generator,
    labels: NDArray[np.int64] | None,
    restarts: int,
    steps: int,
    span: bool,
) -> Inversion:
    restarts, steps = restarts or effort(batch.rows)[0], steps or effort(batch.rows)[1]
    first = batch.target[0]
    # the span is only informative with fewer rows than dimensions, and without noise
    few = span and not batch.added_noise and batch.rows < min(first[0].shape)
    pull = null_space(*first) if few else average_pull(batch.encoding)
    mask = None if batch.shown is None else batch.layers.split(batch.shown.astype(np.float32))
    matching = Matching(batch.network, batch.target, mask)
    if labels is None:
        labels = _restore_labels(batch, matching, pull, rng)
    reconstruction = search(batch, matching, pull, labels, (restarts, steps), rng)
    table, confidence = pool_restarts(reconstruction, batch.encoding, labels)
    return Inversion(table, confidence, float(reconstruction.loss.min()))


def _restore_labels(
    batch: BatchGradient, matching: Matching, pull: NDArray[np.float32], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return labels from counts, which short searches with these labels correct."""
    probability = mean_prediction(batch, rng)
    labels = np.zeros(0, dtype=np.int64)
    for _ in range(_RECOUNTS):
        counts = restored_counts(batch.target[-1][1], probability, batch.rows)
        again = np.repeat(np.arange(len(counts)), counts)
        if np.array_equal(again, labels):
            break
        labels = again
        result = search(batch, matching, pull, labels, _SHORT, rng)
        probability = result.probability.mean(axis=(0, 1))
    return labels


def mean_prediction(batch: BatchGradient, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return the mean probability of each class for random inputs, shape (K,)."""
    X = rng.uniform(-1, 1, (256, len(batch.encoding))).astype(np.float32)
    return np.asarray(softmax(logits(batch.network, X)).mean(axis=0))


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
    batch: BatchGradient,
    noise: float,
    view: View,
    local: LocalSteps | None,
    rng: np.random.Generator,
    n_kept: int = 0,
) -> tuple[float, float]:
    """Return the accuracy of found rows and of likely rows, on a simulated batch.

    The batch is drawn from likely rows, and the search is shorter than the real one.

    Parameters
    ----------
    batch : BatchGradient
        Gradient at the start of the round. A batch of as many rows is simulated.
    noise : float
        Standard deviation of the noise that is added to the gradient.
    view : View
        The adversary's view.
    local : LocalSteps or None
        If given, an update of local steps is simulated.
    rng : numpy.random.Generator
        Randomness.
    n_kept : int, default 0
        If positive, only so many of the largest coordinates are used, without noise.
    """
    layers, weights, encoding, rows = batch.layers, batch.weights, batch.encoding, batch.rows
    truth = likely_rows(view, encoding, rows, rng, samples=1)
    other = likely_rows(view, encoding, rows, rng)
    X = encoding.encode(truth.X)
    if local is None:
        gradient = batch_gradient(layers, weights, X, truth.y)
    else:
        moved = local.update(layers, weights, X, truth.y, local.orders(rows, rng))
        weights, gradient = local.as_gradient(weights, moved, rows)
    shown = None
    if n_kept:
        shown = np.abs(gradient) >= np.sort(np.abs(gradient))[-n_kept]
        gradient = np.where(shown, gradient, np.float32(0))
    else:
        gradient = gradient + noise * rng.standard_normal(len(gradient))
    trial = replace(batch, weights=weights, gradient=gradient.astype(np.float32), shown=shown)
    inversion = invert(trial, rng, labels=truth.y, restarts=_RESTARTS, steps=_STEPS)
    return accuracy(inversion.table.X, truth.X, encoding), accuracy(other.X, truth.X, encoding)


def accuracy(guess: NDArray[np.float32], truth: NDArray[np.float32], encoding: Encoding) -> float:
    """Return the share of cells that agree under the best matching (Vero et al. 2023, Eq. 7).

    `guess` and `truth` are rows, float32, shape (n, d). The encoding determines accepted errors.
    """
    cells, _ = match_cells(guess, truth, accepted_errors(encoding))
    return float(cells.sum(axis=1).mean() / cells.shape[1])
