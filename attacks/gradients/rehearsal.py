"""Would likely rows be a better guess than found ones? Try both on rows of one's own."""

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

#: Of the search that is rehearsed, and samples behind a guess of likely rows.
_RESTARTS, _STEPS, _SAMPLES = 3, 150, 20


def likely_rows(
    view: View, encoding: Encoding, rows: int, rng: np.random.Generator, samples: int = _SAMPLES
) -> Table:
    """Return rows of the distribution: what most samples agree on, row by row.

    Samples are drawn with replacement from own rows, or from rows of the population
    (`View.prior_rows`). Without either their columns are independent: categories by their shares,
    which are the means of the inputs, and normal numbers. One sample is that sample.
    """
    known = view.prior_rows
    if known is not None and len(known) >= 2:
        drawn = [known.take(rng.integers(0, len(known), rows)) for _ in range(samples)]
        width = Tolerance.of(known, view.schema).width
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
    """Return the accuracy of found and of likely rows, on a batch of likely ones with such noise.

    A shorter search than the real one; of an update of local steps, one that is simulated. Of a
    gradient of which so many coordinates were `kept`, the largest ones, without noise; 0: all.
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
    found = invert(
        layers, weights, gradient.astype(np.float32), encoding, bounds, rows, rng,
        labels=batch.y, restarts=_RESTARTS, steps=_STEPS, shown=shown,
    )  # fmt: skip
    return accuracy(found.table.X, batch.X, encoding), accuracy(other.X, batch.X, encoding)


def accuracy(guess: NDArray[np.float32], truth: NDArray[np.float32], encoding: Encoding) -> float:
    """Return the share of cells that agree under the best matching (Vero et al. 2023, Eq. 7)."""
    width = accepted(encoding)
    with np.errstate(invalid="ignore"):
        near = np.abs(truth[:, None] - guess[None]) <= width
    same = (near | (np.isnan(truth)[:, None] & np.isnan(guess)[None])).sum(axis=2)
    a, b = linear_sum_assignment(-same)
    return float(same[a, b].mean() / len(width))
