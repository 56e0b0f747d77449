"""The learning rate, lambda and masked sums follow from the relations between the statistics of
a file.
"""

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
def test_the_settings_of_a_training_are_inferred_from_its_model(tmp_path, params, masked):
    path = trained.central(tmp_path / "m.json", **params).path
    if masked:
        path = trained.edit_trees(path, tmp_path / "masked.json", trained.mask)
    model = read_model(path)
    inferred = infer_settings(model.forest.trees, model.statistics)
    assert (inferred.learning_rate, inferred.reg_lambda) == (params["eta"], params["reg_lambda"])
    # A lambda of -0 would be printed with a sign.
    assert not np.signbit(inferred.reg_lambda)
    assert inferred.source == "inferred"
    assert inferred.equations > 20


def test_every_masked_sum_is_recovered_within_its_error(tmp_path):
    model_path = trained.central(tmp_path / "m.json", max_depth=6).path
    masked = read_model(trained.edit_trees(model_path, tmp_path / "masked.json", trained.mask))
    settings, relative_errors, true_sums = Settings(0.3, 1.0, "given"), [], []
    for tree, statistics, masked_statistics in zip(
        masked.forest.trees, read_model(model_path).statistics, masked.statistics, strict=True
    ):
        assert masked_statistics.cover is None
        h, error = leaf_sums(tree, masked_statistics, settings)
        true_sum = statistics.cover[tree.leaves]
        assert (np.abs(h - true_sum) <= error).all()
        relative_errors.extend(np.abs(h - true_sum) / true_sum)
        true_sums.extend(true_sum)
    assert max(relative_errors) < 1e-3
    assert len(true_sums) > 150


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_trees_with_hundreds_of_leaves_are_solved_in_parts(tmp_path, masked):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 5)).astype(np.float32)
    y = (rng.random(4000) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(int)
    model_file = trained.central(tmp_path / "m.json", 2, X, y, max_depth=12)
    path = (
        trained.edit_trees(model_file.path, tmp_path / "masked.json", trained.mask)
        if masked
        else None
    )
    first = audit(read_model(path or model_file.path)).trees[0]
    assert len(first.leaf) > 2 * MAX_LEAVES
    n, n_pos = model_file.true_counts(0, first.leaf)
    assert first.exact.mean() > 0.99  # Two weights may be too close.
    assert np.array_equal(first.n[first.exact], n[first.exact])
    assert np.array_equal(first.n_pos[first.exact], n_pos[first.exact])


def test_no_settings_are_inferred_if_none_fit(tmp_path):
    """Steps under an L1 penalty do not fit any eta and lambda."""
    model = read_model(trained.central(tmp_path / "m.json", reg_alpha=0.5).path)
    assert infer_settings(model.forest.trees, model.statistics) is None


def test_masked_stumps_determine_no_settings(tmp_path):
    """A stump has two equations for two unknown sums, so they fit every eta."""
    path = trained.central(tmp_path / "m.json", max_depth=1).path
    model = read_model(trained.edit_trees(path, tmp_path / "masked.json", trained.mask))
    assert infer_settings(model.forest.trees, model.statistics) is None


@pytest.mark.long
def test_a_leaf_next_to_a_large_subtree_is_solved():
    """The subtree is cut off, and the leaf has no equation of its node, so the equation of its
    parent is used.
    """
    single_leaf, n_below = 1, 2 * MAX_LEAVES  # A leaf next to a balanced subtree.
    left = np.full(2 * n_below + 1, -1, dtype=np.int32)
    left[0] = single_leaf
    left[2 : n_below + 1] = np.arange(3, 2 * n_below, 2)
    inner = left >= 0
    rng = np.random.default_rng(0)
    h, g = rng.uniform(1, 40, len(left)), rng.normal(0, 9, len(left))
    for node in np.flatnonzero(inner)[::-1]:
        for sums in (h, g):
            sums[node] = sums[left[node]] + sums[left[node] + 1]
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
    recovered, error = hessians_from_gains(tree, weight, gain, 0.3, 1.0)
    expected = h[tree.leaves]
    assert (np.abs(recovered - expected) <= error).all()
    assert error[0] < 1e-2 * expected[0]
