"""Branches of rows to predict, by what is answered of them."""

from functools import cache

import numpy as np
import pytest

from fedtrees.attacks.queries.path_restriction import PathRestriction
from fedtrees.benchmarks.papers.study import train_federation
from fedtrees.core.claims import Branches
from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.specs import parse_list
from fedtrees.metrics.thresholds import BranchesMetric
from fedtrees.protocols.views import view_of

NOBODY = np.random.default_rng(0)
WHO = ("active",)


@cache
def run(protocol="secureboost[trees=4,max_depth=3]", defense="hide-leaf-ids", data="diabetes"):
    """Return the run, the federation, the case, and what is true."""
    training, federation, setting = train_federation(
        data, parse_list([protocol])[0], 2, 0, None, defense=defense
    )
    case = federation.case(dict(setting.roles), WHO, 0, "active", training)
    return training, federation, case, BranchesMetric().truth(case)


def seen(made, answers="score", queries=1000):
    return view_of(made[0], WHO, made[1].local_data, queries, answers, "new", rows=made[1].test.X)


def score(claims, truth):
    return BranchesMetric().score(claims, truth)[0].value


def told(made, answers="score", queries=1000):
    view = seen(made, answers, queries)
    assert PathRestriction().inapplicable(view) is None
    guess = PathRestriction().run(view, NOBODY)
    return score(guess.claims, made[3]), guess.notes, view


def blind(made):
    return {k: score(v, made[3]) for k, v in BranchesMetric().blind(made[2], made[3]).items()}


@pytest.mark.parametrize(
    "protocol",
    [
        "secureboost[trees=4,max_depth=3]",
        "secureboost[trees=4,max_depth=3,candidates=node-quantiles]",
        "vertical-forest[trees=3,max_depth=3]",
        "federboost-v[trees=4,max_depth=3]",
    ],
)
def test_exact_scores_name_every_branch(protocol):
    made = run(protocol)
    found, notes, view = told(made)
    n = len(made[1].test)
    assert notes["whole"] == notes["fitting"] == n
    assert found > (0.9 if "forest" in protocol else 0.999)  # leaves of forests may be alike
    assert sum(view.oracle.log) == n


def test_leaf_ids_name_every_branch():
    made = run("secureboost[trees=2,max_depth=3]", defense="none")
    assert told(made, "leaf-ids")[0] == 1


def test_less_is_told_by_less_and_never_less_than_blind():
    exact, rounded = run(), run(defense="hide-leaf-ids+answer-rounding[decimals=1]")
    least = max(blind(exact).values())
    scores = [told(exact)[0], told(rounded)[0], told(exact, "label")[0], least]
    assert scores == sorted(scores, reverse=True)
    assert scores[2] > scores[3] > blind(exact)["likeliest-by-cover"]


def test_answers_that_are_mostly_noise_do_no_harm():
    made = run(defense="hide-leaf-ids+answer-noise[scale=0.3]")
    assert told(made)[0] > max(blind(made).values())


def test_a_budget_is_kept_and_the_rest_is_claimed_blindly():
    made = run()
    some, notes, view = told(made, queries=25)
    assert (view.oracle.left, notes["fitting"]) == (0, 25)
    assert blind(made)["nearest-training-rows"] < some < 1


def test_open_routing_tells_all_and_is_not_seen_where_ways_are_hidden():
    made = run(defense="none")
    made[0].predict(made[1].test.X)
    view = view_of(made[0], WHO, made[1].local_data)
    guess = PathRestriction().run(view, NOBODY)
    assert score(guess.claims, made[3]) == 1
    assert guess.notes["routed"] == (made[3].goes >= 0).any(axis=1).sum()
    hidden = run()
    hidden[0].predict(hidden[1].test.X)
    alone = view_of(hidden[0], WHO, hidden[1].local_data)
    assert "use the threat queries=" in str(PathRestriction().inapplicable(alone))


def test_truth_is_where_rows_go():
    training, federation, _, truth = run()
    leaves, X = training.leaves(federation.test.X), federation.test.X
    for j, (t, node) in enumerate(truth.at):
        tree = training.model.trees[t]
        _, column, threshold = training.splits[t, node]
        passed = truth.goes[:, j] >= 0
        assert (truth.goes[passed, j] == (X[passed, column] < np.float32(threshold))).all()
        for child, side in ((tree.left[node], 1), (tree.right[node], 0)):
            if tree.feature[child] < 0:
                np.testing.assert_array_equal(leaves[:, t] == child, truth.goes[:, j] == side)
        assert (truth.trained[:, j] >= 0).sum() >= (truth.trained[:, j] == 1).sum() > 0


def test_claims_are_checked():
    one = np.array([0])
    with pytest.raises(ProtocolError, match="give one of shape"):
        Branches(one, one, one, np.zeros((2, 1)))
    with pytest.raises(ProtocolError, match="0 to 1"):
        Branches(one, one, one, np.full((1, 1), 2.0))
    made = run()
    far = Branches(np.array([10_000]), one, one, np.zeros((1, 1)))
    assert "rows to predict" in BranchesMetric().refuses([far], made[2])
    view = view_of(made[0], WHO, made[1].local_data, 5, records="new")
    with pytest.raises(DataError, match="no rows to predict"):
        view.oracle.query(np.zeros((1, 10), np.float32), np.array([0]))
