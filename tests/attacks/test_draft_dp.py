"""Reconstruction from noisy forests: incremental updates, exact posteriors, limits, and invalid
input.
"""

import itertools
import math

import numpy as np
import pytest
from data_dir import data_dir
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.attacks.forests.attack import DraftDP
from fedtrees.attacks.forests.chain import State, advance
from fedtrees.attacks.forests.posterior import (
    Question,
    anneal,
    consensus,
    cut_short,
    posterior,
    seconds,
    share_of_work,
    weights,
)
from fedtrees.attacks.forests.solvers import Enumeration, distance_costs, rows_program
from fedtrees.attacks.forests.structure import NAT, Labels, Noise, NoisyForest, Variables
from fedtrees.blind_baselines.matching import assign, mismatch_counts
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.data.catalogue import load
from fedtrees.privacy.mechanisms import permute_and_flip
from fedtrees.trees.forest.random_decision import RandomSplits

GROUPS = [(2, 3, 4)]


def coded_rows(n, seed, width=8):
    """Return coded rows with a one-hot group of three columns, and labels that depend on the
    hidden class.
    """
    rng = np.random.default_rng(seed)
    variables = Variables.binary(width, GROUPS)
    hidden_class = rng.integers(0, 2, n)
    columns = [
        np.where(rng.random(n) < 0.85, hidden_class, rng.integers(0, n_levels, n))
        for n_levels in variables.sizes
    ]
    return variables, np.column_stack([*columns, hidden_class]).astype(np.int16)


def noisy_forest(variables, rows, trees=6, depth=3, scale=None, seed=0):
    """Return a forest of random tests with the counts of the rows and geometric noise."""
    rng = np.random.default_rng(seed)
    feature = rng.integers(0, variables.width, (trees, 2**depth - 1))
    empty = NoisyForest.of(variables, feature, np.zeros((trees, 2**depth, 2), dtype=int))
    counts = empty.counts(rows[:, :-1], rows[:, -1])
    if scale is not None:
        p = 1 - math.exp(-1 / scale)
        counts = counts + rng.geometric(p, counts.shape) - rng.geometric(p, counts.shape)
    return NoisyForest.of(variables, feature, counts)


def error_of(question, answer, rows):
    """Return the mean share of wrong columns under the best matching of rows."""
    decode = question.forest.variables.decode
    true_rows, guess = decode(rows[:, :-1]), decode(answer.value[:, :-1])
    cost = mismatch_counts(true_rows, guess, np.zeros(true_rows.shape[1]))
    return cost[np.arange(len(true_rows)), assign(cost)].mean() / true_rows.shape[1]


@pytest.mark.long
def test_a_forest_routes_like_random_splits_and_marks_unreachable_leaves():
    variables, rows = coded_rows(200, 1)
    forest = noisy_forest(variables, rows, trees=5, depth=4)
    feature = np.random.default_rng(0).integers(0, 8, (5, 15)).astype(np.int32)
    tests = RandomSplits(feature, np.full(feature.shape, 0.5, np.float32))
    X = variables.decode(rows[:, :-1])
    assert np.array_equal(forest.route(rows[:, :-1]), tests.apply(X))
    assert np.array_equal(forest.noisy, tests.count(X, rows[:, -1].astype(np.int64), 2))
    assert np.array_equal(variables.encode(X), rows[:, :-1])
    enumeration = Enumeration.of(forest)
    reached = np.zeros(forest.live.shape, dtype=bool)
    for t in range(5):
        reached[t, enumeration.leaf[:, t]] = True
    assert np.array_equal(reached, forest.live)
    assert not reached.all()
    assert forest.estimated_rows() == 200


