"""Bad models are refused in bounded time and memory, and unusual models are audited."""

import copy
import json
import resource
import struct
import sys
import time

import lightgbm as lgb
import numpy as np
import pytest
import trained_models as trained
import xgboost as xgb

from fedtrees.core.errors import DataError
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.exposure import UNKNOWN
from fedtrees.model_audit.first_trees import CONTRADICTED
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.files.model_file import MOST_LEVELS
from fedtrees.trees.files.xgboost import from_xgboost_json
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest


@pytest.fixture(scope="module")
def valid_model(tmp_path_factory):
    model_file = trained.central(tmp_path_factory.mktemp("model") / "m.json", 3)
    return json.loads(model_file.path.read_text())


def write_model(tmp_path, content):
    path = tmp_path / "bad.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_another_booster_is_refused_by_name(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary:logistic", "booster": "gblinear", "nthread": 1}
    xgb.train(params, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    with pytest.raises(DataError, match="booster 'gblinear'; only gbtree and dart"):
        read_model(tmp_path / "m.json")


def cpu_seconds(call):
    """Return the CPU seconds of the second of two calls."""
    call()
    began = time.process_time()
    call()
    return time.process_time() - began


def test_a_truncated_model_is_refused(tmp_path, valid_model):
    text = json.dumps(valid_model)
    for share in (0.1, 0.5, 0.99):
        with pytest.raises(DataError, match="not JSON"):
            read_model(write_model(tmp_path, text[: int(share * len(text))]))


@pytest.mark.parametrize(
    "content",
    ['{"learner":' + "[" * 200_000, '{"a":' * 200_000, b"{L" + b"\x7f" * 64, b"{i\x07learner[$d#L"
     + struct.pack(">q", 10**9)],
    ids=["lists", "objects", "ubj key", "ubj 10^9"],
)  # fmt: skip
def test_hostile_nesting_and_sizes_cost_nothing(tmp_path, valid_model, content):
    seconds_for_valid_model = cpu_seconds(
        lambda: audit(read_model(write_model(tmp_path, valid_model)))
    )
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DataError):
        read_model(write_model(tmp_path, content))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert time.process_time() - began < 10 * seconds_for_valid_model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # fedtrees ignores this number
        (lambda t: t["tree_param"].update(num_nodes=str(10**9)), None),
        (lambda t: t["sum_hessian"].__setitem__(1, float("nan")), "sum_hessian of tree 0 is not"),
        (lambda t: t["sum_hessian"].__setitem__(1, -4.0), "sum_hessian of tree 0 is negative"),
        (lambda t: t["split_conditions"].__setitem__(-1, float("nan")), "not finite"),
        (lambda t: t["base_weights"].__setitem__(0, float("inf")), "base_weights of tree 0 is not"),
        (lambda t: t["left_children"].__setitem__(0, 0), "do not form a tree"),
        (lambda t: t["left_children"].__setitem__(0, 10**9), "do not form a tree"),
        (lambda t: t["left_children"].__setitem__(-1, -2), "no pair as XGBoost numbers them"),
        (
            lambda t: t.update(
                {
                    k: [{1: 2, 2: 1}.get(x, x) for x in t[k]]
                    for k in ("left_children", "right_children")
                }
            ),
            "no pair",
        ),
        (lambda t: t["sum_hessian"].append(1.0), "differ in length"),
        (lambda t: t.update(sum_hessian="many"), "no list of numbers"),
    ],
)
def test_damaged_trees_are_refused_by_name(tmp_path, valid_model, change, message):
    model = copy.deepcopy(valid_model)
    change(model["learner"]["gradient_booster"]["model"]["trees"][0])
    path = write_model(tmp_path, model)
    if message is None:
        assert audit(read_model(path)).summary.exact > 0
    else:
        with pytest.raises(DataError, match=message):
            audit(read_model(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(feature_names=["a"]), "30 columns and names 1"),
        (lambda x: x.update(feature_names=7), "feature_names of the model is a int"),
        (lambda x: x["learner_model_param"].update(num_feature=str(10**9)), "are possible"),
        (lambda x: x["objective"]["reg_loss_param"].update(scale_pos_weight=1e-320), "float32"),
    ],
)
def test_damaged_headers_are_refused_by_name(tmp_path, valid_model, change, message):
    model = copy.deepcopy(valid_model)
    change(model["learner"])
    with pytest.raises(DataError, match=message):
        read_model(write_model(tmp_path, model))


