"""Blind guesses: rows that an adversary guesses without receiving any message.

The adversary knows the schema, the number of rows, and possibly background rows, for example the
local data of a colluding client. `blind_guesses` computes several guesses from this knowledge, and
`fedtrees.metrics.metric` takes the best score of them as the blind baseline. `Draws` computes
single guesses. It is also used by `fedtrees.blind_baselines.recipes` and by attacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.consensus import cost_weights, matched_consensus
from fedtrees.blind_baselines.imputation import ChainedEquations, frequent_rows
from fedtrees.blind_baselines.matching import graded_costs
from fedtrees.blind_baselines.rows import estimated_width, narrow_all, wide, widened
from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema, Table

Counts = NDArray[np.int64]

#: Number of samples per consensus guess. Forty samples are no better, and worse if the adversary
#: has few background rows.
DRAWS = 20
#: Share of the cells of a resampled row that are replaced by cells of further background rows of
#: the same label. A share of 0 is best with many rows or many dependent columns (breast cancer),
#: 0.1 on tables of a thousand rows and three clients, 0.3 with ten clients, and 1 if the columns
#: are nearly independent.
SHARES = {"bootstrap": 0.0, "mixed-10": 0.1, "mixed-30": 0.3, "given-label": 1.0}
#: Parameters of ``near`` samples. A share `NEAR_SHARE` of the cells comes from one of the `NEAREST`
#: most similar rows of the same label, which are searched among at most `MOST_CANDIDATES` rows.
#: Afterwards a share `NEAR_MIXED` is replaced as in `SHARES`. Similar rows preserve the dependence
#: between columns, so that more guessed rows are exact.
NEAR_SHARE, NEAR_MIXED, NEAREST, MOST_CANDIDATES = 0.5, 0.1, 10, 1000
#: Rows per block when a guess is refined, and when the start of a refinement is computed. Small
#: blocks are matched independently of each other, and the refinement with large blocks corrects
#: this. For the start, blocks of 12 rows are better than blocks of 25 (`consensus.BLOCK`).
WIDE_BLOCK, START_BLOCK = 1000, 12
#: Rows per block and rounds of ``bootstrap+wide-consensus``. If the adversary has half of the rows
#: of a binary table, it is one point of reconstruction accuracy ahead of blocks of 25 (Adult,
#: COMPAS), and 10 points ahead in exact rows.
BINARY_BLOCK, BINARY_ROUNDS = 200, 2


# A single sample of these kinds is a guess. Samples of the remaining kinds only enter a consensus.
_ALONE = ("uniform", "skewed", "low", "bootstrap", "given-label")
#: Parameters of the beta distributions that place values within the declared range. Public ranges
#: leave more room above than below (for example, ages up to 120). This gains 10 points of
#: reconstruction accuracy on Pima, 4 on Stroke and 1 on Adult.
SKEWED = {"skewed": (2.0, 4.0), "low": (3.0, 9.0)}


#: Relative positions in the declared ranges for further constant guesses, which are computed only
#: if the adversary has no background rows.
CONSTANTS = (0.0, 0.1, 0.25, 0.75, 1.0)


def blind_guesses(
    background: Table | None,
    schema: Schema,
    n: int,
    rng: np.random.Generator,
    *,
    counts: Counts | None = None,
    target: tuple[float, float] | None = None,
    draws: int = DRAWS,
) -> dict[str, Table]:
    """Return the guesses of an adversary with an empty transcript, by name.

    Parameters
    ----------
    background : Table or None
        Background rows, for example the local data of the colluding parties or public samples. None
        and an empty table mean that the adversary has no rows.
    schema : Schema
        Columns, kinds, categories and declared public ranges.
    n : int
        Number of rows to guess.
    rng : numpy.random.Generator
        Randomness of the samples.
    counts : int64 array, shape (K,), optional
        Number of rows of each class, if the adversary knows them. The labels of all guesses then
        have these proportions. Ignored if the target is numeric.
    target : (float, float), optional
        Range of a numeric target, which is guessed like a feature
        (`fedtrees.blind_baselines.rows`). None: the range of the targets of the background rows, or
        0 without rows.
    draws : int
        Number of samples per consensus. The last sample is also a guess by itself. Below 2, no
        consensus is computed.

    Returns
    -------
    guesses : dict of str to Table
        Tables of n rows. With background rows:

        - ``bootstrap``: background rows, drawn with replacement.
        - ``independent``: every cell drawn from its column.
        - ``given-label``: every cell drawn from the rows of the same label.
        - ``uniform``: values in the declared range, else in that of the background rows, else 0.
        - ``constant``: median or mode of every column.
        - ``NAME+consensus``: matched consensus of the samples of ``uniform``, ``near`` and every
          kind in `SHARES`. ``bootstrap+wide-consensus`` uses larger blocks.
        - ``refined``, ``refined-near``, ``near+refined``: consensus matched once more in blocks of
          up to `WIDE_BLOCK` rows.
        - ``imputed+refined``: refined consensus of bootstrap samples whose cells were redrawn by
          `ChainedEquations`.
        - ``frequent``: the rows that most of these redrawn samples contain.

        Without background rows: ``uniform``; ``skewed`` and ``low`` if a numeric feature has a
        declared range; the consensus of each; ``constant``, the middle of the range; and
        ``constant-SHARE``, the value at every share of the range in `CONSTANTS`.

    Raises
    ------
    DataError
        If `n` is below 1, `counts` is not a non-negative count per class with at least one row, or
        the background rows do not have the number of columns of the schema.
    """
    if n < 1:
        raise DataError(f"n={n}: a guess needs at least one row")
    if counts is not None:
        K = max(len(schema.classes), 2)
        if np.shape(counts) != (K,) or np.min(counts) < 0 or not np.sum(counts):
            raise DataError(f"counts={np.array(counts).tolist()}: give rows of each of {K} classes")
    if background is not None and len(background) == 0:
        background = None
    if background is not None and background.X.shape[1] != len(schema.features):
        raise DataError(
            f"own rows have {background.X.shape[1]} features, the schema has {len(schema.features)}"
        )
    if not schema.classes:
        columns, rows = widened(schema, target), None if background is None else wide(background)
        class_counts = np.array([n, 0])
        return narrow_all(blind_guesses(rows, columns, n, rng, counts=class_counts, draws=draws))
    guesses, samples = dict[str, Table](), Draws(background, schema, n, rng, counts, max(1, draws))
    kinds = ["uniform"]
    samples.of("uniform")
    if background is not None:
        guesses["independent"] = independent_rows(background, schema, n, counts, rng)
        kinds += [*SHARES, "near"] if draws > 1 else SHARES
    elif any(f.declared_range and not f.categories for f in schema.features):
        kinds += [*SKEWED]
    for kind in kinds:
        samples.of(kind)
    for kind in kinds:
        if kind in _ALONE:
            guesses[kind] = samples.of(kind)[-1]
        if draws > 1:
            guesses[f"{kind}+consensus"] = samples.guess(f"{kind}+consensus")
    if background is not None and draws > 1:
        for name in ("bootstrap+wide-consensus", "refined", "refined-near", "near+refined"):
            guesses[name] = samples.guess(name)
    guesses["constant"] = _constant(background, schema, n, counts, rng)
    if background is not None and draws > 1:
        for name in ("imputed+refined", "frequent"):
            guesses[name] = samples.guess(name)
    if background is None:
        y = guesses["constant"].y
        for share in CONSTANTS:
            guesses[f"constant-{share:g}"] = _at_share(schema, share, y)
    return guesses


def _at_share(schema: Schema, share: float, y: NDArray[np.int64]) -> Table:
    """Return equal rows with the value at a relative position of every declared range.

    The range is 0 to 1 if none is declared. Categorical features get the lowest code.
    """
    row = np.zeros(len(schema.features), dtype=np.float32)
    for k, feature in enumerate(schema.features):
        low, high = feature.declared_range or (0.0, 1.0)
        row[k] = low if feature.kind == "categorical" else low + share * (high - low)
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        row[columns] = np.arange(len(columns)) == 0
    return Table(np.tile(row, (len(y), 1)), y)


class Draws:
    """Samples of rows, and the blind guesses computed from them.

    Samples and guesses are computed at the first request and cached.

    The first five parameters are those of `blind_guesses`.

    Parameters
    ----------
    draws : int
        Number of samples of each kind.
    at_once : bool
        Draw all samples of a kind together, and redraw the columns of all samples in the same
        order. This takes a fifth of the time and gives guesses of the same quality.

    Attributes
    ----------
    width : float64 array, shape (d + 1,)
        Accepted difference per feature, and 0 for the label (`estimated_width`).
    """

    def __init__(
        self,
        background: Table | None,
        schema: Schema,
        n: int,
        rng: np.random.Generator,
        counts: Counts | None = None,
        draws: int = DRAWS,
        *,
        at_once: bool = False,
    ) -> None:
        self._background, self._schema, self._n, self._rng = background, schema, n, rng
        self._counts, self._draws, self._at_once = counts, draws, at_once
        ranges = np.array(_ranges(background, schema), dtype=np.float64).reshape(-1, 2)
        self.width = estimated_width(background, schema, ranges[:, 0], ranges[:, 1])
        self._samples: dict[str, list[Table]] = {}
        self._guesses: dict[str, Table] = {}

    def of(self, kind: str) -> list[Table]:
        """Return the samples of a kind, tables of n rows.

        Kinds are ``uniform``, the keys of `SKEWED` and `SHARES`, ``near`` and ``imputed``. All
        except ``uniform`` and `SKEWED` need background rows.
        """
        if kind not in self._samples:
            self._samples[kind] = list(self._draw_samples(kind))
        return self._samples[kind]

    def guess(self, name: str) -> Table:
        """Return the guess of n rows that `blind_guesses` returns under this name.

        Only guesses that are computed from samples are supported: not ``independent`` and
        ``constant``, nor a single sample such as ``bootstrap``, which `of` returns.
        """
        if name not in self._guesses:
            self._guesses[name] = self._compute_guess(name)
        return self._guesses[name]

    def _draw_samples(self, kind: str) -> Iterator[Table]:
        common = (self._background, self._schema, self._n, self._counts)
        if kind in ("uniform", *SKEWED):
            shape = SKEWED.get(kind)
            return (_in_ranges(*common, self._rng, shape) for _ in range(self._draws))
        assert self._background is not None
        if kind == "imputed":
            equations = ChainedEquations(self._background, self._schema, self._rng)
            if self._at_once:
                redrawn = equations.redraw(Table.concat(self.of("bootstrap")), self._rng)
                parts = np.split(np.arange(len(redrawn)), self._draws)
                return (redrawn.take(part) for part in parts)
            return (equations.redraw(t, self._rng) for t in self.of("bootstrap"))
        mixed = (
            self._background,
            self._schema,
            self._n,
            self._counts,
            SHARES.get(kind, NEAR_MIXED),
        )
        near = _nearest(self._background, self.width[:-1], self._rng) if kind == "near" else None
        if self._at_once:
            all_rows = mixed_rows(*mixed, self._rng, near, tables=self._draws)
            return (all_rows.take(part) for part in np.split(np.arange(len(all_rows)), self._draws))
        return (mixed_rows(*mixed, self._rng, near) for _ in range(self._draws))

    def _compute_guess(self, name: str) -> Table:
        kind, _, step = name.partition("+")
        if step == "consensus":
            return matched_consensus(self.of(kind), self.width)
        if name == "bootstrap+wide-consensus":
            return matched_consensus(
                self.of("bootstrap"), self.width, rounds=BINARY_ROUNDS, block=BINARY_BLOCK
            )
        if name == "near+refined":
            return self._refine(self.guess("near+consensus"), self.of("near"))
        if name == "imputed+refined":
            # The start is the consensus of one half of the samples. Only the other half votes in
            # the refinement, so that the votes are independent of the start.
            half = self._draws // 2
            start = matched_consensus(self.of("imputed")[:half], self.width)
            return self._refine(start, self.of("imputed")[half:])
        if name == "frequent":
            return self._frequent()
        return self._refine(
            self._start(), self.of({"refined": "mixed-30", "refined-near": "near"}[name])
        )

    def _start(self) -> Table:
        if "start" not in self._guesses:
            samples = self.of("mixed-10")
            self._guesses["start"] = matched_consensus(samples, self.width, block=START_BLOCK)
        return self._guesses["start"]

    def _frequent(self) -> Table:
        assert self._background is not None
        guess, imputed = self.guess("imputed+refined"), self.of("imputed")
        sources = (
            self._background.take(self._rng.permutation(len(self._background))),
            guess,
            imputed[0],
        )
        candidates = Table.concat(
            [t.take(np.arange(min(len(t), MOST_CANDIDATES))) for t in sources]
        )
        frequent = frequent_rows(candidates, imputed[: self._draws // 2], self.width)
        return frequent.take(self._rng.permutation(len(frequent)))

    def _refine(self, start: Table, samples: list[Table]) -> Table:
        return matched_consensus(samples, self.width, rounds=1, block=WIDE_BLOCK, start=start)


def _labels(
    background: Table | None,
    schema: Schema,
    n: int,
    counts: Counts | None,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return n labels: in the proportions of `counts`, else of `background`, else uniform."""
    if counts is not None:
        ends = np.cumsum(counts, dtype=np.int64)
        # Divide all rows, sorted by label, into n equal parts, and take the label in the middle of
        # each part. The labels then have the known proportions, up to rounding.
        return rng.permutation(np.searchsorted(2 * n * ends, (2 * np.arange(n) + 1) * ends[-1]))
    if background is None:
        return rng.integers(0, max(len(schema.classes), 2), n)
    if len(schema.classes) > 2:
        return np.asarray(rng.choice(background.y, n))
    return (rng.random(n) < float(background.y.mean())).astype(np.int64)