@pytest.mark.long
@pytest.mark.parametrize("kind", ["geometric", "labels"])
def test_incremental_updates_equal_recomputed_values(kind):
    variables, rows = coded_rows(30, 2)
    question = Question(noisy_forest(variables, rows, scale=1.0), Noise(kind, 1.0), 25, rows[:5])
    world, noisy = question.world()
    state = question.start(world, noisy, np.random.default_rng(0))
    accepted = advance(world, state, 25, 1.0, 10_000, np.array([7], dtype=np.uint64))
    recomputed = State.of(question.forest, world, noisy, state.value, state.latent)
    assert accepted > 500
    assert np.array_equal(state.value[25:], rows[:5])  # The known rows are never changed.
    assert state.energy[0] != question.start(world, noisy, np.random.default_rng(0)).energy[0]
    for name in State._fields:
        assert np.array_equal(getattr(state, name), getattr(recomputed, name)), name


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "beta"), [("truncated-laplace", 0.0), ("truncated-laplace", 1.0), ("labels", 1.0)]
)
def test_a_small_chain_samples_from_the_enumerated_posterior(kind, beta):
    variables = Variables.binary(2)
    forest = NoisyForest.of(variables, np.array([[0], [1]]), np.array([[[2, 0], [0, 1]]] * 2))
    question = Question(forest, Noise(kind, 1.3 if kind != "labels" else 0.4), 2)
    world, noisy = question.world()
    state, bits = question.start(world, noisy, np.random.default_rng(0)), np.array([3], np.uint64)
    possible_rows = list(itertools.product(range(2), repeat=3))
    weight = np.zeros((8, 8))
    for a, b in itertools.product(range(8), repeat=2):
        table = np.array([possible_rows[a], possible_rows[b]])
        counts = forest.counts(table[:, :2], table[:, 2])
        if kind == "labels":
            # With two classes, the larger of two counts with exponential noise wins.
            signed_gap = (counts * (2 * (forest.noisy > 0) - 1)).sum(axis=2) / 0.4
            error_chance = np.exp(-np.abs(signed_gap)) / 2
            cost = -np.log(np.where(signed_gap >= 0, 1 - error_chance, error_chance)).sum()
        else:
            cost = question.noise.costs(noisy - counts).sum()
        # The concentration a0 is 1/2 for two levels.
        prior_of_pair = np.prod(np.where(table[0] == table[1], 1.5 / 2, 0.5 / 2))
        # A row that is the only one of its class has probability 1/2 per level. Both rows are in
        # one class with probability (1 + 1/10) / (1 + 1).
        weight[a, b] = math.exp(-beta * cost) * (0.55 * prior_of_pair / 8 + 0.45 / 64)
    visits = np.zeros((8, 8))
    for _ in range(40_000):
        advance(world, state, 2, beta, 15, bits)
        a, b = state.value @ np.array([4, 2, 1])
        visits[a, b] += 1
    total_variation = np.abs(visits / visits.sum() - weight / weight.sum()).sum() / 2
    assert total_variation < 0.02  # 40,000 independent draws have a distance of 0.008.


@pytest.mark.long
def test_exact_counts_determine_the_rows():
    variables, rows = coded_rows(20, 3)
    noise = Noise.of("geometric", math.inf, 20)
    question = Question(noisy_forest(variables, rows, trees=20, depth=4), noise, 20)
    answer = posterior(question, np.random.default_rng(0), 0.5)
    assert answer.energy < 1.0
    assert error_of(question, answer, rows) < 0.02
    assert noise.kind == "exact"


@pytest.mark.long
def test_less_noise_lowers_the_error():
    errors = {}
    for scale in (20.0, 0.5):
        variables, rows = coded_rows(30, 4)
        question = Question(
            noisy_forest(variables, rows, scale=scale), Noise("geometric", scale), 30
        )
        answer = posterior(question, np.random.default_rng(1), 0.1)
        errors[scale] = error_of(question, answer, rows)
        assert np.allclose(answer.probability.sum(axis=2), 1.0)
    assert errors[0.5] < 0.12 < errors[20.0] - 0.03


@pytest.mark.long
def test_known_attributes_are_never_changed():
    variables, rows = coded_rows(20, 5)
    known_levels = {0: rows[:, 0], 2: rows[:, 2]}
    forest = noisy_forest(variables, rows, scale=1.0)
    question = Question(forest, Noise("geometric", 1.0), 20, known_levels=known_levels)
    world, noisy = question.world()
    state = question.start(world, noisy, np.random.default_rng(0))
    advance(world, state, 20, 1.0, 5000, np.array([1], dtype=np.uint64))
    assert np.array_equal(state.value[:, [0, 2]], rows[:, [0, 2]])
    assert not np.array_equal(state.value[:, 1], rows[:, 1])
    answer = posterior(question, np.random.default_rng(1), 0.02)
    assert np.array_equal(answer.value[:, [0, 2]], rows[:, [0, 2]])
    with pytest.raises(DataError, match=r"known levels of variable 2 are 0 to 2"):
        Question(forest, Noise("geometric"), 20, known_levels={2: np.full(20, 3)})


