from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from small_tables import SCHEMA, random_table

from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.claims import Records
from fedtrees.core.errors import DataError
from fedtrees.core.local_data import client_names
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.data import Partition, load
from fedtrees.experiments.federation import spread
from fedtrees.metrics import victims_rows
from fedtrees.metrics.records import gower_distance, score_records, sorted_rows
from fedtrees.metrics.victims_rows import RecordMetric

TOP = ("age", "town")
cases = given(n=st.integers(1, 40), m=st.integers(1, 40), seed=st.integers(0, 2**30))


def brute_ra(guess, truth, schema):
    """Reconstruction accuracy straight from its definition, with scipy's matching."""
    known = [c[~np.isnan(c)] for c in truth.X.T.astype(float)]
    sigma = [c.std() if len(c) else 0.0 for c in known]
    agree = np.zeros((len(truth), len(guess)))
    for i in range(len(truth)):
        for j in range(len(guess)):
            for k, feature in enumerate(schema.features):
                x, g = float(truth.X[i, k]), float(guess.X[j, k])
                if np.isnan(x) or np.isnan(g):
                    agree[i, j] += np.isnan(x) and np.isnan(g)
                elif feature.kind == "categorical":
                    agree[i, j] += x == g
                else:
                    agree[i, j] += abs(x - g) <= 0.319 * sigma[k]
            agree[i, j] += truth.y[i] == guess.y[j]
    pairs = linear_sum_assignment(-agree)
    return agree[pairs].sum() / (len(truth) * (len(schema.features) + 1))


@settings(max_examples=40, deadline=None)
@cases
def test_ra_equals_its_definition(n, m, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n, rng, 0.1), random_table(min(m, n), rng, 0.1)
    assert score_records(guess, truth, SCHEMA).ra == pytest.approx(brute_ra(guess, truth, SCHEMA))


@settings(max_examples=30, deadline=None)
@cases
def test_order_of_rows_changes_no_score(n, m, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n, rng, 0.1), random_table(min(m, n), rng, 0.1)
    scores = score_records(guess, truth, SCHEMA, TOP)
    other = score_records(
        guess.take(rng.permutation(len(guess))), truth.take(rng.permutation(n)), SCHEMA, TOP
    )
    assert asdict(other) == asdict(scores)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 40), holes=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 2**30))
def test_the_truth_scores_perfectly(n, holes, seed):
    rng = np.random.default_rng(seed)
    truth = random_table(n, rng, holes)
    scores = score_records(truth.take(rng.permutation(n)), truth, SCHEMA, TOP)
    assert (scores.ra, scores.ra_top, scores.exact_rows, scores.close_rows) == (1, 1, 1, 1)
    assert scores.gower == 0
    assert set(scores.per_feature.values()) == {1.0}


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 30), cut=st.integers(1, 29), seed=st.integers(0, 2**30))
def test_guessing_fewer_or_more_rows_never_pays(n, cut, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n, rng), random_table(n, rng)
    full = score_records(guess, truth, SCHEMA, TOP)
    fewer = score_records(guess.take(np.arange(min(cut, n))), truth, SCHEMA, TOP)
    more = score_records(Table.concat([guess, truth]), truth, SCHEMA, TOP)
    assert fewer.ra <= full.ra
    assert fewer.ra_top <= full.ra_top
    assert fewer.gower >= full.gower - 0.02  # the Gower matching rounds to 1/16 per column
    assert asdict(more) == {**asdict(full), "guessed": 2 * n}


def test_an_empty_guess_scores_zero():
    truth = random_table(5, np.random.default_rng(0))
    scores = score_records(truth.take(np.arange(0)), truth, SCHEMA, TOP)
    assert (scores.ra, scores.ra_top, scores.exact_rows, scores.gower) == (0, 0, 0, 1)


def test_scores_of_a_small_case_by_hand():
    schema = Schema((Feature("x"), Feature("c", "categorical")), "y")
    truth = Table(np.array([[0, 0], [10, 1]]), np.array([0, 1]))
    guess = Table(np.array([[10, 0], [1.5, 0]]), np.array([1, 0]))  # sigma 5, tolerance 1.595
    scores = score_records(guess, truth, schema, top=("x",))
    assert scores.ra == pytest.approx(5 / 6)
    assert scores.ra_top == 1
    assert scores.per_feature == {"x": 1.0, "c": 0.5, "y": 1.0}
    assert scores.exact_rows == 0.5
    assert scores.close_rows == 0.5
    assert scores.gower == pytest.approx((0.15 / 3 + 1 / 3) / 2)
    assert scores.hamming is None


def test_tolerance_is_population_sigma_of_the_true_rows():
    truth = Table(np.array([[1, 0, 2, 3], [np.nan, 1, 4, 3], [5, 2, 9, 3]]), np.array([0, 1, 1]))
    width = Tolerance.of(truth, SCHEMA).width
    assert width[0] == pytest.approx(0.319 * 2)
    assert width[2] == pytest.approx(0.319 * np.std([2, 4, 9]))
    assert width[[1, 3, 4]].tolist() == [0, 0, 0]


