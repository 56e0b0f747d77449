"""Estimators beyond scikit-learn's checks: federations, views, input and parameters."""

import pickle
import subprocess
import sys

import guessed
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedtrees import (
    FederatedForestClassifier,
    FederatedGBDTClassifier,
    FederatedGBDTRegressor,
)
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.messages.horizontal import CutPoints, CutsRequest, ValidationLoss
from fedtrees.trees.files.forests import load_random_forest
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest

X, Y = load_breast_cancer(return_X_y=True)


def gbdt(**params):
    return FederatedGBDTClassifier(
        **({"n_estimators": 3, "max_depth": 3, "max_bin": 32, "random_state": 0} | params)
    )


def same(a, b, rows=X):
    return np.array_equal(a.predict_proba(rows), b.predict_proba(rows))


# --- the federation


def test_rows_are_distributed_to_clients_and_used_once():
    model = gbdt(n_clients=4).fit(X, Y)
    assert list(model.local_data_) == [f"client-{number}" for number in range(4)]
    sizes = [len(data) for data in model.local_data_.values()]
    assert sum(sizes) == len(X)
    assert max(sizes) - min(sizes) <= 1
    rows_of_clients = {row.tobytes() for part in model.local_data_.values() for row in part.X}
    assert rows_of_clients == {row.tobytes() for row in X.astype(np.float32)}


def test_clients_get_the_rows_that_the_argument_client_assigns():
    region = np.array(["north", "east", "south"])[np.arange(len(X)) % 3]
    model = gbdt(n_clients=99).fit(X, Y, client=region)
    assert model.client_ids_.tolist() == ["east", "north", "south"]
    assert list(model.transcript_.roles) == ["server", *model.local_data_, "public"]
    assert list(model.local_data_) == ["client-0", "client-1", "client-2"]
    for name, rows in zip(model.client_ids_, model.local_data_.values(), strict=True):
        assert np.array_equal(rows.X, X[region == name].astype(np.float32))
        assert np.array_equal(rows.y, Y[region == name])


def test_a_class_may_be_absent_from_a_client():
    flowers, species = load_iris(return_X_y=True)
    apart = gbdt(max_bin=256).fit(flowers, species, client=species)
    assert [np.unique(h.y).tolist() for h in apart.local_data_.values()] == [[0], [1], [2]]
    assert same(apart, gbdt(max_bin=256, n_clients=1).fit(flowers, species), flowers)


def test_a_seed_repeats_a_run_and_none_does_not():
    assert same(gbdt(subsample=0.5).fit(X, Y), gbdt(subsample=0.5).fit(X, Y))
    free = gbdt(subsample=0.5, random_state=None)
    assert not same(clone(free).fit(X, Y), clone(free).fit(X, Y))


def test_defenses_are_composed_and_recorded():
    model = gbdt(defense="split-only+leaf-rounding[decimals=1]").fit(X, Y)
    assert [part.name for part in model.training_.defense.parts] == ["split-only", "leaf-rounding"]
    values = np.concatenate([tree.value for tree in model.model_.trees])
    np.testing.assert_allclose(values, np.round(values, 1), atol=1e-6)
    with pytest.raises(AttributeError, match=r"carries no gains .*split-only"):
        model.feature_importances_  # noqa: B018


def test_early_stopping_shortens_the_model():
    rng = np.random.default_rng(0)
    noise = gbdt(n_estimators=40, early_stopping_rounds=2, validation_fraction=0.3)
    assert noise.fit(rng.normal(size=(300, 3)), rng.integers(0, 2, 300)).n_iter_ < 40
    assert gbdt().fit(X, Y).n_iter_ == 3


# --- views and attacks