@pytest.mark.long
def test_the_consensus_of_shuffled_copies_is_the_table():
    _, rows = coded_rows(25, 6)
    rng = np.random.default_rng(0)
    samples = np.stack([rows[rng.permutation(25)] for _ in range(5)])
    agreed = consensus(samples, np.array([1] * 6 + [0], np.uint8), np.array([2, 2, 3, 2, 2, 2, 2]))
    assert sorted(map(tuple, agreed.value)) == sorted(map(tuple, rows))
    assert agreed.spread == 0.0


@pytest.mark.long
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_consensus_respects_one_hot_groups(seed, may_be_empty, width):
    rng = np.random.default_rng(seed)
    variables = Variables.binary(
        width + 3, [tuple(range(width)), (width + 1, width + 2)], may_be_empty
    )
    sizes = np.append(variables.sizes, 3)
    samples = np.stack([rng.integers(0, n_levels, (4, 9)) for n_levels in sizes], axis=2).astype(
        np.int16
    )
    agreed = consensus(samples, weights(variables), sizes)
    X = variables.decode(agreed.value[:, :-1])
    for group in (X[:, :width], X[:, width + 1 :]):
        assert set(group.sum(axis=1)) <= ({0.0, 1.0} if may_be_empty else {1.0})
    assert np.array_equal(variables.encode(X), agreed.value[:, :-1])


def test_the_missing_row_is_recovered_under_small_noise_and_valid_under_large_noise():
    variables, rows = coded_rows(60, 7)
    forest = noisy_forest(variables, rows, trees=12, depth=4, scale=0.2)
    enumeration = Enumeration.of(forest)
    recovered = [
        enumeration.missing_row(Noise("geometric", 0.2), np.delete(rows, i, 0))[0] for i in range(9)
    ]
    assert np.mean(np.array(recovered) == rows[:9]) > 0.97
    row, probability = enumeration.missing_row(Noise("geometric", 1e3), rows[1:])
    assert variables.decode(row[None, :-1])[0, list(GROUPS[0])].sum() == 1
    assert probability.sum() == pytest.approx(1.0)


@pytest.mark.long
def test_the_published_program_proves_that_annealing_is_optimal():
    variables, rows = coded_rows(5, 8, width=6)
    forest = noisy_forest(variables, rows, trees=2, depth=2, scale=1.0)
    for kind in ("geometric", "truncated-laplace"):
        question = Question(forest, Noise(kind, 1.0), 5)
        live = forest.live[:, :, None]
        cost_of_dead_leaves = float((question.noise.costs(forest.noisy) * ~live).sum())
        best = anneal(question, np.random.default_rng(0))
        table, program_cost, optimal = rows_program(question, 20)
        assert optimal
        assert program_cost == pytest.approx(best.energy - cost_of_dead_leaves, abs=0.02)
        counts = forest.counts(table[:, :-1], table[:, -1])
        cost = float((question.noise.costs(forest.noisy - counts) * live).sum())
        assert cost == pytest.approx(program_cost, abs=0.02)


def test_the_interval_of_an_unknown_number_of_rows_follows_from_the_sums_of_the_trees():
    counts = np.array([[[4, 3], [2, 6]], [[5, 5], [5, 2]], [[8, 1], [4, 4]], [[6, 6], [0, 3]]])
    forest = NoisyForest.of(Variables.binary(2), np.zeros((4, 1), int), counts)
    # The sums are 15, 17, 17 and 15. The coefficient for three degrees of freedom is 3.182.
    for kind, scale, radius in (
        ("truncated-laplace", 0.5, 3.182 * 0.5 * math.sqrt(2 * 4 / 4)),
        ("geometric", 1.0, 3.182 * math.sqrt(2 * 4 / 4)),
        ("gaussian", 2.0, 3.182 * 2 * math.sqrt(4 / 4)),
        ("exact", 1.0, 0.0),
    ):
        expected = (math.ceil(16 - radius), math.floor(16 + radius))
        assert forest.row_interval(Noise(kind, scale)) == expected, kind
    one_tree = NoisyForest.of(Variables.binary(2), np.zeros((1, 1), int), counts[:1])
    assert one_tree.row_interval(Noise("geometric", 1.0)) == (10, 20)  # 15 +- 1.96 * sqrt(8)
    assert one_tree.row_interval(Noise("geometric", 10.0))[0] == 1


