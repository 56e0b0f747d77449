"""Reconstruction from noisy forests: bookkeeping, exact posteriors, limits, and bad input."""

import itertools
import math

import numpy as np
import pytest
from data_dir import data_dir
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtrees.attacks.forests.attack import DraftDP
from fedtrees.attacks.forests.chain import State, advance
from fedtrees.attacks.forests.likelihoods import NAT, Labels, Noise
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
from fedtrees.attacks.forests.solvers import Enumeration, cells_program, rows_program
from fedtrees.attacks.forests.structure import NoisyForest, Variables
from fedtrees.blind_baselines.matching import assign, mismatch_counts
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.schema import Feature, OneHot, Schema
from fedtrees.data.catalogue import load
from fedtrees.privacy.mechanisms import permute_and_flip
from fedtrees.trees.forest.random_decision import RandomSplits

GROUPS = [(2, 3, 4)]


def rows_of(n, seed, width=8):
    """Return coded rows of a table with a group of three columns, and labels that depend on it."""
    rng = np.random.default_rng(seed)
    variables = Variables.binary(width, GROUPS)
    kind = rng.integers(0, 2, n)
    value = [np.where(rng.random(n) < 0.85, kind, rng.integers(0, r, n)) for r in variables.sizes]
    return variables, np.column_stack([*value, kind]).astype(np.int16)


def forest_of(variables, rows, trees=6, depth=3, scale=None, seed=0):
    """Return random tests with the counts of the rows, and geometric noise of that scale."""
    rng = np.random.default_rng(seed)
    feature = rng.integers(0, variables.width, (trees, 2**depth - 1))
    empty = NoisyForest.of(variables, feature, np.zeros((trees, 2**depth, 2), dtype=int))
    counts = empty.counts(rows[:, :-1], rows[:, -1])
    if scale is not None:
        p = 1 - math.exp(-1 / scale)
        counts = counts + rng.geometric(p, counts.shape) - rng.geometric(p, counts.shape)
    return NoisyForest.of(variables, feature, counts)


def error_of(question, answer, rows):
    decode = question.forest.variables.decode
    true, guess = decode(rows[:, :-1]), decode(answer.value[:, :-1])
    cost = mismatch_counts(true, guess, np.zeros(true.shape[1]))
    return cost[np.arange(len(true)), assign(cost)].mean() / true.shape[1]


@pytest.mark.long
def test_a_forest_routes_as_random_splits_do_and_knows_which_leaves_are_out_of_reach():
    variables, rows = rows_of(200, 1)
    forest = forest_of(variables, rows, trees=5, depth=4)
    feature = np.random.default_rng(0).integers(0, 8, (5, 15)).astype(np.int32)
    tests = RandomSplits(feature, np.full(feature.shape, 0.5, np.float32))
    X = variables.decode(rows[:, :-1])
    assert np.array_equal(forest.route(rows[:, :-1]), tests.apply(X))
    assert np.array_equal(forest.noisy, tests.count(X, rows[:, -1].astype(np.int64), 2))
    assert np.array_equal(variables.encode(X), rows[:, :-1])
    every = Enumeration.of(forest)
    reached = np.zeros(forest.live.shape, dtype=bool)
    for t in range(5):
        reached[t, every.leaf[:, t]] = True
    assert np.array_equal(reached, forest.live)
    assert not reached.all()
    assert forest.estimated_rows() == 200


