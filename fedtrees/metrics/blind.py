"""What an adversary guesses who never looked: the line every score stands on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema, Table
from fedtrees.metrics.consensus import BLOCK, matched_consensus
from fedtrees.metrics.records import Tolerance

#: Draws behind each consensus guess.
DRAWS = 20
#: Slots of the small-block consensus. Voting among few slots sharpens more: with a fifth of Pima
#: as own rows, bootstrap reaches RA 70 alone, 72.6 after the consensus over all slots, 74.9 over
#: blocks of 60 (Stroke 90.6, 91.6, 92.3); between 30 and 125 slots it is flat.
SMALL_BLOCK = 60


def blind_guesses(
    own: Table | None,
    schema: Schema,
    n: int,
    rng: np.random.Generator,
    *,
    positives: int | None = None,
    draws: int = DRAWS,
    block: int = BLOCK,
) -> dict[str, Table]:
    """Return the guesses of an adversary with an empty transcript, by name.

    Parameters
    ----------
    own : Table or None
        Rows the principals hold, or declared public samples.
    schema : Schema
        Columns, kinds, categories and declared public ranges.
    n : int
        Number of rows to guess, as known or assumed by the attack it is compared with.
    positives : int, optional
        Number of guessed rows with label 1, only where the threat declares label counts known and
        there are two classes.
    draws : int
        Draws per random guess; all of them enter its consensus, the last one stands alone.
        Below 2: no consensus.
    block : int
        Slots matched at once in the wide consensus (see `matched_consensus`).

    Returns
    -------
    dict of str to Table
        ``bootstrap`` (rows of `own`), ``independent`` (its marginals), ``given-label`` (its
        marginals given the label), ``uniform`` (declared ranges, else the range of `own`, else
        0), ``constant`` (median, mode); for each random one ``NAME+consensus``, matched over up to
        `block` slots at once, and (but for ``uniform``) ``NAME+small-consensus``, over
        `SMALL_BLOCK` slots; tables of no more slots do without it. With no
        own rows only ``uniform`` and its consensus, and ``constant``, the middle of the range.

    Raises
    ------
    DataError
        ``n`` below 1, ``positives`` outside 0..n or with more than two classes, or `own` of another
        width.
    """
    if n < 1:
        raise DataError(f"n={n}: a guess needs at least one row")
    if positives is not None and not 0 <= positives <= n:
        raise DataError(f"positives={positives}: must lie in 0..{n}")
    if positives is not None and len(schema.classes) > 2:
        raise DataError(f"positives={positives}: the target has {len(schema.classes)} classes")
    if own is not None and len(own) == 0:
        own = None
    if own is not None and own.X.shape[1] != len(schema.features):
        raise DataError(
            f"own rows have {own.X.shape[1]} features, the schema has {len(schema.features)}"
        )
    kinds: dict[str, Callable[..., Table]] = {"uniform": _uniform} if own is None else _KINDS
    width = _own_width(own, schema)
    guesses = {}
    for name, draw in kinds.items():
        samples = [draw(own, schema, n, positives, rng) for _ in range(max(1, draws))]
        guesses[name] = samples[-1]
        if draws > 1:
            guesses[f"{name}+consensus"] = matched_consensus(samples, width, block=block)
            if n > SMALL_BLOCK and name != "uniform":  # uniform draws have nothing to sharpen
                small = matched_consensus(samples, width, block=SMALL_BLOCK)
                guesses[f"{name}+small-consensus"] = small
    guesses["constant"] = _constant(own, schema, n, positives, rng)
    return guesses


def _own_width(own: Table | None, schema: Schema) -> NDArray[np.float64]:
    """Return the tolerances the adversary can estimate: from its rows, else from the ranges."""
    if own is not None:
        return Tolerance.of(own, schema).width
    width = np.zeros(len(schema.features) + 1)
    for k, (low, high) in enumerate(_ranges(None, schema)):
        if schema.features[k].kind == "continuous":
            width[k] = 0.319 * (high - low) / np.sqrt(12)  # sigma of a uniform distribution
    return width


def _labels(
    own: Table | None, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return labels: the declared count in random order, else draws by the own shares."""
    if positives is not None:
        return rng.permutation((np.arange(n) < positives).astype(np.int64))
    classes = len(schema.classes)
    if classes > 2:
        if own is None:
            return rng.integers(0, classes, n)
        return np.asarray(rng.choice(own.y, n))
    share = float(own.y.mean()) if own is not None else 0.5
    return (rng.random(n) < share).astype(np.int64)


def _bootstrap(
    own: Table, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> Table:
    if positives is None:
        return own.take(rng.integers(0, len(own), n))
    y = _labels(own, schema, n, positives, rng)
    rows = np.empty(n, dtype=np.intp)
    for label in (0, 1):
        pool = np.flatnonzero(own.y == label)
        pool = pool if len(pool) else np.arange(len(own))
        rows[y == label] = rng.choice(pool, int((y == label).sum()))
    return Table(own.X[rows], y)


def _independent(
    own: Table, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> Table:
    rows = rng.integers(0, len(own), (n, own.X.shape[1]))
    return Table(np.take_along_axis(own.X, rows, axis=0), _labels(own, schema, n, positives, rng))


def _given_label(
    own: Table, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> Table:
    y = _labels(own, schema, n, positives, rng)
    X = np.empty((n, own.X.shape[1]), dtype=np.float32)
    for label in range(max(len(schema.classes), 2)):
        pool = own.take(own.y == label)
        pool = pool if len(pool) else own
        X[y == label] = _independent(pool, schema, int((y == label).sum()), None, rng).X
    return Table(X, y)


def _ranges(own: Table | None, schema: Schema) -> list[tuple[float, float]]:
    """Return the range each column is drawn from: declared, else of the own rows, else 0."""
    ranges = []
    for k, feature in enumerate(schema.features):
        low, high = feature.low, feature.high
        if feature.categories:
            low, high = 0.0, float(len(feature.categories) - 1)
        present = own.X[~np.isnan(own.X[:, k]), k] if own is not None else np.empty(0)
        if low is None:
            low = float(present.min()) if len(present) else (0.0 if high is None else high)
        if high is None:
            high = float(present.max()) if len(present) else low
        ranges.append((low, max(low, high)))
    return ranges


def _uniform(
    own: Table | None, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> Table:
    X = np.empty((n, len(schema.features)), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(own, schema)):
        if schema.features[k].kind == "categorical":
            X[:, k] = rng.integers(int(low), int(high) + 1, n)
        else:
            X[:, k] = rng.uniform(low, high, n)
    return Table(X, _labels(own, schema, n, positives, rng))


def _constant(
    own: Table | None, schema: Schema, n: int, positives: int | None, rng: np.random.Generator
) -> Table:
    row = np.empty(len(schema.features), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(own, schema)):
        categorical = schema.features[k].kind == "categorical"
        present = own.X[~np.isnan(own.X[:, k]), k] if own is not None else np.empty(0)
        if len(present) == 0:
            row[k] = low if categorical else (low + high) / 2
        elif categorical:
            values, counts = np.unique(present, return_counts=True)
            row[k] = values[counts.argmax()]
        else:
            row[k] = np.median(present)
    if positives is not None:
        y = _labels(own, schema, n, positives, rng)
    else:
        y = np.full(n, np.bincount(own.y).argmax() if own is not None else 0, dtype=np.int64)
    return Table(np.tile(row, (n, 1)), y)


_KINDS: dict[str, Callable[..., Table]] = {
    "bootstrap": _bootstrap,
    "independent": _independent,
    "given-label": _given_label,
    "uniform": _uniform,
}
