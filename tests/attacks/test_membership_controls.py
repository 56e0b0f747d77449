"""Controls of membership inference: attacks succeed on models that must leak, and fail on
others.
"""

from dataclasses import replace

import numpy as np
import pytest
from present import here
from scipy import stats
from scipy.sparse import csr_array

from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.membership.base import LinearSums, any_of, log_odds, together
from fedtrees.attacks.membership.leaf_sums import _Sums
from fedtrees.attacks.membership.learners import trainer_of
from fedtrees.attacks.membership.references import boosted_trainer
from fedtrees.attacks.membership.suppressed_bins import SuppressedBins, truncated_binomial
from fedtrees.attacks.membership.suppressed_leaves import SuppressedTree
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import cuts_of, params_of
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.metrics.membership import auc
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

CLIENTS = 3
NOISY = "dp-gbdt[epsilon=20,trees=30,noise=distributed]"


def view_and_members(
    spec, seed, principals_text="public", defense="none", rows=120, columns=8, numeric_target=False,
    whole_numbers=False,
):  # fmt: skip
    """Train on half of the rows with random labels; return the view with candidates, and the
    mask of members.
    """
    rng = np.random.default_rng(seed)
    X, y = rng.uniform(0, 8, (rows, columns)).astype(np.float32), rng.integers(0, 2, rows)
    X = np.floor(X) if whole_numbers else X
    if numeric_target:
        y = rng.normal(size=rows)
    member = rng.permutation(rows) < rows // 2
    features = tuple(Feature(f"x{k}", low=0, high=8) for k in range(columns))
    schema = Schema(features, "y", classes=() if numeric_target else ("a", "b"))
    table, used = Table(X, y), np.flatnonzero(member)
    protocol = register.make("protocol", parse_grid(spec)[0])
    if protocol.layout == "vertical":
        member_rows = table.take(used)
        column_parts = np.array_split(np.arange(columns), 2)
        local_data = {
            name: LocalData(
                np.arange(len(member_rows)),
                part,
                member_rows.X[:, part],
                member_rows.y if name == "active" else None,
            )
            for name, part in zip(("active", "passive-1"), column_parts, strict=True)
        }
    else:
        local_data = over_clients([table.take(used[k::CLIENTS]) for k in range(CLIENTS)])
    composition = make_defense(parse_composed([defense])[0])
    run = train(protocol, local_data, schema, defense=composition, seed=seed)
    principals = tuple(principals_text.split("+"))
    view = view_of(run, principals, local_data)
    local_rows = set() if view.rows is None else {row.tobytes() for row in view.rows.X}
    not_local = np.flatnonzero([row.tobytes() not in local_rows for row in X])
    return replace(view, candidates=table.take(not_local)), member[not_local]


def membership_scores(view, attack="membership", test="together"):
    guess = register.make("attack", Spec(attack, {"models": 8})).run(view, np.random.default_rng(0))
    return next(claim.score for claim in guess.claims if claim.test == test)


def mean_auc(spec, principals_text, defense="none", attack="membership", seeds=2, **options):
    aucs = []
    for seed in range(seeds):
        view, member = view_and_members(spec, seed, principals_text, defense, **options)
        aucs.append(auc(membership_scores(view, attack), member))
    return np.mean(aucs)


