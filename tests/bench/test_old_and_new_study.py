"""The study of two versions of the package pairs scores by seed and reports those that fell."""

import pandas as pd
import pytest

from fedtrees.benchmarks.papers.old_and_new import pair_scores, per_attack, read, summarise

CELL = {
    "stage": "attack", "dataset": "t", "protocol": "p", "protocol_params": "trees=2",
    "threat": "server", "defense": "hist-rounding", "attack": "joint", "metric": "ra", "blind": 0.4,
}  # fmt: skip


def rows(folder, values, **changed_columns):
    """Write and read the rows of a run, one per seed, and two rows that must be ignored."""
    folder.mkdir()
    lines = [
        CELL | {"defense_params": "step=0.1"} | changed_columns | {"seed": seed, "value": value}
        for seed, value in enumerate(values)
    ]
    others = [lines[0] | {"stage": "blind"}, lines[0] | {"metric": "cpu_seconds"}]
    pd.DataFrame([*lines, *others]).to_csv(folder / "rows.csv", index=False)
    return read(folder)


@pytest.mark.parametrize(
    ("new", "fell"),
    [
        ((0.60, 0.70, 0.80), False),
        ((0.59, 0.689, 0.79), True),
        ((0.598, 0.698, 0.798), False),  # less than counts
        ((0.50, 0.75, 0.82), False),  # within the spread
    ],
)
def test_a_score_fell_that_is_lower_in_all_seeds_alike(tmp_path, new, fell):
    old = rows(tmp_path / "old", (0.60, 0.70, 0.80))
    (line,) = summarise(pair_scores([old], [rows(tmp_path / "new", new)]), ["attack"]).itertuples()
    assert line.fell == fell
    assert line.pairs == 3
    assert line.change == pytest.approx(sum(new) / 3 - 0.7)


def test_only_equal_cells_are_paired(tmp_path):
    old = rows(tmp_path / "old", (0.6,))
    others = {"defense_params": "step=1"}, {"protocol_params": ""}, {"threat": "client"}
    parts = [rows(tmp_path / str(number), (0.5,), **other) for number, other in enumerate(others)]
    assert pair_scores([old], parts).empty


def test_the_worst_defense_of_an_attack_is_named(tmp_path):
    sides = [
        [rows(tmp_path / f"{s}{step}", (v,), defense_params=f"step={step}") for step, v in values]
        for s, values in (("old", ((1, 0.5), (2, 0.5))), ("new", ((1, 0.6), (2, 0.4))))
    ]
    (line,) = per_attack(pair_scores(*sides))
    assert line[:5] == ["`joint`", "ra", "0.500", "0.500", "+0.000"]
    assert line[5:] == ["-0.100 (p, server, `hist-rounding[step=2]`)", "1 of 2"]


def test_a_successor_attack_counts_if_it_scores_higher(tmp_path):
    ranks = {"attack": "split-ordering", "metric": "rank_correlation"}
    old = rows(tmp_path / "old", (0.8, 0.8), **ranks)
    new = rows(tmp_path / "new", (0.5, 0.9), **ranks)
    successor = rows(tmp_path / "heir", (0.7, 0.7), **ranks | {"attack": "linear-reconstruction"})
    pairs = pair_scores([old], [new, successor])
    assert pairs["value_new"].tolist() == [0.7, 0.9]
