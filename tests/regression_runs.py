"""Small federations of regressions and their inversions, for tests."""

import numpy as np

from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import Streams
from fedtrees.core.threat import Threat
from fedtrees.data.partition import columns_of
from fedtrees.experiments.evaluate import make_defense, score_guess
from fedtrees.metrics.metric import Case
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


def table(m, d, seed=0, classes=True):
    """Return correlated rows of integers and their schema."""
    rng = np.random.default_rng(seed)
    X = np.rint(20 * rng.normal(size=(m, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))))
    score = X @ rng.normal(size=d)
    y = (score > np.median(score)).astype(np.int64) if classes else score
    features = tuple(Feature(f"f{i}") for i in range(d))
    return Table(X.astype(np.float32), y), Schema(features, "t", ("0", "1") if classes else ())


def by_columns(rows, active):
    """Assign the first columns to the active party, and the remaining ones to a passive party."""
    columns = np.arange(rows.X.shape[1])
    return {
        "active": columns_of(rows, columns[:active], True),
        "passive-1": columns_of(rows, columns[active:], False),
    }


def by_rows(rows, victims):
    """Assign the last rows to a second client."""
    parts = np.split(np.arange(len(rows)), [len(rows) - victims])
    return over_clients([rows.take(part) for part in parts])


def trained(protocol, local_data, schema, defense="none", seed=0):
    """Train a regression."""
    protocol_object = register.make("protocol", parse_grid(protocol)[0])
    composed = make_defense(parse_composed([defense])[0])
    return train(protocol_object, local_data, schema, defense=composed, seed=seed)


def view_and_case_of(run, local_data, threat):
    """Return the view and the case of a threat."""
    roles, parsed = run.transcript.roles, Threat.parse(threat)
    principals = parsed.principals(roles)
    case = Case(local_data, roles, principals, run.schema, Streams(0), threat, model=run.model)
    return view_of(run, principals, local_data, parsed.queries, entries=case.known_entries), case


def inverted(run, local_data, threat, attack="regression-inversion"):
    """Return scores, diagnostics and rows of results of an inversion."""
    view, case = view_and_case_of(run, local_data, threat)
    attack_object = register.make("attack", parse_grid(attack)[0])
    assert attack_object.inapplicable(view) is None
    guess = attack_object.run(view, np.random.default_rng(0))
    rows = list(score_guess("told", guess, case, None))
    return {r["metric"]: r["value"] for r in rows}, guess.notes, {r["metric"]: r for r in rows}
