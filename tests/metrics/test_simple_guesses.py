"""No simple guess without a transcript beats a blind baseline: published advantages are no larger.

Each test lists guesses that anybody could make: constants, empty ones, rounded or repeated
quantiles, and the adversary's own share. An advantage is conservative only if none of them beats
the baseline of its metric.
"""

from functools import cache

import numpy as np
import pytest

from fedtrees.blind_baselines.rows import decimal_step, part_centres, round_to_step
from fedtrees.core.claims import (
    BinClassCounts,
    ClassShares,
    ColumnRanks,
    ColumnValues,
    Entries,
    LeafCounts,
    Records,
    RoutedLabels,
    Thresholds,
)
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.specs import parse_grid
from fedtrees.core.threat import Threat
from fedtrees.experiments.federation import federation_of
from fedtrees.experiments.plan import FederationConfig
from fedtrees.experiments.suite import DataRef
from fedtrees.protocols.training import train

TABLES = ("wine", "breast-cancer[rows=150]")
HORIZONTAL, VERTICAL = "fedtree-hist[trees=2,max_depth=3]", "secureboost[trees=2,max_depth=3]"
#: A chance difference between two guesses of the same kind.
ROOM = 0.02


@cache
def case_of(table, protocol, threat, clients=3):
    """Return what scoring knows of a training."""
    spec = parse_grid(protocol)[0]
    made = register.make("protocol", spec)
    iid = parse_grid("iid")[0]
    setting = FederationConfig.of(DataRef.parse(table), iid, clients, 0, made)
    federation = federation_of(setting, None)
    run = train(made, federation.local_data, federation.schema, seed=0)
    roles = dict(setting.roles)
    principals = Threat.parse(threat).principals(roles)
    return federation.case(roles, principals, 0, threat, run)


def check(name, case, guesses, room=ROOM):
    """Check that no guess beats the baseline of a metric, by any score with a phrase."""
    metric = register.get("metric", name)()
    truth = metric.truth(case)
    assert truth is not None
    line, tried = metric.line(case, truth, {}), 0
    for how, claims in guesses(case, truth).items():
        assert metric.refuses(claims, case) is None, how
        for score in metric.score(claims, truth):
            measure = metric.measure(score)
            best = line.get(score.name) if score.blind is None else score.blind
            if score.value is None or best is None or not measure.phrase:
                continue
            tried += 1
            assert measure.sign * (score.value - best) <= room, (how, score.name)
    assert tried