@pytest.mark.parametrize("seed", range(4))
def test_the_program_for_an_unknown_number_of_rows_equals_the_enumeration(seed):
    variables, rng = Variables.binary(2), np.random.default_rng(seed)
    noisy = rng.integers(-1, 3, (2, 2, 2))
    forest = NoisyForest.of(variables, np.array([[0], [1]]), noisy)
    noise = Noise("truncated-laplace", 0.8)
    possible_rows = list(itertools.product(range(2), repeat=3))
    best = {}
    for n in range(1, 5):
        for rows in itertools.combinations_with_replacement(possible_rows, n):
            table = np.array(rows)
            cost = noise.costs(noisy - forest.counts(table[:, :2], table[:, 2])).sum()
            best[n] = min(best.get(n, np.inf), cost)
    table, cost, optimal = rows_program(Question(forest, noise, 4), 20, fewest=1)
    assert optimal
    assert cost == pytest.approx(min(best.values()), abs=0.01)
    assert best[len(table)] == pytest.approx(cost, abs=0.01)
    # A lower limit excludes smaller tables.
    table, cost, _ = rows_program(Question(forest, noise, 4), 20, fewest=3)
    assert cost == pytest.approx(min(best[3], best[4]), abs=0.01)
    assert len(table) >= 3


def test_the_attack_reconstructs_as_many_rows_as_the_interval_allows_without_known_ones():
    variables, rows = coded_rows(12, 17, width=6)
    forest = noisy_forest(variables, rows, trees=3, depth=1, scale=0.3)
    noise = Noise("geometric", 0.3)
    fewest, most = forest.row_interval(noise)
    assert fewest < 12 <= most
    attack = DraftDP(mode="cpsat-rows", rows="estimated", limit=20)
    # The estimate of the question is not used. Four of the rows are known.
    question = Question(forest, noise, 1, rows[:4])
    answer, _ = attack._answer(question, np.random.default_rng(0), 1.0)
    assert fewest - 4 <= len(answer) < most - 4  # the largest number of rows is unlikely
    declared = DraftDP(mode="cpsat-rows", limit=20)
    assert len(declared._answer(question, np.random.default_rng(0), 1.0)[0]) == 1


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_program_of_the_informed_adversary_equals_the_enumeration(scale):
    variables, rows = coded_rows(30, 16, width=6)
    forest = noisy_forest(variables, rows, trees=3, depth=2, scale=scale)
    question = Question(forest, Noise("truncated-laplace", scale), 1, rows[1:])
    level_costs = distance_costs(question)
    program_row, program_cost, optimal = rows_program(question, 20, level_costs=level_costs)
    best_row, cost = Enumeration.of(forest).most_likely_row(question)
    assert optimal
    assert program_cost == pytest.approx(cost, abs=0.05)
    assert program_row.tolist() == [best_row.tolist()]
    answer, _ = DraftDP(mode="informed-cp")._answer(question, np.random.default_rng(0), 1.0)
    assert answer.tolist() == [best_row.tolist()]
    # The cost is that of all counts, and the mean distance from the known rows.
    live = forest.live[:, :, None]
    table = np.vstack([best_row, rows[1:]])
    residuals = forest.noisy - forest.counts(table[:, :-1], table[:, -1])
    X, known = variables.decode(best_row[None, :-1]), variables.decode(rows[1:, :-1])
    largest = 24 * question.noise.costs(np.array([math.ceil(12 * scale)]))[0]
    distance = (known != X).mean() * largest / (20 * 3 / scale)
    assert cost == pytest.approx((question.noise.costs(residuals) * live).sum() + distance)


