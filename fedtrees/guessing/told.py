"""Blind guesses of rows if the adversary already knows some of their columns.

For example, the adversary may know ages and towns of all persons from a public register. The blind
baseline then contains the known values.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.guessing.targets import all_narrow, wide, widened

# Number of background rows that are compared with a row, and of the nearest ones that vote.
_CANDIDATES, _VOTERS = 1000, 15


def fitted(
    guess: Table,
    columns: NDArray[np.int64],
    told: NDArray[np.float32],
    width: NDArray[np.float64],
) -> Table:
    """Assign the known values of every row to the best fitting guessed row.

    `guess` contains n rows. Their values in some columns (int64 of shape (c,), positions in the
    schema) are replaced by the known values, float32 of shape (n, c), and the result is in the
    order of these. Values of a column agree if they differ by at most `width`, float64 of shape
    (d + 1,).
    """
    taken = guess.take(assign(mismatch_counts(told, guess.X[:, columns], width[columns])))
    return _replace_columns(taken, columns, told)


def nearest_guesses(
    own: Table,
    schema: Schema,
    columns: NDArray[np.int64],
    told: NDArray[np.float32],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> dict[str, Table]:
    """Guess rows from the background rows that are most similar in the known columns.

    The first guess is the most similar row. The second takes the lower median of every number and
    the most frequent category, one-hot group and label of the 15 most similar rows. Both contain
    the known values. The arguments are those of `fitted`. At most 1,000 background rows are used,
    drawn at random, and ties of similarity are resolved at random.
    """
    if not schema.classes:
        rows = wide(own), widened(schema)
        return all_narrow(nearest_guesses(*rows, columns, told, width, rng))
    own = own.take(rng.permutation(len(own))[:_CANDIDATES])
    cost = mismatch_counts(told, own.X[:, columns], width[columns])
    near = np.argsort(cost + rng.random(cost.shape), axis=1)[:, :_VOTERS]
    nearest, vote = own.take(near[:, 0]), own.take(near[:, 0])
    X, y = vote.X.copy(), vote.y.copy()
    for attribute in schema.attributes:
        columns_of_attribute = list(attribute)
        if len(columns_of_attribute) == 1 and not schema.categorical[columns_of_attribute[0]]:
            values = np.sort(
                own.X[near, columns_of_attribute[0]], axis=1
            )  # missing values are sorted to the end
            middle = np.maximum((~np.isnan(values)).sum(axis=1) - 1, 0) // 2
            X[:, columns_of_attribute[0]] = values[np.arange(len(values)), middle]
            continue
        levels, code = np.unique(own.X[:, columns_of_attribute], axis=0, return_inverse=True)
        X[:, columns_of_attribute] = levels[_most_frequent(code.reshape(-1)[near])]
    y[:] = _most_frequent(own.y[near])
    guesses = {"told-nearest": nearest, "told-vote": Table(X, y)}
    return {name: _replace_columns(rows, columns, told) for name, rows in guesses.items()}


def _replace_columns(rows: Table, columns: NDArray[np.int64], values: NDArray[np.float32]) -> Table:
    X = rows.X.copy()
    X[:, columns] = values
    return Table(X, rows.y)


def _most_frequent(codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the most frequent code of each row, the smallest one on a tie, shape (n,)."""
    votes = np.zeros((len(codes), int(codes.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(votes, (np.arange(len(codes))[:, None], codes), 1)
    return np.asarray(votes.argmax(axis=1))
