"""`xgboost-ring` and `xgboost-vertical` send the messages and grow the trees of XGBoost."""

import json
from dataclasses import replace
from functools import partial

import capture_campaign
import numpy as np
import pytest
import xgboost as xgb
from captures import capture, rows
from columns import run, seen_by, table_of
from federations import sample_federation
from sklearn.datasets import load_breast_cancer, load_wine

from fedtrees.attacks.lightgbm.attack import RingSegments
from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.plaintext import ClearGradients, SplitValues
from fedtrees.attacks.sketch_reading import SketchReading
from fedtrees.capture.attack import captured_view, main_scores, report, summarize_guess
from fedtrees.capture.differences import from_protocol
from fedtrees.capture.formats import Decoded
from fedtrees.capture.records import Capture
from fedtrees.capture.replay import columns_of, named_protocol
from fedtrees.core.claims import Guess
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_list
from fedtrees.core.streams import Streams
from fedtrees.defenses.label_noise import OneStage
from fedtrees.experiments.evaluate import make_defense
from fedtrees.isolation.process import attack_process
from fedtrees.messages.captured import BestSplits, HistogramSegment, MergedCuts, RankedSketch
from fedtrees.metrics.metric import Case
from fedtrees.protocols.cut_points import public_cuts
from fedtrees.protocols.horizontal.histogram_protocols import NVFlareHist
from fedtrees.protocols.peers.xgboost_ring import XGBoostRing
from fedtrees.protocols.peers.xgboost_vertical import XGBoostVertical
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts, bin_rows

LIGHTGBM = "lightgbm-data[trees=2,num_leaves=3,min_data_in_leaf=2,min_data_in_bin=1]"
# captures and the protocols that they recorded
RECORDED = {
    "ring2": "xgboost-ring[trees=2,max_depth=2]",
    "ring3": "xgboost-ring[trees=2,max_depth=2]",
    "columns3": "xgboost-vertical[trees=2,max_depth=3]",
    "secure3": "xgboost-vertical[trees=2,max_depth=3]",
    "machines2": LIGHTGBM,
    "machines3": LIGHTGBM,
}
VERTICAL = "xgboost-vertical[trees=3,max_depth=4,max_bin=16]"


def random_tables(workers, rows=40, missing=0.1):
    rng = np.random.default_rng(workers)
    X = rng.normal(size=(workers * rows, 4)).round(1).astype(np.float32)
    y = (X[:, 0] + rng.normal(0, 0.7, len(X)) > 0).astype(np.int64)
    X[rng.random(X.shape) < missing] = np.nan
    parts = zip(np.split(X, workers), np.split(y, workers), strict=True)
    return [Table(part_X, part_y) for part_X, part_y in parts]


def schema_of(columns):
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label", classes=("0", "1"))


def xgboost_trees(X, y, **params):
    """Return splits and leaves of XGBoost's trees on a complete table, by node."""
    params = {"objective": "binary:logistic", "tree_method": "hist", "nthread": 1, **params}
    data = X if isinstance(X, xgb.DMatrix) else xgb.DMatrix(X, y)
    trees = xgb.train(params, data, params.pop("trees")).trees_to_dataframe()
    names = {f"f{k}": k for k in range(data.num_col())} | {"Leaf": -1}
    return [
        [
            (names[f], -1.0 if f == "Leaf" else float(np.float32(s)), float(np.float32(g)))
            for f, s, g in zip(t.Feature, t.Split, t.Gain, strict=True)
        ]
        for _, t in trees.groupby("Tree")
    ]


def assert_trees_of_xgboost(model, X, y, order, **params):
    """Compare trees node by node; `order` lists the model's columns in the order of XGBoost's."""
    data = X if y is None else X[:, order]
    reference = xgboost_trees(data, y, trees=len(model.trees), **params)
    for tree_of_model, tree in zip(model.trees, reference, strict=True):
        assert len(tree_of_model) == len(tree) > 5
        for node, (feature, threshold, gain) in enumerate(tree):
            if feature < 0:
                assert tree_of_model.feature[node] == -1
                assert tree_of_model.value[node] == pytest.approx(gain, abs=1e-6)
            else:
                assert (tree_of_model.feature[node], tree_of_model.threshold[node]) == (
                    order[feature],
                    threshold,
                )


