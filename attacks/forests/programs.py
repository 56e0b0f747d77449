"""The table of least cost by a solver: over cells of all possible rows, or over rows as published.

Both need OR-Tools. Costs are whole numbers of `UNIT` to the nat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.informed import Enumeration
from fedtrees.attacks.forests.noise import NAT
from fedtrees.attacks.forests.posterior import Question
from fedtrees.core.errors import DataError

#: Most different rows of which each is a variable of the program.
MOST_CELLS = 50_000
#: Parts of a nat that the solver counts in.
UNIT = 1000


@dataclass(frozen=True, eq=False)
class Solved:
    """What a solver found."""

    # shape (n, G + 1): None where time ran out before there was any table
    value: NDArray[np.int16] | None
    cost: float  # nats, over leaves that rows can reach; infinite without a table
    bound: float  # no table costs less
    optimal: bool  # proven


def cells_program(
    question: Question, limit: float, hint: NDArray[np.integer] | None = None
) -> Solved:
    """Minimise the costs of all counts over how many rows there are of each kind.

    A row's number means nothing here, so the n! orders that burden the published program are one.

    Raises `DataError` if there are more than `MOST_CELLS` different rows, or attributes are known
    of each row.

    `limit`: Seconds.
    `hint`: int array, shape (n, G + 1). A table to start from.
    """
    from ortools.sat.python import cp_model

    if question.known:
        raise DataError("attributes known of each row need mode=posterior, map or cpsat-rows")
    forest = question.forest
    possible = forest.variables.rows_possible
    if possible > MOST_CELLS:
        raise DataError(
            f"{possible:,} different rows are too many for mode=cpsat-cells (at most "
            f"{MOST_CELLS:,}); take mode=map"
        )
    every = Enumeration.of(forest)
    model, n, K = cp_model.CpModel(), question.n, forest.n_classes
    cell = [[model.NewIntVar(0, n, "") for _ in range(K)] for _ in every.value]
    model.Add(sum(v for row in cell for v in row) == n)
    costs = _Costs(question, model)
    for t in range(len(forest.noisy)):
        for leaf in np.flatnonzero(forest.live[t]).tolist():
            inside = np.flatnonzero(every.leaf[:, t] == leaf).tolist()
            for c in range(K):
                costs.of(t, leaf, c, sum(cell[u][c] for u in inside))
    if hint is not None:
        place = np.ravel_multi_index(tuple(hint[:, :-1].T), tuple(forest.variables.sizes))
        held = np.zeros((possible, K), dtype=int)
        np.add.at(held, (place, hint[:, -1]), 1)
        for u in range(possible):
            for c in range(K):
                model.AddHint(cell[u][c], int(held[u, c]))
    solver, status = _solve(costs, limit)
    if status is None:
        return Solved(None, np.inf, solver.BestObjectiveBound() / UNIT, False)
    counts = [[solver.Value(v) for v in row] for row in cell]
    rows = [(u, c) for u in range(possible) for c in range(K) for _ in range(counts[u][c])]
    value = np.array([[*every.value[u], c] for u, c in rows], dtype=np.int16)
    bound = solver.BestObjectiveBound() / UNIT
    return Solved(value, solver.ObjectiveValue() / UNIT, bound, status)


def rows_program(question: Question, limit: float) -> Solved:
    """Minimise the costs of all counts over the attributes of every row: the published program.

    Gorgé et al. (2025), Section 4, with exactly one leaf per row and tree; for comparison. Where a
    count's cost is no straight line, their table of Booleans is a piecewise linear cost here.

    `limit`: Seconds.
    """
    from ortools.sat.python import cp_model

    model, forest, n = cp_model.CpModel(), question.forest, question.n
    known, sizes = question.known or {}, question.sizes
    # literal[k][g][v]: row k has level v of variable g, the class last
    literal = [[[model.NewBoolVar("") for _ in range(r)] for r in sizes.tolist()] for _ in range(n)]
    for k, row in enumerate(literal):
        for g, levels in enumerate(row):
            model.AddExactlyOne(levels)
            if g in known:
                model.Add(levels[int(known[g][k])] == 1)
    costs = _Costs(question, model)
    for t in range(len(forest.noisy)):
        leaves = np.flatnonzero(forest.live[t]).tolist()
        there = [
            [[model.NewBoolVar("") for _ in leaves] for _ in range(sizes[-1])] for _ in literal
        ]
        for row, of_row in zip(literal, there, strict=True):
            for c, of_class in enumerate(of_row):
                model.Add(sum(of_class) == row[-1][c])
                for leaf, inside in zip(leaves, of_class, strict=True):
                    for g, bits in enumerate(forest.possible[t, leaf].tolist()):
                        if bits != (1 << int(sizes[g])) - 1:
                            passing = [row[g][v] for v in range(int(sizes[g])) if bits >> v & 1]
                            model.AddBoolOr(passing).OnlyEnforceIf(inside)
        for j, leaf in enumerate(leaves):
            for c in range(int(sizes[-1])):
                costs.of(t, leaf, c, sum(of_row[c][j] for of_row in there))
    solver, status = _solve(costs, limit)
    if status is None:
        return Solved(None, np.inf, solver.BestObjectiveBound() / UNIT, False)
    value = [[[solver.Value(v) for v in levels].index(1) for levels in row] for row in literal]
    bound = solver.BestObjectiveBound() / UNIT
    return Solved(np.array(value, dtype=np.int16), solver.ObjectiveValue() / UNIT, bound, status)


class _Costs:
    """Costs of counts in a program."""

    def __init__(self, question: Question, model: Any) -> None:
        m = question.n + (0 if question.own is None else len(question.own))
        noisy, table = question.noise.table(question.forest.noisy, m)
        if question.own is not None:
            noisy = noisy - question.forest.counts(question.own[:, :-1], question.own[:, -1])
        self.noisy, self.table, self.model, self.n = noisy, table, model, question.n
        self.terms: list[Any] = []

    def of(self, tree: int, leaf: int, label: int, count: Any) -> None:
        """Add the cost of one count, a sum of variables."""
        target = int(self.noisy[tree, leaf, label])
        middle, r = len(self.table) // 2, target - np.arange(self.n + 1)
        cost = np.round(self.table[r + middle] * (UNIT / NAT)).astype(np.int64)
        total = self.model.NewIntVar(int(cost.min()), int(cost.max()), "")
        if (np.diff(cost, 2) >= 0).all():  # convex: the highest of its tangents
            for slope, at in _lines(cost):
                self.model.Add(total >= int(cost[at]) + slope * (count - at))
        else:
            held = self.model.NewIntVar(0, self.n, "")
            self.model.Add(held == count)
            self.model.AddElement(held, cost.tolist(), total)
        self.terms.append(total)


def _lines(cost: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return slope and a place of every straight piece of a convex curve on 0, 1, ..., n."""
    slopes = np.diff(cost)
    first = np.flatnonzero(np.concatenate([[True], np.diff(slopes) != 0]))
    return [(int(slopes[k]), int(k)) for k in first]


def _solve(costs: _Costs, limit: float) -> tuple[Any, bool | None]:
    """Solve; return the solver and whether the table is the best one, None without a table."""
    from ortools.sat.python import cp_model

    costs.model.Minimize(sum(costs.terms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = float(limit)
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.Solve(costs.model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return solver, (status == cp_model.OPTIMAL) if found else None
