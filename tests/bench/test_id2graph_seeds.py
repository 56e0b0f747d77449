"""V-measures of attacks on record identifiers are compared with Table 2 of Takahashi et al."""

from argparse import Namespace

import pytest

from fedtrees.benchmarks.papers import id2graph_tables
from fedtrees.benchmarks.papers.id2graph_tables import attack_tables, v_measures


@pytest.mark.long
def test_published_values_are_next_to_the_attack_that_they_name(monkeypatch):
    monkeypatch.setattr(id2graph_tables, "DATA", ("breast-cancer",))
    compared = {
        (comparison.setting, comparison.score): comparison
        for comparison in attack_tables(Namespace(seeds=1, data_dir=None))
    }
    assert len(compared) == 8
    measured = v_measures("breast-cancer", "secureboost", 0, None)
    attacked = compared["breast-cancer, secureboost, id2graph", "V-measure"]
    assert (attacked.measured, attacked.blind) == (measured["id2graph"], measured["cl"])
    assert attacked.strongest == max(measured["id2graph-published"], measured["spectral"])
    clustering = compared["breast-cancer, secureboost", "V-measure of CL"]
    assert (clustering.measured, clustering.seeds) == (measured["cl"], 1)
    # All leaves of breast cancer are connected, so that the union is one group.
    assert compared["breast-cancer, secureboost, union", "V-measure"].measured == pytest.approx(0)
