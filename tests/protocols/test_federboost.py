"""FederBoost grows the trees of `secureboost` and `fedtree-hist`, and its buckets reveal bins."""

from functools import cache

import numpy as np
import pytest
from digests import content, digest

from fedtrees.attacks.bins.column_shares import likeliest
from fedtrees.conformance.samples import sample_table, sample_training
from fedtrees.core.claims import ColumnBins
from fedtrees.core.errors import BeyondParametersError
from fedtrees.core.local_data import LocalData
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.horizontal import GridCounts, GrowRequest
from fedtrees.messages.vertical import ChosenSplits, RowBuckets
from fedtrees.protocols.vertical.local_bins import LocalBins
from fedtrees.protocols.views import view_of


@cache
def run_of(spec, defense="none", seed=5):
    protocol_object = register.make("protocol", parse_grid(spec)[0])
    return sample_training(protocol_object, make_defense(parse_composed([defense])[0]), seed=seed)


def same_trees(
    forest, other_forest, fields=("feature", "threshold", "left", "default_left", "value")
):
    assert len(forest.trees) == len(other_forest.trees)
    for tree, other_tree in zip(forest.trees, other_forest.trees, strict=True):
        for name in fields:
            np.testing.assert_array_equal(getattr(tree, name), getattr(other_tree, name))


def test_vertical_trees_equal_those_of_secureboost():
    federboost, _ = run_of("federboost-v[trees=3,max_depth=3,min_child_weight=0.0]")
    secureboost, _ = run_of("secureboost[trees=3,max_depth=3,colsample_bytree=1.0]")
    same_trees(federboost.model, secureboost.model)
    table, _ = sample_table()
    scores = [run.predict(table.X) for run in (federboost, secureboost)]
    np.testing.assert_array_equal(*scores)


def test_horizontal_trees_equal_those_of_fedtree_hist_on_a_grid():
    federboost, _ = run_of("federboost-h[trees=3]")
    fedtree, _ = run_of("fedtree-hist[trees=3]", "grid-cuts+secure-sum")
    same_trees(federboost.model, fedtree.model)
    assert all(tree.g is None for tree in federboost.model.trees)
    counts = [
        delivery for delivery in federboost.transcript if type(delivery.message) is GridCounts
    ]
    assert counts


def share_of_right_bins(spec, seed):
    """Return the share of bins of passive columns that `bucket-reading` infers correctly."""
    run, local_data = run_of(spec, seed=seed)
    view = view_of(run, ("active",), local_data)
    attack = register.make("attack", parse_grid("bucket-reading")[0])
    claims = attack.run(view, np.random.default_rng(0)).all(ColumnBins)
    truth = run.bins_of_rows
    is_right = [claim.bin == truth[claim.owner, claim.feature] for claim in claims]
    assert {(claim.owner, claim.feature) for claim in claims} == {
        column for column in truth if column[0] != "active"
    }
    return float(np.mean(is_right))


def test_buckets_in_clear_are_read():
    assert share_of_right_bins("federboost-v[trees=1]", 5) == 1.0


def test_an_own_column_with_neighbouring_values_corrects_randomised_answers():
    """A correlated own column helps; without one, the shares of all rows decide."""
    rng, odds = np.random.default_rng(0), np.exp(3.0)
    for correlated, low, high in ((True, 0.65, 1.0), (False, 0.35, 0.45)):
        bin = rng.integers(0, 32, 800)
        other_bins = rng.integers(0, 31, 800)
        is_true_answer = rng.random(800) < odds / (odds + 31)
        answers = np.where(is_true_answer, bin, other_bins + (other_bins >= bin))
        own_columns = np.column_stack(
            [bin + rng.random(800) if correlated else rng.random(800), rng.random(800)]
        )
        share_right = (likeliest(answers, 32, odds, own_columns) == bin).mean()
        assert low < share_right < high
        assert 0.35 < is_true_answer.mean() < 0.45


