import numpy as np

from fedtrees.blind_baselines.imputation import frequent_rows
from fedtrees.core.schema import Table

WIDTH = np.array([0.5, 0.0, 0.0])


def table(*rows):
    values = np.array(rows, dtype=np.float32)
    return Table(values[:, :2], values[:, 2].astype(np.int64))


def counts(guess):
    rows = [(*x, y) for x, y in zip(guess.X.tolist(), guess.y.tolist(), strict=True)]
    return {row: rows.count(row) for row in set(rows)}


def test_rows_are_repeated_as_often_as_they_occur_in_the_samples():
    """In five samples, `common` occurs three times in each, `near` once, and `rare` once in two."""
    common, near, rare = (1.0, 0.0, 1), (4.0, 2.0, 0), (9.0, 1.0, 1)
    rng = np.random.default_rng(0)
    samples = []
    for number in range(5):
        near_variant = (4.0 + 0.1 * number, 2.0, 0)
        changing_row = rare if number < 2 else (20.0 + number, 0.0, 0)
        rows = table(common, common, common, near_variant, changing_row)
        samples.append(rows.take(rng.permutation(5)))
    guess = frequent_rows(table(rare, near, common, common, (5.0, 0.0, 1)), samples, WIDTH)
    assert counts(guess) == {common: 3, near: 1, rare: 1}


def test_slots_that_no_frequent_row_fills_are_filled_by_a_consensus():
    samples = [
        table((1, 0, 1), (7 + 0.1 * number, 1, 0), (2, 0, 0), (1, 0, 1)) for number in range(5)
    ]
    guess = frequent_rows(table((1, 0, 1)), samples, WIDTH)
    assert counts(guess)[(1.0, 0.0, 1)] == 2
    other_rows = guess.take(np.lexsort((guess.X[:, 0],))[2:])
    assert other_rows.X[:, 0].tolist()[0] == 2
    assert 7 <= other_rows.X[1, 0] <= 7.5
    assert len(guess) == 4


def test_labels_and_missing_values_must_agree():
    nan = float("nan")
    samples = [table((nan, 0, 1), (3, 0, 0)) for _ in range(4)]
    guess = frequent_rows(table((nan, 0, 0), (nan, 0, 1), (3, 0, 0)), samples, WIDTH)
    assert sorted(guess.y.tolist()) == [0, 1]
    assert np.isnan(guess.X[guess.y == 1, 0]).all()


def test_long_tables_are_covered_in_blocks():
    rows = table(*[(k, 0, 0) for k in range(4)]).take(np.arange(2400) % 4)
    guess = frequent_rows(rows.take(np.arange(4)), [rows] * 2, WIDTH)
    assert counts(guess) == {(float(k), 0.0, 0): 600 for k in range(4)}
