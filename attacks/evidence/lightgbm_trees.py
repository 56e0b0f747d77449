"""Reconstruct the model that LightGBM's machines grow together from the splits they announce."""

from collections import defaultdict

import numpy as np

from fedtrees.core.view import View
from fedtrees.messages.lightgbm import BinMappers, FoundSplits, OwnStart, RootSums
from fedtrees.trees.boosted.forest import Forest, Tree
from fedtrees.trees.boosted.losses import objective_of
from fedtrees.trees.lightgbm.bins import Mapper
from fedtrees.trees.lightgbm.growing import Growing, LeafTotals


class _Column:
    """Bins of a column without its rows."""

    bins = np.zeros(0, dtype=np.int64)

    def __init__(self, mapper: Mapper) -> None:
        self.mapper = mapper


def machines_model(view: View) -> Forest | None:
    """Return the model that follows from the splits of all machines.

    None is returned if the splits of a machine are not visible, or if the view comes from a capture
    without the parameter ``num_leaves``.
    """
    if "num_leaves" not in view.parameters:
        return None
    roots, splits = defaultdict(list), defaultdict(list)
    for _, m in view.messages(RootSums):
        roots[m.tree].append(m)
    for _, m in view.messages(FoundSplits):
        splits[m.tree, m.step].append(m)
    starts = [m.score for _, m in view.messages(OwnStart)]
    machines = [*view.roles.values()].count("client")
    if not starts or not all(
        len(messages) == machines for messages in (*roots.values(), *splits.values())
    ):
        return None
    columns = _columns(view)
    grown = (_tree(view, roots[t], splits, columns) for t in sorted(roots))
    trees = tuple(tree for tree in grown if len(tree) > 1)
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    return Forest(trees, np.array([np.mean(starts)], np.float32), objective)


def _columns(view: View) -> dict[int, _Column]:
    mappers = [m for _, m in view.messages(BinMappers)]
    return {
        m.first + k: _Column(
            Mapper(m.bins(k), m.low[k], m.high[k], True, int(m.frequent[k]), m.sparse[k])
        )
        for m in mappers for k in np.flatnonzero(m.used).tolist()
    }  # fmt: skip


def _tree(
    view: View,
    roots: list[RootSums],
    splits: dict[tuple[int, int], list[FoundSplits]],
    columns: dict[int, _Column],
) -> Tree:
    """Grow a tree as `fedtrees.protocols.horizontal.lightgbm_data.Machine` does."""
    p, tree = view.parameters, roots[0].tree
    gradient, hessian = sum(r.gradient for r in roots), sum(r.hessian for r in roots)
    root_totals = LeafTotals(gradient, hessian, sum(r.rows for r in roots))
    growing, step, pair = Growing(np.zeros(0, dtype=np.intp), root_totals), 0, (0, -1)
    for _ in range(p["num_leaves"] - 1):
        # machines only search splits for leaves that may be split, which defines the step number
        if growing.worth(pair, p["min_data_in_leaf"], p["max_depth"]):
            messages = sorted(splits.get((tree, step), []), key=lambda m: m.rank)
            growing.settle(growing.ordered(pair), [m.splits for m in messages])
            step += 1
        new_leaves = growing.advance(columns)
        if new_leaves is None:
            break
        pair = new_leaves
    return growing.tree(columns, growing.values(p["reg_lambda"], p["learning_rate"]))