@pytest.mark.long
@pytest.mark.parametrize("kind", ["geometric", "labels"])
def test_bookkeeping_is_what_recomputing_gives(kind):
    variables, rows = rows_of(30, 2)
    question = Question(forest_of(variables, rows, scale=1.0), Noise(kind, 1.0), 25, rows[:5])
    world, noisy = question.world()
    state = question.start(world, noisy, np.random.default_rng(0))
    accepted = advance(world, state, 25, 1.0, 10_000, np.array([7], dtype=np.uint64))
    again = State.of(question.forest, world, noisy, state.value, state.latent)
    assert accepted > 500
    assert np.array_equal(state.value[25:], rows[:5])  # own rows stay
    assert state.energy[0] != question.start(world, noisy, np.random.default_rng(0)).energy[0]
    for name in State._fields:
        assert np.array_equal(getattr(state, name), getattr(again, name)), name


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "beta"), [("truncated-laplace", 0.0), ("truncated-laplace", 1.0), ("labels", 1.0)]
)
def test_a_small_chain_visits_tables_as_often_as_enumeration_says(kind, beta):
    variables = Variables.binary(2)
    forest = NoisyForest.of(variables, np.array([[0], [1]]), np.array([[[2, 0], [0, 1]]] * 2))
    question = Question(forest, Noise(kind, 1.3 if kind != "labels" else 0.4), 2)
    world, noisy = question.world()
    state, bits = question.start(world, noisy, np.random.default_rng(0)), np.array([3], np.uint64)
    kinds = list(itertools.product(range(2), repeat=3))
    weight = np.zeros((8, 8))
    for a, b in itertools.product(range(8), repeat=2):
        table = np.array([kinds[a], kinds[b]])
        counts = forest.counts(table[:, :2], table[:, 2])
        if kind == "labels":
            # two classes: the largest of two counts with exponential noise
            right = (counts * (2 * (forest.noisy > 0) - 1)).sum(axis=2) / 0.4
            half = np.exp(-np.abs(right)) / 2
            cost = -np.log(np.where(right >= 0, 1 - half, half)).sum()
        else:
            cost = question.noise.costs(noisy - counts).sum()
        same = np.prod(np.where(table[0] == table[1], 1.5 / 2, 0.5 / 2))  # a0 = 1/2, two levels
        # alone in a class each level has 1/2; both are in one with (1 + 1/10) / (1 + 1)
        weight[a, b] = math.exp(-beta * cost) * (0.55 * same / 8 + 0.45 / 64)
    seen = np.zeros((8, 8))
    for _ in range(40_000):
        advance(world, state, 2, beta, 15, bits)
        a, b = state.value @ np.array([4, 2, 1])
        seen[a, b] += 1
    gap = np.abs(seen / seen.sum() - weight / weight.sum()).sum() / 2
    assert gap < 0.02  # of 40,000 independent draws: 0.008


@pytest.mark.long
def test_exact_counts_give_the_rows_back():
    variables, rows = rows_of(20, 3)
    noise = Noise.of("geometric", math.inf, 20)
    question = Question(forest_of(variables, rows, trees=20, depth=4), noise, 20)
    answer = posterior(question, np.random.default_rng(0), 0.5)
    assert answer.energy < 1.0
    assert error_of(question, answer, rows) < 0.02
    assert noise.kind == "exact"


@pytest.mark.long
def test_less_noise_leaks_more_and_own_rows_help():
    errors = {}
    for scale in (20.0, 0.5):
        variables, rows = rows_of(30, 4)
        question = Question(forest_of(variables, rows, scale=scale), Noise("geometric", scale), 30)
        answer = posterior(question, np.random.default_rng(1), 0.1)
        errors[scale] = error_of(question, answer, rows)
        assert np.allclose(answer.probability.sum(axis=2), 1.0)
    assert errors[0.5] < 0.12 < errors[20.0] - 0.03


@pytest.mark.long
def test_known_attributes_stay_as_they_are():
    variables, rows = rows_of(20, 5)
    known = {0: rows[:, 0], 2: rows[:, 2]}
    forest = forest_of(variables, rows, scale=1.0)
    question = Question(forest, Noise("geometric", 1.0), 20, known_levels=known)
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
    _, rows = rows_of(25, 6)
    rng = np.random.default_rng(0)
    samples = np.stack([rows[rng.permutation(25)] for _ in range(5)])
    found = consensus(samples, np.array([1] * 6 + [0], np.uint8), np.array([2, 2, 3, 2, 2, 2, 2]))
    assert sorted(map(tuple, found.value)) == sorted(map(tuple, rows))
    assert found.spread == 0.0


