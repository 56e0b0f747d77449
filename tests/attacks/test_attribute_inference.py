"""Attribute inference equals the blind guess if a view contains no information, and is much
better if sums are visible.
"""

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
def view_and_case(role="server", attribute=0, defense="none", seed=0):
    """Train on 80 rows of two clients; return the view with the known attributes, and the case."""
    table, schema = sample_table(seed)
    local_data = over_clients([table.take(np.arange(k, 80, 2)) for k in range(2)])
    protocol, composition = FedTreeHist(trees=3, max_depth=3), make_defense(parse_one(defense))
    run = train(protocol, local_data, schema, defense=composition, seed=1)
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(
        local_data, roles, (NAMES[role],), schema, Streams(0), f"{role}[sensitive={attribute}]"
    )
    return view_of(
        run, case.principals, local_data, known_rows=case.known_labels, entries=case.known_entries
    ), case


def scores_of(claims, case):
    metric = EntriesMetric()
    return {score.key: score.value for score in metric.score(claims, metric.truth(case))}


def test_the_adversary_knows_all_attributes_of_the_victims_except_one():
    view, case = view_and_case("client", 4)
    known_rows, victims = KnownRows.of(view), case.victims_rows
    assert known_rows.columns == (4,)
    assert np.isnan(known_rows.rows.X[:, 4]).all()
    assert np.array_equal(known_rows.rows.X[:, :4], victims.X[:, :4])
    assert np.array_equal(known_rows.rows.y, victims.y)
    assert {*EntriesMetric().truth(case).feature.tolist()} == {4}


def test_the_attack_needs_a_threat_with_a_sensitive_attribute():
    view, _ = view_and_case()
    reason = AttributeInference().inapplicable(replace(view, known_entries=None))
    assert reason.code == "not-all-but-one"
    with pytest.raises(UsageError, match="counted from 0"):
        view_and_case("server", 5)
    with pytest.raises(UsageError, match="not both"):
        Threat.parse("client[sensitive=0,labels=3]")


@pytest.mark.parametrize("attribute", [0, pytest.param(4, marks=pytest.mark.long)])
def test_without_messages_the_attack_equals_the_blind_imputer(attribute):
    view, case = view_and_case("client", attribute)
    guess = AttributeInference().run(view.blinded(), np.random.default_rng(0))
    blind = EntriesMetric().blind(case, EntriesMetric().truth(case))["imputed"]
    assert np.array_equal(guess.first(Entries).value, blind[0].value)


@pytest.mark.parametrize("defense", ["none", pytest.param("secure-sum", marks=pytest.mark.long)])
def test_sums_and_sketches_give_much_higher_scores_than_a_blind_guess(defense):
    gains = []
    for seed in range(2):
        view, case = view_and_case("server", 0, defense, seed)
        guess = AttributeInference().run(view, np.random.default_rng(0))
        metric = EntriesMetric()
        blind_line = metric.line(case, metric.truth(case), {})
        gains.append(scores_of(guess.claims, case)["entries_close"] - blind_line["entries_close"])
    assert np.mean(gains) > 0.25


def test_refitting_on_estimated_rows_improves_the_estimates():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2)).astype(np.float32)
    X[:, 1] = 2 * X[:, 0] + 0.1 * X[:, 1]
    schema, x = Schema((Feature("u"), Feature("v")), "y", ("0", "1")), X[:, 0]
    known_rows = replace(
        KnownRows.of(view_and_case()[0]), rows=Table(X, rng.integers(0, 2, 150)), columns=(0,)
    )
    known_rows = replace(known_rows, ids=np.arange(150))
    values = np.linspace(-3, 3, 41, dtype=np.float32)[:, None]
    noisy_x = x + rng.normal(size=150)
    probabilities = np.exp(-0.5 * (values[:, 0] - noisy_x[:, None]) ** 2)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    estimates = [
        decoded(table, values, 0.3)[:, 0]
        for table in (probabilities, _taught(known_rows, schema, values, probabilities))
    ]
    before, after = (np.corrcoef(estimate, x)[0, 1] for estimate in estimates)
    assert before < 0.85 < 0.95 < after


