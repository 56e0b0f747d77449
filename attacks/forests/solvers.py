"""Exact methods of `draft-dp`: enumeration of one missing row, and the published program.

`Enumeration` infers one unknown row given all other rows. `rows_program` follows the paper:
Equations 1 to 9, Equations 10 to 16 if the number of rows is unknown, and Equation 20 with
`distance_costs` if one row is unknown. It needs OR-Tools. Its costs are integers in 1 / `UNIT`
nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.forests.posterior import Question, weights
from fedtrees.attacks.forests.structure import NAT, Labels, Noise, NoisyForest
from fedtrees.core.errors import DataError

#: Weight of the product of marginals in the prior, in rows.
PSEUDO = 20.0
#: Largest number of possible rows, without classes.
MOST_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All U rows that the variables allow, and the leaf of each in each of T trees."""

    forest: NoisyForest
    value: NDArray[np.int16]  # shape (U, G)
    leaf: NDArray[np.int32]  # shape (U, T)

    @staticmethod
    def of(forest: NoisyForest) -> Enumeration:
        """Enumerate the rows of a forest's variables.

        Raises
        ------
        DataError
            If there are more than `MOST_ROWS`.
        """
        variables = forest.variables
        if variables.rows_possible > MOST_ROWS:
            raise DataError(
                f"{variables.rows_possible:,} different rows are too many to look at one by one "
                f"(at most {MOST_ROWS:,}); take mode=posterior"
            )
        value = np.indices(tuple(variables.sizes)).reshape(len(variables), -1).T.astype(np.int16)
        return Enumeration(forest, value, forest.route(value))

    def missing_row(
        self,
        noise: Noise,
        known_rows: NDArray[np.integer],
        counts: NDArray[np.int64] | None = None,
        known_values: Mapping[int, int] | None = None,
    ) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
        """Return the row that is missing among the known ones.

        Parameters
        ----------
        noise : Noise
            Noise on the counts.
        known_rows : int array, shape (k, G + 1)
            Levels and class of all other rows.
        counts : int64 array, shape (T, 2^d, K), optional
            Counts of these rows in the leaves, if they were already computed.
        known_values : mapping of int to int, optional
            Known levels of variables of the missing row.

        Returns
        -------
        row : int16 array, shape (G + 1,)
            The valid row with the smallest expected difference from the missing row. Therefore no
            one-hot group is empty because none of its levels is likely.
        probability : float64 array, shape (U, K)
            Posterior of every row and class.

        Notes
        -----
        The prior is the empirical distribution of the known rows, mixed with the product of their
        marginals given the class, which has the weight of `PSEUDO` rows.
        """
        forest = self.forest
        counts = forest.counts(known_rows[:, :-1], known_rows[:, -1]) if counts is None else counts
        gain = _gain(forest, noise, counts, len(known_rows) + 1)
        trees = np.arange(len(gain))
        score = gain[trees[None, :], self.leaf].sum(axis=1) + np.log(self._prior(known_rows))
        for g, level in (known_values or {}).items():
            score[self.value[:, g] != level] = -np.inf
        score -= score.max()
        probability = np.exp(score)
        probability /= probability.sum()
        return self._nearest(probability), probability

    def most_likely_row(
        self, question: Question, counts: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int16], float]:
        """Return the optimum of Equation 20, which `rows_program` also finds, and its cost in nats.

        The cost does not include that of counts to which no possible row contributes.

        Parameters
        ----------
        question : Question
            The reconstruction problem of one row, with all other rows known.
        counts : int64 array, shape (T, 2^d, K), optional
            Counts of the known rows in the leaves, if they were already computed.
        """
        known_rows, forest = question.local_rows, question.forest
        assert known_rows is not None
        counts = forest.counts(known_rows[:, :-1], known_rows[:, -1]) if counts is None else counts
        noisy, table = question.noise.table(forest.noisy, len(known_rows) + 1)
        before = table[noisy - counts + len(table) // 2] / NAT
        gain = _gain(forest, question.noise, counts, len(known_rows) + 1)
        cost = before[forest.live].sum() - gain[np.arange(len(gain)), self.leaf].sum(axis=1)
        for g, level_costs in enumerate(distance_costs(question)):
            cost += level_costs[self.value[:, g], None]
        u, c = np.unravel_index(cost.argmin(), cost.shape)
        return np.append(self.value[u], c).astype(np.int16), float(cost[u, c])

    def _prior(self, known_rows: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the prior weight of every row and class, float64, shape (U, K)."""
        sizes, K = self.forest.variables.sizes, self.forest.n_classes
        weight = np.empty((len(self.value), K))
        for c in range(K):
            rows = known_rows[known_rows[:, -1] == c, :-1]
            weight[:, c] = PSEUDO * (len(rows) + 1) / (len(known_rows) + K)
            for g, r in enumerate(sizes.tolist()):
                share = (np.bincount(rows[:, g], minlength=r) + 0.5) / (len(rows) + 0.5 * r)
                weight[:, c] *= share[self.value[:, g]]
        place = np.ravel_multi_index(tuple(known_rows[:, :-1].T), tuple(sizes))
        np.add.at(weight, (place, known_rows[:, -1]), 1.0)
        return weight

    def _nearest(self, probability: NDArray[np.float64]) -> NDArray[np.int16]:
        rows, weight = probability.sum(axis=1), weights(self.forest.variables)
        agreed = np.zeros(len(self.value))
        for g, r in enumerate(self.forest.variables.sizes.tolist()):
            share = np.bincount(self.value[:, g], weights=rows, minlength=r)
            agreed += int(weight[g]) * share[self.value[:, g]]
        row = self.value[agreed.argmax()]
        return np.append(row, probability.sum(axis=0).argmax()).astype(np.int16)


def _gain(
    forest: NoisyForest, noise: Noise, counts: NDArray[np.int64], m: int
) -> NDArray[np.float64]:
    """Return the log likelihood gain of one more row in a leaf (nats), (T, leaves, K)."""
    if noise.kind == "labels":
        labels = Labels.of(noise, forest.noisy, m)
        before = labels.costs(counts)
        one = np.eye(forest.n_classes, dtype=np.int64)
        return np.stack([before - labels.costs(counts + row) for row in one], axis=2) / NAT
    noisy, table = noise.table(forest.noisy, m)
    at = np.clip(noisy - counts + len(table) // 2, 1, len(table) - 1)
    return np.asarray((table[at] - table[at - 1]) / NAT)


#: Units of cost per nat in the solver.
UNIT = 1000


#: Weight alpha of the likelihood in Equation 20 of Gorgé et al. (2026), as a multiple of epsilon.
ALPHA = 20.0


def distance_costs(question: Question) -> list[NDArray[np.float64]]:
    """Return the costs of each level of the missing row in nats: the regularizer of Equation 20.

    It is the mean distance from the known rows, as the number of columns that differ.

    Parameters
    ----------
    question : Question
        The reconstruction problem of one row, with all other rows known.

    Returns
    -------
    costs : list of float64 array, each of shape (r,)
        Costs of the levels of each variable.

    Notes
    -----
    The paper rescales both terms of the objective to comparable magnitudes. As in the code of the
    authors, the range of the log likelihood is alpha times the range of the distance. The range of
    the log likelihood is that of noise between 0 and 12 scales in every count.
    """
    variables, noise = question.forest.variables, question.noise
    if noise.kind == "exact" or question.local_rows is None or not len(question.local_rows):
        return [np.zeros(len(levels)) for levels in variables.levels]
    epsilon = len(question.forest.noisy) / noise.scale
    largest = noise.costs(np.array([math.ceil(12 * noise.scale)]))[0] * question.forest.noisy.size
    unit = largest / (ALPHA * epsilon * variables.width)
    costs = []
    for g, levels in enumerate(variables.levels):
        share = np.bincount(question.local_rows[:, g], minlength=len(levels))
        different_columns = (levels[:, None, :] != levels[None, :, :]).sum(axis=2)
        costs.append(unit * (different_columns @ share) / len(question.local_rows))
    return costs


def rows_program(
    question: Question,
    limit: float,
    fewest: int | None = None,
    level_costs: Sequence[NDArray[np.float64]] = (),
) -> tuple[NDArray[np.int16], float, bool] | None:
    """Minimise the costs of all counts over the attributes of every row: the published program.

    It follows Gorgé et al. (2026), Section III, with exactly one leaf per row and tree. If the cost
    of a count is not linear, their table of Booleans is replaced by a piecewise linear cost.

    Parameters
    ----------
    question : Question
        The reconstruction problem.
    limit : float
        Time limit in seconds.
    fewest : int, optional
        Smallest number of rows, if it is unknown (Equations 10 to 16). The largest is that of the
        question. A row that does not exist has no class, and rows that exist come first.
    level_costs : sequence of float64 array, each of shape (r,), optional
        Costs in nats of the levels of each variable, for every row (Equation 20).

    Returns
    -------
    (table, cost, optimal) or None
        The table, int16, shape (rows, G + 1), its cost in nats over leaves that rows can reach, and
        whether it is proven to be optimal. None if no table was found within the time limit.
    """
    from ortools.sat.python import cp_model

    model, forest, n = cp_model.CpModel(), question.forest, question.n
    known_levels, sizes = question.known_levels or {}, question.sizes
    fewest = n if fewest is None else fewest
    # literal[k][g][v]: row k has level v of variable g, the class last
    literal = [
        [[model.new_bool_var("") for _ in range(r)] for r in sizes.tolist()] for _ in range(n)
    ]
    for k, row in enumerate(literal):
        for g, levels in enumerate(row):
            may_be_absent = g == len(row) - 1 and k >= fewest
            (model.add_at_most_one if may_be_absent else model.add_exactly_one)(levels)
            if g in known_levels:
                model.add(levels[int(known_levels[g][k])] == 1)
    for row, next_row in pairwise(literal[fewest - 1 :]):
        model.add(sum(row[-1]) >= sum(next_row[-1]))
    costs = _Costs(question, model)
    for t in range(len(forest.noisy)):
        leaves = np.flatnonzero(forest.live[t]).tolist()
        in_leaf = [
            [[model.new_bool_var("") for _ in leaves] for _ in range(sizes[-1])] for _ in literal
        ]
        for row, of_row in zip(literal, in_leaf, strict=True):
            for c, of_class in enumerate(of_row):
                model.add(sum(of_class) == row[-1][c])
                for leaf, inside in zip(leaves, of_class, strict=True):
                    for g, bits in enumerate(forest.possible[t, leaf].tolist()):
                        if bits != (1 << int(sizes[g])) - 1:
                            passing = [row[g][v] for v in range(int(sizes[g])) if bits >> v & 1]
                            model.add_bool_or(passing).only_enforce_if(inside)
        for j, leaf in enumerate(leaves):
            for c in range(int(sizes[-1])):
                costs.of(t, leaf, c, sum(of_row[c][j] for of_row in in_leaf))
    for row in literal:
        for levels, of_levels in zip(row, level_costs, strict=False):
            weights_of_levels = np.rint(UNIT * of_levels).astype(int).tolist()
            costs.terms += [w * v for w, v in zip(weights_of_levels, levels, strict=True)]
    model.minimize(sum(costs.terms))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = float(limit)
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    status = solver.Solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    present = [row for row in literal if any(solver.Value(v) for v in row[-1])]
    table = [[[solver.Value(v) for v in levels].index(1) for levels in row] for row in present]
    cost = solver.ObjectiveValue() / UNIT
    return np.array(table, dtype=np.int16), cost, status == cp_model.OPTIMAL


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
        total = self.model.new_int_var(int(cost.min()), int(cost.max()), "")
        if (np.diff(cost, 2) >= 0).all():  # convex: the highest of its tangents
            for slope, at in _lines(cost):
                self.model.add(total >= int(cost[at]) + slope * (count - at))
        else:
            count_variable = self.model.new_int_var(0, self.n, "")
            self.model.add(count_variable == count)
            self.model.add_element(count_variable, cost.tolist(), total)
        self.terms.append(total)


def _lines(cost: NDArray[np.int64]) -> Sequence[tuple[int, int]]:
    """Return slope and first point of every linear piece of a convex curve on 0, 1, ..., n."""
    slopes = np.diff(cost)
    first = np.flatnonzero(np.concatenate([[True], np.diff(slopes) != 0]))
    return [(int(slopes[k]), int(k)) for k in first]
