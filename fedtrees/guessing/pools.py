"""The rows that reconstruction attacks fill boxes from, and the blind recipe that suits them.

Both depend on the background rows of an adversary only. A bench computes them once for all defenses
(`fedtrees.core.repeated`).
"""

from dataclasses import replace

import numpy as np

from fedtrees.core.repeated import computed_once
from fedtrees.core.schema import Schema, Table
from fedtrees.guessing.imputation import ChainedEquations
from fedtrees.guessing.recipes import Recipe, best_recipe

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
