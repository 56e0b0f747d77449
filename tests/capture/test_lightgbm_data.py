"""`lightgbm-data` sends the same messages and grows the same trees as LightGBM."""

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
from fedtrees.protocols.peers.lightgbm_data import LightGBMData, scattering
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.files.lightgbm import from_lightgbm_text
from fedtrees.trees.lightgbm.bins import find_bins

# the parameters with which the captures were recorded
RECORDED = LightGBMData(trees=2, num_leaves=3, min_data_in_leaf=2, min_data_in_bin=1)


def schema_of(columns, classes=("0", "1")):
    return Schema(tuple(Feature(f"f{k}") for k in range(columns)), "label", classes=classes)


def random_tables(machines, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 3, (machines * 50, columns)).round(2)
    X[rng.random(X.shape) < 0.05] = np.nan
    y = (np.nan_to_num(X[:, 0]) + rng.normal(0, 2, len(X)) > 0).astype(np.int64)
    return [Table(x.astype(np.float32), y) for x, y in zip(
        np.array_split(X, machines), np.array_split(y, machines), strict=True
    )]  # fmt: skip


def key(message):
    message_fields = vars(message)
    place = message_fields.get("step", message_fields.get("level", 0))
    machine = message_fields.get(
        "rank", message_fields.get("parties", "").replace("client", "worker")
    )
    return type(message).__name__, message_fields.get("tree", 0), place, machine


RECORDINGS = {"machines2": 3, "machines3": 3, "mostly2": 4}  # columns; in the last many ones


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_message_is_the_one_that_lightgbm_sent(name, tmp_path):
    run = train(RECORDED, over_clients(list(rows(name).values())), schema_of(RECORDINGS[name]))
    simulated = {key(d.message): d for d in run.transcript if d.receivers != ("public",)}
    captured = {key(receiver.message): receiver for receiver in decoded(name, tmp_path)[0]}
    assert set(simulated) == set(captured)
    for message_key, delivery in simulated.items():
        record = captured[message_key]
        assert delivery.sender.replace("client", "worker") == record.sender
        assert [receiver.replace("client", "worker") for receiver in delivery.receivers] == [
            *record.receivers
        ]
        for field, value in vars(record.message).items():
            if field != "parties":
                simulated_value = getattr(delivery.message, field)
                np.testing.assert_allclose(
                    simulated_value, value, rtol=1e-15, atol=0, err_msg=field
                )


@pytest.mark.parametrize("name", RECORDINGS)
def test_trees_equal_those_of_lightgbm(name):
    run = train(RECORDED, over_clients(list(rows(name).values())), schema_of(RECORDINGS[name]))
    reference = from_lightgbm_text(HERE / name / "model.txt")
    X = np.concatenate([t.X for t in rows(name).values()])
    assert len(run.model.trees) == len(reference.trees) == 2
    for simulated_tree, reference_tree in zip(run.model.trees, reference.trees, strict=True):
        splits = [
            {
                (int(feature), float(t))
                for feature, t in zip(tree.feature, tree.threshold, strict=True)
                if feature >= 0
            }
            for tree in (simulated_tree, reference_tree)
        ]
        assert splits[0] == splits[1]
        assert simulated_tree.feature[0] == reference_tree.feature[0]
    assert run.model.margin(X) == pytest.approx(reference.margin(X), abs=1e-6)


@pytest.mark.parametrize("machines", [2, 3, 4, 5])
def test_all_machines_end_with_the_same_trees(machines):
    protocol = LightGBMData(trees=2, num_leaves=4, min_data_in_leaf=5)
    run = train(protocol, over_clients(random_tables(machines)), schema_of(4))
    found_splits = [
        delivery.message for delivery in run.transcript if isinstance(delivery.message, FoundSplits)
    ]
    steps = {(message.tree, message.step) for message in found_splits}
    assert len(found_splits) == machines * len(steps)
    names = [type(delivery.message).__name__ for delivery in run.transcript]
    assert names.count("HistogramSegment") == len(steps) * len(list(scattering(machines)))
    X = np.concatenate([table.X for table in random_tables(machines)])
    assert run.model.predict(X).std() > 0.01
    for party in (run.net.party(f"client-{number}") for number in range(machines)):
        with acting(party):
            assert party.model.predict(X).tolist() == run.model.predict(X).tolist()


