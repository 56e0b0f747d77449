"""Read the random forests that fedtrees saves (``.npz``), together with their counts."""

from pathlib import Path

import numpy as np

from fedtrees.audit.exposure import UNKNOWN
from fedtrees.audit.model import ModelFile, Statistics, width_of
from fedtrees.core.errors import DataError
from fedtrees.trees.files.forests import load_columns, load_random_forest, load_released
from fedtrees.trees.forest.random_forest import ClassTree, RandomForest, shares


def read_random_forest(path: Path) -> ModelFile:
    """Read a random forest together with its counts.

    Its counts are numbers of rows only if no row was drawn twice or weighted.
    """
    forest = load_random_forest(path)
    used = 1 + max((int(t.feature.max(initial=-1)) for t in forest.trees), default=-1)
    names, categories = _columns(path, used)
    width = width_of(len(names) or used)
    # `counts` counts draws and weights, `distinct` counts rows. If both agree in every node, the
    # counts of a class are numbers of rows, too.
    once = all(
        t.counts is not None and t.distinct is not None
        and np.array_equal(t.counts.sum(axis=1), t.distinct)
        for t in forest.trees
    )  # fmt: skip
    statistics = tuple(_counts(tree, once) for tree in forest.trees)
    counts_by_name = {
        name: [getattr(t, name) for t in forest.trees] for name in ("counts", "distinct")
    }
    raw = {
        name: [each.astype(np.float64) for each in of_trees]
        for name, of_trees in counts_by_name.items()
        if all(each is not None for each in of_trees)
    }
    return ModelFile(path, "fedtrees forest (.npz)", forest, statistics, raw, feature_names=names,
                     categorical=(False,) * width, categories=categories)  # fmt: skip


def _columns(path: Path, used: int) -> tuple[tuple[str, ...], dict[int, tuple[str, ...]]]:
    """Return the names of columns and categories in the file, both empty if it contains none.

    Raises `DataError` if there are fewer names than columns on which the trees split.
    """
    names, categories = load_columns(path)
    if names and len(names) < used:
        raise DataError(f"{path.name} names {len(names)} columns and splits on column {used - 1}")
    return names, categories


def _counts(tree: ClassTree, once: bool) -> Statistics:
    """Return the statistics of a tree.

    Parameters
    ----------
    tree : ClassTree
        Tree with its counts.
    once : bool
        True if no tree of the forest counts a row twice or with a weight other than 1.

    Returns
    -------
    statistics : Statistics
        If not `once`, a number of positives is certain only where all rows have the same label,
        which draws and weights do not change.
    """
    two = tree.n_classes == 2
    if once:
        assert tree.counts is not None
        return Statistics(rows=tree.distinct, positives=tree.counts[:, 1] if two else None)
    if tree.distinct is None:
        return Statistics(drawn=tree.counts)
    none, every = tree.probability[:, 1] == 0, tree.probability[:, 0] == 0
    positives = np.where(none, 0, np.where(every, tree.distinct, UNKNOWN)) if two else None
    return Statistics(rows=tree.distinct, positives=positives, drawn=tree.counts)


def read_released(path: Path) -> ModelFile:
    """Read a private random decision forest. Its counts are certain only if they have no noise."""
    released, settings = load_released(path)
    used = 1 + int(released.splits.feature.max())
    names, categories = _columns(path, used)
    width = width_of(len(names) or used)
    exact = settings.get("epsilon") == np.inf and settings["mechanism"] != "majority"
    trees, statistics = [], []
    each = zip(released.splits.feature, released.splits.threshold, released.counts, strict=True)
    for feature, threshold, counts in each:
        inner, leaves = len(feature), np.arange(len(feature), 2 * len(feature) + 1)
        # The released trees are complete binary trees, in which node k has the children 2k + 1 and
        # 2k + 2. Only leaves have counts, so that inner nodes get zeros.
        left = np.append(2 * np.arange(inner) + 1, np.full(len(leaves), -1)).astype(np.int32)
        nothing = np.zeros((inner, counts.shape[1]), dtype=np.int64)
        every = np.vstack([nothing, counts])
        trees.append(
            ClassTree(
                np.append(feature, np.full(len(leaves), -1)).astype(np.int32),
                np.append(threshold, np.zeros(len(leaves))).astype(np.float32),
                left,
                np.where(left < 0, -1, left + 1).astype(np.int32),
                np.ones(len(left), dtype=np.bool_),
                shares(np.maximum(every, 0)),
            )
        )
        two = counts.shape[1] == 2
        statistics.append(
            Statistics(rows=every.sum(axis=1), positives=every[:, 1] if two else None)
            if exact
            else Statistics()
        )
    return ModelFile(
        path, "fedtrees private forest (.npz)", RandomForest(tuple(trees)), tuple(statistics),
        {"counts": [released.counts.astype(np.float64)]}, categorical=(False,) * width,
        feature_names=names, categories=categories,
        parameters={name: str(value) for name, value in settings.items()}, released=released,
    )  # fmt: skip