# Specification, adversary, defense, attack, least mean AUC over two seeds. The standard deviation
# of the mean AUC of random scores over 60 members and 60 nonmembers is 0.037.
LEAKS = [
    (NOISY, "public", "none", "membership", 0.85),
    (NOISY, "client-0", "none", "membership", 0.85),
    (NOISY, "server", "none", "membership", 0.85),
    (NOISY, "server+client-0", "none", "membership", 0.85),
    (NOISY, "public", "split-only", "membership", 0.68),
    ("dp-gbdt[epsilon=1,trees=30]", "server", "none", "membership", 0.95),
    ("dp-forest[epsilon=200,trees=20,depth=4]", "public", "none", "membership", 0.95),
    ("dp-forest[epsilon=200,trees=20,depth=4,noise=distributed]", "client-0", "none",
     "membership", 0.95),
    ("dp-forest[epsilon=1,trees=20,depth=4]", "server", "none", "membership", 0.95),
    ("dp-forest[mechanism=majority,epsilon=10000,trees=40,depth=6]", "public", "none",
     "membership", 0.85),
    ("fedtree-hist[trees=10,max_depth=5]", "public", "none", "membership", 0.9),
    ("fedtree-hist[trees=4,max_depth=3]", "server", "secure-sum+public-cuts", "membership", 0.95),
    ("fedtree-hist[trees=4,max_depth=3]", "server", "laplace-hist[epsilon=100]+public-cuts",
     "membership", 0.95),
    ("fedtree-hist[trees=4,max_depth=3]", "public", "laplace-hist[epsilon=100]+public-cuts",
     "membership", 0.7),
    ("nvflare-hist[trees=10]", "public", "none", "membership", 0.9),
    ("xgboost-ring[trees=10]", "public", "none", "membership", 0.9),
    ("federboost-h[trees=10]", "public", "none", "membership", 0.85),
    ("lightgbm-data[trees=10,min_data_in_leaf=2,num_leaves=16]", "public", "none", "membership",
     0.85),
    ("flower-bagging[trees=6]", "public", "none", "membership", 0.75),
    ("flower-cyclic[trees=10]", "public", "none", "membership", 0.68),
    ("local-ensembles[trees=10]", "public", "none", "membership", 0.78),
    ("forest-hist[trees=5,max_depth=8]", "public", "none", "membership", 0.8),
    ("local-forests[trees=10,max_depth=8]", "public", "none", "membership", 0.8),
    ("xgboost-vertical[trees=10,max_depth=5]", "public", "none", "membership", 0.9),
    ("fedxgbllr[trees=8,rounds=2,iterations=8,max_depth=6]", "public", "none", "membership", 0.7),
    ("horizontal-regression[rounds=60,lr=0.3]", "server", "none", "regression-membership", 0.72),
    ("horizontal-regression[rounds=60,lr=0.3]", "client-0", "none", "regression-membership", 0.74),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "adversary", "defense", "attack", "least_auc"),
    [case for case in LEAKS if here("protocol", [case[0]]) and here("defense", [case[2]])],
)
def test_members_are_recognised_if_a_model_must_leak(spec, adversary, defense, attack, least_auc):
    assert mean_auc(spec, adversary, defense, attack) > least_auc


@pytest.mark.extra("interpret")
@pytest.mark.long
@pytest.mark.parametrize(
    ("spec", "adversary"),
    [("dp-ebm[epsilon=1000,max_rounds=10,max_bins=32]", who) for who in ("public", "server")]
    + [("ebm-merge[max_rounds=20,max_bins=32,outer_bags=1]", "public")],
)
def test_members_of_explainable_boosting_machines_are_recognised(spec, adversary):
    assert mean_auc(spec, adversary) > 0.8


@pytest.mark.extra("interpret")
def test_the_server_counts_the_values_of_each_explainable_boosting_machine():
    spec = "ebm-merge[max_rounds=2,max_bins=32,outer_bags=1]"
    # The attack scored .50 as long as it only asked whether a model contains a value.
    assert mean_auc(spec, "server", rows=240, whole_numbers=True) > 0.7


@pytest.mark.parametrize("spec", here("protocol", [NOISY]))
def test_the_control_of_noisy_leaves_fails_if_the_attack_models_a_greedy_learner(spec, monkeypatch):
    assert mean_auc(spec, "client-0") > 0.85
    monkeypatch.setattr(MembershipInference, "linear_sums", lambda *_: [])
    monkeypatch.setattr(
        MembershipInference,
        "trainer",
        lambda _, view, model: boosted_trainer(params_of(view), model.objective, cuts_of(view)),
    )
    assert mean_auc(spec, "client-0") < 0.8


NOTHING = [
    ("dp-gbdt[epsilon=0.01,trees=8,noise=distributed]", "client-0"),
    ("dp-gbdt[epsilon=0.01,trees=8]", "public"),
    ("dp-forest[epsilon=0.01]", "public"),
]


@pytest.mark.parametrize(
    ("spec", "adversary"), [case for case in NOTHING if here("protocol", [case[0]])]
)
def test_members_are_not_recognised_at_a_tiny_epsilon(spec, adversary):
    aucs = []
    for seed in range(16):
        view, member = view_and_members(spec, seed, adversary)
        attack = MembershipInference()
        parts = attack.linear_sums(view, attack.model(view), view.candidates)
        aucs.append(auc(any_of([log_odds(part) for part in parts]), member))
    assert abs(np.mean(aucs) - 0.5) < 0.05  # The standard deviation of this mean is 0.015.


