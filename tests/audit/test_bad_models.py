"""Models that cannot be audited say so in bounded time and memory; odd ones are audited."""

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
def whole(tmp_path_factory):
    made = trained.central(tmp_path_factory.mktemp("model") / "m.json", 3)
    return json.loads(made.path.read_text())


def written(tmp_path, content):
    path = tmp_path / "bad.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_another_booster_is_named(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary:logistic", "booster": "gblinear", "nthread": 1}
    xgb.train(params, xgb.DMatrix(X, y), 2).save_model(tmp_path / "m.json")
    with pytest.raises(DataError, match="booster 'gblinear'; only gbtree and dart"):
        read_model(tmp_path / "m.json")


def cpu_seconds(call):
    """CPU seconds of a call that was made once before."""
    call()
    began = time.process_time()
    call()
    return time.process_time() - began


def test_a_truncated_model_is_refused(tmp_path, whole):
    text = json.dumps(whole)
    for share in (0.1, 0.5, 0.99):
        with pytest.raises(DataError, match="not JSON"):
            read_model(written(tmp_path, text[: int(share * len(text))]))


@pytest.mark.parametrize(
    "content",
    ['{"learner":' + "[" * 200_000, '{"a":' * 200_000, b"{L" + b"\x7f" * 64, b"{i\x07learner[$d#L"
     + struct.pack(">q", 10**9)],
    ids=["lists", "objects", "ubj key", "ubj 10^9"],
)  # fmt: skip
def test_hostile_nesting_and_sizes_cost_nothing(tmp_path, whole, content):
    honest = cpu_seconds(lambda: audit(read_model(written(tmp_path, whole))))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(DataError):
        read_model(written(tmp_path, content))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert time.process_time() - began < 10 * honest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["tree_param"].update(num_nodes=str(10**9)), None),  # believed by nobody
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
def test_damaged_trees_are_named(tmp_path, whole, change, message):
    model = copy.deepcopy(whole)
    change(model["learner"]["gradient_booster"]["model"]["trees"][0])
    path = written(tmp_path, model)
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
def test_damaged_headers_are_named(tmp_path, whole, change, message):
    model = copy.deepcopy(whole)
    change(model["learner"])
    with pytest.raises(DataError, match=message):
        read_model(written(tmp_path, model))


@pytest.mark.parametrize("score", ["0E0", "[1E0]"])
def test_a_base_score_at_the_edge_is_read_as_xgboost_reads_it(tmp_path, whole, score):
    """A custom objective leaves such a score; XGBoost keeps 1e-6 away from 0 and 1."""
    model = copy.deepcopy(whole)
    model["learner"]["learner_model_param"]["base_score"] = score
    path = written(tmp_path, model)
    X = trained.table()[0][:50]
    theirs = xgb.Booster({"nthread": 1}, model_file=str(path))
    np.testing.assert_allclose(
        read_model(path).forest.margin(X).ravel(),
        theirs.predict(xgb.DMatrix(X), output_margin=True),
        rtol=1e-6,
    )


@pytest.mark.parametrize("score", ["1.5", "-0.1", "NaN"])
def test_a_base_score_that_is_no_probability_is_named(tmp_path, whole, score):
    model = copy.deepcopy(whole)
    model["learner"]["learner_model_param"]["base_score"] = score
    with pytest.raises(DataError, match="of the model is no probability"):
        read_model(written(tmp_path, model))


def test_statistics_beyond_float32_are_no_statistics(tmp_path, whole):
    for name in ("sum_hessian", "base_weights", "loss_changes"):
        model = copy.deepcopy(whole)
        model["learner"]["gradient_booster"]["model"]["trees"][0][name][1] = 1e308
        with pytest.raises(DataError, match=f"{name} of tree 0 is beyond float32"):
            read_model(written(tmp_path, model))


