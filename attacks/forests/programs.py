"""Find the table of least cost by a solver, over counts of possible rows or as published.

`cells_program` has one variable per possible row and class, and `rows_program` follows the paper.
Both need OR-Tools. Costs are integers in 1 / `UNIT` nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.informed import Enumeration
from fedtrees.attacks.forests.likelihoods import NAT
from fedtrees.attacks.forests.posterior import Question
from fedtrees.core.errors import DataError

#: Largest number of different rows, each of which is a variable of the program.
MOST_CELLS = 50_000
#: Units of cost per nat in the solver.
UNIT = 1000


@dataclass(frozen=True, eq=False)
class Solved:
    """Result of a solver.

    Attributes
    ----------
    value : int16 array, shape (n, G + 1), or None
        The table. None if none was found within the time limit.
    cost : float
        Cost in nats, over leaves that rows can reach. Infinite without a table.
    bound : float
        Lower bound on the cost of every table.
    optimal : bool
        Whether the table is proven to be optimal.
    """

    # shape (n, G + 1)
    value: NDArray[np.int16] | None
    cost: float
    bound: float
    optimal: bool


def cells_program(
    question: Question, limit: float, hint: NDArray[np.integer] | None = None
) -> Solved:
    """Minimise the costs of all counts over the number of rows of each kind.

    The rows are not numbered, which removes the n! symmetric solutions of the published program.

    Parameters
    ----------
    question : Question
        The reconstruction problem.
    limit : float
        Time limit in seconds.
    hint : int array, shape (n, G + 1), optional
        Initial table.

    Raises
    ------
    DataError
        If there are more than `MOST_CELLS` different rows, or if attributes of each row are known.
    """
    from ortools.sat.python import cp_model

    if question.known_levels:
        raise DataError("attributes known of each row need mode=posterior, map or cpsat-rows")
    forest = question.forest
    possible = forest.variables.rows_possible
    if possible > MOST_CELLS:
        raise DataError(
            f"{possible:,} different rows are too many for mode=cpsat-cells (at most "
            f"{MOST_CELLS:,}); take mode=map"
        )
    enumeration = Enumeration.of(forest)
    model, n, K = cp_model.CpModel(), question.n, forest.n_classes
    cell = [[model.NewIntVar(0, n, "") for _ in range(K)] for _ in enumeration.value]
    model.Add(sum(v for row in cell for v in row) == n)
    costs = _Costs(question, model)
    for t in range(len(forest.noisy)):
        for leaf in np.flatnonzero(forest.live[t]).tolist():
            inside = np.flatnonzero(enumeration.leaf[:, t] == leaf).tolist()
            for c in range(K):
                costs.of(t, leaf, c, sum(cell[u][c] for u in inside))
    if hint is not None:
        place = np.ravel_multi_index(tuple(hint[:, :-1].T), tuple(forest.variables.sizes))
        hint_counts = np.zeros((possible, K), dtype=int)
        np.add.at(hint_counts, (place, hint[:, -1]), 1)
        for u in range(possible):
            for c in range(K):
                model.AddHint(cell[u][c], int(hint_counts[u, c]))
    solver, status = _solve(costs, limit)
    if status is None:
        return Solved(None, np.inf, solver.BestObjectiveBound() / UNIT, False)
    counts = [[solver.Value(v) for v in row] for row in cell]
    rows = [(u, c) for u in range(possible) for c in range(K) for _ in range(counts[u][c])]
    value = np.array([[*enumeration.value[u], c] for u, c in rows], dtype=np.int16)
    bound = solver.BestObjectiveBound() / UNIT
    return Solved(value, solver.ObjectiveValue() / UNIT, bound, status)


def rows_program(question: Question, limit: float) -> Solved:
    """Minimise the costs of all counts over the attributes of every row: the published program.

    It follows Gorgé et al. (2026), Section 4, with exactly one leaf per row and tree. If the cost
    of a count is not linear, their table of Booleans is replaced by a piecewise linear cost.
    ``limit`` is the time limit in seconds.
    """
    from ortools.sat.python import cp_model

    model, forest, n = cp_model.CpModel(), question.forest, question.n
    known_levels, sizes = question.known_levels or {}, question.sizes
    # literal[k][g][v]: row k has level v of variable g, the class last
    literal = [[[model.NewBoolVar("") for _ in range(r)] for r in sizes.tolist()] for _ in range(n)]
    for k, row in enumerate(literal):
        for g, levels in enumerate(row):
            model.AddExactlyOne(levels)
            if g in known_levels:
                model.Add(levels[int(known_levels[g][k])] == 1)
    costs = _Costs(question, model)
    for t in range(len(forest.noisy)):
        leaves = np.flatnonzero(forest.live[t]).tolist()
        in_leaf = [
            [[model.NewBoolVar("") for _ in leaves] for _ in range(sizes[-1])] for _ in literal
        ]
        for row, of_row in zip(literal, in_leaf, strict=True):
            for c, of_class in enumerate(of_row):
                model.Add(sum(of_class) == row[-1][c])
                for leaf, inside in zip(leaves, of_class, strict=True):
                    for g, bits in enumerate(forest.possible[t, leaf].tolist()):
                        if bits != (1 << int(sizes[g])) - 1:
                            passing = [row[g][v] for v in range(int(sizes[g])) if bits >> v & 1]
                            model.AddBoolOr(passing).OnlyEnforceIf(inside)
        for j, leaf in enumerate(leaves):
            for c in range(int(sizes[-1])):
                costs.of(t, leaf, c, sum(of_row[c][j] for of_row in in_leaf))
    solver, status = _solve(costs, limit)
    if status is None:
        return Solved(None, np.inf, solver.BestObjectiveBound() / UNIT, False)
    value = [[[solver.Value(v) for v in levels].index(1) for levels in row] for row in literal]
    bound = solver.BestObjectiveBound() / UNIT
    return Solved(np.array(value, dtype=np.int16), solver.ObjectiveValue() / UNIT, bound, status)


class _Costs:
    """Costs of counts in a program."""

    def __init__(self, question: Question, model: Any) -> None:
        m = question.n + (0 if question.local_rows is None else len(question.local_rows))
        noisy, table = question.noise.table(question.forest.noisy, m)
        if question.local_rows is not None:
            noisy = noisy - question.forest.counts(
                question.local_rows[:, :-1], question.local_rows[:, -1]
            )
        self.noisy, self.table, self.model, self.n = noisy, table, model, question.n
        self.terms: list[Any] = []

    def of(self, tree: int, leaf: int, label: int, count: Any) -> None:
        """Add the cost of one count, which is a sum of variables."""
        target = int(self.noisy[tree, leaf, label])
        middle, r = len(self.table) // 2, target - np.arange(self.n + 1)
        cost = np.round(self.table[r + middle] * (UNIT / NAT)).astype(np.int64)
        total = self.model.NewIntVar(int(cost.min()), int(cost.max()), "")
        if (np.diff(cost, 2) >= 0).all():  # convex: the highest of its tangents
            for slope, at in _lines(cost):
                self.model.Add(total >= int(cost[at]) + slope * (count - at))
        else:
            count_variable = self.model.NewIntVar(0, self.n, "")
            self.model.Add(count_variable == count)
            self.model.AddElement(count_variable, cost.tolist(), total)
        self.terms.append(total)


def _lines(cost: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return slope and first point of every linear piece of a convex curve on 0, 1, ..., n."""
    slopes = np.diff(cost)
    first = np.flatnonzero(np.concatenate([[True], np.diff(slopes) != 0]))
    return [(int(slopes[k]), int(k)) for k in first]


def _solve(costs: _Costs, limit: float) -> tuple[Any, bool | None]:
    """Solve, and return the solver and whether the table is optimal, None without a table."""
    from ortools.sat.python import cp_model

    costs.model.Minimize(sum(costs.terms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = float(limit)
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.Solve(costs.model)
    has_table = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return solver, (status == cp_model.OPTIMAL) if has_table else None