@pytest.mark.long
def test_a_view_contains_the_messages_of_a_party_and_an_attack_reads_it():
    model = gbdt(n_estimators=1).fit(X, Y)
    view = model.view("client-1")
    assert np.array_equal(view.rows.X, model.local_data_["client-1"].X)
    assert {item.sender for item in view.seen} == {"server", "client-1"}
    guess = register.make("attack", Spec("timberstrike")).run(view, np.random.default_rng(0))
    leaves, (tree,) = guessed.counts(guess)[0], model.model_.trees
    victims = [model.local_data_["client-0"], model.local_data_["client-2"]]
    leaf = np.concatenate([model.model_.apply(rows.X)[:, 0] for rows in victims])
    label = np.concatenate([rows.y for rows in victims])
    assert set(leaves.leaf) == set(tree.leaves)
    for node, n0, n1 in zip(leaves.leaf, leaves.n0, leaves.n1, strict=True):
        labels_in_leaf = label[leaf == node]
        assert (n0, n1) == ((labels_in_leaf == 0).sum(), (labels_in_leaf == 1).sum())


def test_views_name_parties():
    model = gbdt().fit(X, Y)
    assert model.view("server", "client-0").principals == ("server", "client-0")
    with pytest.raises(UsageError, match="did you mean 'client-2'"):
        model.view("client-22")
    with pytest.raises(
        UsageError, match="name the parties whose view is wanted, of server, client-0"
    ):
        model.view()


def test_a_pickled_estimator_is_equal_and_its_views_stay_read_only():
    model = gbdt().fit(X, Y)
    unpickled = pickle.loads(pickle.dumps(model))
    assert same(unpickled, model)
    (item, cuts), *_ = unpickled.view("client-0").messages(CutPoints)
    assert item.sender == "server"
    assert not cuts.values.flags.writeable
    (own_data,) = unpickled.view("client-0").local_data
    assert np.array_equal(own_data.X, model.local_data_["client-0"].X)
    assert not own_data.X.flags.writeable


# --- weights


def test_rows_of_weight_zero_are_ignored():
    client, weight = np.arange(len(X)) % 3, np.ones(len(X))
    weight[::7] = 0
    has_weight = weight > 0
    weighted = gbdt().fit(X, Y, sample_weight=weight, client=client)
    assert same(weighted, gbdt().fit(X[has_weight], Y[has_weight], client=client[has_weight]))


@pytest.mark.long
def test_weights_are_repetitions_to_the_last_bit():
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = gbdt(max_bin=1000).fit(X, Y, sample_weight=weight)
    repeated = gbdt(max_bin=1000).fit(np.repeat(X, weight, axis=0), np.repeat(Y, weight))
    assert same(weighted, repeated, X)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.full(len(X), -1.0), "sample weight -1.0 of row 0"),
        (np.full(len(X), np.nan), "sample weight nan of row 0"),
        (np.zeros(len(X)), "all sample weights are zero"),
        (np.ones(3), "sample weights of shape"),
        ((Y == 1) * 1.0, r"of 1 class \(1\)"),
    ],
)
def test_unusable_weights_are_explained(weight, message):
    with pytest.raises(DataError, match=message):
        gbdt().fit(X, Y, sample_weight=weight)


# --- labels


def test_predictions_have_the_type_of_the_labels():
    texts = np.array(["malignant", "benign"])[Y]
    text_model = gbdt().fit(X, texts)
    assert text_model.classes_.tolist() == ["benign", "malignant"]
    assert text_model.training_.schema.classes == ("benign", "malignant")
    integer_model = gbdt().fit(X, 1 - Y)
    assert np.array_equal(
        text_model.predict(X), np.array(["benign", "malignant"])[integer_model.predict(X)]
    )
    other_model = gbdt().fit(X, Y * 12 - 5)
    assert other_model.classes_.tolist() == [-5, 7]


def test_numbers_are_no_classes_and_one_class_is_not_enough():
    with pytest.raises(ValueError, match="continuous"):
        gbdt().fit(X, X[:, 0])
    for model in (gbdt(), FederatedForestClassifier(n_estimators=2)):
        with pytest.raises(DataError, match=r"of 1 class \(0\); a classifier needs two"):
            model.fit(X, Y * 0)
    with pytest.raises(ValueError, match=r"could not convert|Unknown label"):
        FederatedGBDTRegressor(n_estimators=2).fit(X, np.array(["a", "b"])[Y])


