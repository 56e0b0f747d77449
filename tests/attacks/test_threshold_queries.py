"""Threshold queries recover the thresholds of other parties from every kind of answer, within
the budget.
"""

from functools import cache

import numpy as np
import pytest
from columns import run

from fedtrees.attacks.queries.attack import ThresholdQueries
from fedtrees.benchmarks.papers.regression import published_queries, query_counts
from fedtrees.core.claims import Thresholds
from fedtrees.core.errors import DataError, ProtocolError, UsageError
from fedtrees.core.specs import Spec, parse_composed
from fedtrees.core.threat import Threat
from fedtrees.data import catalogue
from fedtrees.data.partition import columns_of
from fedtrees.experiments.evaluate import make_defense, score_guess
from fedtrees.experiments.federation import Federation
from fedtrees.isolation.process import attack_process
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.views import view_of

SMALL = "secureboost[trees=3,max_depth=3,max_bin=16,colsample_bytree=1.0]"
FOREST = "vertical-forest[trees=3,max_depth=3,max_bin=16,tree_features=none]"


@cache
def train_small(text=SMALL, parties=2, classes=2, defense="none", seed=1):
    composition = make_defense(parse_composed([defense])[0])
    training, local_data = run(text, parties, classes, None, missing=0)
    if composition.parts:
        protocol, schema = training.protocol, training.schema
        training = train(protocol, local_data, schema, defense=composition, seed=seed)
    return training, local_data


def query_thresholds(
    training, local_data, answers="leaf-ids", queries=2000, principals=("active",), **options
):
    """Run the attack; return its claims by split, its notes, and the oracle."""
    view = view_of(training, principals, local_data, queries, answers)
    assert ThresholdQueries(**options).inapplicable(view) is None
    guess = ThresholdQueries(**options).run(view, np.random.default_rng(0))
    claim = guess.first(Thresholds)
    rows = zip(
        claim.tree, claim.node, claim.feature, claim.value, claim.low, claim.high, strict=True
    )
    return {(tree, node): values for tree, node, *values in rows}, guess.notes, view.oracle


def assert_all_thresholds_claimed(training, claimed, principals=("active",)):
    """Assert that every split of other parties is claimed with its column and exact threshold."""
    splits_of_others = {
        key: split for key, split in training.splits.items() if split[0] not in principals
    }
    assert set(claimed) == set(splits_of_others)
    assert len(splits_of_others) > 2
    for key, (_, column, threshold) in splits_of_others.items():
        assert claimed[key][:2] == [column, threshold]


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "classes", "answers"),
    [
        (SMALL, 2, "leaf-ids"),
        (SMALL, 2, "score"),
        (SMALL, 0, "score"),
        (SMALL, 3, "score"),
        (SMALL[:-1] + ",multi_output=true]", 3, "score"),
        (SMALL[:-1] + ",candidates=node-quantiles]", 2, "leaf-ids"),
        (FOREST, 2, "score"),
        (FOREST, 3, "leaf-ids"),
    ],
)
def test_all_thresholds_are_recovered_exactly(text, classes, answers):
    training, local_data = train_small(text, 2, classes)
    claimed, notes, oracle = query_thresholds(training, local_data, answers)
    assert_all_thresholds_claimed(training, claimed)
    assert notes["records"] == sum(oracle.log) <= 2000


@pytest.mark.long
def test_label_answers_reveal_most_thresholds_and_bound_the_others():
    training, local_data = train_small()
    claimed, _, _ = query_thresholds(training, local_data, "label")
    is_exact = [claimed[key][1] == threshold for key, (_, _, threshold) in training.splits.items()]
    assert np.mean(is_exact) > 0.6
    for key, (_, _, threshold) in training.splits.items():
        assert claimed[key][2] < threshold <= claimed[key][3]


@pytest.mark.long
def test_thresholds_are_recovered_with_unknown_columns():
    training, local_data = train_small()
    for answers in ("leaf-ids", "score"):
        claimed, _, _ = query_thresholds(training, local_data, answers, columns="unknown")
        assert_all_thresholds_claimed(training, claimed)


def test_splits_of_colluding_parties_are_not_attacked():
    training, local_data = train_small(parties=3)
    principals = ("active", "passive-1")
    assert_all_thresholds_claimed(
        training, query_thresholds(training, local_data, principals=principals)[0], principals
    )


@pytest.mark.long
def test_thresholds_are_recovered_from_rounded_scores():
    training, local_data = train_small(defense="answer-rounding[decimals=2]+hide-leaf-ids")
    claimed, _, oracle = query_thresholds(training, local_data, queries=1000)
    assert oracle.answers == "score"
    assert_all_thresholds_claimed(training, claimed)