def test_numeric_targets_are_trained_on_and_mean_labels_are_sent():
    tables = [
        Table(table.X, np.nan_to_num(table.X[:, 1]).astype(np.float64))
        for table in random_tables(3)
    ]
    run = train(LightGBMData(trees=3), over_clients(tables), schema_of(4, ()))
    sent_starts = {
        delivery.sender: delivery.message.score
        for delivery in run.transcript
        if isinstance(delivery.message, OwnStart)
    }
    means = {f"client-{number}": table.y.mean() for number, table in enumerate(tables)}
    assert sent_starts == pytest.approx(means, rel=1e-6)
    X, y = (
        np.concatenate([table.X for table in tables]),
        np.concatenate([table.y for table in tables]),
    )
    assert np.var(run.model.predict(X) - y) < 0.7 * np.var(y)


def test_bins_are_cut_around_zero_and_missing_values_have_the_last_bin():
    bins = find_bins(np.array([-2.0, -1.0, 0.0, 0.0, 1.0, 3.0, np.nan]), 255, 1, 1)
    cuts = [-1.5, -1e-35, 1e-35, 2.0, np.inf, np.nan]
    np.testing.assert_allclose(bins.bounds, cuts, rtol=1e-6)
    assert bins.bin(np.array([-5.0, -1.0, 0.0, 1.0, 9.0, np.nan])).tolist() == [0, 1, 2, 3, 4, 5]
    assert (bins.low, bins.high, bins.frequent) == (-2.0, 3.0, 2)
    five_bins = find_bins(np.arange(1.0, 101.0), 5, 1, 1)
    rows_per_bin = np.bincount(five_bins.bin(np.arange(1.0, 101.0)))
    assert len(five_bins.bounds) == 5
    assert rows_per_bin.tolist() == [0, 25, 25, 25, 25]


def test_a_single_machine_is_refused():
    with pytest.raises(UsageError, match="two machines or more"):
        LightGBMData().roles(1)


def test_bins_depend_on_the_rows_of_one_machine_only():
    tables = random_tables(2)
    run = train(LightGBMData(trees=1), over_clients(tables), schema_of(4))
    mappers = {
        delivery.sender: delivery.message
        for delivery in run.transcript
        if isinstance(delivery.message, BinMappers)
    }
    for number, table in enumerate(tables):
        mapper = mappers[f"client-{number}"]
        assert (mapper.first, len(mapper.low)) == (2 * number, 2)
        assert mapper.low == pytest.approx(
            np.nanmin(table.X[:, 2 * number : 2 * number + 2], axis=0)
        )


@pytest.mark.parametrize("machines", [2, 3])
def test_attacks_read_values_and_the_number_of_rows_with_each(machines):
    tables = random_tables(machines, columns=6)
    protocol = LightGBMData(trees=1, min_data_in_bin=1)
    run = train(protocol, over_clients(tables), schema_of(6))
    victim = tables[-1] if machines == 3 else tables[0]
    view = view_of(run, ("client-1",), over_clients(tables))
    tables_of_others = {"client-0": tables[0], "client-2": tables[-1]}
    (bins, rows_in) = (
        {(c.owner, c.feature): c for c in attack.run(view, np.random.default_rng(0)).claims}
        for attack in (BinMapperReading(), SingleRowBins())
    )
    assert {owner for owner, _ in bins} == set(tables_of_others) & {
        f"client-{number}" for number in range(machines)
    }
    for (owner, feature), claim in bins.items():
        if feature // -(-6 // machines) != int(owner[-1]):
            continue  # Another machine computed its bins, so they are filled in.
        true_values = np.unique(tables_of_others[owner].X[:, feature])
        assert len(claim.values) >= 0.8 * (~np.isnan(true_values)).sum()
        assert np.isin(claim.values, true_values).all()
    shares_right = {}
    for (owner, feature), claim in rows_in.items():
        column, claimed_counts = (
            tables_of_others[owner].X[:, feature],
            zip(claim.values, claim.counts, strict=True),
        )
        shares_right[owner, feature] = np.mean(
            [(column == value).sum() == count for value, count in claimed_counts]
        )
    # From sums of a single machine.
    certain_columns = [key for key, share in shares_right.items() if share == 1]
    assert len(certain_columns) >= (3 if machines == 3 else 1)
    assert victim is tables_of_others[certain_columns[0][0]]
    own_shares = [
        share
        for (owner_name, f), share in shares_right.items()
        if f // -(-6 // machines) == int(owner_name[-1])
    ]
    assert min(own_shares) > 0.9  # at least the bins that the machine itself computed
    empty = view.blinded()
    assert BinMapperReading().inapplicable(empty)
    assert SingleRowBins().inapplicable(empty)


