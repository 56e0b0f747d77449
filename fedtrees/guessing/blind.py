"""What an adversary guesses who sees nothing: the line every score stands on."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.consensus import cost_weights, matched_consensus
from fedtrees.guessing.frequent import frequent_rows
from fedtrees.guessing.imputation import ChainedEquations
from fedtrees.guessing.matching import graded_costs
from fedtrees.guessing.targets import all_narrow, wide, widened
from fedtrees.guessing.tolerance import estimated_width

Counts = NDArray[np.int64]

#: Draws behind each consensus guess; forty are no better, and worse where own rows are few.
DRAWS = 20
#: Shares of cells of a resampled row that come from other own rows of the same label. None is best
#: with many own rows or many dependent columns (breast cancer), a tenth on tables of a thousand
#: rows and three clients, three tenths with ten, all where columns are nearly independent.
SHARES = {"bootstrap": 0.0, "mixed-10": 0.1, "mixed-30": 0.3, "given-label": 1.0}
#: ``near`` rows: first, half of the cells come from one of the ten most similar own rows of the
#: same label (looked for among a thousand at most). They keep what columns have to do with one
#: another, and guess more rows exactly.
NEAR_SHARE, NEAR_MIXED, NEAREST, MOST_CANDIDATES = 0.5, 0.1, 10, 1000
#: Guesses are matched once more as a whole, up to so many slots at once: small blocks know nothing
#: of each other. Where they start from, blocks of half the size are better.
WIDE_BLOCK, START_BLOCK = 1000, 12
#: Slots and rounds of one more consensus of bootstraps: with half of a binary table as own rows it
#: is a point ahead of blocks of 25 (Adult, COMPAS), and 10 points in exact rows.
BINARY_BLOCK, BINARY_ROUNDS = 200, 2


# Draws of these kinds are guesses by themselves; others only sharpen.
_ALONE = ("uniform", "skewed", "low", "bootstrap", "given-label")
#: Where in a declared range such draws lie: beta distributions. Public ranges leave more room above
#: than below (ages to 120): 10 points of RA on Pima, 4 on Stroke, 1 on Adult.
SKEWED = {"skewed": (2.0, 4.0), "low": (3.0, 9.0)}


#: Shares of a declared range that are guessed of all rows, where there are no own rows.
CONSTANTS = (0.0, 0.1, 0.25, 0.75, 1.0)


def blind_guesses(
    own: Table | None,
    schema: Schema,
    n: int,
    rng: np.random.Generator,
    *,
    counts: Counts | None = None,
    target: tuple[float, float] | None = None,
    draws: int = DRAWS,
) -> dict[str, Table]:
    """Return the guesses of an adversary with an empty transcript, by name.

    Raises `DataError`: ``n`` below 1, ``counts`` that are no numbers of rows of the schema's
    classes, or `own` of another width.

    `own`: Rows the principals hold, or declared public samples.
    `schema`: Columns, kinds, categories and declared public ranges.
    `n`: Number of rows to guess, as known or assumed by the attack it is compared with.
    `counts`: int64 array, shape (K,). Rows of each class, where they are known; in these shares the
    labels of all guesses are.
    `target`: Range that numeric targets are drawn from where no rows are known. They are guessed as
    one more column (`fedtrees.guessing.targets`).
    `draws`: Draws per random guess; all of them enter its consensus, the last one stands alone.
    Below 2: no consensus.

    Returns: ``bootstrap`` (rows of `own`), ``independent`` (its marginals), ``given-label`` (its
    marginals given the label), ``uniform`` (declared ranges, else the range of `own`, else 0),
    ``constant`` (median, mode); the matched consensus ``NAME+consensus`` of ``uniform`` draws, of
    every kind in `SHARES` and of ``near``, and ``bootstrap+wide-consensus``; ``refined``,
    ``refined-near`` and ``near+refined``, matched once more as a whole; ``imputed+refined``, of
    bootstraps redrawn by `ChainedEquations`, and ``frequent``, the rows that most of those have.
    With no own rows only ``uniform`` and, where a number has a declared range, ``skewed`` and
    ``low`` (`SKEWED`), the consensus of each, ``constant``, the middle of the range, and rows at
    other shares of it (`CONSTANTS`).
    """
    if n < 1:
        raise DataError(f"n={n}: a guess needs at least one row")
    if counts is not None:
        K = max(len(schema.classes), 2)
        if np.shape(counts) != (K,) or np.min(counts) < 0 or not np.sum(counts):
            raise DataError(f"counts={np.array(counts).tolist()}: give rows of each of {K} classes")
    if own is not None and len(own) == 0:
        own = None
    if own is not None and own.X.shape[1] != len(schema.features):
        raise DataError(
            f"own rows have {own.X.shape[1]} features, the schema has {len(schema.features)}"
        )
    if not schema.classes:
        columns, rows = widened(schema, target), None if own is None else wide(own)
        one = np.array([n, 0])
        return all_narrow(blind_guesses(rows, columns, n, rng, counts=one, draws=draws))
    guesses, made = dict[str, Table](), Draws(own, schema, n, rng, counts, max(1, draws))
    kinds = ["uniform"]
    made.of("uniform")
    if own is not None:
        guesses["independent"] = independent_rows(own, schema, n, counts, rng)
        kinds += [*SHARES, "near"] if draws > 1 else SHARES
    elif any(f.declared_range and not f.categories for f in schema.features):
        kinds += [*SKEWED]
    for kind in kinds:
        made.of(kind)
    for kind in kinds:
        if kind in _ALONE:
            guesses[kind] = made.of(kind)[-1]
        if draws > 1:
            guesses[f"{kind}+consensus"] = made.guess(f"{kind}+consensus")
    if own is not None and draws > 1:
        for name in ("bootstrap+wide-consensus", "refined", "refined-near", "near+refined"):
            guesses[name] = made.guess(name)
    guesses["constant"] = _constant(own, schema, n, counts, rng)
    if own is not None and draws > 1:
        for name in ("imputed+refined", "frequent"):
            guesses[name] = made.guess(name)
    if own is None:
        y = guesses["constant"].y
        for share in CONSTANTS:
            guesses[f"constant-{share:g}"] = _at_share(schema, share, y)
    return guesses


def _at_share(schema: Schema, share: float, y: NDArray[np.int64]) -> Table:
    """Return equal rows whose numbers lie at a share of their declared range, or of 0 to 1."""
    row = np.zeros(len(schema.features), dtype=np.float32)
    for k, feature in enumerate(schema.features):
        low, high = feature.declared_range or (0.0, 1.0)
        row[k] = low if feature.kind == "categorical" else low + share * (high - low)
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        row[columns] = np.arange(len(columns)) == 0
    return Table(np.tile(row, (len(y), 1)), y)


class Draws:
    """Samples of rows that blind guesses are made of, and the guesses; each is made once, if asked.

    `own, schema, n, rng, counts`: As of `blind_guesses`.
    `draws`: Samples of each kind.
    `at_once`: Draw all samples of a kind together, redrawn cells in one order of columns: in a
    fifth of the time, and as good.
    """

    def __init__(
        self,
        own: Table | None,
        schema: Schema,
        n: int,
        rng: np.random.Generator,
        counts: Counts | None = None,
        draws: int = DRAWS,
        *,
        at_once: bool = False,
    ) -> None:
        self._own, self._schema, self._n, self._rng = own, schema, n, rng
        self._counts, self._draws, self._at_once = counts, draws, at_once
        ranges = np.array(_ranges(own, schema), dtype=np.float64).reshape(-1, 2)
        self.width = estimated_width(own, schema, ranges[:, 0], ranges[:, 1])
        self._samples: dict[str, list[Table]] = {}
        self._guesses: dict[str, Table] = {}

    def of(self, kind: str) -> list[Table]:
        """Return samples: ``uniform``, one of `SKEWED` or `SHARES`, ``near`` or ``imputed``."""
        if kind not in self._samples:
            self._samples[kind] = list(self._drawn(kind))
        return self._samples[kind]

    def guess(self, name: str) -> Table:
        """Return a guess by the name that `blind_guesses` gives it, if it is made of samples."""
        if name not in self._guesses:
            self._guesses[name] = self._made(name)
        return self._guesses[name]

    def _drawn(self, kind: str) -> Iterator[Table]:
        drawn = (self._own, self._schema, self._n, self._counts)
        if kind in ("uniform", *SKEWED):
            shape = SKEWED.get(kind)
            return (_in_ranges(*drawn, self._rng, shape) for _ in range(self._draws))
        assert self._own is not None
        if kind == "imputed":
            equations = ChainedEquations(self._own, self._schema, self._rng)
            if self._at_once:
                redrawn = equations.redraw(Table.concat(self.of("bootstrap")), self._rng)
                parts = np.split(np.arange(len(redrawn)), self._draws)
                return (redrawn.take(part) for part in parts)
            return (equations.redraw(t, self._rng) for t in self.of("bootstrap"))
        mixed = (self._own, self._schema, self._n, self._counts, SHARES.get(kind, NEAR_MIXED))
        near = _nearest(self._own, self.width[:-1], self._rng) if kind == "near" else None
        if self._at_once:
            every = mixed_rows(*mixed, self._rng, near, tables=self._draws)
            return (every.take(part) for part in np.split(np.arange(len(every)), self._draws))
        return (mixed_rows(*mixed, self._rng, near) for _ in range(self._draws))

    def _made(self, name: str) -> Table:
        kind, _, consensus = name.partition("+")
        if consensus == "consensus":
            return matched_consensus(self.of(kind), self.width)
        if name == "bootstrap+wide-consensus":
            return matched_consensus(
                self.of("bootstrap"), self.width, rounds=BINARY_ROUNDS, block=BINARY_BLOCK
            )
        if name == "near+refined":
            return self._refined(self.guess("near+consensus"), self.of("near"))
        if name == "imputed+refined":
            # votes of samples that the start was not made from
            half = self._draws // 2
            start = matched_consensus(self.of("imputed")[:half], self.width)
            return self._refined(start, self.of("imputed")[half:])
        if name == "frequent":
            return self._frequent()
        return self._refined(
            self._start(), self.of({"refined": "mixed-30", "refined-near": "near"}[name])
        )

    def _start(self) -> Table:
        if "start" not in self._guesses:
            samples = self.of("mixed-10")
            self._guesses["start"] = matched_consensus(samples, self.width, block=START_BLOCK)
        return self._guesses["start"]

    def _frequent(self) -> Table:
        assert self._own is not None
        guess, imputed = self.guess("imputed+refined"), self.of("imputed")
        sources = (self._own.take(self._rng.permutation(len(self._own))), guess, imputed[0])
        known = Table.concat([t.take(np.arange(min(len(t), MOST_CANDIDATES))) for t in sources])
        frequent = frequent_rows(known, imputed[: self._draws // 2], self.width)
        return frequent.take(self._rng.permutation(len(frequent)))

    def _refined(self, start: Table, samples: list[Table]) -> Table:
        return matched_consensus(samples, self.width, rounds=1, block=WIDE_BLOCK, start=start)


def _labels(
    own: Table | None, schema: Schema, n: int, counts: Counts | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return labels: in the known shares, else draws by those of own rows, else any."""
    if counts is not None:
        ends = np.cumsum(counts, dtype=np.int64)
        # the middle of each of n equal parts of all rows: the shares, to the nearest row
        return rng.permutation(np.searchsorted(2 * n * ends, (2 * np.arange(n) + 1) * ends[-1]))
    if own is None:
        return rng.integers(0, max(len(schema.classes), 2), n)
    if len(schema.classes) > 2:
        return np.asarray(rng.choice(own.y, n))
    return (rng.random(n) < float(own.y.mean())).astype(np.int64)