@pytest.mark.parametrize("score", ["0E0", "[1E0]"])
def test_a_base_score_at_the_edge_is_read_as_xgboost_reads_it(tmp_path, valid_model, score):
    """Custom objectives store such scores. XGBoost clips them to 1e-6 from 0 and 1."""
    model = copy.deepcopy(valid_model)
    model["learner"]["learner_model_param"]["base_score"] = score
    path = write_model(tmp_path, model)
    X = trained.table()[0][:50]
    booster = xgb.Booster({"nthread": 1}, model_file=str(path))
    np.testing.assert_allclose(
        read_model(path).forest.margin(X).ravel(),
        booster.predict(xgb.DMatrix(X), output_margin=True),
        rtol=1e-6,
    )


@pytest.mark.parametrize("score", ["1.5", "-0.1", "NaN"])
def test_a_base_score_outside_0_and_1_is_refused(tmp_path, valid_model, score):
    model = copy.deepcopy(valid_model)
    model["learner"]["learner_model_param"]["base_score"] = score
    with pytest.raises(DataError, match="of the model is no probability"):
        read_model(write_model(tmp_path, model))


def test_statistics_beyond_float32_are_refused(tmp_path, valid_model):
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        model = copy.deepcopy(valid_model)
        model["learner"]["gradient_booster"]["model"]["trees"][0][name][1] = 1e308
        with pytest.raises(DataError, match=f"{name} of tree 0 is beyond float32"):
            read_model(write_model(tmp_path, model))


def test_control_characters_in_names_are_escaped(tmp_path, valid_model):
    model = copy.deepcopy(valid_model)
    names = ["\x1b[2J", "a\nb", "\ud800", "größe", *(f"c{k}" for k in range(26))]
    model["learner"]["feature_names"] = names
    feature_names = read_model(write_model(tmp_path, model)).feature_names
    assert feature_names[:4] == ("\\x1b[2J", "a\\nb", "\\ud800", "größe")


def test_labels_are_not_counted_if_the_penalty_is_not_a_number(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "verbosity": -1, "num_threads": 1}
    text = lgb.train(params, lgb.Dataset(X, y), 3).model_to_string()
    assert "[lambda_l1: 0]" in text
    for penalty, labels in (("0", True), ("abc", False)):
        path = tmp_path / "m.txt"
        path.write_text(text.replace("[lambda_l1: 0]", f"[lambda_l1: {penalty}]"))
        first = audit(read_model(path)).trees[0]
        assert (first.n != UNKNOWN).all()
        assert (first.n_pos != UNKNOWN).all() == labels


def test_an_absurd_number_of_lightgbm_columns_is_refused(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 2).model_to_string()
    wide = text.replace("max_feature_idx=29", "max_feature_idx=999999999")
    with pytest.raises(DataError, match="are possible"):
        read_model(write_model(tmp_path, wide))


def test_a_negative_number_of_columns_is_refused(tmp_path):
    path = trained.central(tmp_path / "m.json", 1, gamma=1e9).path
    model = json.loads(path.read_text())
    model["learner"]["learner_model_param"]["num_feature"] = "-5"
    with pytest.raises(DataError, match=r"-5 columns.* are possible"):
        read_model(write_model(tmp_path, model))


