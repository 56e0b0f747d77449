"""The core of the study of evidence, read and ignored, at small size."""

import numpy as np
import pytest

from fedtrees.benchmarks.papers.evidence_read import PAIRS, Line, fits, measured


@pytest.mark.parametrize(
    ("seat", "defense"),
    [
        (("fedtree-hist", "server"), "secure-sum+hist-rounding[step=1]"),
        (("fedtree-hist", "server"), "secure-sum+laplace-hist[epsilon=4]"),
        (("nvflare-hist", "client"), "hist-rounding[step=0.1]"),
    ],
)
def test_bins_read_are_worth_no_less_than_bins_ignored(seat, defense):
    pairs, small = PAIRS[:1], {"trees": 3, "max_bin": 32, "max_depth": 3}
    (line,) = measured("breast-cancer", seat, defense, (0, 1), pairs=pairs, **small)
    least = 0.05 if seat[1] == "server" else -0.01
    assert np.mean(line.gains) > least


def test_a_line_is_worse_only_beyond_the_spread_of_its_differences():
    def line(ignored, read):
        return Line("", "", "", "", "", ignored, read, read)

    assert line((0.5, 0.5, 0.5), (0.45, 0.46, 0.44)).worse
    assert not line((0.5, 0.5, 0.5), (0.45, 0.53, 0.5)).worse
    assert not line((0.5, 0.5), (0.499, 0.498)).worse


def test_defenses_that_need_another_protocol_are_left_out():
    assert not fits("nvflare-hist", "client", "split-only")
    assert fits("fedtree-hist", "server", "split-only")