def independent_rows(
    own: Table, schema: Schema, n: int, counts: Counts | None, rng: np.random.Generator
) -> Table:
    """Draw every cell, those of a one-hot group together, and every label from own rows."""
    rows = _together(rng.integers(0, len(own), (n, own.X.shape[1])), schema)
    return Table(np.take_along_axis(own.X, rows, axis=0), _labels(own, schema, n, counts, rng))


def _together(rows: NDArray[np.integer], schema: Schema) -> NDArray[np.integer]:
    """Take the cells of a one-hot group from one row, or they may name two categories or none."""
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        rows[:, columns] = rows[:, columns[:1]]
    return rows


def mixed_rows(
    own: Table,
    schema: Schema,
    n: int,
    counts: Counts | None,
    share: float,
    rng: np.random.Generator,
    near: NDArray[np.intp] | None = None,
    tables: int = 1,
) -> Table:
    """Resample own rows, and take a share of their cells from other own rows of the same label.

    First `NEAR_SHARE` of the cells come from similar rows where they are given. So many tables of
    ``n`` rows come as one.
    """
    if counts is None:
        y = rng.choice(own.y, tables * n)
    else:
        y = np.concatenate([_labels(own, schema, n, counts, rng) for _ in range(tables)])
    X = np.empty((len(y), own.X.shape[1]), dtype=np.float32)
    for label in np.unique(y):
        mine, pool = np.flatnonzero(y == label), np.flatnonzero(own.y == label)
        pool = pool if len(pool) else np.arange(len(own))
        rows = np.repeat(rng.choice(pool, len(mine))[:, None], X.shape[1], axis=1)
        if near is not None:
            similar = near[rows, rng.integers(0, near.shape[1], rows.shape)]
            rows = np.where(rng.random(rows.shape) < NEAR_SHARE, similar, rows)
        other = rng.choice(pool, rows.shape)
        rows = _together(np.where(rng.random(rows.shape) < share, other, rows), schema)
        X[mine] = np.take_along_axis(own.X, rows, axis=0)
    return Table(X, y)


