"""Attribute inference: as blind where a view tells nothing, far above it where sums are seen."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedtrees.attacks.attributes.attack import (
    AttributeInference,
    Sum,
    Sums,
    _taught,
    fit_probabilities,
)
from fedtrees.blind_baselines.imputer import Imputer, KnownRows, decoded
from fedtrees.conformance.samples import sample_table
from fedtrees.core.claims import Entries
from fedtrees.core.errors import UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_grid, parse_one
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.experiments.evaluate import make_defense
from fedtrees.metrics.entries import EntriesMetric
from fedtrees.metrics.metric import Case
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

NAMES = {"server": "server", "client": "client-1", "public": "public"}


@cache
def world(who="server", attribute=0, defense="none", seed=0):
    """Train on 80 rows of two clients; return the view with what is told, and the case."""
    table, schema = sample_table(seed)
    held = over_clients([table.take(np.arange(k, 80, 2)) for k in range(2)])
    protocol, made = FedTreeHist(trees=3, max_depth=3), make_defense(parse_one(defense))
    run = train(protocol, held, schema, defense=made, seed=1)
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(held, roles, (NAMES[who],), schema, Streams(0), f"{who}[sensitive={attribute}]")
    return view_of(
        run, case.principals, held, known_rows=case.known_labels, entries=case.known_entries
    ), case


def scored(claims, case):
    metric = EntriesMetric()
    return {s.key: s.value for s in metric.score(claims, metric.truth(case))}


def test_all_of_others_rows_is_told_but_one_attribute():
    view, case = world("client", 4)
    told, mine = KnownRows.of(view), case.victims_rows
    assert told.columns == (4,)
    assert np.isnan(told.rows.X[:, 4]).all()
    assert np.array_equal(told.rows.X[:, :4], mine.X[:, :4])
    assert np.array_equal(told.rows.y, mine.y)
    assert {*EntriesMetric().truth(case).feature.tolist()} == {4}


def test_another_threat_tells_no_attribute_to_infer():
    view, _ = world()
    reason = AttributeInference().inapplicable(replace(view, known_entries=None))
    assert reason.code == "not-all-but-one"
    with pytest.raises(UsageError, match="counted from 0"):
        world("server", 5)
    with pytest.raises(UsageError, match="not both"):
        Threat.parse("client[sensitive=0,labels=3]")


@pytest.mark.parametrize("attribute", [0, pytest.param(4, marks=pytest.mark.long)])
def test_who_sees_nothing_says_what_the_blind_imputer_does(attribute):
    view, case = world("client", attribute)
    guess = AttributeInference().run(view.blinded(), np.random.default_rng(0))
    blind = EntriesMetric().blind(case, EntriesMetric().truth(case))["imputed"]
    assert np.array_equal(guess.first(Entries).value, blind[0].value)


@pytest.mark.parametrize("defense", ["none", pytest.param("secure-sum", marks=pytest.mark.long)])
def test_sums_and_sketches_tell_far_more_than_a_blind_guess(defense):
    gained = []
    for seed in range(2):
        view, case = world("server", 0, defense, seed)
        guess = AttributeInference().run(view, np.random.default_rng(0))
        metric = EntriesMetric()
        line = metric.line(case, metric.truth(case), {})
        gained.append(scored(guess.claims, case)["entries_close"] - line["entries_close"])
    assert np.mean(gained) > 0.25


def test_rows_that_sums_tell_of_teach_one_another():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2)).astype(np.float32)
    X[:, 1] = 2 * X[:, 0] + 0.1 * X[:, 1]
    schema, x = Schema((Feature("u"), Feature("v")), "y", ("0", "1")), X[:, 0]
    told = replace(KnownRows.of(world()[0]), rows=Table(X, rng.integers(0, 2, 150)), columns=(0,))
    told = replace(told, ids=np.arange(150))
    values = np.linspace(-3, 3, 41, dtype=np.float32)[:, None]
    off = x + rng.normal(size=150)
    rough = np.exp(-0.5 * (values[:, 0] - off[:, None]) ** 2)
    rough /= rough.sum(axis=1, keepdims=True)
    likely = [decoded(p, values, 0.3)[:, 0]
              for p in (rough, _taught(told, schema, values, rough))]  # fmt: skip
    before, after = (np.corrcoef(y, x)[0, 1] for y in likely)
    assert before < 0.85 < 0.95 < after


@pytest.mark.parametrize(("who", "times"), [("server", 2), ("client", 0)])
def test_rows_are_taught_by_one_another_where_nobody_holds_any(monkeypatch, who, times):
    asked = []
    monkeypatch.setattr(
        "fedtrees.attacks.attributes.attack._taught",
        lambda told, schema, values, p: asked.append(p) or np.ones(p.shape),
    )
    AttributeInference().run(world(who)[0], np.random.default_rng(0))
    assert len(asked) == times


def test_fitted_chances_have_the_sums_that_were_seen():
    rng = np.random.default_rng(0)
    p, sure = rng.dirichlet(np.ones(3), size=20), rng.integers(0, 3, 20)
    h = rng.uniform(0.1, 0.3, 20)
    terms = np.repeat(h[None, :, None], 3, axis=2).astype(np.float32)
    total = np.bincount(sure, h, minlength=3)[None]
    known = Sum(np.arange(20), terms, total, np.arange(3), np.full(1, 1e-6))
    got = fit_probabilities(p, Sums(np.arange(3), (known,), np.ones((20, 3), dtype=bool)), None)
    assert np.allclose(got.sum(axis=1), 1)
    assert np.allclose(h @ got, total[0], atol=1e-3)


def test_the_imputer_finds_what_other_columns_tell():
    table, schema = sample_table()
    X = table.X.copy()
    X[:, 3] = X[:, 0] - X[:, 2]
    taught = Imputer(replace(table, X=X[:120], y=table.y[:120]), schema, (3,))
    rows = replace(table, X=X[120:], y=table.y[120:])
    near = decoded(taught.chances(rows, taught.values), taught.values, 0.3)[:, 0]
    assert (np.abs(near - X[120:, 3]) < 0.3 * X[:, 3].std()).mean() > 0.9


def test_the_imputer_finds_ratios():
    table, schema = sample_table()
    X = np.random.default_rng(0).lognormal(0, 1, table.X.shape).astype(np.float32)
    X[:, 3], X[:, 4] = X[:, 0] / X[:, 2], table.X[:, 4]
    taught = Imputer(replace(table, X=X[:120], y=table.y[:120]), schema, (3,))
    rows = replace(table, X=X[120:], y=table.y[120:])
    near = decoded(taught.chances(rows, taught.values), taught.values, 0.3)[:, 0]
    assert (np.abs(np.log(near / X[120:, 3])) < 0.3).mean() > 0.9


def test_a_model_that_is_sure_of_the_label_tells_the_attribute():
    rng = np.random.default_rng(0)
    table, schema = sample_table()
    X = rng.normal(size=table.X.shape).astype(np.float32)
    X[:, 4] = table.X[:, 4]
    whole = replace(table, X=X, y=(X[:, 0] > 0).astype(table.y.dtype))
    held = over_clients([whole.take(np.arange(k, 240, 2)) for k in range(2)])
    forest = register.make("protocol", parse_grid("forest-hist[trees=5,max_depth=3]")[0])
    run = train(forest, held, schema, seed=1)  # of whose sums nothing is fitted
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(held, roles, ("public",), schema, Streams(0), "public[sensitive=0]")
    view = view_of(run, ("public",), held, known_rows=case.known_labels, entries=case.known_entries)
    value = AttributeInference().run(view, np.random.default_rng(0)).first(Entries).value
    y = KnownRows.of(view).rows.y
    assert value[y == 1].mean() > value[y == 0].mean()
