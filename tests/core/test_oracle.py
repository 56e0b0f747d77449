"""A prediction endpoint has a budget and a log; threats use the roles of the protocol."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.core.endpoint import Oracle
from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.core.threat import Threat
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ROLES = {"active": "active", "passive-0": "passive", "passive-1": "passive", "public": "public"}


def test_it_answers_no_more_rows_than_its_budget():
    queries = []
    oracle = Oracle(lambda X: queries.append(X) or X[:, 0].astype(float), 5)
    assert oracle.query(np.array([[1, 2], [3, 4]])).tolist() == [1.0, 3.0]
    assert queries[0].dtype == np.float32
    assert (oracle.left, oracle.log) == (3, [2])
    with pytest.raises(
        ProtocolError, match=r"a query of 4 rows exceeds the 3 of 5 rows that are left.*queries="
    ):
        oracle.query(np.zeros((4, 2)))
    # The refused query was not answered.
    assert (oracle.left, oracle.log, len(queries)) == (3, [2], 1)
    oracle.query(np.zeros((3, 2)))
    assert oracle.left == 0
    with pytest.raises(ProtocolError, match="exceeds the 0 of 5 rows"):
        oracle.query(np.zeros((1, 2)))


def test_a_budget_of_nothing_is_none():
    with pytest.raises(UsageError, match="permits no query; give 1 or more"):
        Oracle(lambda X: X[:, 0], 0)


def test_a_view_has_an_oracle_only_if_the_threat_has_queries():
    tables, schema = sample_federation(rows=60)
    local_data = over_clients(tables)
    protocol = register.make("protocol", Spec("fedtree-hist", {"trees": 1, "max_depth": 2}))
    training = train(protocol, local_data, schema)
    assert view_of(training, ("client-0",), local_data).oracle is None
    view = view_of(training, ("client-0",), local_data, queries=20)
    X = tables[1].X
    np.testing.assert_array_equal(view.oracle.query(X[:20]), training.predict(X[:20]))
    assert view.oracle.log == [20]
    assert view.blinded().oracle is None
    assert view.blinded().seen == ()


@pytest.mark.parametrize(
    ("text", "names", "queries"),
    [
        ("passive", ("passive-1",), 0),
        ("passive[index=0]", ("passive-0",), 0),
        ("passive[count=2]", ("passive-0", "passive-1"), 0),
        ("active+passive", ("active", "passive-1"), 0),
        ("public[queries=1000]", ("public",), 1000),
        ("passive[index=1,queries=5]+active[queries=2]", ("passive-1", "active"), 7),
        ("passive[index=0]+passive[count=2]", ("passive-0", "passive-1"), 0),
    ],
)
def test_roles_are_those_of_the_protocol(text, names, queries):
    threat = Threat.parse(text, ROLES)
    assert threat.principals(ROLES) == names
    assert threat.queries == queries
    assert str(threat) == text


@pytest.mark.parametrize(
    ("text", "error_message"),
    [
        # The roles are listed once.
        ("client", "^unknown threat 'client': the roles of this protocol are active, passive, pub"),
        ("pasive", "did you mean 'passive'"),
        ("passive[index=2]", "only 2 of them"),
        ("passive[count=3]", "only 2 of them"),
        ("active[count=2]", "there is one active, give neither index nor count"),
        ("public[queries=0]", "queries=0 is not a valid number"),
        ("public[queries=2.5]", "queries=2.5 is not a valid number"),
        ("public[querys=2]", "did you mean 'queries'"),
        ("passive[index=0,count=1]", "give index or count, not both"),
    ],
)
def test_a_threat_that_no_party_of_the_protocol_fits_is_refused(text, error_message):
    with pytest.raises(UsageError, match=error_message):
        Threat.parse(text, ROLES)


def test_without_roles_only_the_grammar_is_checked():
    assert Threat.parse("anybody[index=3]").principals({f"a-{i}": "anybody" for i in range(4)}) == (
        "a-3",
    )