@pytest.mark.long
def test_thresholds_are_recovered_from_noisy_scores():
    """The attack accepts a side at odds of e^7, so a few of several hundred decisions may be
    wrong.
    """
    notes_without_noise = query_thresholds(*train_small(), "score", m=3)[1]
    exact = []
    for seed in range(1, 5):
        training, local_data = train_small(
            defense="answer-noise[scale=0.02]+hide-leaf-ids", seed=seed
        )
        claimed, notes, oracle = query_thresholds(training, local_data, queries=4000)
        assert oracle.answers == "score"
        splits_of_others = {
            key: split for key, split in training.splits.items() if split[0] != "active"
        }
        assert set(claimed) == set(splits_of_others)
        exact += [
            claimed[key][:2] == [column, value]
            for key, (_, column, value) in splits_of_others.items()
        ]
        assert 1.5 * notes_without_noise["records"] < notes["records"] < 1000
    assert np.mean(exact) > 0.9


@pytest.mark.parametrize("candidates", ["global", "node-quantiles"])
def test_intervals_contain_the_thresholds_if_values_are_missing(candidates):
    text = f"secureboost[trees=3,max_depth=3,max_bin=2,candidates={candidates}]"
    training, local_data = run(text, 2, 3, None, missing=0.2)
    claimed, _, _ = query_thresholds(training, local_data, queries=60, m=5)
    for key, (_, column, threshold) in training.splits.items():
        if key in claimed:
            assert claimed[key][0] == column
            assert claimed[key][2] < threshold <= claimed[key][3]


@pytest.mark.parametrize("limit", [1, 20, 60])
def test_within_the_limit_intervals_narrow_around_the_thresholds(limit):
    training, local_data = train_small(defense=f"query-limit[records={limit}]")
    claimed, notes, oracle = query_thresholds(training, local_data)
    assert oracle.budget == limit >= notes["records"]
    for key, (_, column, threshold) in training.splits.items():
        feature, _, low, high = claimed[key]
        assert feature == column
        assert low < threshold <= high


@pytest.mark.long
def test_more_records_in_a_request_take_more_records_and_fewer_requests():
    training, local_data = train_small()
    notes_of_small_requests = query_thresholds(training, local_data, m=3)[1]
    notes_of_large_requests = query_thresholds(training, local_data, queries=10**6)[1]
    assert notes_of_large_requests["m"] == 401
    assert notes_of_large_requests["requests"] < notes_of_small_requests["requests"] / 2
    assert notes_of_large_requests["records"] > 5 * notes_of_small_requests["records"]


def test_breast_cancer_takes_2000_records_at_most():
    data = catalogue.load("breast-cancer")
    order = np.random.default_rng(0).permutation(30)
    local_data = {
        "active": columns_of(data.table, np.sort(order[:10]), True),
        "passive-1": columns_of(data.table, np.sort(order[10:]), False),
    }
    training = train(SecureBoost(trees=5, max_depth=3), local_data, data.schema)
    view = view_of(training, ("active",), local_data, 2000, "leaf-ids")
    answer = attack_process().run(Spec("threshold-queries", {"m": 3}), view)
    case = Federation(data, local_data, data.table, None).case(
        training.transcript.roles, ("active",), 0, "active", training
    )
    rows = {
        row["metric"]: row for row in score_guess("threshold-queries", answer.guess, case, None)
    }
    assert len({split[1:] for split in training.splits.values()}) >= 12
    assert rows["thresholds"]["value"] == rows["ranges_covered"]["value"] == 1
    assert (rows["thresholds"]["blind"], rows["threshold_width"]["blind"]) == (0, 1)
    assert sum(view.oracle.log) == answer.guess.notes["records"] < 1000


def test_the_published_counts_of_requests_follow_from_the_formula():
    counts = list(query_counts())
    assert len(counts) == 12
    assert [count.measured for count in counts] == [count.published for count in counts]


def test_a_formula_without_a_range_is_refused():
    assert published_queries(0, 100, 10, 11) == 1
    for arguments in [(1, 1, 0.1, 3), (0, 1, 0, 3), (0, 1, 0.1, 2)]:
        with pytest.raises(UsageError, match="epsilon > 0 and m >= 3"):
            published_queries(*arguments)


