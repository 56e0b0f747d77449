"""A stored training is read back with the same model and transcript, bit for bit."""

from dataclasses import dataclass

import numpy as np
import pytest

from fedtrees.core.errors import DataError
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import Spec, parse_composed, parse_grid
from fedtrees.core.wire import decode, encode
from fedtrees.data.dataset import prepare
from fedtrees.data.partition import Partition
from fedtrees.experiments import store
from fedtrees.experiments.evaluate import run_training
from fedtrees.experiments.federation import spread
from fedtrees.experiments.plan import FederationConfig, Task
from fedtrees.experiments.suite import DataRef
from fedtrees.messages.models import as_message
from fedtrees.protocols.views import view_of
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import LOGISTIC

SPECS = (
    "fedtree-hist[trees=3,max_depth=3,enable_categorical=true]",
    "fedtree-hist[trees=3,max_depth=3]",
    "nvflare-hist[trees=2,max_depth=2,objective=multi:softprob]",
    "flower-bagging[trees=2,max_depth=2]",
    "forest-hist[trees=2,max_depth=3]",
    "local-forests[trees=2,max_depth=3]",
)


def federation(classes):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 3))
    X[:, 1] = rng.integers(0, 5, 240)
    X[:, 2] = rng.integers(0, 3, 240)
    X[::9, 0] = np.nan
    y = (np.isin(X[:, 1], [1, 3]) + 0) if classes == 2 else X[:, 2].astype(int)
    features = (
        Feature("a", low=-9, high=9),
        Feature("b", "categorical", categories=tuple("vwxyz")),
        Feature("c", "categorical", categories=tuple("pqr")),
    )
    schema = Schema(features, "y", tuple(map(str, range(classes))))
    dataset = prepare("small", schema, X.astype(np.float32), y)
    return spread(dataset, Partition("iid"), ["client-0", "client-1", "client-2"], 0)


def trained(spec, folder, defense="none"):
    grid = parse_grid(spec)[0]
    setting = FederationConfig.of(
        DataRef("small"), Spec("iid"), 3, 0, register.make("protocol", grid)
    )
    cell = Task.for_training(setting, grid, parse_composed([defense])[0])
    fed = federation(3 if "multi" in spec else 2)
    training = run_training(cell, fed)
    store.save_training(training, folder, "key")
    return training, store.load_training(cell, fed, folder, "key"), fed


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("defense", ["none", "leaf-rounding[decimals=1]"])
def test_a_training_is_unchanged_when_it_is_read_back(spec, defense, tmp_path):
    if defense != "none" and spec.startswith(("local-forests", "nvflare")):
        defense = "none"  # The defense does not fit these protocols.
    training, restored, fed = trained(spec, tmp_path, defense)
    assert encode(as_message(restored.model)) == encode(as_message(training.model))
    X = fed.test.X
    np.testing.assert_array_equal(restored.predict(X), training.predict(X))
    np.testing.assert_array_equal(restored.model.apply(X), training.model.apply(X))
    assert restored.transcript.traffic() == training.transcript.traffic()
    assert restored.defense.spent(restored.transcript) == training.defense.spent(
        training.transcript
    )
    assert (restored.n_rows, list(restored.columns)) == (training.n_rows, list(training.columns))
    for party in ("server", "client-1", "public"):
        messages = [view_of(run, (party,), fed.local_data).seen for run in (training, restored)]
        assert [encode(item.message) for item in messages[0]] == [
            encode(item.message) for item in messages[1]
        ]


def test_sets_of_categories_survive_storage(tmp_path):
    training, restored, _ = trained(SPECS[0], tmp_path)
    is_categorical = [np.isnan(t.threshold) & (t.feature >= 0) for t in training.model.trees]
    assert sum(map(np.sum, is_categorical)) > 0
    for tree, restored_tree in zip(training.model.trees, restored.model.trees, strict=True):
        np.testing.assert_array_equal(tree.categories, restored_tree.categories)
        assert restored_tree.categories is not None
        assert restored_tree.categories.any()


def test_a_forest_may_mix_trees_with_and_without_category_sets():
    def tree(categories, threshold):
        leaf = np.array([-1, -1])
        return Tree(
            feature=np.array([0, *leaf], np.int32),
            threshold=np.array([threshold, 0, 0], np.float32),
            left=np.array([1, *leaf], np.int32),
            right=np.array([2, *leaf], np.int32),
            default_left=np.zeros(3, bool),
            value=np.array([0, -1, 1], np.float32),
            categories=categories,
        )

    wide, narrow = np.zeros((3, 7), bool), np.zeros((3, 2), bool)
    wide[0, 5] = narrow[0, 1] = True
    forest = Forest(
        (tree(wide, np.nan), tree(None, 3.5), tree(narrow, np.nan)), np.zeros(1), LOGISTIC
    )
    decoded = decode(encode(as_message(forest))).model()
    X = np.arange(7, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(decoded.margin(X), forest.margin(X))
    assert len(np.unique(forest.margin(X))) > 1


def test_a_truncated_or_missing_checkpoint_is_not_loaded(tmp_path):
    trained(SPECS[4], tmp_path)
    transcript_path, model_path = store.training_files(tmp_path, "key")
    grid = parse_grid(SPECS[4])[0]
    setting = FederationConfig.of(
        DataRef("small"), Spec("iid"), 3, 0, register.make("protocol", grid)
    )
    cell, fed = Task.for_training(setting, grid, parse_composed(["none"])[0]), federation(2)
    assert store.load_training(cell, fed, tmp_path, "key") is not None
    for path in (transcript_path, model_path):
        content = path.read_bytes()
        for length in (0, 3, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:length])
            assert store.load_training(cell, fed, tmp_path, "key") is None
        path.write_bytes(content)
    store.drop_training(tmp_path, "key")
    assert store.load_training(cell, fed, tmp_path, "key") is None
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_do_not_fit_are_refused():
    message = as_message(Forest((), np.zeros(1), LOGISTIC))
    assert decode(encode(message)).model().trees == ()
    inconsistent = type(message)(**{**vars(message), "sizes": np.array([2])})
    with pytest.raises(DataError, match="do not fit 2 nodes in 1 trees"):
        inconsistent.model()


@dataclass(frozen=True)
class Twice:
    """A user's model that has no message type."""

    def predict(self, X):
        return X[:, 0]


def test_a_model_without_a_message_type_is_refused():
    with pytest.raises(DataError, match="a Twice cannot be sent: it has no as_message"):
        as_message(Twice())