@pytest.mark.parametrize("name", RECORDED)
def test_every_message_equals_the_captured_one(name, tmp_path):
    path = str(capture(name, tmp_path))
    comparison = from_protocol(path, None, RECORDED[name], rows(name))
    assert comparison["same"]
    assert json.loads(json.dumps(comparison)) == comparison  # plain values only
    different_kinds = {row["message"] for row in comparison["kinds"] if row["apart"]}
    assert different_kinds <= {
        "ColumnSizes",
        "EvaluationSums",
        *(["GradientTotals"] * (name == "ring2")),
    }
    flipped = {party: replace(table, y=1 - table.y) for party, table in rows(name).items()}
    assert not from_protocol(path, None, RECORDED[name], flipped)["same"]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_on_a_ring_all_workers_grow_the_trees_of_xgboost_on_all_rows(workers):
    tables = random_tables(workers)
    local_data = over_clients(tables)
    training = train(XGBoostRing(trees=2, max_depth=3), local_data, schema_of(4))
    pooled = Table.concat(tables)
    assert_trees_of_xgboost(training.model, pooled.X, pooled.y, np.arange(4), max_depth=3)
    # The first hop of a segment contains rows of its sender only, and the last hop those of all.
    for delivery in training.transcript:
        if isinstance(delivery.message, HistogramSegment):
            contributors = delivery.message.parties.split(",")
            assert len(contributors) < workers or len(delivery.receivers) == workers - 1
            assert (len(contributors) == 1) <= (contributors == [delivery.sender])


def test_on_declared_cuts_no_values_are_sent_and_trees_equal_those_of_a_quantile_matrix():
    tables = random_tables(3)
    features = (Feature(f"f{number}", low=-4.0, high=4.0) for number in range(4))
    schema = Schema(tuple(features), "label", classes=("0", "1"))
    pooled, local_data = Table.concat(tables), over_clients(tables)
    protocol = XGBoostRing(trees=2, max_depth=3, max_bin=24)
    training = train(
        protocol, local_data, schema, defense=make_defense(parse_composed(["public-cuts"])[0])
    )
    assert not any(isinstance(delivery.message, RankedSketch) for delivery in training.transcript)
    cuts = public_cuts(schema, 24)
    ref = xgb.QuantileDMatrix(
        np.column_stack([[cuts.minimum[feature], *cuts.of(feature)[:-1]] for feature in range(4)]),
        max_bin=24,
    )
    data = xgb.QuantileDMatrix(pooled.X, pooled.y, ref=ref, max_bin=24)
    assert_trees_of_xgboost(training.model, data, None, np.arange(4), max_depth=3, max_bin=24)
    view = view_of(training, ("client-1",), local_data)
    assert SketchReading().inapplicable(view)
    guess = HistogramPeeling().run(view, np.random.default_rng(0))
    true_rows = {tuple(row) for row in np.column_stack([pooled.X, pooled.y]).tolist()}
    for claim in guess.claims:
        rows = np.column_stack([claim.table.X, claim.table.y]).tolist()
        assert not {tuple(row) for row in rows} & true_rows
    assert guess.claims or guess.reason is not None


@pytest.mark.parametrize("parties", [2, 3])
def test_over_columns_all_parties_grow_the_trees_of_xgboost_on_all_columns(parties):
    training, local_data = run(VERTICAL, parties)
    table, _ = table_of()
    order = np.concatenate([data.columns for data in local_data.values()])
    assert_trees_of_xgboost(training.model, table.X, table.y, order, max_depth=4, max_bin=16)
    assert training.predict(table.X) == pytest.approx(training.model.predict(table.X), abs=0)
    assert {
        message.owner
        for message in (delivery.message for delivery in training.transcript)
        if isinstance(message, BestSplits)
    } == {*local_data}


def test_a_passive_party_reads_all_labels_and_values_that_are_in_no_model():
    training, local_data = run(VERTICAL, 3)
    view = seen_by(training, local_data, "passive-1")
    (labels,) = ClearGradients().run(view, np.random.default_rng(0)).claims
    assert labels.cluster.tolist() == local_data["active"].y.tolist()
    guess = SplitValues().run(view, np.random.default_rng(0))
    assert {c.owner for c in guess.claims} == {"active", "passive-2"}
    splits_of_model = {
        (feature, value)
        for tree in training.model.trees
        for feature, value in zip(tree.feature, tree.threshold, strict=True)
    }
    n_beyond_model, likely_share = 0, 0.0
    for claim in guess.claims:
        owner_data = local_data[claim.owner]
        column = owner_data.X[:, np.searchsorted(owner_data.columns, claim.feature)]
        likely_share += claim.counts[np.isin(claim.values, column)].sum() / claim.counts.sum()
        true_values = claim.values[np.isin(claim.values, column)]
        n_beyond_model += sum(
            (claim.feature, value) not in splits_of_model for value in true_values
        )
    # Values between the bounds that splits imply are probable guesses.
    assert likely_share / len(guess.claims) > 0.5
    assert n_beyond_model > 0
    assert guess.notes["splits_that_lost"] > 0
    assert ClearGradients().inapplicable(seen_by(training, local_data, "active"))
    for attack in (ClearGradients(), SplitValues()):
        assert attack.inapplicable(view.blinded())


