"""Names of categories that a model file contains, and how many training rows may have them.

XGBoost since 3.1 writes the names of all categories of the training table into the file, also of
those that one person has. A leaf that only some categories reach bounds the rows of the others.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit.audit import Audit
from fedtrees.audit.exposure import SMALL
from fedtrees.audit.model import ModelFile
from fedtrees.audit.tables import category_of, path_of
from fedtrees.core.counts import many
from fedtrees.trees.boosted.forest import Tree

_LISTED = 6  # names of a column in one sentence


def names_text(model: ModelFile) -> str:
    """Return the columns with their first categories: ``city: Berlin, Köln``."""
    columns = []
    for k, names in sorted(model.categories.items()):
        shown = [category_of(model, k, code) for code in range(min(len(names), _LISTED))]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        columns.append(f"{model.name_of(k)}: {', '.join(shown)}{more}")
    return "; ".join(columns)


def names_lines(audit: Audit) -> list[str]:
    """Return which names of categories the file contains, and which of them few rows have."""
    model = audit.model
    if not model.categories:
        return []
    total = sum(map(len, model.categories.values()))
    lines = [
        f"The file names {many(total, 'category', 'categories')} of "
        f"{many(len(model.categories), 'column')} ({names_text(model)}). A category that one row "
        "has is a value of that person."
    ]
    sure = " under these conditions" if audit.assumes else ""
    rare = sorted((n, k, code) for (k, code), n in rows_by_category(audit).items() if n < SMALL)
    if rare:
        shown = [
            f"{model.name_of(k)} {category_of(model, k, code)} ({n} at most)"
            for n, k, code in rare[:_LISTED]
        ]
        more = f" and {len(rare) - _LISTED} more" if len(rare) > _LISTED else ""
        lines.append(
            f"Fewer than {SMALL} rows that a tree saw have {', '.join(shown)}{more}{sure}."
        )
    return lines


def rows_by_category(audit: Audit) -> dict[tuple[int, int], int]:
    """Return the most rows that may have each named category, by column and code.

    In every tree whose leaves are all counted these are the rows of the leaves that the category
    can reach. Columns on which no such tree splits are left out.
    """
    out: dict[tuple[int, int], int] = {}
    for exposure in audit.trees:
        tree = audit.model.forest.trees[exposure.at]
        if not isinstance(tree, Tree) or not exposure.counted.all():
            continue
        for k, names in audit.model.categories.items():
            if not (tree.feature == k).any():
                continue
            reached = np.array([_reaching(tree, leaf, k, len(names)) for leaf in exposure.leaf])
            rows = exposure.n @ reached
            for code, most in enumerate(rows.tolist()):
                out[k, code] = min(most, out.get((k, code), most))
    return out


def _reaching(tree: Tree, leaf: int, column: int, width: int) -> NDArray[np.int64]:
    """Return 1 for each code of a column that can reach a leaf, int64, shape (width,)."""
    allowed = np.ones(width, dtype=bool)
    for goes_right in _sets_above(tree, leaf, column, width):
        allowed &= goes_right
    return allowed.astype(np.int64)


def _sets_above(tree: Tree, leaf: int, column: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Yield the codes that take the way to a leaf at each split on a column above it."""
    codes = np.arange(width, dtype=np.float32)
    for node, left in path_of(tree, leaf):
        if tree.feature[node] != column:
            continue
        if np.isnan(tree.threshold[node]) and tree.categories is not None:
            chosen = np.zeros(width, dtype=bool)
            listed = tree.categories[node][:width]
            chosen[: len(listed)] = listed
        else:
            chosen = codes >= tree.threshold[node]
        yield ~chosen if left else chosen
