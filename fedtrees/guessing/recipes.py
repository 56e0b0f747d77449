"""Which blind recipe suits a table, told from own rows alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.blind import SHARES, Draws
from fedtrees.guessing.matching import assign, mismatch_counts
from fedtrees.guessing.tolerance import Tolerance

#: Own rows below which all draws from them look alike.
FEWEST_ROWS = 10
#: Own rows below which some of them tell nothing of the others: of 15, some seeds cost 2 points of
#: RA, and a tenth is within 0.3 of the best. Fewer than `FEWEST_ROWS` are worth mixing more.
TOLD_BY = 20
#: Own rows from which they may speak against the usual guess, and by how much: of 20 to 60 rows
#: their word cost up to 5 points (Pima, Stroke, breast cancer), of 400 it gains one (Adult,
#: Obesity).
HEARD_FROM, CLEAR_LEAD = 100, 0.01
#: Share of missing cells from which own rows are too few to redraw cells by.
MANY_MISSING = 0.2
#: The guess where at least such a share of own rows have a copy among them: with every row twice,
#: other guesses are 0.5 to 2 points worse (Pima, breast cancer).
COPIES, MANY_COPIES = "bootstrap+wide-consensus", 0.1
# Rows that are hidden at a time, as a share and at most, and in all; draws behind each guess.
_HIDDEN, _MOST_HIDDEN, _HIDDEN_IN_ALL, _DRAWS = 0.25, 50, 150, 16


@dataclass(frozen=True)
class Recipe:
    """What own rows say of guessing rows like them."""

    share: float  # of `SHARES`, the share of a row's cells to take from other own rows
    guess: str  # the blind guess, by its name in `fedtrees.guessing.blind.blind_guesses`
    # draws of rows like own ones that are not the rows of the guess; empty: those of its `kind`
    apart: str = ""

    @property
    def kind(self) -> str:
        """Samples that the guess is made of, as of `fedtrees.guessing.blind.Draws.of`."""
        return "imputed" if self.guess == "frequent" else self.guess.partition("+")[0]


def best_recipe(own: Table, schema: Schema, rng: np.random.Generator) -> Recipe:
    """Return the recipe by which some own rows guess the others best, as far as they tell.

    The usual guess, *imputed*, is near the blind baseline everywhere but where many cells are
    missing (rows of the best share; of few rows, *given-label*), where rows repeat (`COPIES`) and
    on binary tables (*frequent*); enough own rows may tell another.

    `own`: Fewer than `TOLD_BY` tell nothing: the share is a tenth, or three of fewer than
    `FEWEST_ROWS`.
    """
    usual = usual_guess(own)
    if len(own) < TOLD_BY:
        return Recipe(SHARES["mixed-30" if len(own) < FEWEST_ROWS else "mixed-10"], usual)
    heard = len(own) >= HEARD_FROM and usual not in ("frequent", COPIES)
    # a guess of own rows as they are looks too good in draws that repeat them
    apart = usual.partition("+")[0] if heard else ""
    shares = {f"{kind}+consensus": share for kind, share in SHARES.items()}
    score = _cross_validated(
        own, schema, [*shares, "imputed+refined"][: None if heard else -1], rng
    )
    best = max(shares, key=lambda name: score[name])
    if heard:
        first = max(score, key=lambda name: score[name])
        usual = first if score[first] > score[usual] + CLEAR_LEAD else usual
    elif usual == "given-label+consensus":
        usual = best
    return Recipe(shares[best], usual, apart)


def usual_guess(own: Table) -> str:
    """Return the guess that suits tables like these best, before own rows are heard."""
    if np.isnan(own.X).sum() >= MANY_MISSING * max(own.X.size, 1):
        return "given-label+consensus"
    if np.isin(own.X, (0, 1)).all():
        return "frequent"
    rows = np.column_stack([np.nan_to_num(own.X, nan=np.inf), own.y])
    _, times = np.unique(rows, axis=0, return_counts=True)
    return COPIES if times[times > 1].sum() >= MANY_COPIES * len(own) else "imputed+refined"


def _cross_validated(
    own: Table, schema: Schema, names: list[str], rng: np.random.Generator
) -> dict[str, float]:
    """Return the reconstruction accuracy of guesses at own rows that the others do not show."""
    width = Tolerance.of(own, schema).width
    score = dict.fromkeys(names, 0.0)
    m = min(int(_HIDDEN * len(own)), _MOST_HIDDEN)
    turns = min(_HIDDEN_IN_ALL // m, 8)
    for _ in range(turns):
        order = rng.permutation(len(own))
        made = Draws(own.take(order[m:]), schema, m, rng, draws=_DRAWS, at_once=True)
        for name in names:
            score[name] += agreement(made.guess(name), own.take(order[:m]), width)
    return {name: total / turns for name, total in score.items()}


def agreement(guess: Table, rows: Table, width: NDArray[np.float64]) -> float:
    """Return the reconstruction accuracy of a guess if these were the true rows, 0 to 1.

    `guess, rows`: m and n rows; of more guesses than rows the first n count.
    `width`: float64 array, shape (d + 1,). Accepted difference per feature and of the label.
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
