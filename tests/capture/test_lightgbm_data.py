"""`lightgbm-data` says what LightGBM's own machines said, message by message; so are its trees."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from captures import HERE, decoded, rows

from fedtrees.attacks.lightgbm.attack import BinMapperReading, SingleRowBins
from fedtrees.attacks.peeling.attack import HistogramPeeling
from fedtrees.attacks.peeling.bin_values import to_bins
from fedtrees.attacks.peeling.sources import machine_sources, machines_with_whole_sums
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.party import acting
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed
from fedtrees.experiments.evaluate import make_defense
from fedtrees.messages.lightgbm import BinMappers, FoundSplits, OwnStart
from fedtrees.protocols.cut_points import public_cuts
from fedtrees.protocols.peers.collectives import scattering
from fedtrees.protocols.peers.lightgbm_data import LightGBMData
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.files.lightgbm import from_lightgbm_text
from fedtrees.trees.lightgbm.bins import find_bins

#: What the captures were recorded with.
RECORDED = LightGBMData(trees=2, num_leaves=3, min_data_in_leaf=2, min_data_in_bin=1)


def schema_of(columns, classes=("0", "1")):
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label", classes=classes)


def made_up(machines, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 3, (machines * 50, columns)).round(2)
    X[rng.random(X.shape) < 0.05] = np.nan
    y = (np.nan_to_num(X[:, 0]) + rng.normal(0, 2, len(X)) > 0).astype(np.int64)
    return [Table(x.astype(np.float32), y) for x, y in zip(
        np.array_split(X, machines), np.array_split(y, machines), strict=True
    )]  # fmt: skip


def key(message):
    told = vars(message)
    place = told.get("step", told.get("level", 0))
    who = told.get("rank", told.get("parties", "").replace("client", "worker"))
    return type(message).__name__, told.get("tree", 0), place, who


RECORDINGS = {"machines2": 3, "machines3": 3, "mostly2": 4}  # columns; in the last many ones


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_message_is_the_one_that_lightgbm_sent(name, tmp_path):
    run = train(RECORDED, over_clients(list(rows(name).values())), schema_of(RECORDINGS[name]))
    made = {key(d.message): d for d in run.transcript if d.receivers != ("public",)}
    captured = {key(r.message): r for r in decoded(name, tmp_path)[0]}
    assert set(made) == set(captured)
    for where, ours in made.items():
        theirs = captured[where]
        assert ours.sender.replace("client", "worker") == theirs.sender
        assert [r.replace("client", "worker") for r in ours.receivers] == [*theirs.receivers]
        for field, value in vars(theirs.message).items():
            if field != "parties":
                own = getattr(ours.message, field)
                np.testing.assert_allclose(own, value, rtol=1e-15, atol=0, err_msg=field)


@pytest.mark.parametrize("name", RECORDINGS)
def test_trees_are_those_of_lightgbm(name):
    run = train(RECORDED, over_clients(list(rows(name).values())), schema_of(RECORDINGS[name]))
    theirs = from_lightgbm_text(HERE / name / "model.txt")
    X = np.concatenate([t.X for t in rows(name).values()])
    assert len(run.model.trees) == len(theirs.trees) == 2
    for ours, other in zip(run.model.trees, theirs.trees, strict=True):
        splits = [
            {
                (int(f), float(t))
                for f, t in zip(tree.feature, tree.threshold, strict=True)
                if f >= 0
            }
            for tree in (ours, other)
        ]
        assert splits[0] == splits[1]
        assert ours.feature[0] == other.feature[0]
    assert run.model.margin(X) == pytest.approx(theirs.margin(X), abs=1e-6)


@pytest.mark.parametrize("machines", [2, 3, 4, 5])
def test_all_machines_end_with_the_same_trees(machines):
    protocol = LightGBMData(trees=2, num_leaves=4, min_data_in_leaf=5)
    run = train(protocol, over_clients(made_up(machines)), schema_of(4))
    found = [d.message for d in run.transcript if isinstance(d.message, FoundSplits)]
    steps = {(m.tree, m.step) for m in found}
    assert len(found) == machines * len(steps)
    names = [type(d.message).__name__ for d in run.transcript]
    assert names.count("HistogramSegment") == len(steps) * len(list(scattering(machines)))
    X = np.concatenate([t.X for t in made_up(machines)])
    assert run.model.predict(X).std() > 0.01
    for party in (run.net.party(f"client-{k}") for k in range(machines)):
        with acting(party):
            assert party.model.predict(X).tolist() == run.model.predict(X).tolist()


def test_numbers_are_trained_on_and_the_mean_label_of_each_crosses():
    tables = [Table(t.X, np.nan_to_num(t.X[:, 1]).astype(np.float64)) for t in made_up(3)]
    run = train(LightGBMData(trees=3), over_clients(tables), schema_of(4, ()))
    said = {d.sender: d.message.score for d in run.transcript if isinstance(d.message, OwnStart)}
    means = {f"client-{k}": t.y.mean() for k, t in enumerate(tables)}
    assert said == pytest.approx(means, rel=1e-6)
    X, y = np.concatenate([t.X for t in tables]), np.concatenate([t.y for t in tables])
    assert np.var(run.model.predict(X) - y) < 0.7 * np.var(y)


def test_bins_are_cut_around_zero_and_missing_values_have_the_last():
    found = find_bins(np.array([-2.0, -1.0, 0.0, 0.0, 1.0, 3.0, np.nan]), 255, 1, 1)
    cuts = [-1.5, -1e-35, 1e-35, 2.0, np.inf, np.nan]
    np.testing.assert_allclose(found.bounds, cuts, rtol=1e-6)
    assert found.bin(np.array([-5.0, -1.0, 0.0, 1.0, 9.0, np.nan])).tolist() == [0, 1, 2, 3, 4, 5]
    assert (found.low, found.high, found.frequent) == (-2.0, 3.0, 2)
    few = find_bins(np.arange(1.0, 101.0), 5, 1, 1)
    held = np.bincount(few.bin(np.arange(1.0, 101.0)))
    assert len(few.bounds) == 5
    assert held.tolist() == [0, 25, 25, 25, 25]


def test_one_machine_alone_is_refused():
    with pytest.raises(UsageError, match="two machines or more"):
        LightGBMData().roles(1)


def test_bins_are_of_one_machine_alone():
    tables = made_up(2)
    run = train(LightGBMData(trees=1), over_clients(tables), schema_of(4))
    told = {d.sender: d.message for d in run.transcript if isinstance(d.message, BinMappers)}
    for k, table in enumerate(tables):
        m = told[f"client-{k}"]
        assert (m.first, len(m.low)) == (2 * k, 2)
        assert m.low == pytest.approx(np.nanmin(table.X[:, 2 * k : 2 * k + 2], axis=0))


@pytest.mark.parametrize("machines", [2, 3])
def test_attacks_read_values_and_how_many_rows_have_each(machines):
    tables = made_up(machines, columns=6)
    protocol = LightGBMData(trees=1, min_data_in_bin=1)
    run = train(protocol, over_clients(tables), schema_of(6))
    victim = tables[-1] if machines == 3 else tables[0]
    view = view_of(run, ("client-1",), over_clients(tables))
    own = {"client-0": tables[0], "client-2": tables[-1]}
    (bins, rows_in) = (
        {(c.owner, c.feature): c for c in attack.run(view, np.random.default_rng(0)).claims}
        for attack in (BinMapperReading(), SingleRowBins())
    )
    assert {owner for owner, _ in bins} == set(own) & {f"client-{k}" for k in range(machines)}
    for (owner, feature), claim in bins.items():
        if feature // -(-6 // machines) != int(owner[-1]):
            continue  # another machine found its bins: filled in
        there = np.unique(own[owner].X[:, feature])
        assert len(claim.values) >= 0.8 * (~np.isnan(there)).sum()
        assert np.isin(claim.values, there).all()
    right = {}
    for (owner, feature), claim in rows_in.items():
        column, told = own[owner].X[:, feature], zip(claim.values, claim.counts, strict=True)
        right[owner, feature] = np.mean([(column == value).sum() == count for value, count in told])
    read = [key for key, share in right.items() if share == 1]  # off sums of one machine alone
    assert len(read) >= (3 if machines == 3 else 1)
    assert victim is own[read[0][0]]
    found = [share for (o, f), share in right.items() if f // -(-6 // machines) == int(o[-1])]
    assert min(found) > 0.9  # its bins, at least
    empty = view.blinded()
    assert BinMapperReading().inapplicable(empty)
    assert SingleRowBins().inapplicable(empty)


@pytest.mark.parametrize("fill", [False, True])
def test_forced_bins_leave_no_values_but_the_ends_unless_others_are_filled_in(fill):
    """Against LightGBM's own: of real runs with these files, all bounds were the same."""
    tables = made_up(2)
    features = [
        Feature(f"f{k}", low=float(np.nanmin(c)) - 0.5, high=float(np.nanmax(c)) + 0.5)
        for k, c in enumerate(np.concatenate([t.X for t in tables]).T)
    ]
    schema = Schema(tuple(features), "label", classes=("0", "1"))
    protocol = LightGBMData(trees=1, min_data_in_bin=1, min_data_in_leaf=2)
    defense = make_defense(parse_composed([f"forced-bins[bounds=15,fill={str(fill).lower()}]"])[0])
    run = train(protocol, over_clients(tables), schema, defense=defense)
    declared = public_cuts(schema, 16)
    midway = others = 0
    for d in run.transcript:
        if isinstance(d.message, BinMappers):
            X = tables[d.message.rank].X[:, d.message.first : d.message.first + 2]
            for k, column in enumerate(X.T.astype(float)):
                values = np.unique(column[~np.isnan(column)])
                cuts = d.message.bins(k)[np.isfinite(d.message.bins(k))]
                own = ~np.isin(cuts, declared.of(d.message.first + k)) & (np.abs(cuts) > 1e-30)
                made = np.nextafter((values[1:] + values[:-1]) / 2, np.inf)
                midway, others = midway + np.isin(cuts, made).sum(), others + own.sum()
                assert d.message.low[k] == values[0]
    assert (midway > 0, others > 0) == (fill, fill)
    view = view_of(run, ("client-1",), over_clients(tables))
    for claim in BinMapperReading().run(view, np.random.default_rng(0)).claims:
        ends = tables[0].X[:, claim.feature]
        assert claim.feature > 1 or {np.nanmin(ends), np.nanmax(ends)} & {*claim.values.tolist()}
        assert not claim.exact


def test_a_leader_reads_whole_rows_of_the_machine_that_hands_it_all():
    # histograms leave out the bin of 0
    tables = [Table(np.column_stack([t.X[:, :3], t.X[:, 3].round()]), t.y) for t in made_up(3)]
    run = train(LightGBMData(trees=30, num_leaves=4), over_clients(tables), schema_of(4))
    view, peeling = view_of(run, ("client-1",), over_clients(tables)), HistogramPeeling()
    (read,) = peeling.run(view, np.random.default_rng(0)).claims
    cuts = machine_sources(view).cuts
    found, there = (
        Counter((*row, c) for row, c in zip(to_bins(cuts, t.X).tolist(), t.y.tolist(), strict=True))
        for t in (read.table, tables[2])
    )
    assert not found - there
    assert found.total() >= 0.7 * len(tables[2])
    assert {*read.owner} == {"client-2"}
    assert peeling.inapplicable(view.blinded())
    for who in ("client-0", "client-2"):
        assert peeling.inapplicable(view_of(run, (who,), over_clients(tables)))
    assert not machines_with_whole_sums(replace(view, parameters={}))
