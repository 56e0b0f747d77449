"""V-measures of attacks on record identifiers are compared with Table 2 of Takahashi et al."""

from argparse import Namespace

import pytest

from fedtrees.benchmarks.papers import id2graph_seeds
from fedtrees.benchmarks.papers.id2graph_seeds import run, v_measures


@pytest.mark.long
def test_published_values_are_next_to_the_attack_that_they_name(monkeypatch):
    monkeypatch.setattr(id2graph_seeds, "DATA", ("breast-cancer",))
    compared = {
        (comparison.setting, comparison.score): comparison
        for comparison in run(Namespace(fast=True, data_dir=None))
    }
    assert len(compared) == 8
    measured = v_measures("breast-cancer", "secureboost", 0, None)
    attacked = compared["breast-cancer, secureboost, id2graph", "V-measure"]
    assert (attacked.ours, attacked.blind) == (measured["id2graph"], measured["cl"])
    assert attacked.strongest == max(measured["id2graph-published"], measured["spectral"])
    clustering = compared["breast-cancer, secureboost", "V-measure of CL"]
    assert (clustering.ours, clustering.seeds) == (measured["cl"], 1)
    # All leaves of breast cancer are connected, so that the union is one group.
    assert compared["breast-cancer, secureboost, union", "V-measure"].ours == pytest.approx(0)