def test_an_absurd_number_of_forest_columns_is_refused(tmp_path):
    splits = {"left": [1, -1, -1], "right": [2, -1, -1], "feature": [2**31 - 2, -1, -1]}
    tree = ClassTree(
        **{name: np.array(values, np.int32) for name, values in splits.items()},
        threshold=np.array([0.5, 0, 0], np.float32),
        default_left=np.zeros(3, bool),
        probability=np.array([[0.5, 0.5], [1, 0], [0, 1]]),
    )
    save_random_forest(RandomForest((tree,)), tmp_path / "f.npz")
    with pytest.raises(DataError, match=r"2147483647 columns.* are possible"):
        read_model(tmp_path / "f.npz")


@pytest.mark.parametrize("factor", [1e4, 1e5, 1e6, 1e9])
def test_sums_of_many_rows_cost_no_more_than_those_of_few(tmp_path, valid_model, factor):
    model = copy.deepcopy(valid_model)
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        zeros = [0.0] * len(tree["base_weights"])
        tree |= {"base_weights": zeros, "loss_changes": zeros}
        tree["sum_hessian"] = [factor * h for h in tree["sum_hessian"]]
    declared = Known(learning_rate=0.3, reg_lambda=1.0)
    seconds_for_few = cpu_seconds(
        lambda: audit(read_model(write_model(tmp_path, valid_model)), declared)
    )
    scaled_model = read_model(write_model(tmp_path, model))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    report = audit(scaled_model, declared)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert time.process_time() - began < 10 * seconds_for_few
    assert report.summary.exact == 0  # The leaf values are those of fewer rows.


def error_for_changed_model(model, change, tmp_path):
    """Return the error message for a changed model, and assert that reading it allocated little
    memory.
    """
    change(model["learner"], model["learner"]["gradient_booster"]["model"])
    path = write_model(tmp_path, model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError) as raised:
        read_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    return str(raised.value)


def test_an_absurd_number_of_classes_allocates_no_memory(tmp_path, valid_model):
    def set_many_classes(learner, booster):
        learner["learner_model_param"]["num_class"] = str(10**7)
        learner["objective"]["name"] = "multi:softprob"

    assert "10000000 classes and 3 trees" in error_for_changed_model(
        copy.deepcopy(valid_model), set_many_classes, tmp_path
    )


def test_a_round_of_many_trees_is_not_repeated(tmp_path, valid_model):
    """XGBoost's num_parallel_tree: the first round has no more trees than the model."""
    model = copy.deepcopy(valid_model)
    booster = model["learner"]["gradient_booster"]["model"]
    booster["gbtree_model_param"]["num_parallel_tree"] = str(10**9)
    assert len(audit(read_model(write_model(tmp_path, model))).trees) == 3


def test_filling_up_trees_of_one_class_is_bounded():
    single_leaf = {
        "left_children": [-1],
        "right_children": [-1],
        "split_indices": [0],
        "split_conditions": [0.5],
        "default_left": [0],
        "loss_changes": [0.0],
        "sum_hessian": [1.0],
        "base_weights": [0.0],
        "tree_param": {},
    }
    info = [*range(1000), *[0] * 1000]
    booster = {"trees": [single_leaf] * 2000, "tree_info": info}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": booster},
        "objective": {"name": "multi:softprob"},
        "learner_model_param": {"num_class": "1000", "num_feature": "1", "base_score": "0.5"},
    }
    with pytest.raises(DataError, match="trees of the model are of only one of 1000 classes"):
        from_xgboost_json({"learner": learner})
    booster["trees"], booster["tree_info"] = booster["trees"][:1009], info[:1009]
    assert len(from_xgboost_json({"learner": learner})) == 10_000


def chain_children(depth):
    """Return the children of a tree with `depth` splits, each of which has a leaf on one side."""
    inner, children = np.arange(0, 2 * depth, 2), np.arange(1, 2 * depth, 2)
    left, right = np.full(2 * depth + 1, -1), np.full(2 * depth + 1, -1)
    left[inner], right[inner] = children, children + 1
    return left, right


