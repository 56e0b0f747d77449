"""Splits and routed rows order the columns of other parties: intervals contain the true ranks,
and local columns order rows within an interval.
"""

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
from fedtrees.data.partition import columns_of
from fedtrees.metrics.metric import Case
from fedtrees.metrics.splits import ColumnRanksMetric, orders_of_own
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.views import view_of

ONE_TREE = "[trees=1,max_depth=4,max_bin=16,{}]"
BOOST = "secureboost" + ONE_TREE.format("colsample_bytree=1.0")
FOREST = "vertical-forest" + ONE_TREE.format("tree_features=none,max_samples=none")
NAMES = ["worst radius", "worst smoothness", "mean radius", "worst texture", "mean texture",
         "mean smoothness"]  # fmt: skip
NODE_QUANTILES = BOOST[:-1] + ",candidates=node-quantiles]"
PLAIN_SIDES = "xgboost-vertical[trees=2,max_depth=3,max_bin=16]"


def run_ordering(text, parties=2, principals=("active",), **options):
    """Train, run the attack, and return its claims and the true ranks."""
    training, local_data = run(text, parties, missing=0)
    view = seen_by(training, local_data, *principals)
    attack = SplitOrdering(**options)
    assert attack.inapplicable(view) is None
    case = Case(local_data, training.transcript.roles, principals, training.schema, None)
    truth = ColumnRanksMetric().truth(case)
    return attack.run(view, np.random.default_rng(0)).claims, truth


@pytest.mark.parametrize("text", [BOOST, FOREST, NODE_QUANTILES])
@pytest.mark.parametrize("parties", [2, 3])
def test_intervals_contain_every_rank_and_narrow_some(text, parties):
    claims, truth = run_ordering(text, parties)
    assert claims
    for claim in claims:
        ids, rank = truth.columns[claim.owner, claim.feature]
        assert np.array_equal(ids, claim.ids)
        assert ((claim.low <= rank) & (rank <= claim.high)).all()
        assert (claim.high - claim.low).min() < 1
        assert ((claim.low <= claim.rank) & (claim.rank <= claim.high)).all()


@pytest.mark.parametrize("principals", ["active", "passive-1"])
def test_sides_that_are_sent_in_plain_text_bound_ranks_and_values(principals):
    training, local_data = run(PLAIN_SIDES, 3, missing=0.2)
    view = seen_by(training, local_data, principals)
    assert SplitOrdering().inapplicable(view) is None
    case = Case(local_data, training.transcript.roles, (principals,), training.schema, None)
    truth, value_bounds = ColumnRanksMetric().truth(case), value_ends(view)
    claims = SplitOrdering().run(view, np.random.default_rng(0)).claims
    bounded_claims = [c for c in claims if c.feature in value_bounds]
    assert len(bounded_claims) == len(value_bounds) > 1
    for claim in bounded_claims:
        ids, rank = truth.columns[claim.owner, claim.feature]
        position = np.searchsorted(claim.ids, ids)
        assert ((claim.low[position] <= rank) & (rank <= claim.high[position])).all()
        assert (claim.high - claim.low).min() < 1
        low, high = value_bounds[claim.feature]
        owner_data = local_data[claim.owner]
        values = owner_data.X[:, owner_data.columns.tolist().index(claim.feature)]
        is_present = ~np.isnan(values)
        assert not np.isnan(low[is_present]).any()
        assert (
            (low[is_present] <= values[is_present]) & (values[is_present] < high[is_present])
        ).all()


def test_local_columns_order_rows_within_an_interval():
    """The table has 569 rows with dependent columns, and the model has five trees of depth 3."""
    from fedtrees.data import catalogue

    data = catalogue.load("breast-cancer")
    local_data = {
        "active": columns_of(data.table, np.arange(0, 30, 2), True),
        "passive-1": columns_of(data.table, np.arange(1, 30, 2), False),
    }
    training = train(SecureBoost(trees=5, max_depth=3), local_data, data.schema)
    view = view_of(training, ("active",), local_data)
    case = Case(local_data, training.transcript.roles, ("active",), data.schema, None)
    metric = ColumnRanksMetric()
    truth = metric.truth(case)

    def correlation(claims):
        return {score.name: score.value for score in metric.score(claims, truth)}[
            "rank_correlation"
        ]

    rng = np.random.default_rng(0)
    without_local_columns = correlation(SplitOrdering(own_columns=False).run(view, rng).claims)
    with_local_columns = correlation(SplitOrdering().run(view, rng).claims)
    assert 0.1 < without_local_columns < with_local_columns - 0.02


def test_passive_parties_and_empty_transcripts_reveal_no_splits():
    training, local_data = run(BOOST, 3, missing=0)
    passive = seen_by(training, local_data, "passive-1", "passive-2")
    assert "no split" in str(SplitOrdering().inapplicable(passive))
    empty = seen_by(training, local_data, "active").blinded()
    assert not SplitOrdering().run(empty, np.random.default_rng(0)).claims


def test_censored_regression_recovers_a_line_from_half_of_the_rows():
    rng = np.random.default_rng(4)
    x = rng.uniform(-0.5, 0.5, 400)
    rank = np.clip(0.5 + 0.8 * x + rng.normal(0, 0.05, 400), 0, 1)
    low, high = np.where(rank > 0.5, 0.5, 0), np.where(rank > 0.5, 1, 0.5)
    is_hidden = rng.random(400) < 0.5
    low[is_hidden], high[is_hidden] = 0, 1
    estimated = expected_ranks(x[:, None], low, high)
    assert np.corrcoef(estimated, rank)[0, 1] > 0.95
    assert np.corrcoef((low + high) / 2, rank)[0, 1] < 0.7


