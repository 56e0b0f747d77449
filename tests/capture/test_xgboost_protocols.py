"""`xgboost-ring` and `xgboost-vertical` say what XGBoost's own workers said; so are their trees."""

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
#: Captures, and what they are of.
RECORDED = {
    "ring2": "xgboost-ring[trees=2,max_depth=2]",
    "ring3": "xgboost-ring[trees=2,max_depth=2]",
    "columns3": "xgboost-vertical[trees=2,max_depth=3]",
    "secure3": "xgboost-vertical[trees=2,max_depth=3]",
    "machines2": LIGHTGBM,
    "machines3": LIGHTGBM,
}
VERTICAL = "xgboost-vertical[trees=3,max_depth=4,max_bin=16]"


def made_up(workers, rows=40, missing=0.1):
    rng = np.random.default_rng(workers)
    X = rng.normal(size=(workers * rows, 4)).round(1).astype(np.float32)
    y = (X[:, 0] + rng.normal(0, 0.7, len(X)) > 0).astype(np.int64)
    X[rng.random(X.shape) < missing] = np.nan
    parts = zip(np.split(X, workers), np.split(y, workers), strict=True)
    return [Table(x, part) for x, part in parts]


def schema_of(columns):
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label", classes=("0", "1"))


def real(X, y, **params):
    """Return splits and leaves of XGBoost's own trees of a whole table, by node."""
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


def same_as_real(model, X, y, order, **params):
    """Compare trees node by node; `order`: the model's columns as XGBoost is given them."""
    data = X if y is None else X[:, order]
    theirs = real(data, y, trees=len(model.trees), **params)
    for ours, tree in zip(model.trees, theirs, strict=True):
        assert len(ours) == len(tree) > 5
        for node, (feature, threshold, gain) in enumerate(tree):
            if feature < 0:
                assert ours.feature[node] == -1
                assert ours.value[node] == pytest.approx(gain, abs=1e-6)
            else:
                assert (ours.feature[node], ours.threshold[node]) == (order[feature], threshold)


@pytest.mark.parametrize("name", RECORDED)
def test_every_message_is_the_one_that_was_captured(name, tmp_path):
    path = str(capture(name, tmp_path))
    found = from_protocol(path, None, RECORDED[name], rows(name))
    assert found["same"]
    assert json.loads(json.dumps(found)) == found  # plain values only
    listed = {row["message"] for row in found["kinds"] if row["apart"]}
    assert listed <= {"ColumnSizes", "EvaluationSums", *(["GradientTotals"] * (name == "ring2"))}
    other = {k: replace(t, y=1 - t.y) for k, t in rows(name).items()}
    assert not from_protocol(path, None, RECORDED[name], other)["same"]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_on_a_ring_all_grow_the_trees_of_xgboost_on_all_rows(workers):
    tables = made_up(workers)
    held = over_clients(tables)
    done = train(XGBoostRing(trees=2, max_depth=3), held, schema_of(4))
    whole = Table.concat(tables)
    same_as_real(done.model, whole.X, whole.y, np.arange(4), max_depth=3)
    for d in done.transcript:  # the first hop of a part is of its sender alone, the last of all
        if isinstance(d.message, HistogramSegment):
            whose = d.message.parties.split(",")
            assert len(whose) < workers or len(d.receivers) == workers - 1
            assert (len(whose) == 1) <= (whose == [d.sender])


def test_on_declared_cuts_no_values_cross_and_trees_are_those_of_a_quantile_matrix_with_ref():
    tables = made_up(3)
    features = (Feature(f"f{k}", low=-4.0, high=4.0) for k in range(4))
    schema = Schema(tuple(features), "label", classes=("0", "1"))
    whole, held = Table.concat(tables), over_clients(tables)
    protocol = XGBoostRing(trees=2, max_depth=3, max_bin=24)
    done = train(protocol, held, schema, defense=make_defense(parse_composed(["public-cuts"])[0]))
    assert not any(isinstance(d.message, RankedSketch) for d in done.transcript)
    cuts = public_cuts(schema, 24)
    ref = xgb.QuantileDMatrix(
        np.column_stack([[cuts.minimum[f], *cuts.of(f)[:-1]] for f in range(4)]), max_bin=24
    )
    data = xgb.QuantileDMatrix(whole.X, whole.y, ref=ref, max_bin=24)
    same_as_real(done.model, data, None, np.arange(4), max_depth=3, max_bin=24)
    view = view_of(done, ("client-1",), held)
    assert SketchReading().inapplicable(view)
    guess = HistogramPeeling().run(view, np.random.default_rng(0))
    true = {tuple(row) for row in np.column_stack([whole.X, whole.y]).tolist()}
    for claim in guess.claims:
        rows = np.column_stack([claim.table.X, claim.table.y]).tolist()
        assert not {tuple(row) for row in rows} & true
    assert guess.claims or guess.reason is not None


