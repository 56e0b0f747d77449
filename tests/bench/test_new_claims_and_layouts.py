"""A user's file adds a claim, a role or a layout, and no other code has to change."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from isolation import registry_as_it_was
from result_rows import read_rows

from fedtrees.blind_baselines.conditional import METHODS
from fedtrees.cli.main import main
from fedtrees.core.claims import Guess, LeafCounts
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import load_plugin, register
from fedtrees.core.schema import Schema
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.data import partition
from fedtrees.data.partition import Partition
from fedtrees.experiments.evaluate import blind_baseline, score_guess
from fedtrees.metrics.leaf_counts import true_leaf_counts
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import train

PLUGINS = Path(__file__).parent / "plugins"
FILES = ("class_share", "class_share_attacks", "two_sides", "two_sides_attack")


@pytest.fixture(scope="module", autouse=True)
def restored_registry():
    """Unregister everything that this module registers after its tests."""
    with registry_as_it_was():
        for name in FILES:
            load_plugin(PLUGINS / f"{name}.py")
        yield


def plugins(*names):
    return [part for name in names for part in ("--plugin", str(PLUGINS / f"{name}.py"))]


def bench(folder, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                "bench",
                "--seeds",
                "1",
                "-j",
                "1",
                "--data",
                "wine",
                "--output",
                str(folder),
                *arguments,
            ]
        )
    assert not stopped.value.code
    return read_rows(folder)


@pytest.fixture(scope="module")
def over_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows") / "run"
    rows = bench(
        *(folder, *plugins("class_share", "class_share_attacks"), "-d", "none"),
        *("-p", "fedtree-hist[trees=1,max_depth=2]", "-a", "plugin-read-share"),
        *("--threat", "client,public"),
    )
    return folder, rows


@pytest.fixture(scope="module")
def over_columns(tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns") / "run"
    rows = bench(
        *(folder, *plugins(*FILES), "-d", "none"),
        *("-p", "plugin-two-sides", "-a", "plugin-read-residuals", "--threat", "passive,active"),
    )
    return folder, rows


def select_rows(rows, **conditions):
    return [row for row in rows if all(row[key] == value for key, value in conditions.items())]


@pytest.mark.long
def test_a_users_claim_is_benchmarked_against_its_blind_baseline_and_drawn(over_rows):
    folder, rows = over_rows
    (row,) = select_rows(rows, stage="attack", threat="client", metric="share_error")
    (blind,) = select_rows(
        rows, stage="blind", threat="client", metric="share_error", attack_params=""
    )
    assert blind["blind_guess"] == "plugin-own-share"
    assert float(row["value"]) < 1e-6
    assert row["blind"] == blind["value"] != "0.0"
    assert float(row["advantage"]) > 0.999
    (skipped,) = select_rows(rows, stage="attack", threat="public")
    assert (skipped["status"], skipped["reason"]) == (
        "skipped",
        "the adversary received no base score",
    )
    assert (skipped["reason_code"], skipped["state_code"]) == ("other", "skip")
    page = (folder / "report.html").read_text()
    assert "error of the share of a class" in page
    assert "plugin-read-share" in page


@pytest.mark.long
def test_a_blind_cell_without_rows_to_reconstruct_works(over_columns):
    folder, rows = over_columns
    assert {row["status"] for row in rows if row["threat"] == "passive"} == {"ok"}
    blind = select_rows(rows, stage="blind", threat="passive", attack_params="")
    assert {row["metric"] for row in blind} == {
        "share_error", "v_measure", "ami", "label_accuracy", "label_auc",
    }  # fmt: skip
    best_guess = select_rows(blind, metric="v_measure")[0]["blind_guess"]
    assert best_guess.removesuffix("-z") in {"cl", *METHODS}
    score_rows = {row["metric"]: row for row in select_rows(rows, stage="attack", threat="passive")}
    for name in ("v_measure", "label_accuracy"):
        (line,) = select_rows(blind, metric=name)
        assert float(score_rows[name]["value"]) == float(score_rows[name]["advantage"]) == 1.0
        assert score_rows[name]["blind"] == line["value"]
    assert float(score_rows["label_auc"]["value"]) == 1.0
    page = (folder / "report.html").read_text()
    assert "labels inferred" in page
    assert "plugin-read-residuals" in page


def test_the_active_party_infers_no_labels_and_predictions_are_in_the_transcript(over_columns):
    _, rows = over_columns
    (active,) = select_rows(rows, stage="attack", threat="active")
    assert (active["status"], active["reason"]) == (
        "skipped",
        "the adversary received no residuals",
    )
    train = [row for row in select_rows(rows, stage="train") if row["value"]]
    scores = {(row["metric"], row["part"]): float(row["value"]) for row in train}
    assert scores["auc", ""] > 0.9
    assert scores["bytes_up", "PluginScores"] > 0
    # This protocol takes two parties, so there is no reference of a party that trains on its own.
    assert {row["protocol"] for row in select_rows(rows, stage="reference")} == {"majority-class"}


@pytest.mark.parametrize("name", ["class_share.py", "two_sides.py"])
def test_the_example_files_conform(name, capsys, monkeypatch):
    known_names = {"protocol": ["plugin-two-sides"] if "two" in name else ["fedtree-hist"]}
    original_names = register.names
    monkeypatch.setattr(
        register, "names", lambda kind: known_names.get(kind) or original_names(kind)
    )
    extension_names = (
        ["two-sides", "read-residuals"] if "two" in name else ["own-share", "read-share"]
    )
    from fedtrees.conformance.checks import check

    for extension in extension_names:
        kind = "protocol" if extension == "two-sides" else "attack"
        findings = check(kind, Spec(f"plugin-{extension}"))
        assert len(findings) > 5
        assert [finding for finding in findings if not finding.holds] == []


# --- leaf counts of any model


def grown(protocol, table, schema, clients=3, **params):
    local_data = over_clients(
        [table.take(part) for part in np.array_split(np.arange(len(table)), clients)]
    )
    protocol_object = register.make("protocol", Spec(protocol, params))
    return train(protocol_object, local_data, schema, seed=1), local_data


def case_of(training, local_data, schema, principals):
    return Case(
        local_data=local_data,
        roles=training.transcript.roles,
        principals=principals,
        schema=schema,
        streams=Streams(0),
        model=training.model,
        transcript=training.transcript,
    )


def some_rows(classes, n=150, seed=0):
    from fedtrees.core.schema import Feature, Table

    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, 4)), rng.integers(0, classes, n)
    X[:, 0] += y
    schema = Schema(
        tuple(Feature(f"x{i}", low=-9, high=9) for i in range(4)),
        "y",
        tuple(map(str, range(classes))),
    )
    return Table(X, y), schema


def true_counts_of_trees(training, local_data, principals, schema):
    """Return the true leaf counts of the scored trees, computed from the rows of the victims."""
    victims = {name: data for name, data in local_data.items() if name not in principals}
    if training.protocol.name == "local-forests":
        trees_per_client = len(training.model.trees) // len(local_data)
        parts = {
            trees_per_client * client: [local_data[name]]
            for client, name in enumerate(local_data)
            if name in victims
        }
    else:
        outputs = getattr(getattr(training.model, "objective", None), "n_outputs", 1)
        parts = {tree: list(victims.values()) for tree in range(outputs)}
    claims = []
    for tree_number, parties in parts.items():
        X, y = (
            np.concatenate([data.X for data in parties]),
            np.concatenate([data.y for data in parties]),
        )
        boosted = hasattr(training.model, "objective")
        label = (y == tree_number) if boosted and len(schema.classes) > 2 else y
        n_columns = 2 if boosted else len(schema.classes)
        tree = training.model.trees[tree_number]
        claims.append(
            true_leaf_counts(
                tree_number, training.model.apply(X)[:, tree_number], label, tree.leaves, n_columns
            )
        )
    return tuple(claims)


@pytest.mark.parametrize(
    ("protocol", "classes"),
    [*product(["forest-hist", "local-forests", "fedtree-hist"], [2, 3, 5]), ("flower-bagging", 2)],
)
def test_leaf_counts_of_any_model_are_scored(protocol, classes):
    table, schema = some_rows(classes)
    training, local_data = grown(protocol, table, schema, trees=2, max_depth=3)
    case = case_of(training, local_data, schema, ("client-2",))
    if protocol == "flower-bagging":
        claims = true_counts_of_shared_trees(training, local_data)
    else:
        claims = true_counts_of_trees(training, local_data, case.principals, schema)
    rows = {row["metric"]: row for row in score_guess("truth", Guess(claims), case, None)}
    assert rows["leaf_counts_exact"]["value"] == rows["leaf_counts_exact"]["advantage"] == 1
    assert rows["count_error"]["value"] == 0
    assert 0 <= rows["leaf_counts_exact"]["blind"] < 1
    assert ("leaf_counts_right" in rows) == (
        classes == 2 and protocol in ("forest-hist", "fedtree-hist")
    )
    wrong_claims = [LeafCounts(claim.tree, claim.leaf, claim.counts + 1) for claim in claims]
    rows = {
        row["metric"]: row for row in score_guess("off", Guess(tuple(wrong_claims)), case, None)
    }
    assert rows["leaf_counts_exact"]["value"] == 0
    assert rows["count_error"]["value"] == claims[0].counts.shape[1]


def true_counts_of_shared_trees(training, local_data):
    claims = []
    for number, name in enumerate(["client-0", "client-1"]):
        nodes = training.model.apply(local_data[name].X)[:, number]
        claims.append(
            true_leaf_counts(number, nodes, local_data[name].y, training.model.trees[number].leaves)
        )
    return tuple(claims)


def test_counts_of_a_wrong_shape_are_refused():
    leaf = np.arange(3)
    for counts, error_message in (
        (np.zeros(3, int), r"shape \(3,\); give one of shape \(l=3, K\)"),
        (np.zeros((2, 2), int), r"shape \(2, 2\); give one of shape"),
        ([[1, 2]], r"shape \(1, 2\); give one of shape"),
        (np.zeros((3, 2)), "whole numbers"),
    ):
        with pytest.raises(ProtocolError, match=error_message):
            LeafCounts(0, leaf, counts)
    assert LeafCounts(0, [3, 4], [[1, 2], [0, 5]]).counts.dtype == np.int64


@pytest.mark.parametrize(
    ("claims", "error_message"),
    [
        (
            [LeafCounts(0, np.arange(1), np.zeros((1, 3), int))],
            "counts of 3 classes; a leaf here has",
        ),
        ([LeafCounts(9, np.arange(1), np.zeros((1, 2), int))], "counts of tree 9; the model has 2"),
        ([LeafCounts(-1, np.arange(1), np.zeros((1, 2), int))], "counts of tree -1"),
        (
            [LeafCounts(0, np.arange(1), np.zeros((1, 2), int))] * 2,
            "counts of one tree were claimed",
        ),
    ],
)
@pytest.mark.parametrize("protocol", ["forest-hist", "fedtree-hist"])
def test_counts_of_classes_or_trees_that_the_model_lacks_are_refused(
    protocol, claims, error_message
):
    table, schema = some_rows(2, n=60)
    training, local_data = grown(protocol, table, schema, trees=2, max_depth=2)
    case = case_of(training, local_data, schema, ("server",))
    with pytest.raises(ProtocolError, match=f"attack 'odd': {error_message}"):
        list(score_guess("odd", Guess(tuple(claims)), case, None))


def test_class_counts_are_refused_for_a_numeric_target():
    table, schema = some_rows(2, n=60)
    numbers = Schema(schema.features, "y", ())
    training, local_data = grown(
        "fedtree-hist", type(table)(table.X, table.X[:, 0]), numbers, trees=1, max_depth=1
    )
    case = case_of(training, local_data, numbers, ("server",))
    claim = LeafCounts(0, np.arange(1), np.zeros((1, 2), int))
    with pytest.raises(ProtocolError, match="counts of 2 classes; a leaf here has 1"):
        list(score_guess("odd", Guess((claim,)), case, None))


# --- a user's layout and roles


class Half(register.get("protocol", "fedtree-hist")):
    """Boosting of two parties of other names, laid out in another way."""

    name = "plugin-halves"
    layout = "upper-and-lower"
    holders = ("top", "bottom")

    def roles(self, parties):
        return {"hub": "hub", "upper": "top", "lower": "bottom"}


def upper_and_lower(table, schema, names, partition, rng):
    order = np.argsort(table.X[:, 0], kind="stable")
    parts = np.array_split(order, len(names))
    return {
        name: LocalData.of(table.take(rows), rows) for name, rows in zip(names, parts, strict=True)
    }


def test_a_layout_is_one_entry_and_the_protocol_defines_its_roles(monkeypatch):
    monkeypatch.setitem(partition.LAYOUTS, "upper-and-lower", upper_and_lower)
    protocol = Half()
    table, schema = some_rows(2, n=50)
    rng = np.random.default_rng(0)
    local_data = partition.lay_out(
        protocol.layout, table, schema, protocol.holder_names(2), Partition("iid"), rng
    )
    assert list(local_data) == ["upper", "lower"]
    assert local_data["upper"].X[:, 0].max() <= local_data["lower"].X[:, 0].min()
    assert sorted(np.concatenate([data.ids for data in local_data.values()])) == list(range(50))
    roles = protocol.roles(2)
    assert Threat.parse("bottom", roles).principals(roles) == ("lower",)
    with pytest.raises(UsageError, match="did you mean 'bottom'"):
        Threat.parse("botom", roles)
    with pytest.raises(UsageError, match="wants the local data of upper, lower, in that order"):
        train(protocol, dict(reversed(local_data.items())), schema)


def test_the_blind_baseline_of_a_cell_is_read_back_from_its_rows(over_columns):
    _, rows = over_columns
    blind = [
        {k: (float(v) if k == "value" else v) for k, v in r.items() if v}
        for r in select_rows(rows, stage="blind", threat="passive")
    ]
    line = blind_baseline(blind)
    assert line.best["plugin-class-share"] == "plugin-own-share"
    assert line.best["labels"].removesuffix("-z") in {"cl", *METHODS}
    assert set(line.scores) == {
        "share_error", "v_measure", "ami", "label_accuracy", "label_auc",
    }  # fmt: skip