def test_a_series_names_the_target():
    assert gbdt().fit(X, pd.Series(Y, name="ill")).training_.schema.target == "ill"
    assert gbdt().fit(X, Y).training_.schema.target == "y"


# --- rows


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, np.uint8, bool])
@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_of_any_type_and_order(kind, order):
    rows = np.asarray(np.clip(X, 0, 200).astype(kind), order=order)
    assert same(gbdt().fit(rows, Y), gbdt().fit(rows.astype(np.float32), Y), rows)


def test_a_column_without_values_and_missing_values():
    rows = X.copy()
    rows[:, 3] = np.nan
    rows[::5, 7] = np.nan
    model = gbdt(n_estimators=10).fit(rows, Y)
    assert model.score(rows, Y) > 0.9
    assert model.feature_importances_[3] == 0


@pytest.mark.parametrize(
    ("value", "message"), [(np.inf, "infinity"), (1e39, "'x2' is 1e\\+39 in row 4: infinite as f")]
)
def test_infinite_values_are_refused(value, message):
    rows = X.copy()
    rows[4, 2] = value
    with pytest.raises(ValueError, match=message):
        gbdt().fit(rows, Y)
    with pytest.raises(ValueError, match=message):
        gbdt().fit(X, Y).predict(rows)


def test_sparse_rows_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match="toarray"):
        gbdt().fit(csr_matrix(X), Y)


def with_town():
    frame = pd.DataFrame({"size": X[:, 0], "town": np.where(Y, "Bern", "Aarau")})
    frame.loc[::10, "town"] = None
    return frame.astype({"town": pd.CategoricalDtype(["Zug", "Bern", "Aarau"])})


def test_categories_are_remembered_in_their_order():
    frame = with_town()
    model = gbdt().fit(frame, Y)
    assert model.categories_ == {"town": ("Zug", "Bern", "Aarau")}
    size, town = model.training_.schema.features
    assert (size.kind, town.kind, town.categories) == (
        "continuous", "categorical", ("Zug", "Bern", "Aarau"),
    )  # fmt: skip
    codes = np.column_stack([X[:, 0], np.where(Y, 1.0, 2.0)])
    codes[::10, 1] = np.nan
    assert np.array_equal(model.predict_proba(frame), gbdt().fit(codes, Y).predict_proba(codes))


def test_categories_of_another_dtype_give_equal_predictions():
    frame = with_town()
    model = gbdt().fit(frame, Y)
    other_categories = frame.astype({"town": pd.CategoricalDtype(["Aarau", "Bern"])})
    text_column = frame.astype({"town": object})
    for rows in (other_categories, text_column):
        assert np.array_equal(model.predict_proba(rows), model.predict_proba(frame))


def test_unknown_categories_and_plain_text_are_named():
    frame = with_town()
    model = gbdt().fit(frame, Y)
    with pytest.raises(DataError, match="'town' contains the unknown 'Bxrn'; did you mean 'Bern'"):
        model.predict(frame.assign(town="Bxrn"))
    with pytest.raises(DataError, match=r"'town' contains text .*astype\(\{'town': 'category'\}\)"):
        gbdt().fit(frame.assign(town="Bern"), Y)