def test_names_cannot_write_to_the_screen(tmp_path, whole):
    model = copy.deepcopy(whole)
    names = ["\x1b[2J", "a\nb", "\ud800", "größe", *(f"c{k}" for k in range(26))]
    model["learner"]["feature_names"] = names
    found = read_model(written(tmp_path, model)).feature_names
    assert found[:4] == ("\\x1b[2J", "a\\nb", "\\ud800", "größe")


def test_a_penalty_that_is_no_number_leaves_labels_uncounted(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "verbosity": -1, "num_threads": 1}
    text = lgb.train(params, lgb.Dataset(X, y), 3).model_to_string()
    assert "[lambda_l1: 0]" in text
    for said, labels in (("0", True), ("abc", False)):
        path = tmp_path / "m.txt"
        path.write_text(text.replace("[lambda_l1: 0]", f"[lambda_l1: {said}]"))
        first = audit(read_model(path)).trees[0]
        assert (first.n != UNKNOWN).all()
        assert (first.n_pos != UNKNOWN).all() == labels


def test_lightgbm_s_width_is_not_believed_either(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 2).model_to_string()
    wide = text.replace("max_feature_idx=29", "max_feature_idx=999999999")
    with pytest.raises(DataError, match="are possible"):
        read_model(written(tmp_path, wide))


def test_a_model_cannot_have_fewer_than_no_columns(tmp_path):
    path = trained.central(tmp_path / "m.json", 1, gamma=1e9).path
    model = json.loads(path.read_text())
    model["learner"]["learner_model_param"]["num_feature"] = "-5"
    with pytest.raises(DataError, match=r"-5 columns.* are possible"):
        read_model(written(tmp_path, model))


def test_a_forest_s_width_is_not_believed_either(tmp_path):
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
def test_sums_of_many_rows_cost_no_more_than_those_of_few(tmp_path, whole, factor):
    model = copy.deepcopy(whole)
    for tree in model["learner"]["gradient_booster"]["model"]["trees"]:
        zeros = [0.0] * len(tree["base_weights"])
        tree |= {"base_weights": zeros, "loss_changes": zeros}
        tree["sum_hessian"] = [factor * h for h in tree["sum_hessian"]]
    known = Known(learning_rate=0.3, reg_lambda=1.0)
    few = cpu_seconds(lambda: audit(read_model(written(tmp_path, whole)), known))
    read = read_model(written(tmp_path, model))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = audit(read, known)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB
    assert time.process_time() - began < 10 * few
    assert found.summary.exact == 0  # the leaf values are those of fewer rows


