"""Names of categories in a model file, and upper bounds on the training rows that have them.

Since version 3.1, XGBoost writes the names of all categories of the training table into the model
file, including categories that only one person has. The audit lists these names. A leaf that only
some categories can reach bounds the number of rows that have the remaining categories.
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

_LISTED = 6  # number of names that one sentence lists


def names_text(model: ModelFile) -> str:
    """Return the columns with their first categories: ``city: Berlin, Köln``."""
    columns = []
    for k, names in sorted(model.categories.items()):
        shown = [category_of(model, k, code) for code in range(min(len(names), _LISTED))]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        columns.append(f"{model.name_of(k)}: {', '.join(shown)}{more}")
    return "; ".join(columns)


def names_lines(audit: Audit) -> list[str]:
    """Return sentences on the category names in the file, and on those that few rows have."""
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
    """Return an upper bound on the rows that have each named category, by column and code.

    In a tree whose leaves are all counted, the rows of a category are in the leaves that the
    category can reach, so that the sum of these leaves is a bound. The result is the smallest bound
    over these trees. It counts rows that the tree saw, which can be a part of the table. Columns on
    which no such tree splits are missing from the result.
    """
    out: dict[tuple[int, int], int] = {}
    for exposure in audit.trees:
        tree = audit.model.forest.trees[exposure.at]
        if not isinstance(tree, Tree) or not exposure.counted.all():
            continue
        for k, names in audit.model.categories.items():
            if not (tree.feature == k).any():
                continue
            # A matrix of leaves and categories. Its product with the rows per leaf is the number of
            # rows that can have each category.
            reached = np.array([_reaching(tree, leaf, k, len(names)) for leaf in exposure.leaf])
            rows = exposure.n @ reached
            for code, bound in enumerate(rows.tolist()):
                out[k, code] = min(bound, out.get((k, code), bound))
    return out


def _reaching(tree: Tree, leaf: int, column: int, width: int) -> NDArray[np.int64]:
    """Return 1 for each code of a column that can reach a leaf, else 0, int64, shape (width,)."""
    allowed = np.ones(width, dtype=bool)
    for goes_right in _sets_above(tree, leaf, column, width):
        allowed &= goes_right
    return allowed.astype(np.int64)


def _sets_above(tree: Tree, leaf: int, column: int, width: int) -> Iterator[NDArray[np.bool_]]:
    """Yield, for each split on `column` above a leaf, the codes that go towards the leaf.

    Each item has dtype bool and shape (width,).
    """
    codes = np.arange(width, dtype=np.float32)
    for node, left in path_of(tree, leaf):
        if tree.feature[node] != column:
            continue
        if np.isnan(tree.threshold[node]) and tree.categories is not None:
            # The split lists the categories that go right. Codes beyond the list go left.
            chosen = np.zeros(width, dtype=bool)
            listed = tree.categories[node][:width]
            chosen[: len(listed)] = listed
        else:
            chosen = codes >= tree.threshold[node]
        yield ~chosen if left else chosen
