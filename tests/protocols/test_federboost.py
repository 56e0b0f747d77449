"""FederBoost: the trees of `secureboost` and `fedtree-hist`, and what its buckets tell."""

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
    made = register.make("protocol", parse_grid(spec)[0])
    return sample_training(made, make_defense(parse_composed([defense])[0]), seed=seed)


def same_trees(one, other, fields=("feature", "threshold", "left", "default_left", "value")):
    assert len(one.trees) == len(other.trees)
    for a, b in zip(one.trees, other.trees, strict=True):
        for name in fields:
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_trees_are_secureboost_s():
    ours, _ = run_of("federboost-v[trees=3,max_depth=3,min_child_weight=0.0]")
    theirs, _ = run_of("secureboost[trees=3,max_depth=3,colsample_bytree=1.0]")
    same_trees(ours.model, theirs.model)
    table, _ = sample_table()
    scores = [run.predict(table.X) for run in (ours, theirs)]
    np.testing.assert_array_equal(*scores)


def test_trees_are_fedtree_hist_s_on_a_grid():
    ours, _ = run_of("federboost-h[trees=3]")
    theirs, _ = run_of("fedtree-hist[trees=3]", "grid-cuts+secure-sum")
    same_trees(ours.model, theirs.model)
    assert all(t.g is None for t in ours.model.trees)
    counts = [d for d in ours.transcript if type(d.message) is GridCounts]
    assert counts


def read(spec, seed):
    """Return the share of passive cells that are named, and what the table tells of it."""
    run, held = run_of(spec, seed=seed)
    view = view_of(run, ("active",), held)
    attack = register.make("attack", parse_grid("told-bins")[0])
    claims = attack.run(view, np.random.default_rng(0)).all(ColumnBins)
    truth = run.bins_of_rows
    right = [c.bin == truth[c.owner, c.feature] for c in claims]
    assert {(c.owner, c.feature) for c in claims} == {k for k in truth if k[0] != "active"}
    return float(np.mean(right))


def test_buckets_in_clear_are_read():
    assert read("federboost-v[trees=1]", 5) == 1.0


def test_rows_beside_one_in_an_own_column_correct_its_answer():
    """Where columns go along; of others the shares of all rows decide, as without own columns."""
    rng, odds = np.random.default_rng(0), np.exp(3.0)
    for twin, low, high in ((True, 0.65, 1.0), (False, 0.35, 0.45)):
        bin = rng.integers(0, 32, 800)
        moved = rng.integers(0, 31, 800)
        keeps = rng.random(800) < odds / (odds + 31)
        said = np.where(keeps, bin, moved + (moved >= bin))
        own = np.column_stack([bin + rng.random(800) if twin else rng.random(800), rng.random(800)])
        right = (likeliest(said, 32, odds, own) == bin).mean()
        assert low < right < high
        assert 0.35 < keeps.mean() < 0.45


def test_randomised_buckets_stay_with_the_stated_probability():
    epsilon, odds = 3.0, np.exp(3.0)
    said = truth = wanted = 0.0
    for seed in range(8):
        run, _ = run_of(f"federboost-v[trees=1,max_bin=8,epsilon={epsilon}]", seed=seed)
        bins = run.bins_of_rows
        for m in (d.message for d in run.transcript if type(d.message) is RowBuckets):
            for column, n, told in zip(m.columns.tolist(), m.n_bins.tolist(), m.bins, strict=True):
                said += (told == bins[m.party, column]).sum()
                truth += len(told)
                wanted += len(told) * odds / (odds + n)  # no value is an answer, too
    assert said / truth == pytest.approx(wanted / truth, abs=0.02)
    spent = run.protocol.spent(run.transcript)
    assert 0.999 * epsilon < spent.histograms <= epsilon
    assert (spent.unit, run.protocol.claim().histograms) == ("value", epsilon)


def test_one_value_moves_bins_of_others_so_that_nothing_bounds_them():
    held = np.arange(64, dtype=np.float32)[:, None]
    other = held.copy()
    other[0] = 100.0
    one, moved = (
        LocalBins(LocalData(np.arange(64), np.arange(1), X), 8).bins_by_column()[0]
        for X in (held, other)
    )
    assert (one[1:] != moved[1:]).any()
    claim = register.make("protocol", parse_grid("federboost-v[epsilon=1.0]")[0]).claim()
    assert claim.epsilon == np.inf
    assert claim.unprotected == ("ends-of-bins",)


def test_buckets_cross_once():
    run, _ = run_of("federboost-v[trees=1,epsilon=1.0]")
    with pytest.raises(BeyondParametersError, match="this request was answered before"):
        run.net.party("passive-1").answer(GrowRequest(0))


def test_a_split_after_the_bins_of_a_column_is_refused():
    """Column c has n bins, with the numbers 0 to n - 1, and -1 for a split of missing values."""
    run, _ = run_of("federboost-v[trees=1]")
    party = run.net.party("passive-1")
    (m, *_) = [d.message for d in run.transcript if type(d.message) is RowBuckets]
    column, bins = m.columns[:1], m.n_bins[:1]

    def split(bin):
        one = np.ones(1, dtype=np.int32)
        return ChosenSplits(0, 0 * one, one, column, bin, np.zeros(1, dtype=bool))

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


def test_the_likeliest_bin_is_not_the_answer_where_few_rows_are():
    rng, epsilon = np.random.default_rng(0), 1.0
    truth = np.where(rng.random(4000) < 0.9, 0, rng.integers(1, 8, 4000))
    kept = rng.random(4000) < np.exp(epsilon) / (np.exp(epsilon) + 7)
    said = np.where(kept, truth, (truth + rng.integers(1, 8, 4000)) % 8)
    found = likeliest(said, 8, float(np.exp(epsilon)), np.zeros((4000, 0)))
    assert (found == truth).mean() > 0.88 > (said == truth).mean()
