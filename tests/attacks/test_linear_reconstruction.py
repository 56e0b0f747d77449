"""Decrypted sums over bins: bins that are called certain are correct, and most bins are
recovered.
"""

from itertools import product

import numpy as np
import pytest
from columns import dealt, run, seen_by

from fedtrees.attacks.bins.attack import LinearReconstruction, columns_of
from fedtrees.attacks.bins.column_shares import constrain_open_rows
from fedtrees.attacks.solvers.subset_sum import _of_all, _of_few, certain_bins
from fedtrees.core.claims import ColumnBins, ColumnRanks
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.metrics.bins import ColumnBinsMetric
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import train

RUNS = [
    ("secureboost[trees=3]", 2, None),
    ("secureboost[trees=3]", 0, None),
    ("secureboost[trees=3,subsample=0.6]", 2, None),
    ("secureboost[trees=3,multi_output=true]", 3, None),
    ("secureboost[trees=4,max_bin=4]", 2, "id-lmid[xi=0.4]"),
    ("secureboost[trees=3]", 2, "reduced-leakage"),
    ("secureboost[trees=3]", 3, "lp-1st[epsilon=1]"),
    ("secureboost[trees=3]", 2, "grafting-ldp[epsilon=1]"),
    ("vertical-forest[trees=4]", 3, None),
    ("vertical-forest[trees=4,bootstrap=true,max_samples=none]", 2, "lp-mst[epsilon=1]"),
]


def defense_of(text):
    return None if text is None else register.make("defense", parse_grid(text)[0])


def true_bins(training):
    return {column: bins for (_, column), bins in training.bins_of_rows.items()}


@pytest.mark.long
@pytest.mark.parametrize(("text", "classes", "defense"), RUNS)
def test_certain_bins_are_correct(text, classes, defense):
    """Under every defense of the labels, the active party knows the gradients that it summed."""
    training, local_data = run(text, 3, classes, defense_of(defense))
    bins_by_column, share_certain = true_bins(training), 0
    columns = columns_of(seen_by(training, local_data, "active"))
    assert {c.position for c in columns} <= set(bins_by_column)  # A tree samples some columns.
    for column in columns:
        decoded, bins = certain_bins(column), column.allowed.shape[1] - 1
        true_bin = np.where(
            bins_by_column[column.position] < 0, bins, bins_by_column[column.position]
        )
        assert decoded.allowed[np.arange(len(true_bin)), true_bin].all()
        is_certain = decoded.bin >= 0
        assert (decoded.bin[is_certain] == true_bin[is_certain]).all()
        share_certain += is_certain.mean() / len(columns)
        # The remaining constraints hold for the true bins.
        open_rows = constrain_open_rows(column, decoded)
        shares = np.eye(bins + 1)[true_bin[open_rows.open]]
        np.testing.assert_allclose(open_rows.sides.T @ shares, open_rows.sums, atol=1e-4)
    assert share_certain > 0.1


@pytest.mark.long
def test_the_active_party_reads_more_bins_than_blind_guesses():
    """The table has 250 rows of breast cancer, 15 columns per party, and the model 20 trees."""
    from fedtrees.data import catalogue

    data = catalogue.load("breast-cancer")
    local_data = dealt(data.table.take(np.arange(250)), 2)
    protocol = register.make("protocol", parse_grid("secureboost[trees=20]")[0])
    training = train(protocol, local_data, data.schema)
    roles, metric = training.transcript.roles, ColumnBinsMetric()
    case = Case(
        local_data, roles, ("active",), data.schema, None, bins_of_rows=training.bins_of_rows
    )
    truth = metric.truth(case)
    assert metric.counted(truth) == 250 * 15
    guess = LinearReconstruction().run(
        seen_by(training, local_data, "active"), np.random.default_rng(0)
    )
    (accuracy,) = metric.score(guess.all(ColumnBins), truth)
    blind = max(
        metric.score(claims, truth)[0].value for claims in metric.blind(case, truth).values()
    )
    assert accuracy.value > 0.5  # Measured: 0.60, and 0.68 with all 569 rows.
    assert blind < 0.15
    assert 0.3 < guess.notes["bins_certain"] < accuracy.value
    for claim in guess.all(ColumnRanks):
        assert ((claim.low <= claim.rank) & (claim.rank <= claim.high)).all()


