"""Opened sums over bins: what is called certain is right, and most bins are read."""

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
    return {column: bin for (_, column), bin in training.bins_of_rows.items()}


@pytest.mark.long
@pytest.mark.parametrize(("text", "classes", "defense"), RUNS)
def test_what_is_certain_is_right(text, classes, defense):
    """Whatever defends the labels, the active party knows what it summed."""
    training, held = run(text, 3, classes, defense_of(defense))
    true, certain = true_bins(training), 0
    columns = columns_of(seen_by(training, held, "active"))
    assert {c.position for c in columns} <= set(true)  # a tree draws some
    for column in columns:
        found, bins = certain_bins(column), column.allowed.shape[1] - 1
        bin = np.where(true[column.position] < 0, bins, true[column.position])
        assert found.allowed[np.arange(len(bin)), bin].all()
        sure = found.bin >= 0
        assert (found.bin[sure] == bin[sure]).all()
        certain += sure.mean() / len(columns)
        told = constrain_open_rows(column, found)  # and the sums hold for the bins that are true
        shares = np.eye(bins + 1)[bin[told.open]]
        np.testing.assert_allclose(told.sides.T @ shares, told.sums, atol=1e-4)
    assert certain > 0.1


@pytest.mark.long
def test_the_active_party_reads_bins_that_one_who_never_looked_does_not():
    """Breast cancer, 250 rows, 15 columns each, 20 trees."""
    from fedtrees.data import catalogue

    data = catalogue.load("breast-cancer")
    held = dealt(data.table.take(np.arange(250)), 2)
    protocol = register.make("protocol", parse_grid("secureboost[trees=20]")[0])
    training = train(protocol, held, data.schema)
    roles, metric = training.transcript.roles, ColumnBinsMetric()
    case = Case(held, roles, ("active",), data.schema, None, bins_of_rows=training.bins_of_rows)
    truth = metric.truth(case)
    assert metric.counted(truth) == 250 * 15
    guess = LinearReconstruction().run(seen_by(training, held, "active"), np.random.default_rng(0))
    (read,) = metric.score(guess.all(ColumnBins), truth)
    blind = max(metric.score(made, truth)[0].value for made in metric.blind(case, truth).values())
    assert read.value > 0.5  # .60; of all 569 rows .68
    assert blind < 0.15
    assert 0.3 < guess.notes["bins_certain"] < read.value
    for claim in guess.all(ColumnRanks):
        assert ((claim.low <= claim.rank) & (claim.rank <= claim.high)).all()


@pytest.mark.long
def test_there_is_nothing_to_read_without_sums():
    attack, nobody = LinearReconstruction(), np.random.default_rng(0)
    training, held = run("secureboost[trees=1]", 3)
    passive = seen_by(training, held, "passive-1", "passive-2")
    assert "no gradients" in str(attack.inapplicable(passive))
    empty = seen_by(training, held, "active").blinded()
    assert not attack.run(empty, nobody).claims
    together = seen_by(training, held, "active", "passive-1")
    claims = attack.run(together, nobody).all(ColumnBins)
    assert {c.owner for c in claims} == {"passive-2"}
    training, held = run("secureboost[trees=1,candidates=node-quantiles]", 2)
    assert "bins differ between nodes" in str(
        attack.inapplicable(seen_by(training, held, "active"))
    )
    assert not training.bins_of_rows


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_subsets_that_add_up_are_all_found(seed):
    rng = np.random.default_rng(seed)
    value = rng.integers(-6, 7, 7).astype(np.uint64)  # so small that many choices add up alike
    most = rng.integers(1, 3, 7)
    every = np.array(list(product(*(range(m + 1) for m in most))))
    chosen = every[rng.integers(len(every))]
    wanted = (chosen.astype(np.uint64) * value).sum(dtype=np.uint64)
    sums = (every.astype(np.uint64) * value).sum(axis=1, dtype=np.uint64)
    for few in (4, None):
        right = every[sums == wanted]
        low, high = most.copy(), np.zeros(7, dtype=np.int64)
        if few is None:
            assert _of_all(value, most, wanted, 4096, low, high) == len(right)
        else:
            right = right[right.sum(axis=1) <= few]
            found = _of_few(value, most, wanted, few, 4096, low, high)
            assert (found > 0) == (len(right) > 0)
        if len(right):
            assert (low == right.min(axis=0)).all()
            assert (high == right.max(axis=0)).all()


def test_scores_of_bins():
    training, held = run("secureboost[trees=1]", 2)
    case = Case(held, training.transcript.roles, ("active",), training.schema, None,
                bins_of_rows=training.bins_of_rows)  # fmt: skip
    metric = ColumnBinsMetric()
    truth = metric.truth(case)

    def claimed(change):
        return [ColumnBins(*key, ids, change(bin)) for key, (ids, bin) in truth.columns.items()]

    def share(claims):
        return metric.score(claims, truth)[0].value

    assert share(claimed(lambda bin: bin)) == 1
    assert share(claimed(lambda bin: bin + 1)) == 0
    assert share(claimed(lambda bin: bin)[1:]) == pytest.approx(2 / 3)
    missing = np.mean([(bin < 0).mean() for _, bin in truth.columns.values()])
    assert share(claimed(lambda bin: np.full(len(bin), -1))) == pytest.approx(missing)
    blind = metric.blind(case, truth)
    assert set(blind) == {"fullest-bin", "labels-of-active", "columns-of-active", "names-of-active"}
    filled = metric.completed(claimed(lambda bin: bin)[1:], truth, lambda: blind["fullest-bin"])
    assert share(filled) > 2 / 3
    assert "more than once" in metric.refuses(filled[:1] * 2, case)
    ids = truth.columns[filled[0].owner, filled[0].feature][0]
    other = ColumnBins("passive-1", int(held["active"].columns[0]), ids, ids * 0)
    assert "no victim has it" in metric.refuses([other], case)
