"""Thresholds of others are found by queries, whatever is answered, and within the budget."""

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
from fedtrees.data.layout import columns_of
from fedtrees.experiments.evaluate import make_defense, score_guess
from fedtrees.experiments.federation import Federation
from fedtrees.isolation.process import attack_process
from fedtrees.protocols.training import train
from fedtrees.protocols.vertical.secureboost import SecureBoost
from fedtrees.protocols.views import view_of

SMALL = "secureboost[trees=3,max_depth=3,max_bin=16,colsample_bytree=1.0]"
FOREST = "vertical-forest[trees=3,max_depth=3,max_bin=16,tree_features=none]"


@cache
def trained(text=SMALL, parties=2, classes=2, defense="none", seed=1):
    made = make_defense(parse_composed([defense])[0])
    training, held = run(text, parties, classes, None, missing=0)
    if made.parts:
        protocol, schema = training.protocol, training.schema
        training = train(protocol, held, schema, defense=made, seed=seed)
    return training, held


def asked(training, held, answers="leaf-ids", queries=2000, who=("active",), **options):
    """Return what the attack claims by split, its notes, and the oracle."""
    view = view_of(training, who, held, queries, answers)
    assert ThresholdQueries(**options).inapplicable(view) is None
    guess = ThresholdQueries(**options).run(view, np.random.default_rng(0))
    claim = guess.first(Thresholds)
    rows = zip(
        claim.tree, claim.node, claim.feature, claim.value, claim.low, claim.high, strict=True
    )
    return {(t, n): rest for t, n, *rest in rows}, guess.notes, view.oracle


def check_all(training, claimed, who=("active",)):
    """Every split of others is claimed, with its column and threshold to the last bit."""
    theirs = {at: s for at, s in training.splits.items() if s[0] not in who}
    assert set(claimed) == set(theirs)
    assert len(theirs) > 2
    for at, (_, column, threshold) in theirs.items():
        assert claimed[at][:2] == [column, threshold]


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
def test_all_thresholds_are_found_to_the_last_bit(text, classes, answers):
    training, held = trained(text, 2, classes)
    claimed, notes, oracle = asked(training, held, answers)
    check_all(training, claimed)
    assert notes["records"] == sum(oracle.log) <= 2000


@pytest.mark.long
def test_labels_tell_most_thresholds_and_mislead_about_none():
    training, held = trained()
    claimed, _, _ = asked(training, held, "label")
    found = [claimed[at][1] == threshold for at, (_, _, threshold) in training.splits.items()]
    assert np.mean(found) > 0.6
    for at, (_, _, threshold) in training.splits.items():
        assert claimed[at][2] < threshold <= claimed[at][3]


@pytest.mark.long
def test_columns_need_not_be_known():
    training, held = trained()
    for answers in ("leaf-ids", "score"):
        claimed, _, _ = asked(training, held, answers, columns="unknown")
        check_all(training, claimed)


def test_colluders_are_no_victims_and_own_splits_none():
    training, held = trained(parties=3)
    who = ("active", "passive-1")
    check_all(training, asked(training, held, who=who)[0], who)


@pytest.mark.long
def test_rounded_scores_are_read_all_the_same():
    training, held = trained(defense="answer-rounding[decimals=2]+hide-leaf-ids")
    claimed, _, oracle = asked(training, held, queries=1000)
    assert oracle.answers == "score"
    check_all(training, claimed)


@pytest.mark.long
def test_noisy_scores_are_read_all_the_same():
    """A side is believed at odds of e^7, so that a few of some hundred decisions may be wrong."""
    plain = asked(*trained(), "score", m=3)[1]
    exact = []
    for seed in range(1, 5):
        training, held = trained(defense="answer-noise[scale=0.02]+hide-leaf-ids", seed=seed)
        claimed, notes, oracle = asked(training, held, queries=4000)
        assert oracle.answers == "score"
        theirs = {at: s for at, s in training.splits.items() if s[0] != "active"}
        assert set(claimed) == set(theirs)
        exact += [claimed[at][:2] == [column, value] for at, (_, column, value) in theirs.items()]
        assert 1.5 * plain["records"] < notes["records"] < 1000
    assert np.mean(exact) > 0.9