def test_randomised_labels_limit_the_accuracy_of_clear_gradients():
    accuracies = []
    for seed in range(12):
        noisy = OneStage(epsilon=1.0)
        training, local_data = run(
            "xgboost-vertical[trees=1,max_depth=2]", 2, defense=noisy, seed=seed
        )
        view = seen_by(training, local_data, "passive-1")
        (labels,) = ClearGradients().run(view, np.random.default_rng(0)).claims
        accuracies.append((labels.cluster == local_data["active"].y).mean())
    assert np.mean(accuracies) == pytest.approx(np.e / (1 + np.e), abs=0.04)  # 1,800 coins


@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_reads_its_predecessor_and_distributes_the_remaining_sums(workers):
    tables = random_tables(workers, missing=0)
    local_data = over_clients(tables)
    training = train(XGBoostRing(trees=1, max_depth=2), local_data, schema_of(4))
    view = view_of(training, ("client-0",), local_data)
    guess = RingSegments().run(view, np.random.default_rng(0))
    for claim in guess.claims:
        table = tables[int(claim.owner[-1])]
        true_counts = np.concatenate(
            [
                [
                    np.bincount(table.y[table.X[:, feature] == value], minlength=2)
                    for value in np.unique(column)
                ]
                for feature, column in enumerate(Table.concat(tables).X.T)
            ]
        )
        is_right = (claim.counts == true_counts).all(axis=1)
        # The classes are distributed by guessing if two workers have rows of both classes.
        assert is_right.mean() > (0.99 if workers == 2 else 0.8)
        assert not claim.certain
        assert guess.notes[f"positives of {claim.owner}"] == table.y.sum()
    assert RingSegments().inapplicable(view.blinded())


def test_without_sketches_a_worker_still_distributes_sums():
    tables, shares_right = random_tables(3, missing=0), []
    pooled = Table.concat(tables)
    ranges = zip(pooled.X.min(axis=0), pooled.X.max(axis=0), strict=True)
    features = (
        Feature(f"f{number}", low=float(lowest), high=float(highest))
        for number, (lowest, highest) in enumerate(ranges)
    )
    local_data, schema = over_clients(tables), Schema(tuple(features), "y", classes=("0", "1"))
    defense = make_defense(parse_composed(["public-cuts"])[0])
    training = train(
        XGBoostRing(trees=1, max_depth=2, max_bin=16), local_data, schema, defense=defense
    )
    view = view_of(training, ("client-0",), local_data)
    (cuts,) = (
        Cuts(
            cuts_message.values,
            cuts_message.offsets,
            cuts_message.minimum,
            cuts_message.categorical,
        )
        for _, cuts_message in view.messages(MergedCuts)
    )
    for claim in RingSegments().run(view, np.random.default_rng(0)).claims:
        table = tables[int(claim.owner[-1])]
        bins = bin_rows(table.X, cuts)
        bin_of_entry = (bins.offsets[:-1] + bins.codes) * 2 + table.y[:, None]
        true_counts = np.bincount(bin_of_entry.ravel(), minlength=2 * cuts.total_bins).reshape(
            -1, 2
        )
        shares_right.append((claim.counts == true_counts).all(axis=1).mean())
    assert len(shares_right) == 2
    assert min(shares_right) > 0.4  # a third of the sums is seen directly


def test_ring_sums_are_peeled_like_those_that_a_server_sends():
    clients, schema = sample_federation(rows=90)
    local_data, rows_found = over_clients(clients), []
    for protocol in (XGBoostRing, partial(NVFlareHist, cuts="xgboost")):
        training = train(protocol(trees=5, max_depth=4), local_data, schema)
        view = view_of(training, ("client-0",), local_data)
        (rows,) = HistogramPeeling(work=3e7).run(view, np.random.default_rng(0)).claims
        rows_found.append(rows.table.X.tolist())
    assert rows_found[0] == rows_found[1]
    assert len(rows_found[0]) > 2