def test_hamming_is_the_share_of_wrong_bits_of_binary_tables():
    schema = Schema((Feature("a", "categorical"), Feature("b", "categorical")), "y")
    truth = Table(np.array([[0, 0], [1, 1]]), np.array([0, 1]))
    guess = Table(np.array([[0, 1], [1, 1]]), np.array([0, 1]))
    assert score_records(guess, truth, schema).hamming == pytest.approx(1 / 6)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), seed=st.integers(0, 2**30))
def test_gower_is_close_to_the_optimal_matching(n, seed):
    rng = np.random.default_rng(seed)
    A, B = sorted_rows(random_table(n, rng)), sorted_rows(random_table(n, rng))
    span = Tolerance.of(random_table(n, rng), SCHEMA).range
    full = np.zeros((n, n))
    for k in range(A.shape[1]):
        gap = np.abs(A[:, k, None] - B[None, :, k])
        full += np.minimum(gap / span[k], 1) if span[k] > 0 else gap > 0
    best = full[linear_sum_assignment(full)].mean() / A.shape[1]
    found = gower_distance(A, B, span)
    assert best - 1e-9 <= found <= best + 1 / 16


def test_what_cannot_be_scored_is_refused():
    truth = random_table(3, np.random.default_rng(0))
    with pytest.raises(DataError, match="no true rows"):
        score_records(truth, truth.take(np.arange(0)), SCHEMA)
    with pytest.raises(DataError, match="did you mean 'town'"):
        score_records(truth, truth, SCHEMA, ("towm",))
    with pytest.raises(DataError, match="1 features, the true rows have 4"):
        score_records(Table(truth.X[:, :1], truth.y), truth, SCHEMA)


def test_a_sample_of_the_true_rows_is_matched_with_all_guessed_ones():
    rng = np.random.default_rng(0)
    truth = Table(rng.normal(size=(400, 12)).astype(np.float32), rng.integers(0, 2, 400))
    guess = truth.take(rng.permutation(400))
    X = guess.X.copy()
    X[:300] += 100  # 100 rows are right, whichever of the true ones are scored
    guess, schema = Table(X, guess.y), Schema(tuple(map(Feature, "abcdefghijkl")), "y")
    part = truth.take(np.arange(0, 400, 4))
    cut, whole = (score_records(guess, part, schema, limit=m) for m in (None, 400))
    assert cut.exact_rows < 0.03  # the first 100 guesses are wrong ones
    assert abs(whole.exact_rows - 0.25) < 3 * whole.errors["exact_rows"]
    p = whole.exact_rows
    assert p == whole.bit_exact_rows
    assert whole.errors["exact_rows"] == pytest.approx(np.sqrt(0.75 * p * (1 - p) / 100))
    assert set(score_records(guess, truth, schema).errors.values()) == {0.0}


def test_more_victims_than_can_be_matched_are_sampled_by_the_seed(monkeypatch):
    monkeypatch.setattr(victims_rows, "MOST_SCORED", 100)
    monkeypatch.setattr(victims_rows, "SCORED", 50)
    federation = spread(load("breast-cancer"), Partition("iid"), client_names(3), 0)
    roles = dict.fromkeys(client_names(3), "client")
    drawn = []
    for seed in (0, 0, 1):
        case = federation.case(roles, client_names(3)[:1], seed, "client")
        truth = RecordMetric().truth(case)
        assert (len(truth.rows), truth.n_rows) == (50, len(case.victims_rows))
        drawn.append(truth.rows.X.tobytes())
    assert drawn[0] == drawn[1] != drawn[2]
    scores = RecordMetric().score([Records(case.victims_rows)], truth)
    found = {s.name: (s.value, s.error) for s in scores}
    assert (found["scored_rows"][0], found["exact_rows"]) == (50, (1.0, 0))
    assert found["ra_of mean_radius"][1] == 0
    assert found["gower"][1] is None


def test_of_a_large_table_as_many_guesses_count_as_are_wanted_and_all_that_are_sure():
    rng = np.random.default_rng(0)
    rows = Table(rng.random((10_000, 2)).astype(np.float32), rng.integers(0, 2, 10_000))
    truth = victims_rows.VictimsRows(rows.take(np.arange(2000)), SCHEMA, (), len(rows))
    metric, blind = RecordMetric(), rows.take(rng.permutation(10_000)[: truth.guessed])
    assert truth.guessed == 4000

    def counted(claim):
        return metric.completed([claim], truth, lambda: [Records(blind)])[0].table

    unsure = counted(Records(rows)).X
    np.testing.assert_array_equal(unsure, rows.X[[int((k + 0.5) * 2.5) for k in range(4000)]])
    sure = counted(Records(rows.take(np.arange(5000)), np.ones(5000)))
    np.testing.assert_array_equal(sure.X[:5000], rows.X[:5000])
    np.testing.assert_array_equal(sure.X[5000:], blind.X[:2000])  # 4,000 of 10,000, of the rest
    assert len(counted(Records(rows, np.ones(10_000)))) == 10_000
    truth = replace(truth, n_rows=600_000)  # 4000 / 600000 * 600000 is more than 4000
    assert len(counted(Records(rows.take(np.arange(0)), np.ones(0)))) == 4000