def values(case, truth):
    """Claim constants, steps of the range, and rounded quantiles of own columns."""
    own = case.blind_view().rows

    def claims(guess):
        made = []
        for (owner, f), (there, counts) in truth.columns.items():
            n, step = int(counts.sum()), decimal_step(there.astype(np.float64))
            cells = np.unique(np.asarray(guess(f, n, step), np.float32), return_counts=True)
            made.append(ColumnValues(owner, f, *cells, False))
        return made

    found = {
        "zeros": claims(lambda f, n, step: np.zeros(n)),
        "ones": claims(lambda f, n, step: np.ones(n)),
        "steps": claims(lambda f, n, step: round_to_step(part_centres(n), step)),
        "repeated steps": claims(lambda f, n, step: np.arange(n) // 3 * step),
    }
    if own is not None:
        X = own.X.astype(np.float64)

        def every_step(f, n, step):
            first, last = (int(end / step) for end in (X[:, f].min(), X[:, f].max()))
            return np.arange(first, min(last, first + 5000) + 1) * step

        found |= {
            "every step of the own range": claims(every_step),
            "quantiles": claims(lambda f, n, step: np.quantile(X[:, f], part_centres(n))),
            "rounded quantiles": claims(
                lambda f, n, step: round_to_step(np.quantile(X[:, f], part_centres(n)), step)
            ),
            "own values repeated": claims(lambda f, n, step: np.resize(X[:, f], n)),
            "own mode": claims(lambda f, n, step: np.full(n, _mode(X[:, f]))),
        }
    return found


def _mode(x):
    found, counts = np.unique(x, return_counts=True)
    return found[counts.argmax()]


def rows(case, truth):
    """Claim equal rows, own rows repeated, and the most frequent own row."""
    own, n = case.blind_view().rows, truth.guessed
    y = np.full(n, np.bincount(truth.rows.y).argmax())

    def equal(row):
        return [Records(Table(np.tile(np.asarray(row, np.float32), (n, 1)), y))]

    width = len(case.schema.features)
    found = {f"all {share}": equal(np.full(width, share)) for share in (0, 0.1, 0.25, 1)}
    if own is not None:
        found |= {
            "medians": equal(np.median(own.X, axis=0)),
            "modes": equal([_mode(column) for column in own.X.T]),
            "own repeated": [Records(own.take(np.resize(np.arange(len(own)), n)))],
        }
    return found


def ranks(case, truth):
    """Claim the same interval for every row."""
    return {
        f"{low} to {high}": [
            ColumnRanks(*key, ids, *(np.full(len(ids), v) for v in (0.5, low, high)))
            for key, (ids, _) in truth.columns.items()
        ]
        for low, high in ((0, 0.5), (0.25, 0.75), (0.5, 1), (0.4, 0.6))
    }


def entries(case, truth):
    """Claim constants of every column."""
    owners = np.unique(truth.owner).tolist()

    def claims(constant):
        guess = np.empty(len(truth.value))
        for f in np.unique(truth.feature):
            at = truth.feature == f
            guess[at] = constant(truth.value[at])
        return [
            Entries(o, *(part[truth.owner == o] for part in (truth.ids, truth.feature, guess)))
            for o in owners
        ]

    quantile = {f"quantile {q}": claims(lambda x, q=q: np.quantile(x, q)) for q in (0.1, 0.3, 0.5)}
    return {"zeros": claims(lambda x: 0.0), "modes": claims(_mode), **quantile}


def shares(case, truth):
    """Claim equal shares, own shares, and that all rows are of one class."""
    K, own = len(truth.assumed), case.blind_view().rows
    made = {"even": np.full(K, 1 / K)} | {f"all {k}": np.eye(K)[k] for k in range(K)}
    if own is not None:
        made["own"] = np.bincount(own.y, minlength=K) / len(own)
    return {how: [ClassShares(o, share) for o in truth.counts] for how, share in made.items()}


def leaves(case, truth):
    """Claim empty leaves, one row in each, equal shares, and own counts scaled and rounded down."""
    from fedtrees.metrics.leaf_counts import _count

    own = case.blind_view().rows
    first = {t: _count(case, t, Table.empty(case.schema)) for t in truth.rows}

    def claims(counts):
        return [LeafCounts(t, c.leaf, counts(t, c).astype(np.int64)) for t, c in first.items()]

    found = {
        "empty": claims(lambda t, c: 0 * c.counts),
        "one row": claims(lambda t, c: 0 * c.counts + 1),
        "equal": claims(lambda t, c: 0 * c.counts + truth.rows[t] // c.counts.size),
    }
    if own is not None:
        mine = {t: _count(case, t, own).counts for t in first}
        found |= {
            "own": claims(lambda t, c: mine[t]),
            "rounded down": claims(lambda t, c: mine[t] * truth.rows[t] / len(own)),
        }
    return found


def bins(case, truth):
    """Claim empty bins and own counts."""
    own = case.blind_view().rows
    owner = next(iter(truth.counts))
    there = truth.counts[owner]
    found = {"empty": 0 * there, "one": 0 * there + 1}
    if own is not None:
        found["own"] = truth.adversary_counts
    return {how: [BinClassCounts(owner, counts)] for how, counts in found.items()}


def thresholds(case, truth):
    """Claim the same share of every range, also rounded to the precision of the column."""
    made = {}
    for share in (0.1, 0.3, 0.5):
        rows, rounded = [], []
        for (t, node), split in truth.splits.items():
            low, high = truth.schema.features[split.feature].declared_range or (0.0, 1.0)
            step, value = truth.step[split.feature], low + share * (high - low)
            rows.append((t, node, split.feature, value, low, high))
            near = min(max(np.rint(value / step) * step, low), high)
            rounded.append((t, node, split.feature, near, low, high))
        made[f"{share} of the range"] = [Thresholds(*map(np.array, zip(*rows, strict=True)))]
        made[f"{share}, rounded"] = [Thresholds(*map(np.array, zip(*rounded, strict=True)))]
    return made


def routed(case, truth):
    """Claim one class for all rows."""
    n, K = len(truth.y), truth.classes
    found = {f"all {k}": np.tile(np.eye(K)[k], (n, 1)) for k in range(K)}
    return {how: [RoutedLabels(np.arange(n), p)] for how, p in found.items()}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("threat", ["client", "server"])
@pytest.mark.parametrize(
    ("metric", "guesses"),
    [("column-values", values), ("records", rows), ("class-shares", shares),
     ("leaf-counts", leaves), ("bin-counts", bins)],
)  # fmt: skip
def test_simple_guesses_of_rows_and_counts_do_not_beat_the_baseline(table, threat, metric, guesses):
    check(metric, case_of(table, HORIZONTAL, threat), guesses)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("metric", "threat", "guesses"),
    [("column-ranks", "active", ranks), ("entries", "active", entries),
     ("entries", "passive", entries), ("thresholds", "active", thresholds),
     ("routed-labels", "passive", routed)],
)  # fmt: skip
def test_simple_guesses_of_columns_do_not_beat_the_baseline(table, metric, threat, guesses):
    check(metric, case_of(table, VERTICAL, threat, clients=2), guesses)