@pytest.mark.parametrize(("role", "n_calls"), [("server", 2), ("client", 0)])
def test_refitting_is_used_only_without_local_rows(monkeypatch, role, n_calls):
    calls = []
    monkeypatch.setattr(
        "fedtrees.attacks.attributes.attack._taught",
        lambda known_rows, schema, values, p: calls.append(p) or np.ones(p.shape),
    )
    AttributeInference().run(view_and_case(role)[0], np.random.default_rng(0))
    assert len(calls) == n_calls


def test_fitted_probabilities_satisfy_the_observed_sums():
    rng = np.random.default_rng(0)
    p, true_level = rng.dirichlet(np.ones(3), size=20), rng.integers(0, 3, 20)
    hessian = rng.uniform(0.1, 0.3, 20)
    terms = np.repeat(hessian[None, :, None], 3, axis=2).astype(np.float32)
    total = np.bincount(true_level, hessian, minlength=3)[None]
    observed_sum = Sum(np.arange(20), terms, total, np.arange(3), np.full(1, 1e-6))
    fitted = fit_probabilities(
        p, Sums(np.arange(3), (observed_sum,), np.ones((20, 3), dtype=bool)), None
    )
    assert np.allclose(fitted.sum(axis=1), 1)
    assert np.allclose(hessian @ fitted, total[0], atol=1e-3)


def test_the_imputer_learns_differences_of_columns():
    table, schema = sample_table()
    X = table.X.copy()
    X[:, 3] = X[:, 0] - X[:, 2]
    imputer = Imputer(replace(table, X=X[:120], y=table.y[:120]), schema, (3,))
    rows = replace(table, X=X[120:], y=table.y[120:])
    imputed = decoded(imputer.chances(rows, imputer.values), imputer.values, 0.3)[:, 0]
    assert (np.abs(imputed - X[120:, 3]) < 0.3 * X[:, 3].std()).mean() > 0.9


def test_the_imputer_learns_ratios_of_columns():
    table, schema = sample_table()
    X = np.random.default_rng(0).lognormal(0, 1, table.X.shape).astype(np.float32)
    X[:, 3], X[:, 4] = X[:, 0] / X[:, 2], table.X[:, 4]
    imputer = Imputer(replace(table, X=X[:120], y=table.y[:120]), schema, (3,))
    rows = replace(table, X=X[120:], y=table.y[120:])
    imputed = decoded(imputer.chances(rows, imputer.values), imputer.values, 0.3)[:, 0]
    assert (np.abs(np.log(imputed / X[120:, 3])) < 0.3).mean() > 0.9


def test_a_confident_model_reveals_the_attribute():
    rng = np.random.default_rng(0)
    table, schema = sample_table()
    X = rng.normal(size=table.X.shape).astype(np.float32)
    X[:, 4] = table.X[:, 4]
    separable_table = replace(table, X=X, y=(X[:, 0] > 0).astype(table.y.dtype))
    local_data = over_clients([separable_table.take(np.arange(k, 240, 2)) for k in range(2)])
    forest = register.make("protocol", parse_grid("forest-hist[trees=5,max_depth=3]")[0])
    run = train(forest, local_data, schema, seed=1)  # The attack fits no sums of this protocol.
    roles = {**run.transcript.roles, "public": "public"}
    case = Case(local_data, roles, ("public",), schema, Streams(0), "public[sensitive=0]")
    view = view_of(
        run, ("public",), local_data, known_rows=case.known_labels, entries=case.known_entries
    )
    value = AttributeInference().run(view, np.random.default_rng(0)).first(Entries).value
    y = KnownRows.of(view).rows.y
    assert value[y == 1].mean() > value[y == 0].mean()
