"""What exact sums on a grid tell: values, where a cell holds a single number."""

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


@pytest.mark.parametrize(("defense", "told"), [("cells=128", 1.0), ("cells=16,rounds=1", 0.0)])
def test_whole_numbers_are_told_by_cells_that_hold_one(defense, told):
    clients, _ = sample_federation()
    rng = np.random.default_rng(0)
    clients = [
        Table(np.column_stack([rng.integers(-40, 40, len(c)), np.round(c.X[:, 1], 0)]), c.y)
        for c in clients
    ]
    schema = Schema((Feature("a", low=-64, high=64), Feature("b", low=-64, high=64)), "y")
    defense = make_defense(parse_composed([f"grid-cuts[{defense}]"])[0])
    run = train(FedTreeHist(trees=1), over_clients(clients), schema, defense=defense)
    assert share_inferred_from_sums(run.transcript, np.concatenate([c.X for c in clients])) == told
