"""Splits and routed rows order others' columns: intervals hold, and own columns say where."""

from dataclasses import replace

import numpy as np
import pytest
from columns import run, seen_by, table_of

from fedtrees.attacks.observations.forests import value_ends
from fedtrees.attacks.rank_inference import (
    SplitOrdering,
    better_ranks,
    encode_local_data,
    expected_ranks,
)
from fedtrees.core.claims import ColumnRanks
from fedtrees.core.statistics import middle_ranks
from fedtrees.data.layout import columns_of
from fedtrees.metrics.metric import Case
from fedtrees.metrics.splits import ColumnRanksMetric, orders_of_own
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.views import view_of

ONE = "[trees=1,max_depth=4,max_bin=16,{}]"
BOOST = "secureboost" + ONE.format("colsample_bytree=1.0")
FOREST = "vertical-forest" + ONE.format("tree_features=none,max_samples=none")
NAMES = ["worst radius", "worst smoothness", "mean radius", "worst texture", "mean texture",
         "mean smoothness"]  # fmt: skip
NODES = BOOST[:-1] + ",candidates=node-quantiles]"
CLEAR = "xgboost-vertical[trees=2,max_depth=3,max_bin=16]"


def claims_of(text, parties=2, who=("active",), **options):
    training, held = run(text, parties, missing=0)
    view = seen_by(training, held, *who)
    attack = SplitOrdering(**options)
    assert attack.inapplicable(view) is None
    case = Case(held, training.transcript.roles, who, training.schema, None)
    truth = ColumnRanksMetric().truth(case)
    return attack.run(view, np.random.default_rng(0)).claims, truth


@pytest.mark.parametrize("text", [BOOST, FOREST, NODES])
@pytest.mark.parametrize("parties", [2, 3])
def test_intervals_hold_every_row_and_narrow_some(text, parties):
    claims, truth = claims_of(text, parties)
    assert claims
    for claim in claims:
        ids, rank = truth.columns[claim.owner, claim.feature]
        assert np.array_equal(ids, claim.ids)
        assert ((claim.low <= rank) & (rank <= claim.high)).all()
        assert (claim.high - claim.low).min() < 1
        assert ((claim.low <= claim.rank) & (claim.rank <= claim.high)).all()


@pytest.mark.parametrize("who", ["active", "passive-1"])
def test_sides_told_in_clear_bound_ranks_and_values(who):
    training, held = run(CLEAR, 3, missing=0.2)
    view = seen_by(training, held, who)
    assert SplitOrdering().inapplicable(view) is None
    case = Case(held, training.transcript.roles, (who,), training.schema, None)
    truth, found = ColumnRanksMetric().truth(case), value_ends(view)
    claims = SplitOrdering().run(view, np.random.default_rng(0)).claims
    narrow = [c for c in claims if c.feature in found]
    assert len(narrow) == len(found) > 1
    for claim in narrow:
        ids, rank = truth.columns[claim.owner, claim.feature]
        at = np.searchsorted(claim.ids, ids)
        assert ((claim.low[at] <= rank) & (rank <= claim.high[at])).all()
        assert (claim.high - claim.low).min() < 1
        low, high = found[claim.feature]
        h = held[claim.owner]
        x = h.X[:, h.columns.tolist().index(claim.feature)]
        there = ~np.isnan(x)
        assert not np.isnan(low[there]).any()
        assert ((low[there] <= x[there]) & (x[there] < high[there])).all()


def test_own_columns_order_rows_within_an_interval():
    """On 569 rows with columns that go together, five trees of depth 3."""
    from fedtrees.data import catalogue

    data = catalogue.load("breast-cancer")
    held = {
        "active": columns_of(data.table, np.arange(0, 30, 2), True),
        "passive-1": columns_of(data.table, np.arange(1, 30, 2), False),
    }
    training = train(SecureBoost(trees=5, max_depth=3), held, data.schema)
    view = view_of(training, ("active",), held)
    case = Case(held, training.transcript.roles, ("active",), data.schema, None)
    metric = ColumnRanksMetric()
    truth = metric.truth(case)

    def correlation(claims):
        return {s.name: s.value for s in metric.score(claims, truth)}["rank_correlation"]

    rng = np.random.default_rng(0)
    middle = correlation(SplitOrdering(own_columns=False).run(view, rng).claims)
    own = correlation(SplitOrdering().run(view, rng).claims)
    assert 0.1 < middle < own - 0.02


def test_passive_parties_and_empty_transcripts_have_no_split_to_read():
    training, held = run(BOOST, 3, missing=0)
    passive = seen_by(training, held, "passive-1", "passive-2")
    assert "no split" in str(SplitOrdering().inapplicable(passive))
    empty = seen_by(training, held, "active").blinded()
    assert not SplitOrdering().run(empty, np.random.default_rng(0)).claims


