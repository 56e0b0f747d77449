"""A kept training is a message: what is read back is the model and the transcript, bit for bit."""

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
from fedtrees.experiments import training_cache
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
    done = run_training(cell, fed)
    training_cache.save(done, folder, "key")
    return done, training_cache.load(cell, fed, folder, "key"), fed


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("defense", ["none", "leaf-rounding[decimals=1]"])
def test_a_training_comes_back_as_it_was(spec, defense, tmp_path):
    if defense != "none" and spec.startswith(("local-forests", "nvflare")):
        defense = "none"  # it has no place there
    done, again, fed = trained(spec, tmp_path, defense)
    assert encode(as_message(again.model)) == encode(as_message(done.model))
    X = fed.test.X
    np.testing.assert_array_equal(again.predict(X), done.predict(X))
    np.testing.assert_array_equal(again.model.apply(X), done.model.apply(X))
    assert again.transcript.traffic() == done.transcript.traffic()
    assert again.defense.spent(again.transcript) == done.defense.spent(done.transcript)
    assert (again.n_rows, list(again.columns)) == (done.n_rows, list(done.columns))
    for who in ("server", "client-1", "public"):
        seen = [view_of(t, (who,), fed.local_data).seen for t in (done, again)]
        assert [encode(s.message) for s in seen[0]] == [encode(s.message) for s in seen[1]]


def test_sets_of_categories_are_kept(tmp_path):
    done, again, _ = trained(SPECS[0], tmp_path)
    split = [np.isnan(t.threshold) & (t.feature >= 0) for t in done.model.trees]
    assert sum(map(np.sum, split)) > 0
    for a, b in zip(done.model.trees, again.model.trees, strict=True):
        np.testing.assert_array_equal(a.categories, b.categories)
        assert b.categories is not None
        assert b.categories.any()


def test_trees_with_and_without_sets_stand_side_by_side():
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
    again = decode(encode(as_message(forest))).model()
    X = np.arange(7, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(again.margin(X), forest.margin(X))
    assert len(np.unique(forest.margin(X))) > 1


def test_what_is_cut_off_or_missing_is_trained_again(tmp_path):
    trained(SPECS[4], tmp_path)
    where, model = training_cache.paths(tmp_path, "key")
    grid = parse_grid(SPECS[4])[0]
    setting = FederationConfig.of(
        DataRef("small"), Spec("iid"), 3, 0, register.make("protocol", grid)
    )
    cell, fed = Task.for_training(setting, grid, parse_composed(["none"])[0]), federation(2)
    assert training_cache.load(cell, fed, tmp_path, "key") is not None
    for path in (where, model):
        whole = path.read_bytes()
        for cut in (0, 3, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            assert training_cache.load(cell, fed, tmp_path, "key") is None
        path.write_bytes(whole)
    training_cache.drop(tmp_path, "key")
    assert training_cache.load(cell, fed, tmp_path, "key") is None
    assert list(tmp_path.iterdir()) == []


def test_sizes_that_do_not_fit_are_refused():
    done = as_message(Forest((), np.zeros(1), LOGISTIC))
    assert decode(encode(done)).model().trees == ()
    torn = type(done)(**{**vars(done), "sizes": np.array([2])})
    with pytest.raises(DataError, match="do not fit 2 nodes in 1 trees"):
        torn.model()


@dataclass(frozen=True)
class Twice:
    """A model of somebody's own that cannot be told."""

    def predict(self, X):
        return X[:, 0]


def test_a_model_that_cannot_be_told_says_so():
    with pytest.raises(DataError, match="a Twice cannot be sent: it has no as_message"):
        as_message(Twice())