@pytest.mark.long
def test_the_attack_needs_decrypted_sums_over_bins():
    attack, rng = LinearReconstruction(), np.random.default_rng(0)
    training, local_data = run("secureboost[trees=1]", 3)
    passive = seen_by(training, local_data, "passive-1", "passive-2")
    assert "no gradients" in str(attack.inapplicable(passive))
    empty = seen_by(training, local_data, "active").blinded()
    assert not attack.run(empty, rng).claims
    colluding_view = seen_by(training, local_data, "active", "passive-1")
    claims = attack.run(colluding_view, rng).all(ColumnBins)
    assert {claim.owner for claim in claims} == {"passive-2"}
    training, local_data = run("secureboost[trees=1,candidates=node-quantiles]", 2)
    assert "bins differ between nodes" in str(
        attack.inapplicable(seen_by(training, local_data, "active"))
    )
    assert not training.bins_of_rows


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_all_subsets_with_the_wanted_sum_are_considered(seed):
    rng = np.random.default_rng(seed)
    # The values are so small that many choices have equal sums.
    value = rng.integers(-6, 7, 7).astype(np.uint64)
    limits = rng.integers(1, 3, 7)
    all_choices = np.array(list(product(*(range(limit + 1) for limit in limits))))
    chosen = all_choices[rng.integers(len(all_choices))]
    expected_sum = (chosen.astype(np.uint64) * value).sum(dtype=np.uint64)
    sums = (all_choices.astype(np.uint64) * value).sum(axis=1, dtype=np.uint64)
    for size_limit in (4, None):
        matching = all_choices[sums == expected_sum]
        low, high = limits.copy(), np.zeros(7, dtype=np.int64)
        if size_limit is None:
            assert _of_all(value, limits, expected_sum, 4096, low, high) == len(matching)
        else:
            matching = matching[matching.sum(axis=1) <= size_limit]
            n_found = _of_few(value, limits, expected_sum, size_limit, 4096, low, high)
            assert (n_found > 0) == (len(matching) > 0)
        if len(matching):
            assert (low == matching.min(axis=0)).all()
            assert (high == matching.max(axis=0)).all()


def test_scores_of_bin_claims():
    training, local_data = run("secureboost[trees=1]", 2)
    case = Case(
        local_data,
        training.transcript.roles,
        ("active",),
        training.schema,
        None,
        bins_of_rows=training.bins_of_rows,
    )
    metric = ColumnBinsMetric()
    truth = metric.truth(case)

    def claimed(change):
        return [ColumnBins(*key, ids, change(bins)) for key, (ids, bins) in truth.columns.items()]

    def share(claims):
        return metric.score(claims, truth)[0].value

    assert share(claimed(lambda bins: bins)) == 1
    assert share(claimed(lambda bins: bins + 1)) == 0
    assert share(claimed(lambda bins: bins)[1:]) == pytest.approx(2 / 3)
    missing = np.mean([(bins < 0).mean() for _, bins in truth.columns.values()])
    assert share(claimed(lambda bins: np.full(len(bins), -1))) == pytest.approx(missing)
    blind = metric.blind(case, truth)
    assert set(blind) == {"fullest-bin", "labels-of-active", "columns-of-active", "names-of-active"}
    filled = metric.completed(claimed(lambda bins: bins)[1:], truth, lambda: blind["fullest-bin"])
    assert share(filled) > 2 / 3
    assert "more than once" in metric.refuses(filled[:1] * 2, case)
    ids = truth.columns[filled[0].owner, filled[0].feature][0]
    not_a_victim = ColumnBins("passive-1", int(local_data["active"].columns[0]), ids, ids * 0)
    assert "no victim has it" in metric.refuses([not_a_victim], case)
