"""Reference models of membership inference imitate the sizes of the clients."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.attacks.membership import learners, references
from fedtrees.attacks.membership.learners import other_client_sizes, trainer_of
from fedtrees.core.local_data import over_clients
from fedtrees.core.registry import register
from fedtrees.core.specs import parse_grid
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of

ENDS = (150, 210)


@pytest.mark.parametrize(
    ("principal", "sizes"),
    [("server", [60, 24, 12]), ("client-0", [60, 30]), ("client-2", [100, 40])],
)
def test_reference_clients_have_rows_in_proportion_to_the_counts_of_the_model(
    monkeypatch, principal, sizes
):
    """The clients have 150, 60 and 30 rows. Of 240 candidates, a reference model uses some."""
    (table,), schema = sample_federation(rows=240, clients=1)
    local_data = over_clients([table.take(part) for part in np.split(np.arange(240), ENDS)])
    protocol = register.make("protocol", parse_grid("local-forests[trees=2,max_depth=2]")[0])
    training = train(protocol, local_data, schema, seed=1)
    view = view_of(training, (principal,), local_data)
    grown = []

    def recorded(X, *arguments, **options):
        grown.append(len(X))
        return grow(X, *arguments, **options)

    grow = references.grow_random_forest
    monkeypatch.setattr(references, "grow_random_forest", recorded)
    local_rows = table.take(np.arange(0)) if view.rows is None else view.rows
    used = np.zeros(240 + len(local_rows), dtype=bool)
    used[: sum(sizes)] = True
    used[240:] = True  # the local rows of the adversary are members
    all_rows = type(table).concat([table, local_rows])
    trainer_of(view, training.model)(all_rows, 240)(used[None])
    assert grown[: len(sizes)] == sizes


def test_reference_clients_have_equal_sizes_if_the_model_contains_no_counts():
    (table,), schema = sample_federation(rows=240, clients=1)
    local_data = over_clients([table.take(p) for p in np.split(np.arange(240), ENDS)])
    protocol = register.make("protocol", parse_grid("local-forests[trees=2,max_depth=2]")[0])
    view = view_of(train(protocol, local_data, schema, seed=1), ("client-1",), local_data)
    assert other_client_sizes(view, np.zeros(0)).tolist() == [1, 1]


@pytest.mark.parametrize("protocol", ["flower-bagging", "flower-cyclic", "local-ensembles"])
@pytest.mark.parametrize(
    ("principal", "sizes"), [("server", [150, 60, 30]), ("client-1", [150, 30])]
)
def test_shared_trees_reveal_the_sizes_of_reference_clients(protocol, principal, sizes):
    (table,), schema = sample_federation(rows=240, clients=1)
    local_data = over_clients([table.take(part) for part in np.split(np.arange(240), ENDS)])
    training_protocol = register.make("protocol", parse_grid(f"{protocol}[trees=6,max_depth=2]")[0])
    view = view_of(train(training_protocol, local_data, schema, seed=1), (principal,), local_data)
    assert learners._sizes_of_shared_trees(view).tolist() == sizes