def test_randomised_buckets_keep_the_true_bin_with_the_declared_probability():
    epsilon, odds = 3.0, np.exp(3.0)
    kept_count = n_rows_in_total = expected_count = 0.0
    for seed in range(8):
        run, _ = run_of(f"federboost-v[trees=1,max_bin=8,epsilon={epsilon}]", seed=seed)
        bins = run.bins_of_rows
        for message in (
            delivery.message for delivery in run.transcript if type(delivery.message) is RowBuckets
        ):
            for column, n_answers, answers in zip(
                message.columns.tolist(), message.n_bins.tolist(), message.bins, strict=True
            ):
                kept_count += (answers == bins[message.party, column]).sum()
                n_rows_in_total += len(answers)
                expected_count += (
                    len(answers) * odds / (odds + n_answers)
                )  # a missing value is an answer, too
    assert kept_count / n_rows_in_total == pytest.approx(expected_count / n_rows_in_total, abs=0.02)
    spent = run.protocol.spent(run.transcript)
    assert 0.999 * epsilon < spent.histograms <= epsilon
    assert (spent.unit, run.protocol.claim().histograms) == ("value", epsilon)


def test_one_value_moves_the_bins_of_other_rows_so_that_epsilon_is_infinite():
    values = np.arange(64, dtype=np.float32)[:, None]
    changed_values = values.copy()
    changed_values[0] = 100.0
    bins, changed_bins = (
        LocalBins(LocalData(np.arange(64), np.arange(1), X), 8).bins_by_column()[0]
        for X in (values, changed_values)
    )
    assert (bins[1:] != changed_bins[1:]).any()
    claim = register.make("protocol", parse_grid("federboost-v[epsilon=1.0]")[0]).claim()
    assert claim.epsilon == np.inf
    assert claim.unprotected == ("ends-of-bins",)


def test_buckets_cross_once():
    run, _ = run_of("federboost-v[trees=1,epsilon=1.0]")
    with pytest.raises(BeyondParametersError, match="this request was answered before"):
        run.net.party("passive-1").answer(GrowRequest(0))


def test_a_split_at_a_bin_that_the_party_does_not_have_is_refused():
    """A column has n bins, with the numbers 0 to n - 1, and -1 for a split of missing values."""
    run, _ = run_of("federboost-v[trees=1]")
    party = run.net.party("passive-1")
    (message, *_) = [d.message for d in run.transcript if type(d.message) is RowBuckets]
    column, bins = message.columns[:1], message.n_bins[:1]

    def split(bin):
        ones = np.ones(1, dtype=np.int32)
        return ChosenSplits(0, 0 * ones, ones, column, bin, np.zeros(1, dtype=bool))

    party.answer(split(bins - 1))
    with pytest.raises(BeyondParametersError, match="is no bin of this party"):
        party.answer(split(bins))


def test_an_infinite_epsilon_is_no_noise():
    clear, _ = run_of("federboost-v[trees=1]")
    table, _ = sample_table()
    (m, *_) = [d.message for d in clear.transcript if type(d.message) is RowBuckets]
    assert m.bins.shape[1] == len(table)
    assert digest(content(m.bins)) == digest(
        content(np.stack([clear.bins_of_rows[m.party, c] for c in m.columns.tolist()]))
    )


def test_the_likeliest_bin_differs_from_the_answer_if_the_answered_bin_is_rare():
    rng, epsilon = np.random.default_rng(0), 1.0
    truth = np.where(rng.random(4000) < 0.9, 0, rng.integers(1, 8, 4000))
    is_true_answer = rng.random(4000) < np.exp(epsilon) / (np.exp(epsilon) + 7)
    answers = np.where(is_true_answer, truth, (truth + rng.integers(1, 8, 4000)) % 8)
    guess = likeliest(answers, 8, float(np.exp(epsilon)), np.zeros((4000, 0)))
    assert (guess == truth).mean() > 0.88 > (answers == truth).mean()