@pytest.mark.parametrize("fill", [False, True])
def test_forced_bins_reveal_no_values_except_the_ends_unless_bins_are_filled_in(fill):
    """In real runs of LightGBM with these files, all bounds were the same."""
    tables = random_tables(2)
    features = [
        Feature(f"f{number}", low=float(np.nanmin(c)) - 0.5, high=float(np.nanmax(c)) + 0.5)
        for number, c in enumerate(np.concatenate([table.X for table in tables]).T)
    ]
    schema = Schema(tuple(features), "label", classes=("0", "1"))
    protocol = LightGBMData(trees=1, min_data_in_bin=1, min_data_in_leaf=2)
    defense = make_defense(parse_composed([f"forced-bins[bounds=15,fill={str(fill).lower()}]"])[0])
    run = train(protocol, over_clients(tables), schema, defense=defense)
    declared = public_cuts(schema, 16)
    n_midway = n_undeclared = 0
    for delivery in run.transcript:
        if isinstance(delivery.message, BinMappers):
            X = tables[delivery.message.rank].X[
                :, delivery.message.first : delivery.message.first + 2
            ]
            for number, column in enumerate(X.T.astype(float)):
                values = np.unique(column[~np.isnan(column)])
                cuts = delivery.message.bins(number)[np.isfinite(delivery.message.bins(number))]
                is_undeclared = ~np.isin(cuts, declared.of(delivery.message.first + number)) & (
                    np.abs(cuts) > 1e-30
                )
                midpoints = np.nextafter((values[1:] + values[:-1]) / 2, np.inf)
                n_midway, n_undeclared = (
                    n_midway + np.isin(cuts, midpoints).sum(),
                    n_undeclared + is_undeclared.sum(),
                )
                assert delivery.message.low[number] == values[0]
    assert (n_midway > 0, n_undeclared > 0) == (fill, fill)
    view = view_of(run, ("client-1",), over_clients(tables))
    for claim in BinMapperReading().run(view, np.random.default_rng(0)).claims:
        ends = tables[0].X[:, claim.feature]
        assert claim.feature > 1 or {np.nanmin(ends), np.nanmax(ends)} & {*claim.values.tolist()}
        assert not claim.exact


def test_a_leader_reads_complete_rows_of_the_machine_that_sends_it_everything():
    # Histograms leave out the bin of 0.
    tables = [
        Table(np.column_stack([table.X[:, :3], table.X[:, 3].round()]), table.y)
        for table in random_tables(3)
    ]
    run = train(LightGBMData(trees=30, num_leaves=4), over_clients(tables), schema_of(4))
    view, peeling = view_of(run, ("client-1",), over_clients(tables)), HistogramPeeling()
    (read,) = peeling.run(view, np.random.default_rng(0)).claims
    cuts = machine_sources(view).cuts
    read_rows, true_rows = (
        Counter(
            (*row, label)
            for row, label in zip(to_bins(cuts, table.X).tolist(), table.y.tolist(), strict=True)
        )
        for table in (read.table, tables[2])
    )
    assert not read_rows - true_rows
    assert read_rows.total() >= 0.7 * len(tables[2])
    assert {*read.owner} == {"client-2"}
    assert peeling.inapplicable(view.blinded())
    for party in ("client-0", "client-2"):
        assert peeling.inapplicable(view_of(run, (party,), over_clients(tables)))
    assert not machines_with_whole_sums(replace(view, parameters={}))
