"""Figures and tables show the advantage over the better of the two baselines."""

import math

import pandas as pd
import pytest
from synthetic_run import Table

from fedtrees.report import wording
from fedtrees.report.figures.model import panels_of
from fedtrees.report.statistics import with_errors


@pytest.fixture
def table(tmp_path):
    filled = Table(tmp_path)
    for seed in range(3):
        filled.train("none", seed, 0.8)
        filled.attack("none", seed, "a", 0.5, population=0.6, beyond=-0.1)
    return filled


def test_the_frontier_shows_no_leak_that_the_population_baseline_explains(table):
    frontier = table.frontier()
    assert frontier.point("none").advantage.mean == pytest.approx(-0.1)
    assert panels_of([frontier])[0].blind == "better baseline"


def test_a_score_is_written_with_both_baselines_if_there_are_both():
    assert wording.scored(0.5, 0.4, 0.6) == "score 0.500, blind 0.400, population 0.600"
    assert wording.scored(0.5, 0.4, float("nan")) == "score 0.500, blind 0.400"


def test_the_error_of_an_advantage_is_relative_to_the_baseline_that_is_subtracted():
    """The advantage over the population baseline of 0.8 is divided by 1 - 0.8."""
    scored = {"error": 0.01, "blind": 0.5, "population": math.nan, "advantage": 0.8}
    rows = pd.DataFrame(
        [
            {"metric": "ra", **scored, "beyond": math.nan},
            {"metric": "ra", **scored, "population": 0.8, "beyond": 0.5},
        ]
    )
    expected = [math.sqrt(2) * 0.01 / 0.5, math.sqrt(2) * 0.01 / 0.2]
    assert with_errors(rows)["advantage_error"].tolist() == pytest.approx(expected)


def test_the_error_of_an_advantage_is_relative_to_the_best_possible_value():
    """A Gower distance of 0 is perfect, so that the blind distance of 0.25 is the divisor."""
    row = {"error": 0.01, "blind": 0.25, "population": math.nan, "beyond": math.nan}
    rows = pd.DataFrame([{"metric": "gower", "advantage": 0.5, **row}])
    assert with_errors(rows)["advantage_error"].item() == pytest.approx(math.sqrt(2) * 0.01 / 0.25)