@pytest.mark.parametrize("parties", [2, 3])
def test_over_columns_all_grow_the_trees_of_xgboost_on_all_columns(parties):
    done, held = run(VERTICAL, parties)
    table, _ = table_of()
    order = np.concatenate([h.columns for h in held.values()])
    same_as_real(done.model, table.X, table.y, order, max_depth=4, max_bin=16)
    assert done.predict(table.X) == pytest.approx(done.model.predict(table.X), abs=0)
    assert {m.owner for m in (d.message for d in done.transcript) if isinstance(m, BestSplits)} == {
        *held
    }


def test_a_passive_party_reads_all_labels_and_values_that_are_in_no_model():
    done, held = run(VERTICAL, 3)
    view = seen_by(done, held, "passive-1")
    (labels,) = ClearGradients().run(view, np.random.default_rng(0)).claims
    assert labels.cluster.tolist() == held["active"].y.tolist()
    guess = SplitValues().run(view, np.random.default_rng(0))
    assert {c.owner for c in guess.claims} == {"active", "passive-2"}
    taken = {(f, v) for t in done.model.trees for f, v in zip(t.feature, t.threshold, strict=True)}
    beyond, likely = 0, 0.0
    for claim in guess.claims:
        own = held[claim.owner]
        column = own.X[:, np.searchsorted(own.columns, claim.feature)]
        likely += claim.counts[np.isin(claim.values, column)].sum() / claim.counts.sum()
        there = claim.values[np.isin(claim.values, column)]
        beyond += sum((claim.feature, v) not in taken for v in there)
    assert likely / len(guess.claims) > 0.5  # those between what splits tell are likely ones
    assert beyond > 0
    assert guess.notes["splits_that_lost"] > 0
    assert ClearGradients().inapplicable(seen_by(done, held, "active"))
    for attack in (ClearGradients(), SplitValues()):
        assert attack.inapplicable(view.blinded())


def test_noisy_labels_are_all_that_gradients_tell():
    told = []
    for seed in range(12):
        noisy = OneStage(epsilon=1.0)
        done, held = run("xgboost-vertical[trees=1,max_depth=2]", 2, defense=noisy, seed=seed)
        view = seen_by(done, held, "passive-1")
        (labels,) = ClearGradients().run(view, np.random.default_rng(0)).claims
        told.append((labels.cluster == held["active"].y).mean())
    assert np.mean(told) == pytest.approx(np.e / (1 + np.e), abs=0.04)  # 1,800 coins


@pytest.mark.parametrize("workers", [2, 3])
def test_a_worker_reads_the_one_before_it_and_deals_out_what_is_left(workers):
    tables = made_up(workers, missing=0)
    held = over_clients(tables)
    done = train(XGBoostRing(trees=1, max_depth=2), held, schema_of(4))
    view = view_of(done, ("client-0",), held)
    guess = RingSegments().run(view, np.random.default_rng(0))
    for claim in guess.claims:
        table = tables[int(claim.owner[-1])]
        true = np.concatenate(
            [
                [np.bincount(table.y[table.X[:, f] == v], minlength=2) for v in np.unique(c)]
                for f, c in enumerate(Table.concat(tables).X.T)
            ]
        )
        right = (claim.counts == true).all(axis=1)
        # classes are dealt where two workers have rows of both, and sums of one are not seen
        assert right.mean() > (0.99 if workers == 2 else 0.8)
        assert not claim.certain
        assert guess.notes[f"positives of {claim.owner}"] == table.y.sum()
    assert RingSegments().inapplicable(view.blinded())


def test_without_sketches_a_worker_still_deals_out_sums():
    tables, right = made_up(3, missing=0), []
    every = Table.concat(tables)
    ranges = zip(every.X.min(axis=0), every.X.max(axis=0), strict=True)
    features = (Feature(f"f{k}", low=float(a), high=float(b)) for k, (a, b) in enumerate(ranges))
    held, schema = over_clients(tables), Schema(tuple(features), "y", classes=("0", "1"))
    defense = make_defense(parse_composed(["public-cuts"])[0])
    done = train(XGBoostRing(trees=1, max_depth=2, max_bin=16), held, schema, defense=defense)
    view = view_of(done, ("client-0",), held)
    (cuts,) = (
        Cuts(m.values, m.offsets, m.minimum, m.categorical) for _, m in view.messages(MergedCuts)
    )
    for claim in RingSegments().run(view, np.random.default_rng(0)).claims:
        table = tables[int(claim.owner[-1])]
        bins = bin_rows(table.X, cuts)
        at = (bins.offsets[:-1] + bins.codes) * 2 + table.y[:, None]
        true = np.bincount(at.ravel(), minlength=2 * cuts.total_bins).reshape(-1, 2)
        right.append((claim.counts == true).all(axis=1).mean())
    assert len(right) == 2
    assert min(right) > 0.4  # a third is seen


