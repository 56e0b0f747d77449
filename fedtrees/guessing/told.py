"""Guesses of rows of which some columns are told."""

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.guessing.targets import all_narrow, wide, widened

#: Own rows that are compared with a told one, and how many of the nearest vote on what is missing.
_CANDIDATES, _VOTERS = 1000, 15


def fitted(
    guess: Table,
    columns: NDArray[np.int64],
    told: NDArray[np.float32],
    width: NDArray[np.float64],
) -> Table:
    """Return guessed rows with the told values, each told row in the guessed one that fits best.

    `guess`: n rows.
    `columns`: int64 array, shape (c,).
    `told`: float32 array, shape (n, c).
    `width`: float64 array, shape (d + 1,). Within which values of a column agree.
    """
    taken = guess.take(assign(mismatch_counts(told, guess.X[:, columns], width[columns])))
    return _with(taken, columns, told)


def nearest_guesses(
    own: Table,
    schema: Schema,
    columns: NDArray[np.int64],
    told: NDArray[np.float32],
    width: NDArray[np.float64],
    rng: np.random.Generator,
) -> dict[str, Table]:
    """Return what own rows say that are most alike in the told columns.

    ``told-nearest``: the most similar row, drawn among equals. ``told-vote``: of the most similar
    ones the middle of each number and the most frequent category, group or label. Parameters as of
    `fitted`.
    """
    if not schema.classes:
        rows = wide(own), widened(schema)
        return all_narrow(nearest_guesses(*rows, columns, told, width, rng))
    own = own.take(rng.permutation(len(own))[:_CANDIDATES])
    apart = mismatch_counts(told, own.X[:, columns], width[columns])
    near = np.argsort(apart + rng.random(apart.shape), axis=1)[:, :_VOTERS]
    nearest, vote = own.take(near[:, 0]), own.take(near[:, 0])
    X, y = vote.X.copy(), vote.y.copy()
    for place in schema.attributes:
        at = list(place)
        if len(at) == 1 and not schema.categorical[at[0]]:
            held = np.sort(own.X[near, at[0]], axis=1)  # missing values come last
            middle = np.maximum((~np.isnan(held)).sum(axis=1) - 1, 0) // 2
            X[:, at[0]] = held[np.arange(len(held)), middle]
            continue
        levels, code = np.unique(own.X[:, at], axis=0, return_inverse=True)
        X[:, at] = levels[_most(code.reshape(-1)[near])]
    y[:] = _most(own.y[near])
    found = {"told-nearest": nearest, "told-vote": Table(X, y)}
    return {name: _with(rows, columns, told) for name, rows in found.items()}


def _with(rows: Table, columns: NDArray[np.int64], told: NDArray[np.float32]) -> Table:
    X = rows.X.copy()
    X[:, columns] = told
    return Table(X, rows.y)


def _most(codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the most frequent code of each row, the smallest of equals, shape (n,)."""
    votes = np.zeros((len(codes), int(codes.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(votes, (np.arange(len(codes))[:, None], codes), 1)
    return np.asarray(votes.argmax(axis=1))
