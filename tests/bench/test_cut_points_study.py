"""Exact sums on a grid reveal values wherever a cell contains a single distinct number."""

import numpy as np
import pytest
from federations import sample_federation

from fedtrees.benchmarks.papers.cut_points import share_inferred_from_sums
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.specs import parse_composed
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
from fedtrees.protocols.training import train


@pytest.mark.parametrize(
    ("defense", "expected_share"), [("cells=128", 1.0), ("cells=16,rounds=1", 0.0)]
)
def test_integers_are_inferred_from_cells_that_contain_a_single_one(defense, expected_share):
    clients, _ = sample_federation()
    rng = np.random.default_rng(0)
    clients = [
        Table(
            np.column_stack([rng.integers(-40, 40, len(client)), np.round(client.X[:, 1], 0)]),
            client.y,
        )
        for client in clients
    ]
    schema = Schema((Feature("a", low=-64, high=64), Feature("b", low=-64, high=64)), "y")
    defense = make_defense(parse_composed([f"grid-cuts[{defense}]"])[0])
    run = train(FedTreeHist(trees=1), over_clients(clients), schema, defense=defense)
    assert (
        share_inferred_from_sums(run.transcript, np.concatenate([client.X for client in clients]))
        == expected_share
    )
