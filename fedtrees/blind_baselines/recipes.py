"""Select a blind guess for a table by cross-validation, and draw a pool of rows that suits it.

Attacks that combine evidence start from a blind guess, and fill boxes with rows of the pool. They
may only select both with rows that they know, because the scores of blind guesses depend on the
true rows. A bench computes both once for all defenses (`fedtrees.core.repeated`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.blind_baselines.guesses import SHARES, Draws
from fedtrees.blind_baselines.imputation import ChainedEquations
from fedtrees.blind_baselines.matching import matched_accuracy, mismatch_counts
from fedtrees.blind_baselines.rows import Tolerance
from fedtrees.core.repeated import computed_once
from fedtrees.core.schema import Schema, Table

#: Below this number of background rows, all samples of them are very similar.
FEWEST_ROWS = 10
#: Below this number of background rows, cross-validation is not reliable. With 15 rows, some seeds
#: lose 2 points of reconstruction accuracy, while the fixed share 0.1 is within 0.3 of the best. If
#: there are fewer than `FEWEST_ROWS`, the larger share 0.3 is better.
SHARE_CHOSEN_FROM = 20
#: From this number of background rows on, cross-validation may replace the usual guess, if its
#: reconstruction accuracy is higher by more than `CLEAR_LEAD`. With 20 to 60 rows this lost up to 5
#: points (Pima, Stroke, breast cancer), and with 400 rows it gains one (Adult, Obesity).
GUESS_CHOSEN_FROM, CLEAR_LEAD = 100, 0.01
#: Share of missing cells from which on there are too few values for `ChainedEquations`.
MANY_MISSING = 0.2
#: Guess that is used if at least a share `MANY_COPIES` of the background rows are duplicates. If
#: every row occurs twice, the alternatives are 0.5 to 2 points worse (Pima, breast cancer).
COPIES, MANY_COPIES = "bootstrap+wide-consensus", 0.1
# Cross-validation hides a share `_HIDDEN` of the rows at a time, at most `_MOST_HIDDEN` rows, and
# stops after `_HIDDEN_IN_ALL` rows. Every guess is computed from `_DRAWS` samples.
_HIDDEN, _MOST_HIDDEN, _HIDDEN_IN_ALL, _DRAWS = 0.25, 50, 150, 16


@dataclass(frozen=True)
class Recipe:
    """Blind guess that was selected for a table, and the samples that belong to it.

    Attributes
    ----------
    share : float
        Share of cells of a resampled row that come from further background rows (`SHARES`).
    guess : str
        Name of the blind guess (`fedtrees.blind_baselines.guesses.blind_guesses`).
    apart : str
        Kind of the samples that an attack compares with the guess. They should not repeat the rows
        of the guess, which would make it look too good. Empty: the samples of `kind`.
    """

    share: float
    guess: str
    apart: str = ""

    @property
    def kind(self) -> str:
        """Kind of the samples that the guess is computed from (`Draws.of`)."""
        return "imputed" if self.guess == "frequent" else self.guess.partition("+")[0]


def best_recipe(background: Table, schema: Schema, rng: np.random.Generator) -> Recipe:
    """Select the blind guess for rows that resemble the background rows.

    Start from `usual_guess`. From `SHARE_CHOSEN_FROM` rows on, cross-validation selects the share:
    one part of the background rows is guessed from the remaining ones. From `GUESS_CHOSEN_FROM`
    rows on, the guess with the best cross-validated accuracy replaces the usual one if it leads by
    more than `CLEAR_LEAD`, except on binary tables and tables with many duplicates. With fewer
    rows, the consensus of the selected share becomes the guess if many cells are missing.

    With fewer than `SHARE_CHOSEN_FROM` rows, the result is the usual guess with the share 0.1, or
    0.3 with fewer than `FEWEST_ROWS`.
    """
    usual = usual_guess(background)
    if len(background) < SHARE_CHOSEN_FROM:
        return Recipe(SHARES["mixed-30" if len(background) < FEWEST_ROWS else "mixed-10"], usual)
    may_replace = len(background) >= GUESS_CHOSEN_FROM and usual not in ("frequent", COPIES)
    # Cross-validation may select a guess that repeats background rows. It would look too good in
    # samples that repeat them too, so that the samples of the usual guess are used.
    apart = usual.partition("+")[0] if may_replace else ""
    shares = {f"{kind}+consensus": share for kind, share in SHARES.items()}
    score = _cross_validated(
        background, schema, [*shares, "imputed+refined"][: None if may_replace else -1], rng
    )
    best = max(shares, key=lambda name: score[name])
    if may_replace:
        leader = max(score, key=lambda name: score[name])
        usual = leader if score[leader] > score[usual] + CLEAR_LEAD else usual
    elif usual == "given-label+consensus":
        usual = best
    return Recipe(shares[best], usual, apart)


def usual_guess(background: Table) -> str:
    """Return the guess that is best for tables of this type, without cross-validation.

    It is ``given-label+consensus`` if a share of at least `MANY_MISSING` of the cells is missing,
    ``frequent`` if all values are 0 or 1, `COPIES` if many rows are duplicates, and otherwise
    ``imputed+refined``, which is close to the best blind guess on most tables.
    """
    if np.isnan(background.X).sum() >= MANY_MISSING * max(background.X.size, 1):
        return "given-label+consensus"
    if np.isin(background.X, (0, 1)).all():
        return "frequent"
    rows = np.column_stack([np.nan_to_num(background.X, nan=np.inf), background.y])
    _, times = np.unique(rows, axis=0, return_counts=True)
    return COPIES if times[times > 1].sum() >= MANY_COPIES * len(background) else "imputed+refined"


def _cross_validated(
    background: Table, schema: Schema, names: list[str], rng: np.random.Generator
) -> dict[str, float]:
    """Return the reconstruction accuracy of guesses by cross-validation on background rows."""
    width = Tolerance.of(background, schema).width
    score = dict.fromkeys(names, 0.0)
    m = min(int(_HIDDEN * len(background)), _MOST_HIDDEN)
    n_folds = min(_HIDDEN_IN_ALL // m, 8)
    for _ in range(n_folds):
        order = rng.permutation(len(background))
        draws = Draws(background.take(order[m:]), schema, m, rng, draws=_DRAWS, at_once=True)
        for name in names:
            score[name] += agreement(draws.guess(name), background.take(order[:m]), width)
    return {name: total / n_folds for name, total in score.items()}


def agreement(guess: Table, rows: Table, width: NDArray[np.float64]) -> float:
    """Return the reconstruction accuracy of a guess (Vero et al. 2023).

    Parameters
    ----------
    guess : Table
        m guessed rows, of which at most the first n are used.
    rows : Table
        n rows that are treated as the true ones.
    width : float64 array, shape (d + 1,)
        Accepted difference per feature and of the label.

    Returns
    -------
    accuracy : float
        Share of the cells of `rows`, including labels, that agree with the matched guess. Cells of
        unmatched rows do not agree.
    """
    truth = np.column_stack([rows.X, rows.y])
    guessed = np.column_stack([guess.X, guess.y])[: len(rows)]
    return matched_accuracy(mismatch_counts(truth, guessed, width), len(width))


# Number of rows that are drawn to fill boxes from. Compared with filling boxes from the local rows
# only, they gain TimberStrike 0.6 to 1.3 points of reconstruction accuracy (breast cancer, Pima,
# Stroke, 10 trees). A pool of 1,000 rows gains 0.1 to 0.5 points less.
POOL = 4000


def recipe_and_pool(
    background: Table, schema: Schema, rng: np.random.Generator
) -> tuple[Recipe, Table]:
    """Return the recipe that suits background rows best, and a pool of rows that resemble them.

    If the recipe does not mix cells (*imputed*, *bootstrap*), the pool contains the background rows
    and rows redrawn from them. With the background rows only, samples would be too similar, so that
    the expected score would be too high. For other recipes the pool contains the background rows
    drawn with replacement. Boxes take rows from the pool in order, so that its order is random.
    """
    share, guess, apart, pool = _recipe_and_pool(background, schema, rng)
    return Recipe(share, guess, apart), Table(pool.X.copy(), pool.y.copy(), pool.weight)


@computed_once
def _recipe_and_pool(
    background: Table, schema: Schema, rng: np.random.Generator
) -> tuple[float, str, str, Table]:
    recipe = best_recipe(background, schema, rng)
    rows = background.take(rng.integers(0, len(background), POOL))
    if recipe.kind == "imputed" or recipe.guess == "bootstrap+consensus":
        redrawn = ChainedEquations(background, schema, rng).redraw(rows, rng)
        recipe, rows = replace(recipe, share=0.0), Table.concat([background, redrawn])
    pool = rows.take(rng.permutation(len(rows)))
    return float(recipe.share), recipe.guess, recipe.apart, pool
