"""eta, lambda and masked sums follow from how the statistics of a file fit together."""

import numpy as np
import pytest
import trained_models as trained

from fedtrees.attacks.shared_trees.hessians import MAX_LEAVES
from fedtrees.audit import audit
from fedtrees.audit.model import read_model
from fedtrees.audit.newton import Settings, infer_settings, leaf_sums

SETTINGS = [
    {"eta": 0.3, "reg_lambda": 1.0},
    {"eta": 0.1, "reg_lambda": 0.0, "gamma": 1.0},
    {"eta": 0.05, "reg_lambda": 3.5, "max_depth": 2, "subsample": 0.8},
    {"eta": 0.07, "reg_lambda": 0.123, "max_depth": 6},
]


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("params", SETTINGS, ids=lambda p: f"eta {p['eta']}")
def test_the_settings_of_a_training_are_read_off_its_model(tmp_path, params, masked):
    path = trained.central(tmp_path / "m.json", **params).path
    if masked:
        path = trained.edited(path, tmp_path / "masked.json", trained.mask)
    model = read_model(path)
    found = infer_settings(model.forest.trees, model.statistics)
    assert (found.learning_rate, found.reg_lambda) == (params["eta"], params["reg_lambda"])
    assert found.source == "inferred"
    assert found.equations > 20


def test_every_masked_sum_is_solved_for_within_its_error(tmp_path):
    whole = trained.central(tmp_path / "m.json", max_depth=6).path
    masked = read_model(trained.edited(whole, tmp_path / "masked.json", trained.mask))
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


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_trees_of_hundreds_of_leaves_are_solved_piece_by_piece(tmp_path, masked):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6000, 5)).astype(np.float32)
    y = (rng.random(6000) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(int)
    whole = trained.central(tmp_path / "m.json", 2, X, y, max_depth=12)
    path = trained.edited(whole.path, tmp_path / "masked.json", trained.mask) if masked else None
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
    model = read_model(trained.edited(path, tmp_path / "masked.json", trained.mask))
    assert infer_settings(model.forest.trees, model.statistics) is None