def independent_rows(
    background: Table, schema: Schema, n: int, counts: Counts | None, rng: np.random.Generator
) -> Table:
    """Draw n rows whose cells come from independently drawn background rows.

    The cells of a one-hot group are drawn together. Labels are drawn as in `blind_guesses`.
    """
    rows = _join_one_hot_groups(
        rng.integers(0, len(background), (n, background.X.shape[1])), schema
    )
    return Table(
        np.take_along_axis(background.X, rows, axis=0), _labels(background, schema, n, counts, rng)
    )


def _join_one_hot_groups(rows: NDArray[np.integer], schema: Schema) -> NDArray[np.integer]:
    """Take all cells of a one-hot group from the same row, so that one category is set."""
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        rows[:, columns] = rows[:, columns[:1]]
    return rows


def mixed_rows(
    background: Table,
    schema: Schema,
    n: int,
    counts: Counts | None,
    share: float,
    rng: np.random.Generator,
    near: NDArray[np.intp] | None = None,
    tables: int = 1,
) -> Table:
    """Resample background rows, and replace cells by those of further rows of the same label.

    The cells of a one-hot group are replaced together. A class without background rows is
    resampled from all of them. Further parameters are those of `blind_guesses`.

    Parameters
    ----------
    share : float
        Probability that a cell is replaced, between 0 and 1.
    near : intp array, shape (n_background, NEAREST), optional
        Most similar rows of every background row. If given, a cell is first taken from one of them
        with probability `NEAR_SHARE`.
    tables : int
        Number of tables to draw.

    Returns
    -------
    rows : Table
        All tables, concatenated: ``tables * n`` rows.
    """
    if counts is None:
        y = rng.choice(background.y, tables * n)
    else:
        y = np.concatenate([_labels(background, schema, n, counts, rng) for _ in range(tables)])
    X = np.empty((len(y), background.X.shape[1]), dtype=np.float32)
    for label in np.unique(y):
        positions, pool = np.flatnonzero(y == label), np.flatnonzero(background.y == label)
        pool = pool if len(pool) else np.arange(len(background))
        rows: NDArray[np.integer]
        rows = np.repeat(rng.choice(pool, len(positions))[:, None], X.shape[1], axis=1)
        if near is not None:
            similar = near[rows, rng.integers(0, near.shape[1], rows.shape)]
            rows = np.where(rng.random(rows.shape) < NEAR_SHARE, similar, rows)
        further = rng.choice(pool, rows.shape)
        rows = _join_one_hot_groups(np.where(rng.random(rows.shape) < share, further, rows), schema)
        X[positions] = np.take_along_axis(background.X, rows, axis=0)
    return Table(X, y)