@pytest.mark.long
@given(st.integers(0, 2**32 - 1), st.booleans(), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_no_consensus_breaks_a_group(seed, none, width):
    rng = np.random.default_rng(seed)
    variables = Variables.binary(width + 3, [tuple(range(width)), (width + 1, width + 2)], none)
    sizes = np.append(variables.sizes, 3)
    samples = np.stack([rng.integers(0, r, (4, 9)) for r in sizes], axis=2).astype(np.int16)
    found = consensus(samples, weights(variables), sizes)
    X = variables.decode(found.value[:, :-1])
    for group in (X[:, :width], X[:, width + 1 :]):
        assert set(group.sum(axis=1)) <= ({0.0, 1.0} if none else {1.0})
    assert np.array_equal(variables.encode(X), found.value[:, :-1])


def test_the_missing_row_is_found_where_noise_is_small_and_is_valid_where_it_is_not():
    variables, rows = rows_of(60, 7)
    forest = forest_of(variables, rows, trees=12, depth=4, scale=0.2)
    every = Enumeration.of(forest)
    found = [every.missing_row(Noise("geometric", 0.2), np.delete(rows, i, 0))[0] for i in range(9)]
    assert np.mean(np.array(found) == rows[:9]) > 0.97
    row, probability = every.missing_row(Noise("geometric", 1e3), rows[1:])
    assert variables.decode(row[None, :-1])[0, list(GROUPS[0])].sum() == 1
    assert probability.sum() == pytest.approx(1.0)


@pytest.mark.long
def test_programs_prove_what_the_annealing_finds():
    variables, rows = rows_of(5, 8, width=6)
    forest = forest_of(variables, rows, trees=2, depth=2, scale=1.0)
    for kind in ("geometric", "truncated-laplace"):
        question = Question(forest, Noise(kind, 1.0), 5)
        live = forest.live[:, :, None]
        dead = float((question.noise.costs(forest.noisy) * ~live).sum())
        best = anneal(question, np.random.default_rng(0))
        cells, published = cells_program(question, 20, best.value), rows_program(question, 20)
        assert cells.optimal
        assert published.optimal
        assert cells.cost == pytest.approx(best.energy - dead, abs=0.02)
        assert published.cost == pytest.approx(cells.cost, abs=1e-6)
        for solved in (cells, published):
            counts = forest.counts(solved.value[:, :-1], solved.value[:, -1])
            cost = float((question.noise.costs(forest.noisy - counts) * live).sum())
            assert cost == pytest.approx(solved.cost, abs=0.02)


@pytest.mark.long
def test_the_published_objective_of_a_published_forest_is_407():
    folder = data_dir().parent / "reference"
    if not (folder / "dp_forests.npz").exists():
        pytest.skip("needs dp_forests.npz beside the data files")
    table = load("compas-binary", data_dir())
    variables = Variables.of_schema(table.schema, [np.array([1.0])] * 14)
    with np.load(folder / "dp_forests.npz") as arrays:
        parts = [arrays[f"compas|100|10|5|5|0|{what}"] for what in ("feature", "noisy")]
    forest = NoisyForest.of(variables, *parts)
    assert forest.live.mean() == pytest.approx(0.51, abs=0.02)
    question = Question(forest, Noise("geometric", 1.0), 100)
    solved = cells_program(question, 30, anneal(question, np.random.default_rng(0)).value)
    assert (solved.optimal, solved.cost, solved.bound) == (True, 407.0, 407.0)


def test_costs_are_the_mechanisms():
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
        assert len(table) < 1000  # absurd counts cost no memory


@pytest.mark.long
def test_a_label_is_as_likely_as_permute_and_flip_draws_it():
    counts, rng, draws = np.array([[[5, 3, 4], [1, 4, 0]]]), np.random.default_rng(0), 20_000
    drawn = permute_and_flip(np.broadcast_to(counts, (draws, *counts.shape)), 0.7, rng)
    for y in range(3):
        labels = Labels.of(Noise("labels", 1 / 0.7), np.eye(3, dtype=int)[np.full((1, 2), y)], 12)
        chance = np.exp(-labels.costs(counts) / NAT)
        assert np.allclose((drawn == y).mean(axis=0), chance, atol=4 * 0.5 / draws**0.5)


@pytest.mark.long
def test_released_labels_tell_of_rows():
    variables, rows = rows_of(40, 14)
    exact = forest_of(variables, rows, trees=40, depth=3)
    told = NoisyForest(
        variables, exact.variable, exact.right, np.eye(2, dtype=int)[exact.noisy.argmax(axis=2)]
    )
    found = [
        error_of(q, posterior(q, np.random.default_rng(0), 0.05), rows)
        for q in (
            Question(told, Noise.of("labels", math.inf, 40), 40),
            Question(told, Noise("labels", 1e6), 40),
        )
    ]
    assert found[0] < found[1] - 0.04


@pytest.mark.long
@pytest.mark.parametrize(("trees", "depth", "n"), [(1, 1, 1), (1, 5, 7), (3, 12, 4)])
def test_small_and_deep_forests_are_read(trees, depth, n):
    variables, rows = rows_of(n, 9)
    question = Question(forest_of(variables, rows, trees, depth, 1.0), Noise("geometric"), n)
    answer = posterior(question, np.random.default_rng(0), 0.02)
    assert answer.value.shape == (n, 7)


def test_many_rows_take_bounded_work():
    variables, rows = rows_of(100, 10)
    forest = forest_of(variables, rows, trees=10, depth=5)
    few, many = (seconds(Question(forest, Noise("geometric"), n)) for n in (100, 5000))
    assert few < 5
    assert many < 3 * few


@pytest.mark.long
def test_counts_that_contradict_are_read_as_noise():
    variables, rows = rows_of(10, 11)
    forest = forest_of(variables, rows)
    wild = NoisyForest.of(
        variables, np.zeros((2, 3), dtype=int), np.full((2, 4, 2), [[10**9, -(10**9)]])
    )
    answer = posterior(Question(wild, Noise("geometric"), 10), np.random.default_rng(0), 0.01)
    assert np.isfinite(answer.energy)
    assert wild.estimated_rows(3) == 3
    with pytest.raises(DataError, match="n=0: a reconstruction needs at least one row"):
        Question(forest, Noise("geometric"), 0)


@pytest.mark.parametrize(
    ("make", "said"),
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
        (lambda v: DraftDP(work=0), "work must be a finite number > 0"),
    ],
)
def test_bad_input_is_told(make, said):
    with pytest.raises((DataError, UsageError), match=said):
        make(Variables.binary(8, GROUPS))


def test_numbers_are_read_up_to_the_thresholds():
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
def test_many_rows_begin_with_a_small_table_and_need_few_moves_from_there():
    variables, rows = rows_of(1000, 12)
    forest, noise = forest_of(variables, rows, scale=5.0), Noise("geometric", 5.0)
    own = Question(forest, noise, 600, rows[600:]).small()
    assert own.n == 150
    assert abs(own.forest.estimated_rows() - 150) < 10  # own rows are not among them
    question = Question(forest, noise, 1000)
    answer = posterior(question, np.random.default_rng(0), 0.02)
    assert error_of(question, answer, rows) < 0.17  # from rows drawn uniformly: 0.22


def test_many_rows_get_fewer_moves_and_several_questions_share_them():
    variables, rows = rows_of(40, 8)
    forest, noise = forest_of(variables, rows), Noise("exact")
    few, many = Question(forest, noise, 100), Question(forest, noise, 1000)
    assert (cut_short(few, 1.0), cut_short(many, 1.0)) == (False, True)
    assert seconds(many) < seconds(few)
    assert share_of_work(few, 200) == 1.0
    assert share_of_work(many, 4000) == 1_000_000 / 4 / 500_000
    assert cut_short(few, share_of_work(few, 10_000))