def test_sums_that_come_together_are_peeled_as_those_that_a_server_tells():
    clients, schema = sample_federation(rows=90)
    held, found = over_clients(clients), []
    for protocol in (XGBoostRing, partial(NVFlareHist, cuts="xgboost")):
        done = train(protocol(trees=5, max_depth=4), held, schema)
        view = view_of(done, ("client-0",), held)
        (rows,) = HistogramPeeling(work=3e7).run(view, np.random.default_rng(0)).claims
        found.append(rows.table.X.tolist())
    assert found[0] == found[1]
    assert len(found[0]) > 2


#: Of each capture the attacks that are compared, and who makes them.
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
def test_attacks_reach_on_a_capture_what_they_reach_in_the_bench(name, tmp_path):
    truth, named, split = rows(name), ATTACKED[name], name in ("columns3", "secure3")
    protocol = [RECORDED[name]] * name.startswith(("machines", "ring"))
    told = report(str(capture(name, tmp_path)), "worker-1", truth, None, named, *protocol)
    held = (columns_of if split else over_clients)([*truth.values()])
    columns = [t.X.shape[1] for t in truth.values()]
    schema = schema_of(sum(columns) if split else columns[0])
    done = train(named_protocol(RECORDED[name]), held, schema)
    who = ([*held][1],)
    owner = "active" if split else "client"
    case = Case(held, done.transcript.roles, who, done.schema, Streams(0), owner)
    for row in told["attacks"]:
        guess = attack_process().run(parse_list([row["attack"]])[0], view_of(done, who, held)).guess
        assert summarize_guess(guess) == row["said"]
        if guess.claims:
            assert main_scores(row["attack"], guess, case) == row["scores"]
    assert any("claims nothing" not in row["said"] for row in told["attacks"])
    if split:
        labels = told["attacks"][1]["scores"]
        assert labels["label_accuracy"][0] == 1.0 > labels["label_accuracy"][1]


@pytest.mark.long
@pytest.mark.parametrize("make", [load_breast_cancer, load_wine])
def test_on_a_ring_of_today_rows_are_read_as_in_the_bench(make, tmp_path):
    X, y = make(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:240]
    numbers = np.column_stack([X[:, :6], y == 1])[order].astype(np.float32)
    parts, path = np.array_split(numbers, 3), tmp_path / "run.capture"
    params = {"objective": "binary:logistic", "max_depth": 4}
    capture_campaign.captured(parts, "rabit", params, 8, path)
    truth = {f"worker-{k}": Table(p[:, :-1], p[:, -1].astype(int)) for k, p in enumerate(parts)}
    protocol, held = XGBoostRing(trees=8, max_depth=4), over_clients([*truth.values()])
    seen = [r for r in Decoded(Capture(path)) if "worker-1" in (r.sender, *r.receivers)]
    view, case = captured_view(seen, "worker-1", {*truth}, truth, protocol)
    bench = view_of(train(protocol, held, schema_of(6)), ("client-1",), held)
    for attack, least in ((HistogramPeeling(), 20), (SketchReading(), len(y[order]) // 2)):
        found = [attack.run(v, np.random.default_rng(0)).claims[-1] for v in (view, bench)]
        assert found[0].table.X.tolist() == found[1].table.X.tolist()
        assert found[0].table.y.tolist() == found[1].table.y.tolist()
        assert [o.replace("worker", "client") for o in found[0].owner] == [*found[1].owner]
        assert len(found[0].table) >= least
        value, blind = main_scores("", Guess((found[0],)), case)["ra"]
        assert value > blind  # rows that are not read are guessed as who never looked guesses them
    with pytest.raises(DataError, match="grown with other parameters"):
        captured_view(seen, "worker-1", {*truth}, truth, replace(protocol, max_depth=3))


def test_what_is_not_simulated_is_refused():
    with pytest.raises(UsageError, match="leave subsample"):
        XGBoostRing(subsample=0.5)
    with pytest.raises(UsageError, match="two workers or more"):
        XGBoostRing().roles(1)
    with pytest.raises(UsageError, match="two parties or more"):
        XGBoostVertical().roles(1)
    with pytest.raises(UsageError, match="two classes, not"):
        XGBoostRing().check(Schema((Feature("x"),), "y", classes=()))