@pytest.mark.long
def test_the_published_objective_of_a_published_forest_is_407():
    folder = data_dir().parent / "reference"
    if not (folder / "dp_forests.npz").exists():
        pytest.skip("needs dp_forests.npz beside the data files")
    table = load("compas-binary", data_dir())
    variables = Variables.of_schema(table.schema, [np.array([1.0])] * 14)
    with np.load(folder / "dp_forests.npz") as arrays:
        feature_and_noisy = [arrays[f"compas|100|10|5|5|0|{name}"] for name in ("feature", "noisy")]
    forest = NoisyForest.of(variables, *feature_and_noisy)
    assert forest.live.mean() == pytest.approx(0.51, abs=0.02)
    question = Question(forest, Noise("geometric", 1.0), 100)
    dead = ~forest.live[:, :, None]
    cost_of_dead_leaves = float((question.noise.costs(forest.noisy) * dead).sum())
    best = anneal(question, np.random.default_rng(0))
    assert best.energy - cost_of_dead_leaves == pytest.approx(407.0, abs=0.5)


def test_costs_are_the_log_probabilities_of_the_mechanisms():
    values = np.arange(-40, 41)
    for kind, pmf in {
        "geometric": np.exp(-np.abs(values) / 2.0),
        "truncated-laplace": np.exp(-np.abs(values) / 2.0) * np.where(values == 0, 1.0, 0.5),
        "gaussian": np.exp(-0.5 * (values / 2.0) ** 2),
    }.items():
        noise = Noise(kind, 2.0)
        assert np.allclose(np.exp(-noise.costs(values)), pmf / pmf[40])
        noisy, table = noise.table(np.array([10**12, -(10**12), 3]), 4)
        assert noisy[2] == 3
        middle = len(table) // 2
        assert np.allclose(table[middle - 9 : middle + 10] / NAT, noise.costs(np.arange(-9, 10)))
        assert len(table) < 1000  # The table stays small for absurd counts.


@pytest.mark.long
def test_label_probabilities_equal_those_of_permute_and_flip():
    counts, rng, draws = np.array([[[5, 3, 4], [1, 4, 0]]]), np.random.default_rng(0), 20_000
    sampled_labels = permute_and_flip(np.broadcast_to(counts, (draws, *counts.shape)), 0.7, rng)
    for y in range(3):
        labels = Labels.of(Noise("labels", 1 / 0.7), np.eye(3, dtype=int)[np.full((1, 2), y)], 12)
        expected = np.exp(-labels.costs(counts) / NAT)
        assert np.allclose((sampled_labels == y).mean(axis=0), expected, atol=4 * 0.5 / draws**0.5)


@pytest.mark.long
def test_released_labels_reveal_information_about_rows():
    variables, rows = coded_rows(40, 14)
    exact = noisy_forest(variables, rows, trees=40, depth=3)
    released = NoisyForest(
        variables, exact.variable, exact.right, np.eye(2, dtype=int)[exact.noisy.argmax(axis=2)]
    )
    errors = [
        error_of(question, posterior(question, np.random.default_rng(0), 0.05), rows)
        for question in (
            Question(released, Noise.of("labels", math.inf, 40), 40),
            Question(released, Noise("labels", 1e6), 40),
        )
    ]
    assert errors[0] < errors[1] - 0.04


@pytest.mark.long
@pytest.mark.parametrize(("trees", "depth", "n"), [(1, 1, 1), (1, 5, 7), (3, 12, 4)])
def test_small_and_deep_forests_give_a_guess(trees, depth, n):
    variables, rows = coded_rows(n, 9)
    question = Question(noisy_forest(variables, rows, trees, depth, 1.0), Noise("geometric"), n)
    answer = posterior(question, np.random.default_rng(0), 0.02)
    assert answer.value.shape == (n, 7)


def test_the_estimated_time_is_bounded_for_many_rows():
    variables, rows = coded_rows(100, 10)
    forest = noisy_forest(variables, rows, trees=10, depth=5)
    seconds_for_100, seconds_for_5000 = (
        seconds(Question(forest, Noise("geometric"), n)) for n in (100, 5000)
    )
    assert seconds_for_100 < 5
    assert seconds_for_5000 < 3 * seconds_for_100