def make_chain(tree, depth):
    """Replace a tree of XGBoost by a chain of splits."""
    n, (left, right) = 2 * depth + 1, chain_children(depth)
    tree |= {k: [0.0] * n for k in ("sum_hessian", "base_weights", "loss_changes")}
    tree |= {k: [0] * n for k in ("split_indices", "default_left", "split_type", "parents")}
    tree |= {"left_children": left.tolist(), "right_children": right.tolist()}
    tree |= {"split_conditions": [0.5] * n}


def test_a_tree_deeper_than_any_training_grows_is_refused(tmp_path, valid_model):
    def make_deep(learner, booster):
        make_chain(booster["trees"][0], MOST_LEVELS)

    error_message = error_for_changed_model(copy.deepcopy(valid_model), make_deep, tmp_path)
    assert "bad.json: a tree of 8193 nodes has more than 4096 levels" in error_message
    model = copy.deepcopy(valid_model)
    make_chain(model["learner"]["gradient_booster"]["model"]["trees"][0], MOST_LEVELS - 1)
    assert len(read_model(write_model(tmp_path, model)).forest.trees[0]) == 2 * MOST_LEVELS - 1

    n_splits = MOST_LEVELS
    # LightGBM numbers inner nodes from 0, and stores leaf k as ~k.
    left = " ".join(map(str, [*range(1, n_splits), ~(n_splits - 1)]))
    right = " ".join(str(~number) for number in [*range(n_splits - 1), n_splits])
    entries = {"num_leaves": n_splits + 1, "left_child": left, "right_child": right}
    entries |= {number: " ".join(["0"] * n_splits) for number in ("split_feature", "split_gain")}
    entries |= {
        "decision_type": " ".join(["2"] * n_splits),
        "threshold": " ".join(["0.5"] * n_splits),
    }
    entries |= {"leaf_value": " ".join(["0.1"] * (n_splits + 1))}
    head = "tree\nnum_tree_per_iteration=1\nmax_feature_idx=0\nobjective=regression\n"
    lines = "\n".join(f"{key}={value}" for key, value in entries.items())
    text = f"{head}tree_sizes=1\n\nTree=0\n{lines}\n\nend of trees\n"
    with pytest.raises(DataError, match="more than 4096 levels"):
        read_model(write_model(tmp_path, text))


def test_sets_of_categories_are_bounded_over_all_trees(tmp_path):
    """Each single tree is within the limit."""
    path = trained.categorical(tmp_path / "m.json")
    model = json.loads(path.read_text())
    booster = model["learner"]["gradient_booster"]["model"]
    tree = booster["trees"][0]
    make_chain(tree, 500)
    tree |= {"categories": [65534], "categories_nodes": [0], "categories_segments": [0]}
    tree |= {"categories_sizes": [1], "split_type": [1] + [0] * 1000}
    booster["trees"], booster["tree_info"] = [tree] * 3, [0] * 3
    with pytest.raises(DataError, match="3003 nodes split by categories up to 65534"):
        read_model(write_model(tmp_path, model))


def test_one_large_category_code_does_not_allocate_memory_for_all_codes(tmp_path):
    path = trained.categorical(tmp_path / "m.json")
    model = json.loads(path.read_text())
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    # The tree is a chain of nodes, and its root splits by the category with code 65534.
    n = 20_001
    inner, children = np.arange(0, n - 1, 2), np.arange(1, n, 2)
    left, right = np.full(n, -1), np.full(n, -1)
    left[inner], right[inner] = children, children + 1
    tree |= {k: [0.0] * n for k in ("sum_hessian", "base_weights", "loss_changes")}
    tree |= {k: [0] * n for k in ("split_indices", "default_left")}
    tree |= {"left_children": left.tolist(), "right_children": right.tolist()}
    tree |= {"split_conditions": [0.5] * n, "split_type": [1] + [0] * (n - 1)}
    tree |= {"categories": [65534], "categories_nodes": [0], "categories_segments": [0]}
    tree |= {"categories_sizes": [1], "parents": [0] * n}
    with pytest.raises(DataError, match="nodes times categories"):
        read_model(write_model(tmp_path, model))


