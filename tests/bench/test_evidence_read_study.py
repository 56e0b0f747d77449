"""The main computation of the study of evidence that is read or ignored, at a small size."""

from dataclasses import replace

import numpy as np
import pytest

from fedtrees.benchmarks.papers.evidence_read import PAIRS, SEATS, Line, Seat, measure_evidence


@pytest.mark.parametrize(
    ("seat", "defense"),
    [
        (("fedtree-hist", "server"), "secure-sum+hist-rounding[step=1]"),
        pytest.param(
            *(("fedtree-hist", "server"), "secure-sum+laplace-hist[epsilon=4]"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(("nvflare-hist", "client"), "hist-rounding[step=0.1]"), marks=pytest.mark.slow
        ),
    ],
)
def test_reading_bins_is_no_worse_than_ignoring_them(seat, defense):
    small = {"trees": 3, "max_bin": 32, "max_depth": 3}
    (line,) = measure_evidence(
        "breast-cancer", Seat(*seat, (), PAIRS[:1]), defense, (0, 1), **small
    )
    minimum_gain = 0.05 if seat[1] == "server" else -0.01
    assert np.mean(line.gains) > minimum_gain


def test_a_line_is_worse_only_beyond_the_spread_of_its_differences():
    def line(ignored, read):
        return Line("", SEATS[0], "", PAIRS[0], ignored, read)

    assert line((0.5, 0.5, 0.5), (0.45, 0.46, 0.44)).worse
    assert not line((0.5, 0.5, 0.5), (0.45, 0.53, 0.5)).worse
    assert not line((0.5, 0.5), (0.499, 0.498)).worse


def test_defenses_that_need_another_protocol_are_left_out():
    assert not Seat("nvflare-hist", "client", ()).fits("split-only")
    assert Seat("fedtree-hist", "server", ()).fits("split-only")


def test_scores_that_an_attack_does_not_have_are_left_out():
    active = SEATS[-1]
    (line,) = measure_evidence("breast-cancer", active, "none", (0,), trees=1, max_depth=2)
    assert (line.pair.attack, line.pair.metric) == ("split-ordering", "rank_correlation")
    assert not [
        *measure_evidence("breast-cancer", replace(active, pairs=PAIRS[-1:]), "none", (0,), trees=1)
    ]
