"""The campaign of inferred counts finds no wrong bound in random runs of every kind."""

import numpy as np
import pytest
from counts_campaign import campaign

from fedtrees.attacks.counts.count_bounds import possible


@pytest.mark.long
def test_random_runs_of_every_kind_have_no_wrong_bound():
    """`python tests/attacks/counts_campaign.py` checks more runs."""
    counts_of_events = campaign(0, 16)
    assert counts_of_events["wrong"] == 0
    assert counts_of_events["certain"] > 1000
    assert counts_of_events["read"] >= 5


@pytest.mark.long
def test_the_campaign_detects_a_wrong_bound(monkeypatch):
    """The campaign fails if missing values are treated as present."""

    def ignore_missing_values(tree, cuts, row, most, missing):
        return possible(tree, cuts, row, most, np.zeros_like(missing))

    monkeypatch.setattr("fedtrees.attacks.counts.interval_counts.possible", ignore_missing_values)
    assert campaign(43, 1)["wrong"] > 0