# --- parameters


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"protocol": "fedtre"}, UsageError, "did you mean 'fedtree-hist'"),
        ({"protocol": None}, UsageError, "give its name"),
        ({"protocol": "fedtree-hist[trees=1,2]"}, UsageError, "is a grid"),
        ({"protocol": "forest-hist"}, UsageError, "trains boosted trees"),
        ({"protocol": "fedtree-hist[max_depth=5]"}, UsageError, "max_depth=3 and protocol=.*once"),
        ({"defense": "split-onyl"}, UsageError, "did you mean 'split-only'"),
        ({"defense": "none,split-only"}, UsageError, r"compose several with \+"),
        (
            {"protocol": "nvflare-hist", "defense": "split-only"},
            UsageError,
            "does not send",
        ),
        ({"n_clients": 600}, DataError, "600 clients but only 569 rows"),
        ({"n_clients": 0}, DataError, "at least one client"),
        ({"n_clients": 2.0}, UsageError, "n_clients=2.0: give a whole number"),
        ({"max_bin": 2**16}, UsageError, "max_bin=65536: give a whole number from 2 to 65534"),
        ({"learning_rate": 0}, UsageError, "learning_rate=0"),
        ({"cuts": "skech"}, UsageError, "did you mean 'sketch'"),
        ({"cuts": 7}, UsageError, "cuts=7: give a method"),
        ({"cuts": (1, 2)}, DataError, "no pair"),
        ({"cuts": ([0, 2], [0.0, 1.0])}, DataError, "cuts of 1 features for 30 columns"),
        ({"cuts": "public"}, DataError, "declared range for every feature"),
        ({"ranges": {"x30": (0, 1)}}, UsageError, "no column 'x30'"),
        ({"ranges": {"x3": 1}}, UsageError, r"give \{name: \(low, high\)"),
        ({"ranges": {"x3": (1, 0)}}, DataError, "'x3': public range"),
        ({"random_state": "seed"}, ValueError, "cannot be used to seed"),
    ],
)
def test_unusable_parameters_are_explained(params, error, message):
    with pytest.raises(error, match=message):
        gbdt(**params).fit(X, Y)


@pytest.mark.parametrize(
    ("client", "message"),
    [(np.zeros(3), "3 client ids for 569 rows"), ([1, "b"] + [1] * 567, "all numbers or all text")],
)
def test_unusable_client_ids_are_explained(client, message):
    ids = np.empty(len(client), dtype=object)
    ids[:] = list(client)
    with pytest.raises(DataError, match=message):
        gbdt().fit(X, Y, client=ids)


def test_a_spec_replaces_defaults_and_numpy_numbers_are_numbers():
    default = FederatedGBDTClassifier(
        protocol="fedtree-hist[trees=3,max_depth=3,max_bin=32]", random_state=0
    )
    assert same(default.fit(X, Y), gbdt().fit(X, Y))
    numbers = gbdt(max_depth=np.int64(3), learning_rate=np.float64(0.3), n_clients=np.int32(3))
    assert same(numbers.fit(X, Y), gbdt().fit(X, Y))


def test_public_ranges_settle_cut_points_without_a_question():
    ranges = {f"x{k}": (0.0, 5000.0) for k in range(X.shape[1])}
    model = gbdt(cuts="public", ranges=ranges).fit(X, Y)
    assert not list(model.view("server").messages(CutsRequest))
    (_, cuts), *_ = model.view("server").messages(CutPoints)
    np.testing.assert_allclose(cuts.values[:31], np.arange(1, 32) * 5000 / 32, rtol=1e-6)


# --- company


def test_pipelines_searches_and_scores():
    pipe = make_pipeline(StandardScaler(), gbdt())
    assert cross_val_score(pipe, X, Y, cv=3).min() > 0.85
    ids = np.arange(len(X)) % 2
    assert cross_val_score(gbdt(), X, Y, cv=3, params={"client": ids}).min() > 0.85
    grid = {"max_depth": np.array([1, 3]), "defense": [None, "split-only"]}
    search = GridSearchCV(gbdt(), grid, cv=2).fit(X, Y)
    assert search.best_params_["max_depth"] == 3
    assert search.best_estimator_.get_params()["n_estimators"] == 3


def test_regression_scores_above_the_mean():
    rows, days = load_diabetes(return_X_y=True)
    model = FederatedGBDTRegressor(n_estimators=20, max_depth=2, learning_rate=0.2)
    assert cross_val_score(model, rows, days, cv=3).min() > 0.3
    assert model.fit(rows, days).training_.schema.classes == ()