def test_splits_by_categories_are_counted(tmp_path):
    report = audit(read_model(trained.categorical(tmp_path / "m.json")))
    assert any(report.model.categorical)
    assert report.trees[0].exact.all()
    assert report.rows.n == 600


def test_a_model_without_statistics_is_recognised(tmp_path):
    path = trained.central(tmp_path / "m.json", max_depth=2, base_score=0.5).path
    report = audit(read_model(trained.edit_trees(path, tmp_path / "bare.json", trained.strip)))
    assert {field.state for field in report.fields if not field.needed} == {"zero"}
    assert report.summary.counted == 0
    assert report.settings is None


def test_one_tree_and_one_leaf(tmp_path):
    model_file = trained.central(tmp_path / "m.json", 1)
    assert audit(read_model(model_file.path)).trees[0].exact.all()
    single_leaf = trained.central(tmp_path / "leaf.json", 1, gamma=1e9)
    report = audit(read_model(single_leaf.path))
    assert len(report.trees[0].leaf) == 1


@pytest.mark.long
def test_the_cost_grows_with_the_number_of_trees_and_not_with_its_square(tmp_path, valid_model):
    def cost(trees):
        model = copy.deepcopy(valid_model)
        booster = model["learner"]["gradient_booster"]["model"]
        booster["trees"] = booster["trees"][:1] + booster["trees"][1:2] * (trees - 1)
        booster["tree_info"] = [0] * trees
        booster["gbtree_model_param"]["num_trees"] = str(trees)
        booster["iteration_indptr"] = list(range(trees + 1))
        path = write_model(tmp_path, model)
        calls = 0

        def count(frame, event, _):
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            report = audit(read_model(path))
        finally:
            sys.setprofile(before)
        assert report.trees[0].exact.all()
        assert not report.trees[trees - 1].exact.any()
        return calls

    calls_for_100, calls_for_400 = cost(100), cost(400)
    # The expected factor is 4. It would be 16 if every tree were compared with every other.
    assert calls_for_400 < 6 * calls_for_100


def test_fedtree_s_memory_dump_is_recognised(tmp_path):
    name = b"binary:logistic"
    head = struct.pack("<i", len(name)) + name + struct.pack("<fii?i", 0.1, 1, 10, False, 10)
    with pytest.raises(DataError, match="FedTree saved") as raised:
        read_model(write_model(tmp_path, head + bytes(200)))
    assert "number of rows of every node" in str(raised.value)


def test_lightgbm_counts_that_do_not_fit_are_refused(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 2).model_to_string()
    line = next(text_line for text_line in text.splitlines() if text_line.startswith("leaf_count="))
    for damaged in ("leaf_count=1 2", "leaf_count=a b c d e", line.replace("=", "=-")):
        with pytest.raises(DataError, match=r"leaf.count"):
            read_model(write_model(tmp_path, text.replace(line, damaged)))


@pytest.mark.parametrize("field", ["internal_count", "leaf_count"])
def test_lightgbm_counts_that_contradict_each_other_are_not_certain(tmp_path, field):
    """One node of the last tree has an additional row, so no counts except those of the first tree
    are used.

    The leaf_weight and leaf_value of the first tree confirm its counts.
    """
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 4).model_to_string()
    assert audit(read_model(write_model(tmp_path, text))).summary.counted == 20
    head, line, after_field = text.rpartition(f"\n{field}=")
    count, _, other_counts = after_field.partition(" ")
    report = audit(
        read_model(write_model(tmp_path, f"{head}{line}{int(count) + 1} {other_counts}"))
    )
    assert report.trees[0].exact.all()
    assert {tree.how for tree in report.trees[1:]} == {CONTRADICTED}
    assert all(
        (tree.n == UNKNOWN).all() and (tree.at_most == UNKNOWN).all() for tree in report.trees[1:]
    )