def _nearest(
    background: Table, width: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Return the most similar background rows of the same label, intp array (n, NEAREST).

    The indices repeat if a label has too few rows. A row is in its list of neighbours only if
    it is the only candidate.
    """
    near = np.empty((len(background), NEAREST), dtype=np.intp)
    weight = cost_weights(len(width))[:-1]
    for label in np.unique(background.y):
        pool = np.flatnonzero(background.y == label)
        candidates = rng.permutation(pool)[:MOST_CANDIDATES]
        cost = graded_costs(background.X[pool], background.X[candidates], 2 * width, weight)
        cost[pool[:, None] == candidates] = 255  # the largest cost: the row itself is sorted last
        # A stable sort, so that ties do not depend on the instruction set of the processor.
        order = np.argsort(cost, axis=1, kind="stable")[
            :, : min(NEAREST, max(1, len(candidates) - 1))
        ]
        near[pool] = candidates[order[:, np.arange(NEAREST) % order.shape[1]]]
    return near


def _ranges(background: Table | None, schema: Schema) -> list[tuple[float, float]]:
    """Return the declared range of every column, else that of the background rows, else (0, 0).

    Codes of declared categories range from 0 to the number of categories minus 1. If only one end
    of a range is declared and there are no values, the range is this single value.
    """
    ranges = []
    for k, feature in enumerate(schema.features):
        low, high = feature.low, feature.high
        if feature.categories:
            low, high = 0.0, float(len(feature.categories) - 1)
        present = (
            background.X[~np.isnan(background.X[:, k]), k]
            if background is not None
            else np.empty(0)
        )
        if low is None:
            low = float(present.min()) if len(present) else (0.0 if high is None else high)
        if high is None:
            high = float(present.max()) if len(present) else low
        ranges.append((low, max(low, high)))
    return ranges


def _in_ranges(
    background: Table | None,
    schema: Schema,
    n: int,
    counts: Counts | None,
    rng: np.random.Generator,
    shape: tuple[float, float] | None = None,
) -> Table:
    """Draw every value from its range, uniformly or with a beta distribution of this shape.

    Category codes and one-hot groups are always drawn uniformly.
    """
    X = np.empty((n, len(schema.features)), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(background, schema)):
        if schema.features[k].kind == "categorical":
            X[:, k] = rng.integers(int(low), int(high) + 1, n)
        elif shape is None:
            X[:, k] = rng.uniform(low, high, n)
        else:
            X[:, k] = low + (high - low) * rng.beta(*shape, n)
    for group in schema.groups:
        hot = rng.integers(0, len(group.columns) + int(group.empty), n)
        for k, name in enumerate(group.columns):
            X[:, schema.names.index(name)] = hot == k
    return Table(X, _labels(background, schema, n, counts, rng))


def _constant(
    background: Table | None,
    schema: Schema,
    n: int,
    counts: Counts | None,
    rng: np.random.Generator,
) -> Table:
    """Return n equal rows: the median or mode of every column, else the middle of its range."""
    row = np.empty(len(schema.features), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(background, schema)):
        categorical = schema.features[k].kind == "categorical"
        present = (
            background.X[~np.isnan(background.X[:, k]), k]
            if background is not None
            else np.empty(0)
        )
        if len(present) == 0:
            row[k] = low if categorical else (low + high) / 2
        elif categorical:
            values, frequency = np.unique(present, return_counts=True)
            row[k] = values[frequency.argmax()]
        else:
            row[k] = np.median(present)
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        members = (
            np.eye(len(columns))[:1]
            if background is None or not len(background.X)
            else background.X[:, columns]
        )
        levels, frequency = np.unique(members, axis=0, return_counts=True)
        row[columns] = levels[frequency.argmax()]
    if counts is not None:
        y = _labels(background, schema, n, counts, rng)
    else:
        y = np.full(
            n, np.bincount(background.y).argmax() if background is not None else 0, dtype=np.int64
        )
    return Table(np.tile(row, (n, 1)), y)