LINEAR = [
    ("dp-gbdt[epsilon=2,trees=20]", "public", "none", {}),
    ("dp-gbdt[epsilon=2,trees=20,noise=distributed]", "client-0", "none", {}),
    ("dp-gbdt[epsilon=2,trees=20,clip=0.1]", "public", "none", {}),
    ("dp-gbdt[epsilon=2,trees=20,clip=1,base_score=0]", "public", "none", {"numeric_target": True}),
    ("dp-forest[epsilon=2]", "public", "none", {}),
    ("dp-forest[epsilon=2,noise=distributed]", "client-0", "none", {}),
    ("fedtree-hist[trees=4,max_depth=3]", "server", "laplace-hist[epsilon=2]+public-cuts", {}),
]


@pytest.mark.parametrize(
    ("spec", "adversary", "defense", "options"),
    [case for case in LINEAR if here("protocol", [case[0]]) and here("defense", [case[2]])],
)
def test_sums_minus_the_contributions_of_members_have_the_declared_noise(
    spec, adversary, defense, options
):
    squares = []
    for seed in range(2):
        view, member = view_and_members(spec, seed, adversary, defense, **options)
        attack = MembershipInference()
        parts = attack.linear_sums(view, attack.model(view), view.candidates)
        noise = sum(part.total for part in parts) - parts[0].contribution.T @ member.astype(float)
        variance = sum(part.variance for part in parts)
        squares.append(noise**2 / variance)
    squares = np.concatenate(squares)
    # Laplace noise has the greatest fourth moment of all laws here, 6.
    assert abs(squares.mean() - 1) < 5 * np.sqrt(5 / len(squares))


EXACT = [
    ("fedtree-hist[trees=6,max_depth=4]", "public", "none"),
    ("fedtree-hist[trees=6,max_depth=4]", "client-0", "split-only"),
    ("fedtree-hist[trees=6,max_depth=4]", "server", "secure-sum+public-cuts"),
    ("xgboost-vertical[trees=6]", "public", "none"),
    ("dp-gbdt[epsilon=1,trees=10]", "server", "secure-sum"),
    ("dp-gbdt[epsilon=inf,trees=10]", "public", "split-only"),
    ("dp-forest[epsilon=1]", "server", "secure-sum"),
]


@pytest.mark.parametrize(
    ("spec", "adversary", "defense"),
    [case for case in EXACT if here("protocol", [case[0]]) and here("defense", [case[2]])],
)
def test_exact_sums_are_the_members_contributions(spec, adversary, defense):
    view, member = view_and_members(spec, 0, adversary, defense)
    attack = MembershipInference()
    parts = attack.linear_sums(view, attack.model(view), view.candidates)
    difference = sum(part.total for part in parts) - parts[0].contribution.T @ member.astype(float)
    used = np.isfinite(sum(part.variance for part in parts))
    size = np.abs(parts[0].contribution).max()
    assert used.any()
    assert np.abs(difference[used]).max() < 1e-3 * max(size, 1)


# Specification, adversary, defense, least mean AUC over two seeds. The attack scored .62, .60, .57
# and .94 as long as it ignored suppressed bins and used differences between histograms.
SUPPRESSED = [
    ("fedtree-hist[trees=4,max_depth=3,max_bin=6]", "server", "min-bin[k=5]", 0.95),
    ("nvflare-hist[trees=4,max_bin=6]", "client-0", "min-bin[k=5]", 0.8),
    ("fedtree-hist[trees=4,max_depth=3,max_bin=6]", "server", "secure-sum+min-bin[k=5]", 0.73),
    ("nvflare-hist[trees=4,max_bin=16]", "client-0", "min-bin[k=5,by=server]", 0.98),
]


@pytest.mark.parametrize(
    ("spec", "adversary", "defense", "least_auc"),
    [case for case in SUPPRESSED if here("protocol", [case[0]]) and here("defense", [case[2]])],
)
def test_members_are_recognised_although_bins_of_few_rows_are_suppressed(
    spec, adversary, defense, least_auc
):
    aucs = []
    for seed in range(2):
        view, member = view_and_members(spec, seed, adversary, defense, rows=240, columns=6)
        aucs.append(auc(membership_scores(view, test="posterior"), member))
    assert np.mean(aucs) > least_auc


