"""Explainable boosting machines: messages equal interpret-core's export and reveal columns."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from federations import view_in

from fedtrees.attacks.membership.attack import MembershipInference
from fedtrees.attacks.observations.columns import columns_of
from fedtrees.conformance.samples import sample_table, sample_training
from fedtrees.core.claims import ColumnValues
from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import Spec
from fedtrees.core.streams import Streams
from fedtrees.messages.additive import ClientShapes, MergedShapes
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

pytestmark = pytest.mark.extra("interpret")
FEW = {"outer_bags": 2, "max_rounds": 50}


def of(transcript, kind):
    return [d.message for d in transcript if type(d.message) is kind]


@cache
def runs():
    """Return a run, its local data, and each client's model as interpret-core fits it."""
    protocol = register.make("protocol", Spec("ebm-merge", FEW))
    run, local_data = sample_training(protocol)
    _, schema = sample_table()
    seeds = [protocol.seed_of(Streams(5).client(k)) for k in range(3)]
    fitted = [
        protocol.estimator(schema, seed).fit(data.X.astype(np.float64), data.y)
        for seed, data in zip(seeds, local_data.values(), strict=True)
    ]
    return run, local_data, fitted


def test_clients_send_the_fields_that_to_json_writes():
    run, _, fitted = runs()
    for model, sent_model in zip(fitted, of(run.transcript, ClientShapes), strict=True):
        written = model.to_jsonable(detail="all")["ebm"]
        assert sent_model.bag_weights.tolist() == written["bag_weights"]
        assert sent_model.intercept.tolist() == written["bagged_intercept"]
        assert sent_model.iterations.tolist() == np.ravel(written["best_iteration"]).tolist()
        for index, (column, bins) in enumerate(
            zip(written["features"], sent_model.bins, strict=True)
        ):
            (term,) = (t for t in written["terms"] if t["term_features"] == [column["name"]])
            span = slice(*sent_model.histogram_offsets[index : index + 2])
            assert sent_model.cuts_of(index).tolist() == column["cuts"][0]
            assert (sent_model.low[index], sent_model.high[index], sent_model.unique[index]) == (
                column["min"], column["max"], column["num_unique_vals"],
            )  # fmt: skip
            assert sent_model.histogram[span].tolist() == column["histogram_weights"]
            assert sent_model.bin_weights[bins].tolist() == term["bin_weights"]
            assert sent_model.scores[:, bins].tolist() == term["bagged_scores"]
            mean = np.average(sent_model.scores[:, bins], axis=0, weights=sent_model.bag_weights)
            np.testing.assert_allclose(mean, term["scores"], atol=1e-12)


def test_the_merged_model_equals_that_of_merge_ebms():
    from interpret.glassbox import merge_ebms

    run, local_data, fitted = runs()
    X = np.concatenate([data.X for data in local_data.values()])
    X[::7, 1] = np.nan
    reference = merge_ebms(fitted).predict_proba(X.astype(np.float64))[:, 1]
    np.testing.assert_allclose(run.model.predict(X), reference, rtol=1e-12)
    (*_, merged) = of(run.transcript, MergedShapes)
    assert len(merged.bag_weights) == 3 * FEW["outer_bags"]


def test_a_client_s_model_is_its_columns():
    view = view_in("ebm-merge[outer_bags=1,max_rounds=5]", "server")
    attack = register.make("attack", Spec("sketch-reading", {"draws": 1}))
    claims = attack.run(view, np.random.default_rng(0)).all(ColumnValues)
    (table, schema) = sample_table(0, 90)
    assert {(c.owner, c.feature) for c in claims} == {
        (f"client-{k}", f) for k in range(3) for f in range(len(schema.features))
    }
    for claim in claims:
        rows = table.take(np.arange(90)[30 * int(claim.owner[-1]) :][:30])
        values, counts = np.unique(rows.X[:, claim.feature], return_counts=True)
        assert claim.exact
        assert (claim.values.tolist(), claim.counts.tolist()) == (values.tolist(), counts.tolist())