@pytest.mark.parametrize("candidates", ["global", "node-quantiles"])
def test_a_split_of_missing_values_lies_outside_of_what_its_way_leaves(candidates):
    text = f"secureboost[trees=3,max_depth=3,max_bin=2,candidates={candidates}]"
    training, held = run(text, 2, 3, None, missing=0.2)
    claimed, _, _ = asked(training, held, queries=60, m=5)
    for at, (_, column, threshold) in training.splits.items():
        if at in claimed:
            assert claimed[at][0] == column
            assert claimed[at][2] < threshold <= claimed[at][3]


@pytest.mark.parametrize("limit", [1, 20, 60])
def test_within_the_limit_intervals_narrow_around_the_thresholds(limit):
    training, held = trained(defense=f"query-limit[records={limit}]")
    claimed, notes, oracle = asked(training, held)
    assert oracle.budget == limit >= notes["records"]
    for at, (_, column, threshold) in training.splits.items():
        feature, _, low, high = claimed[at]
        assert feature == column
        assert low < threshold <= high


@pytest.mark.long
def test_more_records_in_a_request_take_more_records_and_fewer_requests():
    training, held = trained()
    few = asked(training, held, m=3)[1]
    many = asked(training, held, queries=10**6)[1]
    assert many["m"] == 401
    assert many["requests"] < few["requests"] / 2
    assert many["records"] > 5 * few["records"]


def test_breast_cancer_takes_2000_records_at_most():
    data = catalogue.load("breast-cancer")
    order = np.random.default_rng(0).permutation(30)
    held = {
        "active": columns_of(data.table, np.sort(order[:10]), True),
        "passive-1": columns_of(data.table, np.sort(order[10:]), False),
    }
    training = train(SecureBoost(trees=5, max_depth=3), held, data.schema)
    view = view_of(training, ("active",), held, 2000, "leaf-ids")
    answer = attack_process().run(Spec("threshold-queries", {"m": 3}), view)
    case = Federation(data, held, data.table, None).case(
        training.transcript.roles, ("active",), 0, "active", training
    )
    rows = {r["metric"]: r for r in score_guess("threshold-queries", answer.guess, case, None)}
    assert len({s[1:] for s in training.splits.values()}) >= 12
    assert rows["thresholds"]["value"] == rows["ranges_covered"]["value"] == 1
    assert (rows["thresholds"]["blind"], rows["threshold_width"]["blind"]) == (0, 1)
    assert sum(view.oracle.log) == answer.guess.notes["records"] < 1000


def test_the_published_counts_of_requests_follow_from_the_formula():
    counts = list(query_counts())
    assert len(counts) == 12
    assert [c.ours for c in counts] == [c.published for c in counts]


def test_a_formula_without_a_range_is_refused():
    assert published_queries(0, 100, 10, 11) == 1
    for bad in [(1, 1, 0.1, 3), (0, 1, 0, 3), (0, 1, 0.1, 2)]:
        with pytest.raises(UsageError, match="epsilon > 0 and m >= 3"):
            published_queries(*bad)


def test_an_endpoint_refuses_what_is_no_record():
    training, held = trained()
    oracle = view_of(training, ("active",), held, 50, "leaf-ids").oracle
    whole = np.zeros((2, 6), dtype=np.float32)
    for bad, said in [
        (whole[:, :5], r"rows of shape \(n, 6\); got \(2, 5\)"),
        (whole[0], r"got \(6,\)"),
        (whole + np.nan, "record 0 .* has no value at all"),
        (np.where(np.eye(2, 6), np.inf, whole), "record 0 .* is infinite"),
    ]:
        with pytest.raises(DataError, match=said):
            oracle.query(bad)
    with pytest.raises(DataError, match="takes no ids"):
        oracle.query(whole, np.arange(2))
    assert oracle.left == 50  # nothing of that was counted
    with pytest.raises(ProtocolError, match="50 of 50 are left"):
        oracle.query(np.zeros((51, 6)))
    number, held = trained(classes=0)
    with pytest.raises(UsageError, match="an endpoint has no labels"):
        view_of(number, ("active",), held, 50, "label")