# Adversary, defense, least mean AUC over four seeds. The attack scored .51, .50 and .53 as long as
# it took the sums of leaves for those of the rows that reach them.
SUPPRESSED_LEAVES = [
    ("public", "min-bin[k=5]", 0.58),
    ("client-0", "min-bin[k=5]", 0.6),
    ("client-0", "split-only+min-bin[k=5]", 0.55),
]


@pytest.mark.parametrize(
    ("adversary", "defense", "least_auc"),
    [case for case in SUPPRESSED_LEAVES if here("defense", [case[1]])],
)
def test_leaves_reveal_members_although_bins_of_few_rows_are_suppressed(
    adversary, defense, least_auc
):
    spec = "fedtree-hist[trees=8,max_depth=3,max_bin=12]"
    aucs = []
    for seed in range(4):
        view, member = view_and_members(spec, seed, adversary, defense, rows=240, columns=6)
        aucs.append(auc(membership_scores(view), member))
    assert np.mean(aucs) > least_auc


def test_leaf_sums_lack_the_bins_that_each_client_suppressed(monkeypatch):
    spec, defense = "fedtree-hist[trees=6,max_depth=3,max_bin=12]", "min-bin[k=5]"
    view, member = view_and_members(spec, 0, "server", defense, rows=240, columns=6)
    used, client = np.flatnonzero(member), np.zeros((1, len(member)), dtype=np.int64)
    for k in range(CLIENTS):
        client[0, used[k::CLIENTS]] = k
    laws, contributions = [], SuppressedTree.leaf_contributions
    monkeypatch.setattr(
        SuppressedTree,
        "leaf_contributions",
        lambda law, *arguments: laws.append(law) or contributions(law, *arguments),
    )
    observed = read_boosting(view, max_level="statistics")
    assert _Sums(view, [observed], view.candidates, [float(member.sum())]).linear()
    differences = []
    for law in laws:
        leaves = law.tree.leaves
        released = np.stack([law.tree.g, law.tree.h], axis=1)[leaves]
        sums, _ = law.draw_leaf_sums(member[None], client)
        assert np.abs(sums[0] - released).max() < 1e-6
        reached = law.inside[member][:, leaves].T @ law.gh[member]
        differences.append(np.abs(reached - released).max())
    assert max(differences) > 1


@pytest.mark.parametrize("spec", here("protocol", ["forest-hist[trees=2,max_depth=2]"]))
@pytest.mark.parametrize("defense", here("defense", ["secure-sum"]))
def test_sketches_state_how_many_rows_of_a_client_have_each_value(spec, defense):
    # The attack scored .50 as long as it only asked whether a sketch contains a value.
    assert mean_auc(spec, "server", defense, rows=240, whole_numbers=True) > 0.7


def test_a_truncated_binomial_has_the_moments_of_its_probabilities():
    for n, p, most in ((1, 0.3, 0), (6, 0.5, 2), (12, 0.2, 11), (9, 0.7, 9)):
        k = np.arange(min(n, most) + 1)
        weight = stats.binom.pmf(k, n, p)
        mean = k @ weight / weight.sum()
        expected = weight.sum(), mean, (k - mean) ** 2 @ weight / weight.sum()
        moments = truncated_binomial(np.array([float(n)]), p, np.array([float(most)]))
        assert np.ravel(moments) == pytest.approx(expected)


def test_a_bin_that_was_suppressed_states_that_it_has_few_rows():
    law = SuppressedBins(limit=1.25, clients=1, prior=0.5)
    rows, hessian = np.array([3.0, 20.0]), np.full(2, 0.25)
    count, variance = law.observations(rows, hessian)
    assert np.isinf(variance[0])  # three rows never reach the limit of five
    assert count[1] < 5
    assert np.isfinite(variance[1])
    mean, spread = law.lacking(rows, hessian, np.array([0.75, 2.5]))
    assert not mean.any()
    assert not spread.any()


def sums(A, total, variance, rows):
    numbers = (np.asarray(part, dtype=float) for part in (total, variance))
    return LinearSums(csr_array(np.atleast_2d(A)), *numbers, rows)