def test_noise_scales_equal_the_library_s_and_the_spent_budget_is_below_the_claim():
    protocol = register.make("protocol", Spec("dp-ebm", {"epsilon": 2.0, "max_rounds": 20}))
    run, local_data = sample_training(protocol)
    _, schema = sample_table()
    fitted = protocol.estimator(schema, 1).fit(local_data["client-0"].X, local_data["client-0"].y)
    binning, boosting = protocol.scales(len(schema.features))
    assert binning == pytest.approx(fitted.noise_scale_binning_, rel=1e-6)
    # The library's scale applies to sums that are multiplied by the learning rate.
    assert boosting * protocol.learning_rate == pytest.approx(
        fitted.noise_scale_boosting_, rel=1e-6
    )
    assert 1.5 < protocol.spent(run.transcript).epsilon < protocol.claim().epsilon == 2.0
    assert not any(
        len(sent_model.unique) or len(sent_model.histogram)
        for sent_model in of(run.transcript, ClientShapes)
    )


def test_noise_of_a_released_model_is_the_system_s():
    protocol = register.make("protocol", Spec("dp-ebm", {}))
    assert protocol.seed_of(Streams(0, "system").client(0)) is None
    assert protocol.seed_of(Streams(0, "seed").client(0)) is not None


def test_ranges_are_declared_or_it_is_refused():
    protocol = register.make("protocol", Spec("dp-ebm", {}))
    bare = Schema((Feature("age"),), "label", ("no", "yes"))
    with pytest.raises(UsageError, match=r"declared range of every numeric column; age"):
        protocol.check(bare)


def test_missing_values_are_refused_because_noisy_bins_have_no_bin_for_them():
    table, schema = sample_table(0, 9)
    local_data = LocalData.of(Table(np.where(table.X > 9, np.nan, table.X), table.y))
    noisy = register.make("protocol", Spec("dp-ebm", {}))
    noisy.without_noise().check_local_data("client-1", local_data, schema)
    with pytest.raises(DataError, match=r"no bins for missing values, as 'client-1' has"):
        noisy.check_local_data("client-1", local_data, schema)


def test_a_merged_model_reveals_the_columns_of_every_client():
    """The bags of one client change only at its own cuts, which are midway between its values."""
    table, schema = sample_table(0, 90)
    table = Table(np.round(table.X, 2), table.y)
    local_data = over_clients([table.take(part) for part in np.array_split(np.arange(90), 3)])
    protocol = register.make("protocol", Spec("ebm-merge", {"outer_bags": 8, "max_rounds": 50}))
    view = view_of(train(protocol, local_data, schema, seed=1), ("client-1",), local_data)
    columns_of_clients = columns_of(view)
    assert [*columns_of_clients] == ["client-0", "client-2"]
    for client, columns in columns_of_clients.items():
        for column, recovered in zip(local_data[client].table.X.T, columns, strict=True):
            assert recovered.values.tolist() == np.unique(column).tolist()
            assert not recovered.exact  # because the guess prefers values with few digits
    rows = Table.concat(
        [local_data["client-0"].table, local_data["client-2"].table, sample_table(7, 60)[0]]
    )
    claims = MembershipInference(models=2).run(replace(view, candidates=rows), None).claims
    for claim in claims:
        assert claim.score[:60].min() > claim.score[60:].max()


def test_members_of_noisy_models_are_scored_by_counts_and_ratios():
    view = replace(view_in("dp-ebm[max_rounds=5]", "public"), candidates=sample_table(0, 60)[0])
    claims = MembershipInference(models=2).run(view, np.random.default_rng(0)).claims
    assert {c.test for c in claims} == {"together", "posterior", "lira", "rmia"}
    assert all(np.isfinite(c.score).all() for c in claims)
