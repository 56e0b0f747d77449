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
cases = given(n_true=st.integers(1, 40), n_guessed=st.integers(1, 40), seed=st.integers(0, 2**30))


def brute_ra(guess, truth, schema):
    """Compute the reconstruction accuracy from its definition, with the matching of scipy."""
    present_values = [column[~np.isnan(column)] for column in truth.X.T.astype(float)]
    sigma = [column.std() if len(column) else 0.0 for column in present_values]
    n_agreements = np.zeros((len(truth), len(guess)))
    for row in range(len(truth)):
        for guessed_row in range(len(guess)):
            for number, feature in enumerate(schema.features):
                true_value, guessed_value = (
                    float(truth.X[row, number]),
                    float(guess.X[guessed_row, number]),
                )
                if np.isnan(true_value) or np.isnan(guessed_value):
                    n_agreements[row, guessed_row] += np.isnan(true_value) and np.isnan(
                        guessed_value
                    )
                elif feature.kind == "categorical":
                    n_agreements[row, guessed_row] += true_value == guessed_value
                else:
                    n_agreements[row, guessed_row] += (
                        abs(true_value - guessed_value) <= 0.319 * sigma[number]
                    )
            n_agreements[row, guessed_row] += truth.y[row] == guess.y[guessed_row]
    pairs = linear_sum_assignment(-n_agreements)
    return n_agreements[pairs].sum() / (len(truth) * (len(schema.features) + 1))


@settings(max_examples=40, deadline=None)
@cases
def test_ra_equals_its_definition(n_true, n_guessed, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n_true, rng, 0.1), random_table(min(n_guessed, n_true), rng, 0.1)
    assert score_records(guess, truth, SCHEMA).ra == pytest.approx(brute_ra(guess, truth, SCHEMA))


@settings(max_examples=30, deadline=None)
@cases
def test_the_order_of_rows_changes_no_score(n_true, n_guessed, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n_true, rng, 0.1), random_table(min(n_guessed, n_true), rng, 0.1)
    scores = score_records(guess, truth, SCHEMA, TOP)
    scores_of_permuted = score_records(
        guess.take(rng.permutation(len(guess))), truth.take(rng.permutation(n_true)), SCHEMA, TOP
    )
    assert asdict(scores_of_permuted) == asdict(scores)


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
@given(n_rows=st.integers(2, 30), cut=st.integers(1, 29), seed=st.integers(0, 2**30))
def test_guessing_fewer_or_more_rows_never_increases_a_score(n_rows, cut, seed):
    rng = np.random.default_rng(seed)
    truth, guess = random_table(n_rows, rng), random_table(n_rows, rng)
    full_scores = score_records(guess, truth, SCHEMA, TOP)
    scores_of_fewer = score_records(guess.take(np.arange(min(cut, n_rows))), truth, SCHEMA, TOP)
    scores_of_more = score_records(Table.concat([guess, truth]), truth, SCHEMA, TOP)
    assert scores_of_fewer.ra <= full_scores.ra
    assert scores_of_fewer.ra_top <= full_scores.ra_top
    assert (
        scores_of_fewer.gower >= full_scores.gower - 0.02
    )  # the Gower matching rounds to 1/16 per column
    assert asdict(scores_of_more) == {**asdict(full_scores), "guessed": 2 * n_rows}


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
@given(n_rows=st.integers(1, 30), seed=st.integers(0, 2**30))
def test_gower_is_close_to_the_optimal_matching(n_rows, seed):
    rng = np.random.default_rng(seed)
    A, B = sorted_rows(random_table(n_rows, rng)), sorted_rows(random_table(n_rows, rng))
    ranges = Tolerance.of(random_table(n_rows, rng), SCHEMA).range
    distances = np.zeros((n_rows, n_rows))
    for column in range(A.shape[1]):
        differences = np.abs(A[:, column, None] - B[None, :, column])
        distances += (
            np.minimum(differences / ranges[column], 1) if ranges[column] > 0 else differences > 0
        )
    optimum = distances[linear_sum_assignment(distances)].mean() / A.shape[1]
    distance = gower_distance(A, B, ranges)
    assert optimum - 1e-9 <= distance <= optimum + 1 / 16


def test_tables_that_cannot_be_scored_are_refused():
    truth = random_table(3, np.random.default_rng(0))
    with pytest.raises(DataError, match="no true rows"):
        score_records(truth, truth.take(np.arange(0)), SCHEMA)
    with pytest.raises(DataError, match="did you mean 'town'"):
        score_records(truth, truth, SCHEMA, ("towm",))
    with pytest.raises(DataError, match="1 features, the true rows have 4"):
        score_records(Table(truth.X[:, :1], truth.y), truth, SCHEMA)


def test_a_sample_of_the_true_rows_is_matched_with_all_guessed_rows():
    rng = np.random.default_rng(0)
    truth = Table(rng.normal(size=(400, 12)).astype(np.float32), rng.integers(0, 2, 400))
    guess = truth.take(rng.permutation(400))
    X = guess.X.copy()
    X[:300] += 100  # 100 rows are right, whichever true rows are scored.
    guess, schema = Table(X, guess.y), Schema(tuple(map(Feature, "abcdefghijkl")), "y")
    sample = truth.take(np.arange(0, 400, 4))
    limited_scores, complete_scores = (
        score_records(guess, sample, schema, limit=limit) for limit in (None, 400)
    )
    assert limited_scores.exact_rows < 0.03  # The first 100 guesses are wrong.
    assert abs(complete_scores.exact_rows - 0.25) < 3 * complete_scores.errors["exact_rows"]
    share = complete_scores.exact_rows
    assert share == complete_scores.bit_exact_rows
    assert complete_scores.errors["exact_rows"] == pytest.approx(
        np.sqrt(0.75 * share * (1 - share) / 100)
    )
    assert set(score_records(guess, truth, schema).errors.values()) == {0.0}


def test_more_victims_than_can_be_matched_are_sampled_by_the_seed(monkeypatch):
    monkeypatch.setattr(victims_rows, "MOST_SCORED", 100)
    monkeypatch.setattr(victims_rows, "SCORED", 50)
    federation = spread(load("breast-cancer"), Partition("iid"), client_names(3), 0)
    roles = dict.fromkeys(client_names(3), "client")
    sampled_rows = []
    for seed in (0, 0, 1):
        case = federation.case(roles, client_names(3)[:1], seed, "client")
        truth = RecordMetric().truth(case)
        assert (len(truth.rows), truth.n_rows) == (50, len(case.victims_rows))
        sampled_rows.append(truth.rows.X.tobytes())
    assert sampled_rows[0] == sampled_rows[1] != sampled_rows[2]
    scores = RecordMetric().score([Records(case.victims_rows)], truth)
    by_name = {score.name: (score.value, score.error) for score in scores}
    assert (by_name["scored_rows"][0], by_name["exact_rows"]) == (50, (1.0, 0))
    assert by_name["ra_of mean_radius"][1] == 0
    assert by_name["gower"][1] is None


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