def test_the_log_odds_of_one_candidate_are_those_of_its_likelihood():
    contribution, total, variance = (
        np.array([0.5, -1.0]),
        np.array([0.7, 0.2]),
        np.array([2.0, 0.5]),
    )
    computed = log_odds(sums(contribution, total, variance, 0.5))
    deviation = np.sqrt(variance + (1e-3 * np.abs(contribution)) ** 2)
    likelihood = [
        stats.norm.logpdf(total, is_member * contribution, deviation).sum() for is_member in (1, 0)
    ]
    assert computed == pytest.approx([likelihood[0] - likelihood[1]], rel=1e-5)


def test_exact_sums_of_few_candidates_reveal_every_member():
    rng = np.random.default_rng(0)
    contributions, is_member = rng.normal(size=(20, 30)), np.arange(20) % 3 == 0
    computed = log_odds(
        sums(contributions, is_member @ contributions, np.zeros(30), is_member.sum())
    )
    assert ((computed > 5) == is_member).all()
    assert ((computed < -5) == ~is_member).all()


def test_sums_that_contradict_the_contributions_give_weak_evidence():
    rng = np.random.default_rng(0)
    contributions, is_member = rng.normal(size=(20, 30)), np.arange(20) % 3 == 0
    wrong_sums = is_member @ contributions + rng.normal(size=30)
    assert (
        np.abs(log_odds(sums(contributions, wrong_sums, np.zeros(30), is_member.sum()))).max() < 100
    )


def test_members_that_are_no_candidates_weaken_the_evidence():
    contribution, total = np.array([1.0]), np.array([1.0])
    weak, strong = (
        log_odds(sums(contribution, total + rows - 0.5, [0.1], rows))[0] for rows in (5.5, 0.5)
    )
    assert 0 < abs(weak) < abs(strong)


def test_a_member_belongs_to_one_client_of_several():
    assert any_of([np.array([4.0]), np.array([-np.inf])]) == pytest.approx([4 - np.log(2)])


def test_the_combined_score_adds_log_odds_of_all_tests():
    odds = {"posterior": np.array([1.0, 2.0, 0.0]), "lira": np.array([0.0, -3.0, 1.0]),
            "rmia": np.array([0.0, 0.0, 1.0])}  # fmt: skip
    assert np.argsort(together(odds, {})).tolist() == [2, 0, 1]
    assert np.argsort(together(odds, {"lira": 1.0, "rmia": 1.0})).tolist() == [1, 0, 2]


def test_candidates_with_equal_odds_are_ordered_by_the_share_of_values_in_a_sketch():
    scores = {"sketch": np.array([0.9, 0.5, 0.2]), "posterior": np.array([-50.0, -50.0, 1.0])}
    assert np.argsort(together(scores)).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("spec", "defense"),
    [
        (spec, defense)
        for spec, defense in (
            ("fedtree-hist[trees=2]", "laplace-hist[epsilon=8]"),
            ("fedtree-hist[trees=2]", "laplace-gradient[epsilon=8]"),
            ("fedtree-hist[trees=2]", "min-bin[k=3]"),
            ("lightgbm-data[trees=2]", "none"),
        )
        if here("protocol", [spec]) and here("defense", [defense])
    ],
)
def test_no_reference_model_is_trained_by_another_learner(spec, defense):
    view, _ = view_and_members(spec, 0, "public", defense)
    attack = MembershipInference(models=2)
    assert trainer_of(view, attack.model(view)) is None
    guess = attack.run(view, np.random.default_rng(0))
    assert guess.notes["reference_models"] == 0
    assert not {"lira", "rmia"} & {claim.test for claim in guess.claims}


def test_reference_models_imitate_the_forest_of_each_client():
    specs = here("protocol", ["local-forests[trees=2]"])
    if not specs:
        pytest.skip("needs local-forests")
    view, _ = view_and_members(specs[0], 0)
    attack = MembershipInference()
    train_on = trainer_of(view, attack.model(view))(view.candidates, len(view.candidates))
    training_mask = np.arange(len(view.candidates)) < 30
    assert np.isfinite(train_on(training_mask[None])).all()


@pytest.mark.parametrize("defense", here("defense", ["sketch-rounding[digits=1]"]))
def test_a_sketch_that_a_defense_changes_does_not_replace_the_other_tests(defense):
    view, member = view_and_members("fedtree-hist[trees=3,max_depth=3]", 0, "server", defense)
    assert auc(membership_scores(view), member) > 0.95
    assert auc(membership_scores(view, test="posterior"), member) > 0.95