def test_scores_of_rank_claims():
    training, local_data = run(BOOST, missing=0)
    case = Case(local_data, training.transcript.roles, ("active",), training.schema, None)
    metric = ColumnRanksMetric()
    truth = metric.truth(case)

    def scores_of(change):
        claims = [
            ColumnRanks(*key, ids, change(rank), rank - 0.05, rank + 0.05)
            for key, (ids, rank) in truth.columns.items()
        ]
        return {score.name: score.value for score in metric.score(claims, truth)}

    perfect = scores_of(lambda rank: rank)
    assert perfect["rank_correlation"] == pytest.approx(1)
    assert perfect["rank_width"] == pytest.approx(0.1)
    assert scores_of(lambda rank: -rank)["rank_correlation"] == pytest.approx(-1)
    without_claims = {score.name: score.value for score in metric.score([], truth)}
    assert without_claims == {"rank_correlation": 0, "rank_width": 1}
    duplicate = [
        ColumnRanks("passive-1", int(local_data["passive-1"].columns[0]), *[np.arange(3)] * 4)
    ] * 2
    assert "more than once" in metric.refuses(duplicate, case)
    not_a_victim = [
        ColumnRanks("passive-1", int(local_data["active"].columns[0]), *[np.arange(3)] * 4)
    ]
    assert "no victim has it" in metric.refuses(not_a_victim, case)
    case = Case(local_data, training.transcript.roles, ("passive-1",), training.schema, None)
    assert {key[0] for key in metric.truth(case).columns} == {"active"}


def test_columns_without_a_split_are_guessed_from_local_and_split_columns():
    with_local_columns, _ = run_ordering(BOOST.replace("max_depth=4", "max_depth=1"))
    without_local_columns, _ = run_ordering(
        BOOST.replace("max_depth=4", "max_depth=1"), own_columns=False
    )
    split_features = {c.feature for c in without_local_columns}
    unsplit = [c for c in with_local_columns if c.feature not in split_features]
    assert unsplit
    for claim in unsplit:
        assert (claim.low == 0).all()
        assert (claim.high == 1).all()
        assert np.ptp(claim.rank) > 0.5
        assert (claim.rank == unsplit[0].rank).all()


def test_blind_orders_use_the_local_column_with_the_most_similar_name():
    training, local_data = run(BOOST, missing=0)
    features = tuple(
        replace(feature, name=name)
        for feature, name in zip(training.schema.features, NAMES, strict=True)
    )
    schema = replace(training.schema, features=features)
    case = Case(local_data, training.transcript.roles, ("active",), schema, None)
    active_data, columns = local_data["active"], ColumnRanksMetric().truth(case).columns
    orders = orders_of_own(case, columns)["names-of-active"]
    for (owner, column), (ids, rank) in orders.items():
        last_word = NAMES[column].split()[1]
        (position,) = [
            i for i, c in enumerate(active_data.columns) if NAMES[c].split()[1] == last_word
        ]
        np.testing.assert_array_equal(ids, active_data.ids)
        assert owner != "active"
        assert np.corrcoef(rank, active_data.X[:, position].argsort().argsort())[0, 1] > 0.99


def test_the_column_that_orders_other_intervals_better_is_used():
    rng = np.random.default_rng(0)
    truth = rng.permutation(400) / 400
    low = np.floor(truth * 8) / 8
    noisy_ranks, noise = truth + rng.normal(0, 0.02, 400) - 0.5, rng.normal(0, 0.3, (400, 2))
    for candidate, expected in ((noisy_ranks, True), (noise[:, 0], False)):
        known_columns = noise if expected else np.column_stack([noisy_ranks, noise])
        rank, chosen = better_ranks(known_columns, candidate[:, None], low, low + 1 / 8)
        assert chosen == expected
        assert ((low <= rank) & (rank <= low + 1 / 8)).all()
        assert np.corrcoef(rank, truth)[0, 1] > 0.99


def test_columns_of_all_principals_precede_the_labels():
    """The position of a local column must not depend on the party that has the labels."""
    training, local_data = run(BOOST, 3, missing=0)
    encoded = encode_local_data(seen_by(training, local_data, "active", "passive-1"))
    columns = np.column_stack([local_data["active"].X, local_data["passive-1"].X])
    assert encoded.shape[1] == columns.shape[1] + 1
    for position, values in enumerate(columns.T):
        np.testing.assert_allclose(encoded[:, position] + 0.5, middle_ranks(values))


def test_an_active_party_without_columns_claims_all_columns_from_its_labels():
    rows, schema = table_of(2, missing=0)
    local_data = {
        "active": columns_of(rows, np.zeros(0, dtype=np.intp), True),
        "passive-1": columns_of(rows, np.arange(6), False),
    }
    training = train(SecureBoost(trees=1, max_depth=1, colsample_bytree=1.0), local_data, schema)
    view = view_of(training, ("active",), local_data)
    claims = SplitOrdering().run(view, np.random.default_rng(0)).claims
    assert {claim.feature for claim in claims} == set(range(6))
