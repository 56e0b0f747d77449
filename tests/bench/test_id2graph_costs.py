"""Ciphertexts of vertical trees are counted as by Takahashi et al. (2023)."""

from argparse import Namespace

import numpy as np
import pytest

from fedtrees.benchmarks.papers import id2graph_tables
from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.id2graph_tables import (
    PARTITION,
    PROTOCOLS,
    count_candidates,
    count_ciphertexts,
    count_tables,
    defense_of,
)
from fedtrees.benchmarks.papers.study import train_federation
from fedtrees.core.specs import Spec


def test_every_published_defense_has_an_equivalent():
    defenses = [
        defense_of(comparison.setting)
        for comparison in read_published("id2graph")
        if comparison.item == "Table 3"
    ]
    assert defenses[:3] == ["id-lmid[xi=0.5]", "id-lmid[xi=2.0]", "lp-mst[epsilon=0.5]"]
    assert defenses[-1] == "reduced-leakage"


def test_the_candidates_of_a_stump_are_the_values_of_its_columns():
    """The root of a forest without sampling has one candidate per value and passive column."""
    protocol = Spec("vertical-forest", {"trees": 1, "max_depth": 1, "max_bin": 65534})
    training, federation, _ = train_federation(
        "breast-cancer", protocol, 2, 0, None, partition=PARTITION
    )
    (data,) = [d for name, d in federation.local_data.items() if name.startswith("passive")]
    values = sum(len(np.unique(column)) for column in data.X.T)
    candidates = count_candidates(training)
    # Columns and rows of a tree are sampled.
    assert 0.4 * values < candidates <= values
    rows = count_ciphertexts(training, False, 2, False) - 2 * candidates
    assert rows == round(0.8 * len(data.X))
    assert count_ciphertexts(training, True, 2, True) == 2 * rows + 6 * candidates


@pytest.mark.long
def test_a_bound_on_information_saves_ciphertexts(monkeypatch):
    monkeypatch.setattr(id2graph_tables, "DATA", ("breast-cancer",))
    compared = count_tables(Namespace(seeds=1, data_dir=None))
    ratios = {c.setting: c.measured for c in compared if isinstance(c, Comparison)}
    assert ratios["vertical-forest, ID-LMID, xi=0.5"] < 0.7
    # A bound above ln 2 restricts nothing, but the counts of the check are sent with boosting.
    assert ratios["vertical-forest, ID-LMID, xi=2.0"] == 1
    assert ratios["secureboost, ID-LMID, xi=2.0"] == pytest.approx(1.48, abs=0.02)
    assert set(PROTOCOLS) == {setting.partition(",")[0] for setting in ratios}