def test_censored_regression_finds_a_line_that_half_of_the_rows_show():
    rng = np.random.default_rng(4)
    x = rng.uniform(-0.5, 0.5, 400)
    rank = np.clip(0.5 + 0.8 * x + rng.normal(0, 0.05, 400), 0, 1)
    low, high = np.where(rank > 0.5, 0.5, 0), np.where(rank > 0.5, 1, 0.5)
    hidden = rng.random(400) < 0.5
    low[hidden], high[hidden] = 0, 1
    found = expected_ranks(x[:, None], low, high)
    assert np.corrcoef(found, rank)[0, 1] > 0.95
    assert np.corrcoef((low + high) / 2, rank)[0, 1] < 0.7


def test_scores_of_orders():
    training, held = run(BOOST, missing=0)
    case = Case(held, training.transcript.roles, ("active",), training.schema, None)
    metric = ColumnRanksMetric()
    truth = metric.truth(case)

    def scored(change):
        claims = [
            ColumnRanks(*key, ids, change(rank), rank - 0.05, rank + 0.05)
            for key, (ids, rank) in truth.columns.items()
        ]
        return {s.name: s.value for s in metric.score(claims, truth)}

    perfect = scored(lambda rank: rank)
    assert perfect["rank_correlation"] == pytest.approx(1)
    assert perfect["rank_width"] == pytest.approx(0.1)
    assert scored(lambda rank: -rank)["rank_correlation"] == pytest.approx(-1)
    nothing = {s.name: s.value for s in metric.score([], truth)}
    assert nothing == {"rank_correlation": 0, "rank_width": 1}
    twice = [ColumnRanks("passive-1", int(held["passive-1"].columns[0]), *[np.arange(3)] * 4)] * 2
    assert "more than once" in metric.refuses(twice, case)
    other = [ColumnRanks("passive-1", int(held["active"].columns[0]), *[np.arange(3)] * 4)]
    assert "no victim has it" in metric.refuses(other, case)
    case = Case(held, training.transcript.roles, ("passive-1",), training.schema, None)
    assert {key[0] for key in metric.truth(case).columns} == {"active"}


def test_columns_without_a_split_are_guessed_by_what_own_and_split_ones_have_in_common():
    whole, _ = claims_of(BOOST.replace("max_depth=4", "max_depth=1"))
    alone, _ = claims_of(BOOST.replace("max_depth=4", "max_depth=1"), own_columns=False)
    split = {c.feature for c in alone}
    unsplit = [c for c in whole if c.feature not in split]
    assert unsplit
    for claim in unsplit:
        assert (claim.low == 0).all()
        assert (claim.high == 1).all()
        assert np.ptp(claim.rank) > 0.5
        assert (claim.rank == unsplit[0].rank).all()


def test_blind_orders_follow_the_own_column_of_the_likest_name():
    training, held = run(BOOST, missing=0)
    features = tuple(
        replace(f, name=name) for f, name in zip(training.schema.features, NAMES, strict=True)
    )
    schema = replace(training.schema, features=features)
    case = Case(held, training.transcript.roles, ("active",), schema, None)
    own, columns = held["active"], ColumnRanksMetric().truth(case).columns
    orders = orders_of_own(case, columns)["names-of-active"]
    for (owner, column), (ids, rank) in orders.items():
        what = NAMES[column].split()[1]
        (at,) = [i for i, c in enumerate(own.columns) if NAMES[c].split()[1] == what]
        np.testing.assert_array_equal(ids, own.ids)
        assert owner != "active"
        assert np.corrcoef(rank, own.X[:, at].argsort().argsort())[0, 1] > 0.99


def test_the_column_that_orders_unseen_intervals_better_is_taken():
    rng = np.random.default_rng(0)
    truth = rng.permutation(400) / 400
    low = np.floor(truth * 8) / 8
    shaken, noise = truth + rng.normal(0, 0.02, 400) - 0.5, rng.normal(0, 0.3, (400, 2))
    for alone, best in ((shaken, True), (noise[:, 0], False)):
        known = noise if best else np.column_stack([shaken, noise])
        rank, named = better_ranks(known, alone[:, None], low, low + 1 / 8)
        assert named == best
        assert ((low <= rank) & (rank <= low + 1 / 8)).all()
        assert np.corrcoef(rank, truth)[0, 1] > 0.99


def test_columns_of_all_principals_precede_the_labels():
    """The position of a local column must not depend on the party that has the labels."""
    training, held = run(BOOST, 3, missing=0)
    known = encode_local_data(seen_by(training, held, "active", "passive-1"))
    columns = np.column_stack([held["active"].X, held["passive-1"].X])
    assert known.shape[1] == columns.shape[1] + 1
    for position, values in enumerate(columns.T):
        np.testing.assert_allclose(known[:, position] + 0.5, middle_ranks(values))


def test_an_active_party_without_columns_claims_all_columns_from_its_labels():
    rows, schema = table_of(2, missing=0)
    held = {
        "active": columns_of(rows, np.zeros(0, dtype=np.intp), True),
        "passive-1": columns_of(rows, np.arange(6), False),
    }
    training = train(SecureBoost(trees=1, max_depth=1, colsample_bytree=1.0), held, schema)
    view = view_of(training, ("active",), held)
    claims = SplitOrdering().run(view, np.random.default_rng(0)).claims
    assert {claim.feature for claim in claims} == set(range(6))
