"""Path restriction infers the branches of rows to predict from the answers about them."""

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

RNG = np.random.default_rng(0)
PRINCIPALS = ("active",)


@cache
def train_run(
    protocol="secureboost[trees=4,max_depth=3]", defense="hide-leaf-ids", data="diabetes"
):
    """Return the training, the federation, the case, and the true branches."""
    training, federation, setting = train_federation(
        data, parse_list([protocol])[0], 2, 0, None, defense=defense
    )
    case = federation.case(dict(setting.roles), PRINCIPALS, 0, "active", training)
    return training, federation, case, BranchesMetric().truth(case)


def view_with_queries(trained_run, answers="score", queries=1000):
    """Return the view of the active party with queries about the rows to predict."""
    return view_of(
        trained_run[0],
        PRINCIPALS,
        trained_run[1].local_data,
        queries,
        answers,
        "new",
        rows=trained_run[1].test.X,
    )


def branch_accuracy(claims, truth):
    return BranchesMetric().score(claims, truth)[0].value


def score_attack(trained_run, answers="score", queries=1000):
    """Run the attack; return its accuracy, its notes, and the view."""
    view = view_with_queries(trained_run, answers, queries)
    assert PathRestriction().inapplicable(view) is None
    guess = PathRestriction().run(view, RNG)
    return branch_accuracy(guess.claims, trained_run[3]), guess.notes, view


def blind_scores(trained_run):
    """Return the accuracy of each blind guess by name."""
    return {
        name: branch_accuracy(claims, trained_run[3])
        for name, claims in BranchesMetric().blind(trained_run[2], trained_run[3]).items()
    }


@pytest.mark.parametrize(
    "protocol",
    [
        "secureboost[trees=4,max_depth=3]",
        "secureboost[trees=4,max_depth=3,candidates=node-quantiles]",
        "vertical-forest[trees=3,max_depth=3]",
        "federboost-v[trees=4,max_depth=3]",
    ],
)
def test_exact_scores_reveal_every_branch(protocol):
    trained_run = train_run(protocol)
    accuracy, notes, view = score_attack(trained_run)
    n = len(trained_run[1].test)
    assert notes["whole"] == notes["fitting"] == n
    # Several leaves of a forest may have the same value.
    assert accuracy > (0.9 if "forest" in protocol else 0.999)
    assert sum(view.oracle.log) == n


def test_leaf_ids_reveal_every_branch():
    trained_run = train_run("secureboost[trees=2,max_depth=3]", defense="none")
    assert score_attack(trained_run, "leaf-ids")[0] == 1


def test_coarser_answers_reveal_less_but_more_than_the_blind_guess():
    exact, rounded = train_run(), train_run(defense="hide-leaf-ids+answer-rounding[decimals=1]")
    best_blind_score = max(blind_scores(exact).values())
    scores = [
        score_attack(exact)[0],
        score_attack(rounded)[0],
        score_attack(exact, "label")[0],
        best_blind_score,
    ]
    assert scores == sorted(scores, reverse=True)
    assert scores[2] > scores[3] > blind_scores(exact)["likeliest-by-cover"]


def test_noisy_answers_do_not_lower_the_score_below_the_blind_guess():
    trained_run = train_run(defense="hide-leaf-ids+answer-noise[scale=0.3]")
    assert score_attack(trained_run)[0] > max(blind_scores(trained_run).values())


def test_the_query_budget_is_respected_and_other_rows_are_guessed_blindly():
    trained_run = train_run()
    accuracy, notes, view = score_attack(trained_run, queries=25)
    assert (view.oracle.left, notes["fitting"]) == (0, 25)
    assert blind_scores(trained_run)["nearest-training-rows"] < accuracy < 1


def test_visible_routing_reveals_all_branches_unless_leaf_ids_are_hidden():
    trained_run = train_run(defense="none")
    trained_run[0].predict(trained_run[1].test.X)
    view = view_of(trained_run[0], PRINCIPALS, trained_run[1].local_data)
    guess = PathRestriction().run(view, RNG)
    assert branch_accuracy(guess.claims, trained_run[3]) == 1
    assert guess.notes["routed"] == (trained_run[3].goes >= 0).any(axis=1).sum()
    defended_run = train_run()
    defended_run[0].predict(defended_run[1].test.X)
    view_without_queries = view_of(defended_run[0], PRINCIPALS, defended_run[1].local_data)
    assert "use the threat queries=" in str(PathRestriction().inapplicable(view_without_queries))


def test_true_branches_agree_with_the_routing_of_the_model():
    training, federation, _, truth = train_run()
    leaves, X = training.leaves(federation.test.X), federation.test.X
    for column_of_truth, (tree_number, node) in enumerate(truth.at):
        tree = training.model.trees[tree_number]
        _, column, threshold = training.splits[tree_number, node]
        passed = truth.goes[:, column_of_truth] >= 0
        assert (
            truth.goes[passed, column_of_truth] == (X[passed, column] < np.float32(threshold))
        ).all()
        for child, side in ((tree.left[node], 1), (tree.right[node], 0)):
            if tree.feature[child] < 0:
                np.testing.assert_array_equal(
                    leaves[:, tree_number] == child, truth.goes[:, column_of_truth] == side
                )
        assert (
            (truth.trained[:, column_of_truth] >= 0).sum()
            >= (truth.trained[:, column_of_truth] == 1).sum()
            > 0
        )


def test_claims_are_checked():
    zero = np.array([0])
    with pytest.raises(ProtocolError, match="give one of shape"):
        Branches(zero, zero, zero, np.zeros((2, 1)))
    with pytest.raises(ProtocolError, match="0 to 1"):
        Branches(zero, zero, zero, np.full((1, 1), 2.0))
    trained_run = train_run()
    unknown_record = Branches(np.array([10_000]), zero, zero, np.zeros((1, 1)))
    assert "rows to predict" in BranchesMetric().refuses([unknown_record], trained_run[2])
    view = view_of(trained_run[0], PRINCIPALS, trained_run[1].local_data, 5, records="new")
    with pytest.raises(DataError, match="no rows to predict"):
        view.oracle.query(np.zeros((1, 10), np.float32), np.array([0]))
