"""No simple guess beats the blind baseline, so published advantages are not too large.

The guesses need no transcript: constants, empty ones, rounded or repeated quantiles, and the
adversary's own share. An advantage is conservative only if none of them beats the baseline of its
metric.
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
    """Return the case with which metrics score attacks on a training."""
    spec = parse_grid(protocol)[0]
    protocol_object = register.make("protocol", spec)
    iid = parse_grid("iid")[0]
    setting = FederationConfig.of(DataRef.parse(table), iid, clients, 0, protocol_object)
    federation = federation_of(setting, None)
    run = train(protocol_object, federation.local_data, federation.schema, seed=0)
    roles = dict(setting.roles)
    principals = Threat.parse(threat).principals(roles)
    return federation.case(roles, principals, 0, threat, run)


def check(name, case, guesses, tolerance=ROOM):
    """Check that no guess beats the baseline of a metric, by any score with a phrase."""
    metric = register.get("metric", name)()
    truth = metric.truth(case)
    assert truth is not None
    baseline, n_checked = metric.line(case, truth, {}), 0
    for guess_name, claims in guesses(case, truth).items():
        assert metric.refuses(claims, case) is None, guess_name
        for score in metric.score(claims, truth):
            measure = metric.measure(score)
            best_blind = baseline.get(score.name) if score.blind is None else score.blind
            if score.value is None or best_blind is None or not measure.phrase:
                continue
            n_checked += 1
            assert measure.sign * (score.value - best_blind) <= tolerance, (guess_name, score.name)
    assert n_checked


def values(case, truth):
    """Claim constants, steps of the range, and rounded quantiles of own columns."""
    own_rows = case.blind_view().rows

    def claims(guess):
        columns = []
        for (owner, feature), (true_values, counts) in truth.columns.items():
            n_values, step = int(counts.sum()), decimal_step(true_values.astype(np.float64))
            cells = np.unique(
                np.asarray(guess(feature, n_values, step), np.float32), return_counts=True
            )
            columns.append(ColumnValues(owner, feature, *cells, False))
        return columns

    guesses = {
        "zeros": claims(lambda feature, n_values, step: np.zeros(n_values)),
        "ones": claims(lambda feature, n_values, step: np.ones(n_values)),
        "steps": claims(
            lambda feature, n_values, step: round_to_step(part_centres(n_values), step)
        ),
        "repeated steps": claims(lambda feature, n_values, step: np.arange(n_values) // 3 * step),
    }
    if own_rows is not None:
        X = own_rows.X.astype(np.float64)

        def every_step(feature, n_values, step):
            first_step, last_step = (
                int(end / step) for end in (X[:, feature].min(), X[:, feature].max())
            )
            return np.arange(first_step, min(last_step, first_step + 5000) + 1) * step

        guesses |= {
            "every step of the own range": claims(every_step),
            "quantiles": claims(
                lambda feature, n_values, step: np.quantile(X[:, feature], part_centres(n_values))
            ),
            "rounded quantiles": claims(
                lambda feature, n_values, step: round_to_step(
                    np.quantile(X[:, feature], part_centres(n_values)), step
                )
            ),
            "own values repeated": claims(
                lambda feature, n_values, step: np.resize(X[:, feature], n_values)
            ),
            "own mode": claims(
                lambda feature, n_values, step: np.full(n_values, _mode(X[:, feature]))
            ),
        }
    return guesses


def _mode(x):
    distinct, counts = np.unique(x, return_counts=True)
    return distinct[counts.argmax()]


def rows(case, truth):
    """Claim equal rows, own rows repeated, and the most frequent own row."""
    own_rows, n_rows = case.blind_view().rows, truth.guessed
    y = np.full(n_rows, np.bincount(truth.rows.y).argmax())

    def equal(row):
        return [Records(Table(np.tile(np.asarray(row, np.float32), (n_rows, 1)), y))]

    width = len(case.schema.features)
    guesses = {f"all {share}": equal(np.full(width, share)) for share in (0, 0.1, 0.25, 1)}
    if own_rows is not None:
        guesses |= {
            "medians": equal(np.median(own_rows.X, axis=0)),
            "modes": equal([_mode(column) for column in own_rows.X.T]),
            "own repeated": [Records(own_rows.take(np.resize(np.arange(len(own_rows)), n_rows)))],
        }
    return guesses


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
        for feature in np.unique(truth.feature):
            is_feature = truth.feature == feature
            guess[is_feature] = constant(truth.value[is_feature])
        return [
            Entries(
                owner, *(part[truth.owner == owner] for part in (truth.ids, truth.feature, guess))
            )
            for owner in owners
        ]

    quantiles = {
        f"quantile {level}": claims(lambda column, level=level: np.quantile(column, level))
        for level in (0.1, 0.3, 0.5)
    }
    return {"zeros": claims(lambda column: 0.0), "modes": claims(_mode), **quantiles}


def shares(case, truth):
    """Claim equal shares, own shares, and that all rows are of one class."""
    K, own_rows = len(truth.assumed), case.blind_view().rows
    guesses = {"even": np.full(K, 1 / K)} | {f"all {k}": np.eye(K)[k] for k in range(K)}
    if own_rows is not None:
        guesses["own"] = np.bincount(own_rows.y, minlength=K) / len(own_rows)
    return {
        name: [ClassShares(owner, share) for owner in truth.counts]
        for name, share in guesses.items()
    }


def leaves(case, truth):
    """Claim empty leaves, one row in each, equal shares, and own counts, also rounded down."""
    from fedtrees.metrics.leaf_counts import _count

    own_rows = case.blind_view().rows
    empty_counts = {tree: _count(case, tree, Table.empty(case.schema)) for tree in truth.rows}

    def claims(counts):
        return [
            LeafCounts(tree, leaf_counts.leaf, counts(tree, leaf_counts).astype(np.int64))
            for tree, leaf_counts in empty_counts.items()
        ]

    guesses = {
        "empty": claims(lambda tree, leaf_counts: 0 * leaf_counts.counts),
        "one row": claims(lambda tree, leaf_counts: 0 * leaf_counts.counts + 1),
        "equal": claims(
            lambda tree, leaf_counts: (
                0 * leaf_counts.counts + truth.rows[tree] // leaf_counts.counts.size
            )
        ),
    }
    if own_rows is not None:
        own_counts = {tree: _count(case, tree, own_rows).counts for tree in empty_counts}
        guesses |= {
            "own": claims(lambda tree, leaf_counts: own_counts[tree]),
            "rounded down": claims(
                lambda tree, leaf_counts: own_counts[tree] * truth.rows[tree] / len(own_rows)
            ),
        }
    return guesses


def bins(case, truth):
    """Claim empty bins and own counts."""
    own_rows = case.blind_view().rows
    owner = next(iter(truth.counts))
    true_counts = truth.counts[owner]
    guesses = {"empty": 0 * true_counts, "one": 0 * true_counts + 1}
    if own_rows is not None:
        guesses["own"] = truth.adversary_counts
    return {name: [BinClassCounts(owner, counts)] for name, counts in guesses.items()}


def thresholds(case, truth):
    """Claim the same share of every range, also rounded to the precision of the column."""
    guesses = {}
    for share in (0.1, 0.3, 0.5):
        rows, rounded = [], []
        for (tree, node), split in truth.splits.items():
            low, high = truth.schema.features[split.feature].declared_range or (0.0, 1.0)
            step, value = truth.step[split.feature], low + share * (high - low)
            rows.append((tree, node, split.feature, value, low, high))
            rounded_value = min(max(np.rint(value / step) * step, low), high)
            rounded.append((tree, node, split.feature, rounded_value, low, high))
        guesses[f"{share} of the range"] = [Thresholds(*map(np.array, zip(*rows, strict=True)))]
        guesses[f"{share}, rounded"] = [Thresholds(*map(np.array, zip(*rounded, strict=True)))]
    return guesses


def routed(case, truth):
    """Claim one class for all rows."""
    n_rows, K = len(truth.y), truth.classes
    guesses = {f"all {k}": np.tile(np.eye(K)[k], (n_rows, 1)) for k in range(K)}
    return {name: [RoutedLabels(np.arange(n_rows), p)] for name, p in guesses.items()}


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
