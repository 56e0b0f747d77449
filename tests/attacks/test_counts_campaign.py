"""The campaign of counts read back: of random runs of every kind none is wrong."""

import numpy as np
import pytest
from counts_campaign import campaign

from fedtrees.attacks.counts.count_bounds import possible


@pytest.mark.long
def test_random_runs_of_every_kind_have_no_wrong_bound():
    """`python tests/attacks/counts_campaign.py` runs more of them."""
    found = campaign(0, 16)
    assert found["wrong"] == 0
    assert found["certain"] > 1000
    assert found["read"] >= 5


@pytest.mark.long
def test_a_wrong_bound_is_seen(monkeypatch):
    """The campaign fails where values are taken for present that are missing."""

    def careless(tree, cuts, row, most, missing):
        return possible(tree, cuts, row, most, np.zeros_like(missing))

    monkeypatch.setattr("fedtrees.attacks.counts.interval_counts.possible", careless)
    assert campaign(43, 1)["wrong"] > 0
