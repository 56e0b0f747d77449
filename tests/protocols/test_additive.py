"""Explainable boosting machines: what crosses is interpret-core's, and tells the columns."""

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
    """Return a run, and the clients' models as the library fits them."""
    protocol = register.make("protocol", Spec("ebm-merge", FEW))
    run, held = sample_training(protocol)
    _, schema = sample_table()
    seeds = [protocol.seed_of(Streams(5).client(k)) for k in range(3)]
    fitted = [
        protocol.estimator(schema, s).fit(h.X.astype(np.float64), h.y)
        for s, h in zip(seeds, held.values(), strict=True)
    ]
    return run, held, fitted


def test_what_crosses_is_what_to_json_writes():
    run, _, fitted = runs()
    for model, m in zip(fitted, of(run.transcript, ClientShapes), strict=True):
        written = model.to_jsonable(detail="all")["ebm"]
        assert m.bag_weights.tolist() == written["bag_weights"]
        assert m.intercept.tolist() == written["bagged_intercept"]
        assert m.iterations.tolist() == np.ravel(written["best_iteration"]).tolist()
        for f, (column, bins) in enumerate(zip(written["features"], m.bins, strict=True)):
            (term,) = (t for t in written["terms"] if t["term_features"] == [column["name"]])
            part = slice(*m.histogram_offsets[f : f + 2])
            assert m.cuts_of(f).tolist() == column["cuts"][0]
            assert (m.low[f], m.high[f], m.unique[f]) == (
                column["min"], column["max"], column["num_unique_vals"],
            )  # fmt: skip
            assert m.histogram[part].tolist() == column["histogram_weights"]
            assert m.bin_weights[bins].tolist() == term["bin_weights"]
            assert m.scores[:, bins].tolist() == term["bagged_scores"]
            mean = np.average(m.scores[:, bins], axis=0, weights=m.bag_weights)
            np.testing.assert_allclose(mean, term["scores"], atol=1e-12)


def test_the_model_is_that_of_merge_ebms():
    from interpret.glassbox import merge_ebms

    run, held, fitted = runs()
    X = np.concatenate([h.X for h in held.values()])
    X[::7, 1] = np.nan
    said = merge_ebms(fitted).predict_proba(X.astype(np.float64))[:, 1]
    np.testing.assert_allclose(run.model.predict(X), said, rtol=1e-12)
    (*_, told) = of(run.transcript, MergedShapes)
    assert len(told.bag_weights) == 3 * FEW["outer_bags"]


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


def test_noise_is_the_library_s_and_what_is_spent_is_less_than_claimed():
    protocol = register.make("protocol", Spec("dp-ebm", {"epsilon": 2.0, "max_rounds": 20}))
    run, held = sample_training(protocol)
    _, schema = sample_table()
    fitted = protocol.estimator(schema, 1).fit(held["client-0"].X, held["client-0"].y)
    binning, boosting = protocol.scales(len(schema.features))
    assert binning == pytest.approx(fitted.noise_scale_binning_, rel=1e-6)
    # of sums that are multiplied by the learning rate
    assert boosting * protocol.learning_rate == pytest.approx(
        fitted.noise_scale_boosting_, rel=1e-6
    )
    assert 1.5 < protocol.spent(run.transcript).epsilon < protocol.claim().epsilon == 2.0
    assert not any(len(m.unique) or len(m.histogram) for m in of(run.transcript, ClientShapes))


def test_noise_of_a_released_model_is_the_system_s():
    protocol = register.make("protocol", Spec("dp-ebm", {}))
    assert protocol.seed_of(Streams(0, "system").client(0)) is None
    assert protocol.seed_of(Streams(0, "seed").client(0)) is not None


def test_ranges_are_declared_or_it_is_refused():
    protocol = register.make("protocol", Spec("dp-ebm", {}))
    bare = Schema((Feature("age"),), "label", ("no", "yes"))
    with pytest.raises(UsageError, match=r"declared range of every numeric column; age"):
        protocol.check(bare)


def test_a_missing_value_is_refused_where_noisy_bins_have_no_place_for_it():
    table, schema = sample_table(0, 9)
    held = LocalData.of(Table(np.where(table.X > 9, np.nan, table.X), table.y))
    noisy = register.make("protocol", Spec("dp-ebm", {}))
    noisy.without_noise().check_local_data("client-1", held, schema)
    with pytest.raises(DataError, match=r"no bins for missing values, as 'client-1' has"):
        noisy.check_local_data("client-1", held, schema)


def test_a_merged_model_is_the_columns_of_every_client():
    """Bags of one client change at its cuts alone, which are midway between its values."""
    table, schema = sample_table(0, 90)
    table = Table(np.round(table.X, 2), table.y)
    held = over_clients([table.take(part) for part in np.array_split(np.arange(90), 3)])
    made = register.make("protocol", Spec("ebm-merge", {"outer_bags": 8, "max_rounds": 50}))
    view = view_of(train(made, held, schema, seed=1), ("client-1",), held)
    found = columns_of(view)
    assert [*found] == ["client-0", "client-2"]
    for owner, columns in found.items():
        for column, told in zip(held[owner].table.X.T, columns, strict=True):
            assert told.values.tolist() == np.unique(column).tolist()
            assert not told.exact  # rounder values were believed
    rows = Table.concat([held["client-0"].table, held["client-2"].table, sample_table(7, 60)[0]])
    claims = MembershipInference(models=2).run(replace(view, candidates=rows), None).claims
    for claim in claims:
        assert claim.score[:60].min() > claim.score[60:].max()


def test_members_of_noisy_models_are_scored_by_counts_and_ratios():
    view = replace(view_in("dp-ebm[max_rounds=5]", "public"), candidates=sample_table(0, 60)[0])
    claims = MembershipInference(models=2).run(view, np.random.default_rng(0)).claims
    assert {c.test for c in claims} == {"together", "posterior", "lira", "rmia"}
    assert all(np.isfinite(c.score).all() for c in claims)
