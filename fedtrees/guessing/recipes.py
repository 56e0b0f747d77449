"""Which blind recipe suits a table, told from own rows alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.blind import DRAWS, SHARES, independent_rows, mixed_rows
from fedtrees.guessing.consensus import matched_consensus
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.guessing.tolerance import Tolerance

#: Own rows below which all draws from them look alike.
FEWEST_ROWS = 10
#: Own rows below which halves of them tell nothing: of 15, some seeds cost 2 points of RA, and a
#: tenth is within 0.3 of the best. Fewer than `FEWEST_ROWS` are worth mixing more.
TOLD_BY = 20
# Rows of a half that are looked at, draws behind each guess, and rows guessed in all: few own rows
# are halved more often.
_MOST_ROWS, _DRAWS, _GUESSED = 150, 8, 300


def best_share(own: Table, schema: Schema, rng: np.random.Generator) -> float:
    """Return the share of `SHARES` at which one half of own rows guesses the other best.

    Parameters
    ----------
    own : Table
        Fewer than `TOLD_BY` tell nothing: the answer is a tenth, or three of fewer than
        `FEWEST_ROWS`.
    schema : Schema
    rng : numpy.random.Generator
    """
    if len(own) < TOLD_BY:
        return SHARES["mixed-30" if len(own) < FEWEST_ROWS else "mixed-10"]
    width = Tolerance.of(own, schema).width
    half = min(len(own) // 2, _MOST_ROWS)
    score = dict.fromkeys(SHARES.values(), 0.0)
    for _ in range(int(np.clip(_GUESSED // half, 2, 8))):
        order = rng.permutation(len(own))
        one, other = own.take(order[:half]), own.take(order[half : 2 * half])
        for known, hidden in ((one, other), (other, one)):
            for share in score:
                drawn = blind_draws(known, schema, half, share, rng, draws=_DRAWS)
                score[share] += agreement(matched_consensus(drawn, width), hidden, width)
    return max(score, key=lambda share: score[share])


def blind_draws(
    own: Table, schema: Schema, n: int, share: float, rng: np.random.Generator, draws: int = DRAWS
) -> list[Table]:
    """Return draws of n rows as the blind guesses of this share are merged of.

    Of fewer own rows than `FEWEST_ROWS` every cell is drawn by itself, whatever its label.
    """
    if len(own) < FEWEST_ROWS:
        return [independent_rows(own, schema, n, None, rng) for _ in range(draws)]
    return [mixed_rows(own, schema, n, None, share, rng) for _ in range(draws)]


def agreement(guess: Table, rows: Table, width: NDArray[np.float64]) -> float:
    """Return the reconstruction accuracy of a guess if these were the true rows, 0 to 1.

    Parameters
    ----------
    guess, rows : Table
        m and n rows; of more guesses than rows the first n count.
    width : float64 array, shape (d + 1,)
        Accepted difference per feature and of the label.
    """
    truth = np.column_stack([rows.X, rows.y])
    guessed = np.column_stack([guess.X, guess.y])[: len(rows)]
    if not len(guessed):
        return 0.0
    cost = mismatch_counts(truth, guessed, width)
    pair = assign(cost)
    matched = np.flatnonzero(pair >= 0)
    wrong = int(cost[matched, pair[matched]].sum(dtype=np.int64))
    return (len(matched) * len(width) - wrong) / (len(rows) * len(width))