@pytest.mark.parametrize("protocol", ["forest-hist", "local-forests[leaf_counts=false]"])
def test_random_forests_classify_and_are_saved(protocol, tmp_path):
    forest = FederatedForestClassifier(n_estimators=10, protocol=protocol, random_state=0)
    assert cross_val_score(forest, X, Y, cv=3).min() > 0.88
    forest.fit(X, Y)
    assert len(forest.model_) == (10 if protocol == "forest-hist" else 30)
    forest.save_model(tmp_path / "forest.npz")
    loaded = load_random_forest(tmp_path / "forest.npz")
    assert np.array_equal(loaded.predict(X), forest.predict_proba(X)[:, 1])
    if "leaf_counts" in protocol:
        with pytest.raises(AttributeError, match="leaf_counts=true"):
            forest.feature_importances_  # noqa: B018


def test_forest_importances_are_scikit_learns():
    sklearn_forest = RandomForestClassifier(n_estimators=8, random_state=0).fit(X, Y)
    our_forest = FederatedForestClassifier(n_estimators=1).fit(X, Y)
    trees = []
    for t in (estimator.tree_ for estimator in sklearn_forest.estimators_):
        counts = np.rint(t.value[:, 0] * t.weighted_n_node_samples[:, None]).astype(np.int64)
        left, right = t.children_left, t.children_right
        trees.append(
            ClassTree(t.feature, t.threshold, left, right, left < 0, t.value[:, 0], counts)
        )
    our_forest.model_ = RandomForest(tuple(trees))
    np.testing.assert_allclose(
        our_forest.feature_importances_, sklearn_forest.feature_importances_, rtol=1e-9
    )


def test_forests_refuse_unsupported_parameters():
    for protocol, message in (
        ("fedtree-hist", "trains random forests"),
        ("local-forests", "'cuts'"),
    ):
        with pytest.raises(UsageError, match=message):
            FederatedForestClassifier(protocol=protocol, cuts="sketch").fit(X, Y)


@pytest.mark.parametrize(
    ("protocol", "reason"),
    [
        ("horizontal-regression", "or `fedtrees model train -p horizontal-regression`"),
        ("fedsgd-mlp", "'fedsgd-mlp' trains another kind of model. Use one of dp-gbdt"),
        ("fedxgbllr", "'fedxgbllr' trains another kind"),
        ("dp-forest", "'dp-forest' trains another kind"),
        ("forest-hist", "'forest-hist' trains another kind of model"),
        ("secureboost", "in 'secureboost', parties have different columns of the table"),
    ],
)
def test_boosted_estimators_refuse_protocols_of_other_models(protocol, reason):
    with pytest.raises(UsageError, match=reason):
        FederatedGBDTClassifier(protocol=protocol).fit(X, Y)


