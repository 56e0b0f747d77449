"""The rows of one batch off its gradient: algebra, then a search or draws of likely rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.gradients.exact import exact_rows
from fedtrees.attacks.gradients.hidden import left_over, rows_by_units
from fedtrees.attacks.gradients.labels import restored_counts
from fedtrees.attacks.gradients.local_steps import batch_gradient
from fedtrees.attacks.gradients.matching import Matching
from fedtrees.attacks.gradients.pooling import pooled
from fedtrees.attacks.gradients.posterior import explained
from fedtrees.attacks.gradients.search import average_pull, null_space, search
from fedtrees.core.schema import Table
from fedtrees.neural.encoding import Encoding
from fedtrees.neural.perceptron import Layers, logits, softmax

#: Above this noise per coordinate, in units of the gradient's root mean square, no direction is
#: free of it, and the span term would hold rows to noise. Below it is rounding.
_CLEAN = 1e-3
#: Restarts and steps of a search that counts labels, and how many at most.
_SHORT, _RECOUNTS = (3, 150), 3
#: Of more rows, or beside noise, draws of likely rows find more than a search does.
_MANY = 48


@dataclass(frozen=True, eq=False)
class Inversion:
    """What was found."""

    table: Table
    confidence: NDArray[np.float64]  # shape (B, d)
    loss: float  # 1 - cos of the best restart, or of what likely rows agree on


def noise_of(target: Any, rows: int, encoding: Encoding) -> float:
    """Return the standard deviation of noise on every coordinate, estimated from a layer.

    Its gradient is a sum over the rows of a column times a row: what is left beyond so many
    dimensions is noise. Where no layer has more of them, categories tell it: the column of one
    that no row has is that of the bias times -mean / std, and if each row has one of a feature's,
    all their columns together are that of the bias.
    """
    for layer in target:
        if (noise := left_over(layer, rows)) is not None:
            return noise
    both = np.column_stack(target[0]).astype(np.float64)
    n = both.shape[1]
    if not encoding.groups:
        return 0.0
    mean, std = encoding.mean.astype(np.float64), encoding.std.astype(np.float64)
    of = [*np.flatnonzero(encoding.category >= 0)[:, None], *encoding.groups]
    tests = np.zeros((len(of), n))
    for test, columns in zip(tests, of, strict=True):
        test[columns], test[-1] = std[columns], mean[columns].sum()
    tests[-len(encoding.groups) :, -1] -= 1
    off = tests @ both.T / np.linalg.norm(tests, axis=1, keepdims=True)
    return float(np.sqrt((off**2).mean(axis=1)).min())


def drowning(layers: Layers, gradient: NDArray[np.float32], rows: int, encoding: Encoding) -> float:
    """Return the noise of a gradient by `noise_of`, 0 where it is rounding and no defense."""
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
    """Return the rows whose gradient is nearest to one that was seen.

    `weights, gradient`: float32 array, shape (parameters,).
    `bounds`: pair of float32 array, shape (continuous features,). Smallest and largest value of
    every number, standardised.
    `labels`: int64 array, shape (rows,). Where they are known; in any order, for rows have none.
    `likely`: Rows that are distributed as those of the batch, where the adversary has some.
    `restarts, steps`: 0: by the number of rows.
    `span`: Whether to hold rows to the span of the first layer's gradient, where they are fewer
    than its dimensions; else they are drawn to the average row.
    `exact`: Whether to find rows by `exact_rows` first, and to search for the others alone.
    `shown`: bool array, shape (parameters,). Coordinates that were sent; None: all. Of some there
    is no span.
    """
    if not exact or not span or shown is not None:
        span = span and shown is None
        return _searched(
            layers, weights, gradient, encoding, bounds, rows, rng, labels, restarts, steps, span,
            shown,
        )  # fmt: skip
    sure, rest, left = _exact(layers, weights, gradient, encoding, rows, rng)
    if not left:
        return Inversion(sure, np.ones(sure.X.shape), 0.0)
    if len(sure) and labels is not None:
        counts = np.bincount(labels) - np.bincount(sure.y, minlength=labels.max() + 1)
        labels = np.repeat(np.arange(len(counts)), counts.clip(0)) if (counts >= 0).all() else None
    noise = drowning(layers, rest, left, encoding)
    if likely is not None and (noise or left > _MANY):
        table, sure_of = explained(layers, weights, rest, encoding, left, noise, likely, rng)
        told = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
        size = float(np.linalg.norm(told) * np.linalg.norm(rest))
        found = Inversion(table, sure_of, 1 - float(told @ rest) / max(size, 1e-30))
    else:
        found = _searched(
            layers, weights, rest, encoding, bounds, left, rng, labels, restarts, steps, span
        )
    if not len(sure):
        return found
    confidence = np.concatenate([np.ones(sure.X.shape), found.confidence])
    return Inversion(Table.concat([sure, found.table]), confidence, found.loss)


def _exact(
    layers: Layers,
    weights: NDArray[np.float32],
    gradient: NDArray[np.float32],
    encoding: Encoding,
    rows: int,
    rng: np.random.Generator,
) -> tuple[Table, NDArray[np.float32], int]:
    """Return the rows that are sure, the mean gradient of the others, and how many these are.

    Rows that are found leave fewer to be told apart: so again, until none is.
    """
    sure: list[Table] = []
    rest, left = gradient, rows
    none = Table(np.zeros((0, len(encoding.coded)), np.float32), np.zeros(0, np.int64))
    while left and not drowning(layers, rest, left, encoding):
        noise = noise_of(layers.split(rest), left, encoding)
        table = exact_rows(layers, weights, rest, encoding, left, noise, rng)
        if not len(table):
            table = rows_by_units(layers, weights, rest, encoding, left, rng)
        if not len(table):
            break
        if len(table) > left:
            return none, gradient, rows
        told = batch_gradient(layers, weights, encoding.encode(table.X), table.y)
        sure, left = [*sure, table], left - len(table)
        rest = (rest * (left + len(table)) - told * len(table)) / np.float32(max(left, 1))
    return Table.concat([none, *sure]), rest, left


def _searched(
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
    few = span and clean and rows < min(target[0][0].shape)
    pull = null_space(*target[0]) if few else average_pull(encoding)
    mask = None if shown is None else layers.split(shown.astype(np.float32))
    matching = Matching(network, target, mask)
    how: dict[str, Any] = {"bounds": bounds, "pull": pull, "rng": rng}
    if labels is None:
        labels = _restored(matching, encoding, rows, how)
    found = search(matching, encoding, labels, restarts=restarts, steps=steps, **how)
    table, confidence = pooled(found, encoding, labels)
    return Inversion(table, confidence, float(found.loss.min()))


def _restored(
    matching: Matching, encoding: Encoding, rows: int, how: dict[str, Any]
) -> NDArray[np.int64]:
    """Return labels by their counts, which short searches with the last counts correct."""
    X = how["rng"].uniform(-1, 1, (256, len(encoding))).astype(np.float32)
    probability = softmax(logits(matching.layers, X)).mean(axis=0)
    labels = np.zeros(0, dtype=np.int64)
    for _ in range(_RECOUNTS):
        counts = restored_counts(matching.target[-1][1], probability, rows)
        again = np.repeat(np.arange(len(counts)), counts)
        if np.array_equal(again, labels):
            break
        labels = again
        found = search(matching, encoding, labels, restarts=_SHORT[0], steps=_SHORT[1], **how)
        probability = found.probability.mean(axis=(0, 1))
    return labels


def effort(rows: int) -> tuple[int, int]:
    """Return restarts and steps: most where a batch is neither easy nor hopeless."""
    for most, spent in ((16, (10, 500)), (64, (20, 600)), (160, (14, 500))):
        if rows <= most:
            return spent
    return 5, 250
