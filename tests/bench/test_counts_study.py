"""The core of the study of counts, at small size."""

import csv

import numpy as np
import pytest

from fedtrees.benchmarks.papers.counts import (
    FRONTIER,
    UNROUNDED,
    Measurement,
    measure_lines,
    store,
    text_of,
)
from fedtrees.benchmarks.papers.counts_measurements import (
    DefenseSetting,
    add_random_rows,
    infer_leaf_counts,
    measure_cost,
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
def test_random_rows_hide_counts_and_leave_rows_readable():
    line = DefenseSetting("none", random_rows=10)
    alone, _, whole = infer_leaf_counts(TABLE, line, 0, None)
    assert whole.wrong == 0  # what is certain are counts of all rows, real and random
    assert whole.certain < alone.certain < 1
    found = measure_cost(TABLE, line, 0, None, rows=True, trees=3)
    assert found.among >= found.read > found.blind + 0.15


@pytest.mark.long
def test_bins_read_are_worth_more_than_bins_ignored_and_both_more_than_nothing():
    found = measure_cost(
        TABLE, DefenseSetting("hist-rounding[step=0.5]"), 0, None, rows=True, trees=3
    )
    assert found.read > found.ignored + 0.05 > found.blind + 0.1
    assert found.auc > 0.9
    assert found.among is None


def test_random_rows_lie_in_the_ranges_of_a_client_and_are_whole_codes():
    kinds = (Feature("a", low=0.0, high=9.0), Feature("b", "categorical", categories=("x", "y")))
    own = Table(np.array([[1.0, 0.0], [np.nan, 1.0], [3.0, 1.0]]), np.array([0, 1, 1]))
    new = add_random_rows(own, Schema(kinds, "y", ("0", "1")), 50, np.random.default_rng(0))
    assert len(new) == 53
    drawn = new.X[3:]
    assert ((drawn[:, 0] >= 1) & (drawn[:, 0] <= 3)).all()
    assert set(drawn[:, 1]) == {0.0, 1.0}
    assert set(new.y[3:]) == {0, 1}


def test_tables_pair_auc_by_seed_and_leave_out_what_was_not_measured(tmp_path):
    step = FRONTIER[1].name
    values = [(UNROUNDED.name, 0, 0.8), (UNROUNDED.name, 1, 0.6), (step, 0, 0.7), (step, 1, 0.55)]
    found = [Measurement("t", name, seed, "auc", value) for name, seed, value in values]
    found += [
        Measurement("t", step, 0, f"{k}, {n}", n / 4) for k in ("certain", "likely") for n in (1, 3)
    ]
    found += [Measurement("t", step, 0, "read", 0.5), Measurement("t", step, 1, "read", 0.7)]
    text = text_of([*found, Measurement("t", step, 0, "wrong", 2.0)])
    assert "2 certain are wrong" in text
    assert "deviations up to 14.1" in text
    assert f"| {step} | 0.25 / 0.25 | - / - | 0.75 / 0.75 |" in text
    assert f"| {step} | -0.075 ± 0.025 | 0.75 / 0.25 | - / 60.0 |" in text
    store(found, tmp_path)
    assert (tmp_path / "counts.md").read_text() == text_of(found)
    lines = list(csv.DictReader((tmp_path / "counts.csv").open()))
    assert len(lines) == len(found)
    assert lines[0] == {
        "table": "t", "defense": "`none`", "seed": "0", "measure": "auc", "value": "0.800000",
    }  # fmt: skip


@pytest.mark.parametrize("line", [FRONTIER[-1], FRONTIER[-2]], ids=lambda line: line.name)
def test_other_protocols_and_base_scores_stand_on_the_frontier(line):
    found = {f.measure: f.value for f in measure_lines(TABLE, [line], 1, 0, None)}
    assert found["auc"] > 0.8
    assert ("likely, 3" in found) == (not line.protocol)
    assert found.get("wrong", 0) == 0