# for each capture, the attacks that are compared and the party that makes them
ATTACKED = {
    "ring2": ("ring-segments", "histogram-peeling"),
    "ring3": ("ring-segments", "histogram-peeling"),
    "columns3": ("split-values", "clear-gradients"),
    "secure3": ("split-values", "clear-gradients"),
    "machines2": ("bin-mapper-reading", "single-row-bins"),
    "machines3": ("bin-mapper-reading", "single-row-bins", "histogram-peeling"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ATTACKED)
def test_attacks_score_the_same_on_a_capture_and_in_simulation(name, tmp_path):
    truth, attacks, is_vertical = rows(name), ATTACKED[name], name in ("columns3", "secure3")
    protocol = [RECORDED[name]] * name.startswith(("machines", "ring"))
    result = report(str(capture(name, tmp_path)), "worker-1", truth, None, attacks, *protocol)
    local_data = (columns_of if is_vertical else over_clients)([*truth.values()])
    columns = [table.X.shape[1] for table in truth.values()]
    schema = schema_of(sum(columns) if is_vertical else columns[0])
    training = train(named_protocol(RECORDED[name]), local_data, schema)
    principals = ([*local_data][1],)
    owner = "active" if is_vertical else "client"
    case = Case(
        local_data, training.transcript.roles, principals, training.schema, Streams(0), owner
    )
    for row in result["attacks"]:
        guess = (
            attack_process()
            .run(parse_list([row["attack"]])[0], view_of(training, principals, local_data))
            .guess
        )
        assert summarize_guess(guess) == row["said"]
        if guess.claims:
            assert main_scores(row["attack"], guess, case) == row["scores"]
    assert any("claims nothing" not in row["said"] for row in result["attacks"])
    if is_vertical:
        labels = result["attacks"][1]["scores"]
        assert labels["label_accuracy"][0] == 1.0 > labels["label_accuracy"][1]


@pytest.mark.long
@pytest.mark.parametrize("load_data", [load_breast_cancer, load_wine])
def test_on_a_ring_of_the_installed_xgboost_rows_are_read_as_in_simulation(load_data, tmp_path):
    X, y = load_data(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:240]
    numbers = np.column_stack([X[:, :6], y == 1])[order].astype(np.float32)
    parts, path = np.array_split(numbers, 3), tmp_path / "run.capture"
    params = {"objective": "binary:logistic", "max_depth": 4}
    capture_campaign.captured(parts, "rabit", params, 8, path)
    truth = {
        f"worker-{number}": Table(part[:, :-1], part[:, -1].astype(int))
        for number, part in enumerate(parts)
    }
    protocol, local_data = XGBoostRing(trees=8, max_depth=4), over_clients([*truth.values()])
    visible_records = [
        record
        for record in Decoded(Capture(path))
        if "worker-1" in (record.sender, *record.receivers)
    ]
    view, case = captured_view(visible_records, "worker-1", {*truth}, truth, protocol)
    bench = view_of(train(protocol, local_data, schema_of(6)), ("client-1",), local_data)
    for attack, minimum_rows in ((HistogramPeeling(), 20), (SketchReading(), len(y[order]) // 2)):
        both_claims = [attack.run(v, np.random.default_rng(0)).claims[-1] for v in (view, bench)]
        assert both_claims[0].table.X.tolist() == both_claims[1].table.X.tolist()
        assert both_claims[0].table.y.tolist() == both_claims[1].table.y.tolist()
        assert [owner.replace("worker", "client") for owner in both_claims[0].owner] == [
            *both_claims[1].owner
        ]
        assert len(both_claims[0].table) >= minimum_rows
        value, blind = main_scores("", Guess((both_claims[0],)), case)["ra"]
        # Rows that are not read are guessed as the blind baseline guesses them.
        assert value > blind
    with pytest.raises(DataError, match="grown with other parameters"):
        captured_view(visible_records, "worker-1", {*truth}, truth, replace(protocol, max_depth=3))


def test_unsupported_parameters_are_refused():
    with pytest.raises(UsageError, match="leave subsample"):
        XGBoostRing(subsample=0.5)
    with pytest.raises(UsageError, match="two workers or more"):
        XGBoostRing().roles(1)
    with pytest.raises(UsageError, match="two parties or more"):
        XGBoostVertical().roles(1)
    with pytest.raises(UsageError, match="two classes, not"):
        XGBoostRing().check(Schema((Feature("x"),), "y", classes=()))
