"""eta, lambda and masked sums follow from how the statistics of a file fit together."""

import numpy as np
import pytest
import trained_models as trained

from fedtrees.attacks.clients.masked_hessians import MAX_LEAVES, hessians_from_gains
from fedtrees.model_audit import audit
from fedtrees.model_audit.readers import read_model
from fedtrees.model_audit.training_settings import Settings, infer_settings, leaf_sums
from fedtrees.trees.boosted.forest import Tree

SETTINGS = [
    {"eta": 0.3, "reg_lambda": 1.0},
    {"eta": 0.1, "reg_lambda": 0.0, "gamma": 1.0},
    {"eta": 0.05, "reg_lambda": 3.5, "max_depth": 2, "subsample": 0.8},
    {"eta": 0.07, "reg_lambda": 0.123, "max_depth": 6},
]


@pytest.mark.long
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("params", SETTINGS, ids=lambda p: f"eta {p['eta']}")
def test_the_settings_of_a_training_are_read_off_its_model(tmp_path, params, masked):
    path = trained.central(tmp_path / "m.json", **params).path
    if masked:
        path = trained.edit_trees(path, tmp_path / "masked.json", trained.mask)
    model = read_model(path)
    found = infer_settings(model.forest.trees, model.statistics)
    assert (found.learning_rate, found.reg_lambda) == (params["eta"], params["reg_lambda"])
    assert not np.signbit(found.reg_lambda)  # lambda -0 is no number people give
    assert found.source == "inferred"
    assert found.equations > 20


def test_every_masked_sum_is_solved_for_within_its_error(tmp_path):
    whole = trained.central(tmp_path / "m.json", max_depth=6).path
    masked = read_model(trained.edit_trees(whole, tmp_path / "masked.json", trained.mask))
    settings, off, size = Settings(0.3, 1.0, "given"), [], []
    for tree, known, hidden in zip(
        masked.forest.trees, read_model(whole).statistics, masked.statistics, strict=True
    ):
        assert hidden.cover is None
        h, error = leaf_sums(tree, hidden, settings)
        true = known.cover[tree.leaves]
        assert (np.abs(h - true) <= error).all()
        off.extend(np.abs(h - true) / true)
        size.extend(true)
    assert max(off) < 1e-3
    assert len(size) > 150


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_trees_of_hundreds_of_leaves_are_solved_piece_by_piece(tmp_path, masked):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5)).astype(np.float32)
    y = (rng.random(4000) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(int)
    whole = trained.central(tmp_path / "m.json", 2, X, y, max_depth=12)
    path = (
        trained.edit_trees(whole.path, tmp_path / "masked.json", trained.mask) if masked else None
    )
    first = audit(read_model(path or whole.path)).trees[0]
    assert len(first.leaf) > 2 * MAX_LEAVES
    n, n_pos = whole.true_counts(0, first.leaf)
    assert first.exact.mean() > 0.99  # two weights may lie too close for a masked sum
    assert np.array_equal(first.n[first.exact], n[first.exact])
    assert np.array_equal(first.n_pos[first.exact], n_pos[first.exact])


def test_no_settings_are_named_where_none_fit(tmp_path):
    """An L1 penalty makes steps that no eta and lambda explain."""
    model = read_model(trained.central(tmp_path / "m.json", reg_alpha=0.5).path)
    assert infer_settings(model.forest.trees, model.statistics) is None


def test_masked_stumps_name_no_settings(tmp_path):
    """Two equations for two unknown sums: any eta agrees with them."""
    path = trained.central(tmp_path / "m.json", max_depth=1).path
    model = read_model(trained.edit_trees(path, tmp_path / "masked.json", trained.mask))
    assert infer_settings(model.forest.trees, model.statistics) is None


@pytest.mark.long
def test_a_leaf_beside_a_large_subtree_is_solved_for_too():
    """The subtree is cut off, and the leaf alone has no equation: its parent's have."""
    lone, below = 1, 2 * MAX_LEAVES  # a leaf beside a balanced subtree
    left = np.full(2 * below + 1, -1, dtype=np.int32)
    left[0] = lone
    left[2 : below + 1] = np.arange(3, 2 * below, 2)
    inner = left >= 0
    rng = np.random.default_rng(0)
    h, g = rng.uniform(1, 40, len(left)), rng.normal(0, 9, len(left))
    for node in np.flatnonzero(inner)[::-1]:
        for part in (h, g):
            part[node] = part[left[node]] + part[left[node] + 1]
    weight = (-g / (h + 1)).astype(np.float32)
    score = g**2 / (h + 1)
    gain = np.where(
        inner, score[left] + score[np.minimum(left + 1, len(left) - 1)] - score, 0
    ).astype(np.float32)
    tree = Tree(
        feature=np.where(inner, 0, -1).astype(np.int32),
        threshold=np.zeros(len(left), dtype=np.float32),
        left=left,
        right=np.where(inner, left + 1, -1).astype(np.int32),
        default_left=np.zeros(len(left), dtype=bool),
        value=np.where(inner, 0, np.float32(0.3) * weight).astype(np.float32),
    )
    found, error = hessians_from_gains(tree, weight, gain, 0.3, 1.0)
    true = h[tree.leaves]
    assert (np.abs(found - true) <= error).all()
    assert error[0] < 1e-2 * true[0]
