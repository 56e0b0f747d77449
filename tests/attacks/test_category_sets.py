"""Splits by sets of categories: boxes contain the codes that lead to their leaf."""

from __future__ import annotations

import numpy as np
import pytest
from federations import leaf_scores
from test_sampled_rounds import make_federation, train_and_view
from timberstrike_world import structured

from fedtrees.attacks.exact_decoding.attack import Lattice
from fedtrees.attacks.joint.attack import Joint
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.reconstruction.boxes import ANY, allowed, open_boxes
from fedtrees.attacks.reconstruction.context import ReconstructionContext
from fedtrees.attacks.reconstruction.prior import reach
from fedtrees.attacks.timberstrike.attack import TimberStrike
from fedtrees.core.claims import Records
from fedtrees.core.schema import Table
from fedtrees.trees.routing import Routes

CODES = 7


def coded_table(seed=0, n=240, missing=0.1):
    """Return numeric columns and one informative categorical column, whose codes have no order."""
    X, y = structured(n, seed)
    rng = np.random.default_rng(seed)
    code = np.digitize(X[:, 0], np.quantile(X[:, 0], np.arange(1, CODES) / CODES))
    X = np.column_stack([X[:, 1:3], rng.permutation(CODES)[code]]).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    return Table(X, y)


# The first value gives partitions, the second single categories.
@pytest.fixture(scope="module", params=[2, 10])
def coded_run(request):
    federation = make_federation(coded_table(), codes=CODES)
    params = f"trees=8,max_depth=4,enable_categorical=true,max_cat_to_onehot={request.param}"
    return federation, *train_and_view(federation, f"fedtree-hist[{params}]", "client-1")


def test_every_row_is_in_the_box_of_its_leaf_and_in_no_other(coded_run):
    federation, _, view = coded_run
    evidence = read_boosting(view)
    assert any(np.isnan(t.threshold).any() for t in evidence.trees)
    grid = ReconstructionContext.of(evidence, view.rows, view.schema).with_missing_values().grid
    X = np.concatenate([party.table.X for party in federation.local_data.values()])
    cells = grid.cells(X)
    node = Routes.of(evidence.trees).apply(X)
    for t, tree in enumerate(evidence.trees):
        leaves = grid.leaves(tree)
        for j, leaf in enumerate(leaves.node):
            inside = np.ones(len(X), dtype=bool)
            for k in range(leaves.offsets[j], leaves.offsets[j + 1]):
                codes_of_rows = cells[:, leaves.feature[k]]
                inside_box = (codes_of_rows >= leaves.lo[k]) & (codes_of_rows < leaves.hi[k])
                inside_box &= allowed(leaves.codes[k], np.maximum(codes_of_rows, 0))
                inside &= np.where(codes_of_rows < 0, leaves.missing[k], inside_box)
            np.testing.assert_array_equal(inside, node[:, t] == leaf)


def test_leaves_share_an_open_box_and_a_restricted_set(coded_run):
    _, _, view = coded_run
    evidence = read_boosting(view)
    basis = ReconstructionContext.of(evidence, view.rows, view.schema).with_missing_values()
    boxes = open_boxes((3, 3), basis.grid, evidence)
    boxes.codes[::2, 2] = 0b0010110
    for tree in evidence.trees:
        leaves = basis.grid.leaves(tree)
        box = (boxes.lo, boxes.hi, boxes.y)
        options = reach(leaves, box, basis.prior, boxes.missing, codes=boxes.codes)
        total = np.add.reduceat(np.exp(options.log_prior), options.offsets[:-1])
        np.testing.assert_allclose(total, 1)


def test_cells_beyond_a_word_are_excluded_by_no_set():
    assert allowed(ANY, np.array([0, 63, 64, 500])).all()
    assert allowed(np.uint64(0b100), np.array([1, 2, 3])).tolist() == [False, True, False]


@pytest.mark.long
@pytest.mark.parametrize(
    "attack", [TimberStrike(chains=4), Joint(chains=1, moves=200, exact=False)]
)
def test_first_counts_are_exact_and_codes_are_codes(coded_run, attack):
    federation, training, view = coded_run
    assert attack.inapplicable(view) is None
    guess = attack.run(view, np.random.default_rng(0))
    assert leaf_scores(guess, federation, ("client-1",), training)["leaf_counts_right"] == 1
    code = guess.first(Records).table.X[:, 2]
    assert np.isin(code[~np.isnan(code)], np.arange(CODES)).all()


@pytest.mark.long
def test_counts_certified_by_lattice_are_correct():
    n_beyond_first_tree = 0
    for seed in range(6):
        federation = make_federation(coded_table(seed, n=120, missing=0.0), codes=CODES)
        params = f"trees=4,max_depth=2,max_cat_to_onehot={2 + 8 * (seed % 2)}"
        protocol = f"fedtree-hist[{params},enable_categorical=true]"
        training, view = train_and_view(federation, protocol, "client-1")
        guess = Lattice().run(view, np.random.default_rng(0))
        assert leaf_scores(guess, federation, ("client-1",), training)["leaf_counts_right"] == 1
        n_beyond_first_tree += guess.notes["leaves_certified"] > len(training.model.trees[0].leaves)
    assert n_beyond_first_tree > 2


def test_more_categories_than_a_word_has_bits_are_refused():
    federation = make_federation(coded_table(), codes=65)
    _, view = train_and_view(
        federation, "fedtree-hist[trees=1,max_depth=2,enable_categorical=true]", "client-1"
    )
    assert "at most 64 categories" in str(TimberStrike().inapplicable(view))