def hostile(model, change, tmp_path):
    """Return what is said of a changed model, which took no memory of its own."""
    change(model["learner"], model["learner"]["gradient_booster"]["model"])
    path = written(tmp_path, model)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError) as raised:
        read_model(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB
    return str(raised.value)


def test_a_number_of_classes_asks_for_no_memory(tmp_path, whole):
    def many(learner, booster):
        learner["learner_model_param"]["num_class"] = str(10**7)
        learner["objective"]["name"] = "multi:softprob"

    assert "10000000 classes and 3 trees" in hostile(copy.deepcopy(whole), many, tmp_path)


def test_a_round_of_many_trees_is_not_repeated(tmp_path, whole):
    """XGBoost's num_parallel_tree: the first round has no more trees than the model."""
    model = copy.deepcopy(whole)
    booster = model["learner"]["gradient_booster"]["model"]
    booster["gbtree_model_param"]["num_parallel_tree"] = str(10**9)
    assert len(audit(read_model(written(tmp_path, model))).trees) == 3


def test_trees_of_one_class_of_many_are_not_filled_up_without_end():
    lone = {"left_children": [-1], "right_children": [-1], "split_indices": [0],
            "split_conditions": [0.5], "default_left": [0], "loss_changes": [0.0],
            "sum_hessian": [1.0], "base_weights": [0.0], "tree_param": {}}  # fmt: skip
    info = [*range(1000), *[0] * 1000]
    booster = {"trees": [lone] * 2000, "tree_info": info}
    learner = {
        "gradient_booster": {"name": "gbtree", "model": booster},
        "objective": {"name": "multi:softprob"},
        "learner_model_param": {"num_class": "1000", "num_feature": "1", "base_score": "0.5"},
    }
    with pytest.raises(DataError, match="trees of the model are of only one of 1000 classes"):
        from_xgboost_json({"learner": learner})
    booster["trees"], booster["tree_info"] = booster["trees"][:1009], info[:1009]
    assert len(from_xgboost_json({"learner": learner})) == 10_000


def chain(depth):
    """Children of a tree of so many splits of which one side of each is a leaf."""
    inner, children = np.arange(0, 2 * depth, 2), np.arange(1, 2 * depth, 2)
    left, right = np.full(2 * depth + 1, -1), np.full(2 * depth + 1, -1)
    left[inner], right[inner] = children, children + 1
    return left, right


def chained(tree, depth):
    """Make a tree of XGBoost's such a one."""
    n, (left, right) = 2 * depth + 1, chain(depth)
    tree |= {k: [0.0] * n for k in ("sum_hessian", "base_weights", "loss_changes")}
    tree |= {k: [0] * n for k in ("split_indices", "default_left", "split_type", "parents")}
    tree |= {"left_children": left.tolist(), "right_children": right.tolist()}
    tree |= {"split_conditions": [0.5] * n}


def test_a_tree_deeper_than_any_training_grows_is_refused(tmp_path, whole):
    def deep(learner, booster):
        chained(booster["trees"][0], MOST_LEVELS)

    said = hostile(copy.deepcopy(whole), deep, tmp_path)
    assert "bad.json: a tree of 8193 nodes has more than 4096 levels" in said
    model = copy.deepcopy(whole)
    chained(model["learner"]["gradient_booster"]["model"]["trees"][0], MOST_LEVELS - 1)
    assert len(read_model(written(tmp_path, model)).forest.trees[0]) == 2 * MOST_LEVELS - 1

    m = MOST_LEVELS
    left = " ".join(map(str, [*range(1, m), ~(m - 1)]))  # inner nodes by number, leaves by ~number
    right = " ".join(str(~k) for k in [*range(m - 1), m])
    entries = {"num_leaves": m + 1, "left_child": left, "right_child": right}
    entries |= {k: " ".join(["0"] * m) for k in ("split_feature", "split_gain")}
    entries |= {"decision_type": " ".join(["2"] * m), "threshold": " ".join(["0.5"] * m)}
    entries |= {"leaf_value": " ".join(["0.1"] * (m + 1))}
    head = "tree\nnum_tree_per_iteration=1\nmax_feature_idx=0\nobjective=regression\n"
    lines = "\n".join(f"{key}={value}" for key, value in entries.items())
    text = f"{head}tree_sizes=1\n\nTree=0\n{lines}\n\nend of trees\n"
    with pytest.raises(DataError, match="more than 4096 levels"):
        read_model(written(tmp_path, text))


def test_sets_of_categories_are_bounded_over_all_trees(tmp_path):
    """Each of the trees would be read alone."""
    path = trained.categorical(tmp_path / "m.json")
    model = json.loads(path.read_text())
    booster = model["learner"]["gradient_booster"]["model"]
    tree = booster["trees"][0]
    chained(tree, 500)
    tree |= {"categories": [65534], "categories_nodes": [0], "categories_segments": [0]}
    tree |= {"categories_sizes": [1], "split_type": [1] + [0] * 1000}
    booster["trees"], booster["tree_info"] = [tree] * 3, [0] * 3
    with pytest.raises(DataError, match="3003 nodes split by categories up to 65534"):
        read_model(written(tmp_path, model))


def test_one_category_far_out_does_not_ask_for_the_memory_of_all(tmp_path):
    path = trained.categorical(tmp_path / "m.json")
    model = json.loads(path.read_text())
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    n = 20_001  # a chain of nodes, the root split by one category of code 65534
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
        read_model(written(tmp_path, model))


def test_splits_by_categories_are_counted(tmp_path):
    found = audit(read_model(trained.categorical(tmp_path / "m.json")))
    assert any(found.model.categorical)
    assert found.trees[0].exact.all()
    assert found.rows.n == 600


def test_a_model_without_statistics_says_so(tmp_path):
    path = trained.central(tmp_path / "m.json", max_depth=2, base_score=0.5).path
    found = audit(read_model(trained.edit_trees(path, tmp_path / "bare.json", trained.strip)))
    assert {f.state for f in found.fields if not f.needed} == {"zero"}
    assert found.summary.counted == 0
    assert found.settings is None


def test_one_tree_and_one_leaf(tmp_path):
    made = trained.central(tmp_path / "m.json", 1)
    assert audit(read_model(made.path)).trees[0].exact.all()
    leaf = trained.central(tmp_path / "leaf.json", 1, gamma=1e9)
    found = audit(read_model(leaf.path))
    assert len(found.trees[0].leaf) == 1


@pytest.mark.long
def test_the_cost_grows_with_the_number_of_trees_and_not_with_its_square(tmp_path, whole):
    def cost(trees):
        model = copy.deepcopy(whole)
        inside = model["learner"]["gradient_booster"]["model"]
        inside["trees"] = inside["trees"][:1] + inside["trees"][1:2] * (trees - 1)
        inside["tree_info"] = [0] * trees
        inside["gbtree_model_param"]["num_trees"] = str(trees)
        inside["iteration_indptr"] = list(range(trees + 1))
        path = written(tmp_path, model)
        calls = 0

        def count(frame, event, _):
            nonlocal calls
            calls += event == "call"

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            found = audit(read_model(path))
        finally:
            sys.setprofile(before)
        assert found.trees[0].exact.all()
        assert not found.trees[trees - 1].exact.any()
        return calls

    few, many = cost(100), cost(400)
    assert many < 6 * few  # 4 times, or 16 times were every tree compared with every other


def test_fedtree_s_memory_dump_is_recognised(tmp_path):
    name = b"binary:logistic"
    head = struct.pack("<i", len(name)) + name + struct.pack("<fii?i", 0.1, 1, 10, False, 10)
    with pytest.raises(DataError, match="FedTree saved") as raised:
        read_model(written(tmp_path, head + bytes(200)))
    assert "number of rows of every node" in str(raised.value)


def test_lightgbm_counts_that_do_not_fit_are_refused(tmp_path):
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 2).model_to_string()
    line = next(x for x in text.splitlines() if x.startswith("leaf_count="))
    for bad in ("leaf_count=1 2", "leaf_count=a b c d e", line.replace("=", "=-")):
        with pytest.raises(DataError, match=r"leaf.count"):
            read_model(written(tmp_path, text.replace(line, bad)))


@pytest.mark.parametrize("field", ["internal_count", "leaf_count"])
def test_lightgbm_counts_that_contradict_each_other_are_not_certain(tmp_path, field):
    """One row more in one node of the last tree: no tree's counts are taken, but the first's.

    Those its leaf_weight and leaf_value bear out.
    """
    X, y = trained.table()
    params = {"objective": "binary", "num_leaves": 5, "num_threads": 1, "verbose": -1}
    text = lgb.train(params, lgb.Dataset(X, y), 4).model_to_string()
    assert audit(read_model(written(tmp_path, text))).summary.counted == 20
    head, line, rest = text.rpartition(f"\n{field}=")
    count, _, others = rest.partition(" ")
    found = audit(read_model(written(tmp_path, f"{head}{line}{int(count) + 1} {others}")))
    assert found.trees[0].exact.all()
    assert {t.how for t in found.trees[1:]} == {CONTRADICTED}
    assert all((t.n == UNKNOWN).all() and (t.at_most == UNKNOWN).all() for t in found.trees[1:])