@pytest.mark.long
def test_contradictory_counts_are_treated_as_noise():
    variables, rows = coded_rows(10, 11)
    forest = noisy_forest(variables, rows)
    contradictory = NoisyForest.of(
        variables, np.zeros((2, 3), dtype=int), np.full((2, 4, 2), [[10**9, -(10**9)]])
    )
    answer = posterior(
        Question(contradictory, Noise("geometric"), 10), np.random.default_rng(0), 0.01
    )
    assert np.isfinite(answer.energy)
    assert contradictory.estimated_rows(3) == 3
    with pytest.raises(DataError, match="n=0: a reconstruction needs at least one row"):
        Question(forest, Noise("geometric"), 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: Variables.binary(8, [(0, 1), (1, 2)]), r"columns \[1\] belong to two groups"),
        (lambda v: Variables.binary(3, [(0, 5)]), r"groups name columns \[5\]"),
        (
            lambda v: v.encode(np.full((1, 8), 0.5)),
            "2 levels; a binary column contains 0",
        ),
        (lambda v: NoisyForest.of(v, np.zeros((2, 3), int), np.zeros((2, 5, 2), int)), "2\\^d"),
        (lambda v: NoisyForest.of(v, np.full((1, 1), 8), np.zeros((1, 2, 2), int)), "column 8"),
        (lambda v: NoisyForest.of(v, np.zeros((1, 1), int), np.zeros((1, 2, 2))), "whole numbers"),
        (lambda v: Noise.of("geometric", 0.0, 10), "epsilon must be a finite number > 0"),
        (lambda v: Noise("cauchy"), "unknown noise 'cauchy'"),
        (lambda v: DraftDP(mode="cpsat"), "unknown mode 'cpsat'; did you mean"),
        (lambda v: DraftDP(mode="cpsat-cells"), "unknown mode 'cpsat-cells'; did you mean"),
        (lambda v: DraftDP(work=0), "work must be a finite number > 0"),
    ],
)
def test_invalid_input_is_refused(make, message):
    with pytest.raises((DataError, UsageError), match=message):
        make(Variables.binary(8, GROUPS))


def test_numeric_features_are_coded_by_their_thresholds():
    schema = Schema(
        (Feature("x", low=0.0, high=12.0), Feature("a", "categorical", categories=("0", "1")),
         Feature("b", "categorical", categories=("0", "1"))),
        "y", groups=(OneHot(("a", "b"), empty=True),),
    )  # fmt: skip
    tests = [np.array([1.0, 10.0]), np.array([1.0]), np.array([1.0])]
    variables = Variables.of_schema(schema, tests)
    assert variables.sizes.tolist() == [3, 3]
    X = np.array([[0.9, 1, 0], [3, 0, 1], [10, 0, 0], [np.nan, 0, 0]], dtype=np.float32)
    assert variables.encode(X).tolist() == [[0, 0], [1, 1], [2, 2], [0, 2]]
    assert variables.decode(np.array([[1, 2]])).tolist() == [[5.5, 0.0, 0.0]]


@pytest.mark.long
def test_the_search_for_many_rows_starts_from_a_small_table():
    variables, rows = coded_rows(1000, 12)
    forest, noise = noisy_forest(variables, rows, scale=5.0), Noise("geometric", 5.0)
    small_question = Question(forest, noise, 600, rows[600:]).small()
    assert small_question.n == 150
    # The known rows are not part of the estimate.
    assert abs(small_question.forest.estimated_rows() - 150) < 10
    question = Question(forest, noise, 1000)
    answer = posterior(question, np.random.default_rng(0), 0.02)
    # From a uniformly random start the error is 0.22.
    assert error_of(question, answer, rows) < 0.17


def test_the_work_per_question_shrinks_with_rows_and_questions():
    variables, rows = coded_rows(40, 8)
    forest, noise = noisy_forest(variables, rows), Noise("exact")
    question_of_100, question_of_1000 = Question(forest, noise, 100), Question(forest, noise, 1000)
    assert (cut_short(question_of_100, 1.0), cut_short(question_of_1000, 1.0)) == (False, True)
    assert seconds(question_of_1000) < seconds(question_of_100)
    assert share_of_work(question_of_100, 200) == 1.0
    assert share_of_work(question_of_1000, 4000) == 1_000_000 / 4 / 500_000
    assert cut_short(question_of_100, share_of_work(question_of_100, 10_000))