def test_an_endpoint_refuses_invalid_records():
    training, local_data = train_small()
    oracle = view_of(training, ("active",), local_data, 50, "leaf-ids").oracle
    records = np.zeros((2, 6), dtype=np.float32)
    for invalid, message in [
        (records[:, :5], r"rows of shape \(n, 6\); got \(2, 5\)"),
        (records[0], r"got \(6,\)"),
        (records + np.nan, "record 0 .* has no value at all"),
        (np.where(np.eye(2, 6), np.inf, records), "record 0 .* is infinite"),
    ]:
        with pytest.raises(DataError, match=message):
            oracle.query(invalid)
    with pytest.raises(DataError, match="takes no ids"):
        oracle.query(records, np.arange(2))
    assert oracle.left == 50  # The refused requests did not reduce the budget.
    with pytest.raises(ProtocolError, match="exceeds the 50 of 50 rows that are left"):
        oracle.query(np.zeros((51, 6)))
    regression, local_data = train_small(classes=0)
    with pytest.raises(UsageError, match="an endpoint has no labels"):
        view_of(regression, ("active",), local_data, 50, "label")


def test_answers_are_leaves_scores_or_labels():
    training, local_data = train_small()
    X = np.column_stack([local_data["active"].X, local_data["passive-1"].X])
    X = X[:, np.argsort(np.concatenate([party.columns for party in local_data.values()]))]
    leaves, score, label = (
        view_of(training, ("active",), local_data, 200, kind).oracle.query(X)
        for kind in ("leaf-ids", "score", "label")
    )
    np.testing.assert_array_equal(score, training.predict(X))
    np.testing.assert_array_equal(label, score > 0.5)
    for tree, rows in enumerate(training.model.rows):
        for leaf in np.unique(leaves[:, tree]):
            ((begin, end),) = rows.ranges(np.array([leaf]))
            assert set(rows.rows[begin:end]) == set(np.flatnonzero(leaves[:, tree] == leaf))


def test_an_endpoint_may_use_the_stored_values_of_other_parties():
    training, local_data = train_small()
    view = view_of(training, ("active",), local_data, 200, "leaf-ids", "held")
    assert "cannot choose a record" in str(ThresholdQueries().inapplicable(view))
    X = np.full((150, 6), np.nan, dtype=np.float32)
    X[:, local_data["active"].columns] = local_data["active"].X
    complete_rows = X.copy()
    complete_rows[:, local_data["passive-1"].columns] = local_data["passive-1"].X
    X[:, local_data["passive-1"].columns] = 7  # The endpoint does not read this value.
    ids = local_data["active"].ids[::-1]
    np.testing.assert_array_equal(
        view.oracle.query(X[::-1], ids), training.leaves(complete_rows)[::-1]
    )
    with pytest.raises(DataError, match="has no rows"):
        view.oracle.query(X[:1], np.array([999]))
    with pytest.raises(DataError, match="takes an id of every row"):
        view.oracle.query(X[:1])


def test_the_attack_explains_why_it_does_not_apply():
    training, local_data = train_small()
    attack = ThresholdQueries()
    assert "use the threat queries=" in str(
        attack.inapplicable(view_of(training, ("active",), local_data))
    )
    passive_view = view_of(training, ("passive-1",), local_data, 10)
    assert "received no splits of the trees" in str(attack.inapplicable(passive_view))
    view_of_all = view_of(training, tuple(local_data), local_data, 10)
    assert "no split uses a column of another party" in str(attack.inapplicable(view_of_all))
    assert not attack.run(passive_view.blinded(), np.random.default_rng(0)).claims


def test_label_answers_do_not_suffice_for_unknown_columns():
    training, local_data = train_small()
    view = view_of(training, ("active",), local_data, 10, "label")
    assert "columns=told" in str(ThresholdQueries(columns="unknown").inapplicable(view))
    assert ThresholdQueries().inapplicable(view) is None


def test_parameters_are_checked():
    for parameters in ({"m": 2}, {"epsilon": 1.0}, {"columns": "guessed"}):
        with pytest.raises(UsageError):
            ThresholdQueries(**parameters)


def test_a_threat_states_the_kind_of_answers():
    roles = {"active": "active", "passive-1": "passive"}
    threat = Threat.parse("active[queries=9,answers=leaf-ids,records=held]", roles)
    assert (threat.queries, threat.answers, threat.records) == (9, "leaf-ids", "held")
    default = Threat.parse("active", roles)
    assert (default.queries, default.answers, default.records) == (0, "score", "chosen")
    for text, message in [
        ("active[queries=5,answers=leaves]", "unknown answers 'leaves'.*did you mean 'leaf-ids'"),
        ("active[answers=label]", "give queries="),
        ("active[queries=5,answers=label]+passive[queries=5]", "one endpoint"),
    ]:
        with pytest.raises(UsageError, match=message):
            Threat.parse(text, roles)
