"""Forests of clients are attributed to their owners, also if a client has no rows."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.attacks.forest_gibbs.gibbs import read_target_forests
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of


@pytest.mark.parametrize(
    ("ends", "principal", "owners"),
    [
        ((60, 60), "client-0", [""]),  # client-1 or client-2
        ((0, 60), "client-0", ["client-1", "client-2"]),
        ((0, 60), "client-2", [""]),
        ((0, 60), "server", ["client-1", "client-2"]),
        ((40, 80), "client-1", ["client-0", "client-2"]),
    ],
)
def test_the_forest_of_the_adversary_is_not_a_source_if_a_client_has_no_rows(
    ends, principal, owners
):
    (table,), schema = sample_federation(rows=120, clients=1)
    local_data = over_clients([table.take(part) for part in np.split(np.arange(120), ends)])
    protocol = register.make("protocol", parse_grid("local-forests[trees=3,max_depth=2]")[0])
    view = view_of(train(protocol, local_data, schema, seed=1), (principal,), local_data)
    sources = read_target_forests(view)
    assert [source.owner for source in sources] == owners
    n_local = 0 if view.rows is None else len(view.rows)
    assert sum(source.rows for source in sources) == 120 - n_local
