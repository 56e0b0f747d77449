"""The main computations of the study of counts, at a small size."""

import csv

import numpy as np
import pytest

from fedtrees.benchmarks.papers.counts import (
    FRONTIER,
    UNROUNDED,
    DefenseSetting,
    Measurement,
    add_random_rows,
    infer_leaf_counts,
    measure_cost,
    measure_lines,
    store,
    text_of,
)
from fedtrees.core.schema import Feature, Schema, Table

TABLE = "breast-cancer"


def test_a_coarse_step_hides_leaves_of_many_clients_first():
    fine, coarse = (
        infer_leaf_counts(TABLE, DefenseSetting(f"hist-rounding[step={s}]"), 0, None)
        for s in (0.1, 1.0)
    )
    assert [part.certain for part in fine] == [1, 1, 1]
    assert coarse[0].likely > coarse[2].likely
    assert all(part.wrong == 0 and part.likely >= part.certain for part in (*fine, *coarse))


@pytest.mark.long
def test_random_rows_hide_counts_but_real_rows_stay_readable():
    line = DefenseSetting("none", random_rows=10)
    of_real_rows, _, of_all_rows = infer_leaf_counts(TABLE, line, 0, None)
    assert (
        of_all_rows.wrong == 0
    )  # Counts that are certain are counts of all rows, real and random ones.
    assert of_all_rows.certain < of_real_rows.certain < 1
    cost = measure_cost(TABLE, line, 0, None, rows=True, trees=3)
    assert cost["among"] >= cost["read"] > cost["blind"] + 0.15


@pytest.mark.long
def test_reading_bins_is_better_than_ignoring_them_and_both_beat_the_blind_guess():
    cost = measure_cost(
        TABLE, DefenseSetting("hist-rounding[step=0.5]"), 0, None, rows=True, trees=3
    )
    assert cost["read"] > cost["ignored"] + 0.05 > cost["blind"] + 0.1
    assert cost["auc"] > 0.9
    assert "among" not in cost


def test_random_rows_lie_in_the_ranges_of_a_client_and_have_valid_codes():
    kinds = (Feature("a", low=0.0, high=9.0), Feature("b", "categorical", categories=("x", "y")))
    client_table = Table(np.array([[1.0, 0.0], [np.nan, 1.0], [3.0, 1.0]]), np.array([0, 1, 1]))
    extended = add_random_rows(
        client_table, Schema(kinds, "y", ("0", "1")), 50, np.random.default_rng(0)
    )
    assert len(extended) == 53
    random_rows = extended.X[3:]
    assert ((random_rows[:, 0] >= 1) & (random_rows[:, 0] <= 3)).all()
    assert set(random_rows[:, 1]) == {0.0, 1.0}
    assert set(extended.y[3:]) == {0, 1}


def test_tables_pair_auc_by_seed_and_mark_missing_measurements(tmp_path):
    step = FRONTIER[1].name
    values = [(UNROUNDED.name, 0, 0.8), (UNROUNDED.name, 1, 0.6), (step, 0, 0.7), (step, 1, 0.55)]
    measurements = [Measurement("t", name, seed, "auc", value) for name, seed, value in values]
    measurements += [
        Measurement("t", step, 0, f"{kind}, {depth}", depth / 4)
        for kind in ("certain", "likely")
        for depth in (1, 3)
    ]
    measurements += [Measurement("t", step, 0, "read", 0.5), Measurement("t", step, 1, "read", 0.7)]
    text = text_of([*measurements, Measurement("t", step, 0, "wrong", 2.0)])
    assert "2 certain are wrong" in text
    assert "deviations up to 14.1" in text
    assert f"| {step} | 0.25 / 0.25 | - / - | 0.75 / 0.75 |" in text
    assert f"| {step} | -0.075 ± 0.025 | 0.75 / 0.25 | - / 60.0 |" in text
    store(measurements, tmp_path)
    assert (tmp_path / "counts.md").read_text() == text_of(measurements)
    lines = list(csv.DictReader((tmp_path / "counts.csv").open()))
    assert len(lines) == len(measurements)
    assert lines[0] == {
        "table": "t", "defense": "`none`", "seed": "0", "measure": "auc", "value": "0.800000",
    }  # fmt: skip


@pytest.mark.parametrize("line", [FRONTIER[-1], FRONTIER[-2]], ids=lambda line: line.name)
def test_the_frontier_includes_other_protocols_and_base_scores(line):
    measured = {
        measurement.measure: measurement.value
        for measurement in measure_lines(TABLE, [line], 1, 0, None)
    }
    assert measured["auc"] > 0.8
    assert ("likely, 3" in measured) == (not line.protocol)
    assert measured.get("wrong", 0) == 0