def test_answers_are_leaves_scores_or_labels():
    training, held = trained()
    X = np.column_stack([held["active"].X, held["passive-1"].X])
    X = X[:, np.argsort(np.concatenate([h.columns for h in held.values()]))]
    leaves, score, label = (
        view_of(training, ("active",), held, 200, kind).oracle.query(X)
        for kind in ("leaf-ids", "score", "label")
    )
    np.testing.assert_array_equal(score, training.predict(X))
    np.testing.assert_array_equal(label, score > 0.5)
    for t, rows in enumerate(training.model.rows):
        for leaf in np.unique(leaves[:, t]):
            ((begin, end),) = rows.ranges(np.array([leaf]))
            assert set(rows.rows[begin:end]) == set(np.flatnonzero(leaves[:, t] == leaf))


def test_others_may_look_up_their_own_values():
    training, held = trained()
    view = view_of(training, ("active",), held, 200, "leaf-ids", "held")
    assert "cannot choose a record" in str(ThresholdQueries().inapplicable(view))
    X = np.full((150, 6), np.nan, dtype=np.float32)
    X[:, held["active"].columns] = held["active"].X
    whole = X.copy()
    whole[:, held["passive-1"].columns] = held["passive-1"].X
    X[:, held["passive-1"].columns] = 7  # is not read
    ids = held["active"].ids[::-1]
    np.testing.assert_array_equal(view.oracle.query(X[::-1], ids), training.leaves(whole)[::-1])
    with pytest.raises(DataError, match="has no rows"):
        view.oracle.query(X[:1], np.array([999]))
    with pytest.raises(DataError, match="takes an id of every row"):
        view.oracle.query(X[:1])


def test_where_there_is_nothing_to_ask_it_says_so():
    training, held = trained()
    attack = ThresholdQueries()
    assert "use the threat queries=" in str(
        attack.inapplicable(view_of(training, ("active",), held))
    )
    passive = view_of(training, ("passive-1",), held, 10)
    assert "received no splits of the trees" in str(attack.inapplicable(passive))
    everybody = view_of(training, tuple(held), held, 10)
    assert "no split uses a column of another party" in str(attack.inapplicable(everybody))
    assert not attack.run(passive.blinded(), np.random.default_rng(0)).claims


def test_labels_do_not_tell_unknown_columns():
    training, held = trained()
    view = view_of(training, ("active",), held, 10, "label")
    assert "columns=told" in str(ThresholdQueries(columns="unknown").inapplicable(view))
    assert ThresholdQueries().inapplicable(view) is None


def test_parameters_are_checked():
    for bad in ({"m": 2}, {"epsilon": 1.0}, {"columns": "guessed"}):
        with pytest.raises(UsageError):
            ThresholdQueries(**bad)


def test_threats_say_what_is_answered():
    roles = {"active": "active", "passive-1": "passive"}
    threat = Threat.parse("active[queries=9,answers=leaf-ids,records=held]", roles)
    assert (threat.queries, threat.answers, threat.records) == (9, "leaf-ids", "held")
    plain = Threat.parse("active", roles)
    assert (plain.queries, plain.answers, plain.records) == (0, "score", "chosen")
    for text, said in [
        ("active[queries=5,answers=leaves]", "unknown answers 'leaves'.*did you mean 'leaf-ids'"),
        ("active[answers=label]", "give queries="),
        ("active[queries=5,answers=label]+passive[queries=5]", "one endpoint"),
    ]:
        with pytest.raises(UsageError, match=said):
            Threat.parse(text, roles)