def _nearest(own: Table, width: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the most similar own rows of the same label of each own row, intp (n, NEAREST)."""
    near = np.empty((len(own), NEAREST), dtype=np.intp)
    weight = cost_weights(len(width))[:-1]
    for label in np.unique(own.y):
        pool = np.flatnonzero(own.y == label)
        among = rng.permutation(pool)[:MOST_CANDIDATES]
        apart = graded_costs(own.X[pool], own.X[among], 2 * width, weight)
        apart[pool[:, None] == among] = 255  # itself comes last
        # stable, so that ties do not depend on the processor's instructions
        order = np.argsort(apart, axis=1, kind="stable")[:, : min(NEAREST, max(1, len(among) - 1))]
        near[pool] = among[order[:, np.arange(NEAREST) % order.shape[1]]]
    return near


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


def _in_ranges(
    own: Table | None,
    schema: Schema,
    n: int,
    counts: Counts | None,
    rng: np.random.Generator,
    shape: tuple[float, float] | None = None,
) -> Table:
    """Draw every value from its range, uniformly or of a beta distribution of this shape."""
    X = np.empty((n, len(schema.features)), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(own, schema)):
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
    return Table(X, _labels(own, schema, n, counts, rng))


def _constant(
    own: Table | None, schema: Schema, n: int, counts: Counts | None, rng: np.random.Generator
) -> Table:
    row = np.empty(len(schema.features), dtype=np.float32)
    for k, (low, high) in enumerate(_ranges(own, schema)):
        categorical = schema.features[k].kind == "categorical"
        present = own.X[~np.isnan(own.X[:, k]), k] if own is not None else np.empty(0)
        if len(present) == 0:
            row[k] = low if categorical else (low + high) / 2
        elif categorical:
            values, times = np.unique(present, return_counts=True)
            row[k] = values[times.argmax()]
        else:
            row[k] = np.median(present)
    for group in schema.groups:
        columns = [schema.names.index(name) for name in group.columns]
        held = np.eye(len(columns))[:1] if own is None or not len(own.X) else own.X[:, columns]
        levels, times = np.unique(held, axis=0, return_counts=True)
        row[columns] = levels[times.argmax()]
    if counts is not None:
        y = _labels(own, schema, n, counts, rng)
    else:
        y = np.full(n, np.bincount(own.y).argmax() if own is not None else 0, dtype=np.int64)
    return Table(np.tile(row, (n, 1)), y)