def test_importing_fedtrees_imports_no_large_library():
    code = (
        "import sys, fedtrees\n"
        "assert 'FederatedGBDTClassifier' in dir(fedtrees)\n"
        "print(sorted({'numpy', 'numba', 'sklearn', 'pandas', 'xgboost'} & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


# --- regression tests for earlier defects


def test_an_integer_step_rounds_like_an_equal_float():
    integer_step = gbdt(defense="hist-rounding[step=1]").fit(X, Y)
    assert same(integer_step, gbdt(defense="hist-rounding[step=1.0]").fit(X, Y))
    assert integer_step.score(X, Y) > 0.8
    with pytest.raises(ValueError, match="sends all sums alike"):
        gbdt(defense="hist-rounding[step=1e12]").fit(X, Y)


@pytest.mark.parametrize("size", [1e-30, 1e-11, 1e9, 1e13])
def test_weights_of_any_magnitude_only_scale_the_penalties(size):
    plain = gbdt(reg_lambda=0, min_child_weight=0).fit(X, Y)
    scaled = gbdt(reg_lambda=0, min_child_weight=0).fit(X, Y, sample_weight=np.full(len(X), size))
    if size < 1e-8:  # No gain reaches 1e-6, the smallest gain for which XGBoost splits.
        assert len(scaled.model_.trees[0].leaves) == 1
    else:
        np.testing.assert_allclose(scaled.predict_proba(X), plain.predict_proba(X), rtol=1e-4)


@pytest.mark.parametrize("score", [0, 1, 2, -1, 1 - 1e-9, 1e-40])
def test_an_impossible_base_score_is_a_parameter_error(score):
    with pytest.raises(UsageError, match=r"base_score=.*(strictly between 0 and 1|in float32)"):
        gbdt(base_score=score).fit(X, Y)


def test_holding_out_almost_all_rows_is_refused():
    with pytest.raises(DataError, match=r"no training row|all training labels"):
        gbdt(early_stopping_rounds=2, validation_fraction=0.999999).fit(X, Y)


def test_noise_on_the_number_of_held_out_rows_is_not_mistaken_for_missing_rows():
    """For some seed, noise makes the sum negative, which is no error of an empty validation set."""
    counts = []
    for seed in range(20):
        model = gbdt(
            n_estimators=2,
            defense="laplace-hist[epsilon=0.5]",
            early_stopping_rounds=2,
            validation_fraction=0.05,
            random_state=seed,
            noise_from="seed",
        ).fit(X, Y)
        sums = [message.sums for item, message in model.view("server").messages(ValidationLoss)]
        counts.append(sums[0][1])
        assert 1 <= model.model_.rounds <= len(sums)
    assert min(counts) < 0


@pytest.mark.parametrize("defense", [3, ["split-only"], True])
def test_a_defense_that_is_no_text(defense):
    with pytest.raises(UsageError, match="give its spec as text"):
        gbdt(defense=defense).fit(X, Y)


def test_a_missing_client_id():
    ids = np.zeros(len(X))
    ids[7] = np.nan
    with pytest.raises(DataError, match="client id of row 7 is missing"):
        gbdt().fit(X, Y, client=ids)


def test_apply_before_fit():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        gbdt().apply(X)


def test_a_file_name_that_would_be_misread(tmp_path):
    with pytest.raises(UsageError, match="json"):
        gbdt().fit(X, Y).save_model(tmp_path / "model.ubj")


def test_the_attack_joint_applies_to_every_kind_of_target():
    flowers, species = load_iris(return_X_y=True)
    numbers = FederatedGBDTRegressor(n_estimators=2, max_depth=2)
    fitted = [gbdt().fit(X, Y), gbdt().fit(flowers, species), numbers.fit(flowers, flowers[:, 0])]
    joint = register.make("attack", Spec("joint"))
    reasons = [joint.inapplicable(model.view("client-2")) for model in fitted]
    # It applies to several classes and to numbers, too.
    assert reasons == [None, None, None]


def test_two_columns_of_one_name():
    frame = pd.DataFrame(np.column_stack([X[:, 0], X[:, 1]]), columns=["a", "a"])
    with pytest.raises(DataError, match="two columns are called 'a'"):
        gbdt().fit(frame.astype("category"), Y)
    with pytest.raises(DataError, match="two columns are called 'a'"):
        gbdt().fit(frame, Y)


@pytest.mark.parametrize(
    "values",
    [
        pd.date_range("2020-01-01", periods=6),
        pd.date_range("2020-01-01", periods=6, tz="UTC"),
        pd.to_timedelta(range(6), "D"),
        pd.period_range("2020-01", periods=6, freq="M"),
        pd.interval_range(0, 6),
    ],
    ids=lambda values: str(values.dtype),
)
def test_a_column_of_dates_is_refused_by_its_name_with_a_remedy(values):
    X = pd.DataFrame({"age": np.arange(6.0), "visited": values})
    with pytest.raises(DataError, match=r"column 'visited' contains dates.*give a number"):
        FederatedGBDTClassifier().fit(X, [0, 1, 0, 1, 0, 1])
