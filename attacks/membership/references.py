"""Reference models: the same training on random halves of the candidates."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.membership.margins import is_plain, margins
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import LOGISTIC, Objective, SquaredError
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_decision import RandomDecisionForest
from fedtrees.trees.sketch import quantile_cuts

#: Takes all rows, of which the first n are candidates; returns what trains on some of the rows and
#: says the logit of each candidate's own class, as `said_by`.
Trainer = Callable[[Table, int], Callable[[NDArray[np.bool_]], NDArray[np.float64]]]
#: Half of them have each candidate.
REFERENCES = 16
#: Of a model that stands for one that adds up columns.
STUMPS = 200
#: Errors of numeric targets that are told apart, in standard deviations of these.
LEAST_OFF = 0.03


@dataclass(frozen=True, eq=False)
class References:
    """What reference models say of candidates.

    Attributes
    ----------
    held : bool array, shape (R, n)
        Which candidates each was trained on.
    logit : float64 array, shape (R, n)
        As of `said_by`.
    numbers : bool
        Whether targets are numbers.
    """

    held: NDArray[np.bool_]
    logit: NDArray[np.float64]
    numbers: bool = False


def halves(y: NDArray[Any], pairs: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield complementary halves of rows, alike in their labels: of two, one has a given row."""
    for _ in range(pairs):
        order = rng.permutation(len(y))
        place = np.empty(len(y), dtype=np.int64)
        place[order[np.argsort(y[order], kind="stable")]] = np.arange(len(y))
        half = place % 2 == 0
        yield half
        yield ~half


def references(
    rows: Table, known: Table | None, trainer: Trainer, models: int, rng: np.random.Generator,
    numbers: bool = False,
) -> References:  # fmt: skip
    """Train reference models of candidates; rows known to have been trained on are in each.

    `models`: An even number.
    """
    every = rows if known is None else Table.concat([rows, known])
    sure = np.ones(len(every) - len(rows), dtype=bool)
    held = np.array([*halves(rows.y, models // 2, rng)])
    said = trainer(every, len(rows))
    return References(held, np.array([said(np.append(half, sure)) for half in held]), numbers)


def boosts(params: TreeParams, objective: Objective, cuts: Cuts | None) -> Trainer:
    """Return what boosts trees; `cuts`: of the model in question, None: quantiles of all rows."""

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        told = quantile_cuts(every.X, params.max_bin) if cuts is None else cuts
        bins, rows = bin_rows(every.X, told), every.take(np.arange(n))
        numbers, plain = isinstance(objective, SquaredError), is_plain(params, objective, told)

        def said(used: NDArray[np.bool_]) -> NDArray[np.float64]:
            y = every.y[used]
            classes = numbers or len(np.unique(y)) == max(objective.n_outputs, 2)
            started = params if classes else replace(params, base_score=0.5)
            if plain:  # of the log-odds of class 1
                margin = margins(bins, every.y, used, started)[:n]
                return np.where(rows.y == 1, margin, -margin)
            forest = grow_forest(bins.take(used), y, told, started, objective, streams=Streams(0))
            return said_by(forest, rows)

        return said

    return trainer


def adds() -> Trainer:
    """Return what boosts stumps, whose sum adds up columns as an explainable boosting machine."""
    return boosts(TreeParams(trees=STUMPS, max_depth=1, max_bin=1024), LOGISTIC, None)


def grows(params: ForestParams, n_classes: int, cuts: Cuts | None) -> Trainer:
    """Return what grows random forests; `cuts` as in `boosts`."""

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        told = quantile_cuts(every.X, params.max_bin) if cuts is None else cuts
        bins, rows = bin_rows(every.X, told), every.take(np.arange(n))

        def said(used: NDArray[np.bool_]) -> NDArray[np.float64]:
            forest = grow_random_forest(
                bins.take(used), every.y[used], told, params, n_classes=n_classes
            )
            return logit_of_own(forest.probabilities(rows.X), rows.y)

        return said

    return trainer


def counts(model: RandomDecisionForest) -> Trainer:
    """Return what counts rows in the leaves of the same random trees, without noise."""
    n_classes = model.counts.shape[2]

    def trainer(every: Table, n: int) -> Callable[[NDArray[np.bool_]], NDArray[np.float64]]:
        leaves, rows = model.apply(every.X), every.take(np.arange(n))

        def said(used: NDArray[np.bool_]) -> NDArray[np.float64]:
            cell = leaves[used] * n_classes + every.y[used, None]
            size = model.counts[0].size
            counted = [np.bincount(tree, minlength=size) for tree in cell.T]
            table = np.array(counted).reshape(model.counts.shape)
            forest = RandomDecisionForest(model.splits, table)
            return logit_of_own(forest.probabilities(rows.X), rows.y)

        return said

    return trainer


def said_by(forest: Forest, rows: Table) -> NDArray[np.float64]:
    """Return the logit that a boosted forest gives each row's own class, float64, shape (n,)."""
    numbers = isinstance(forest.objective, SquaredError)
    return own_logit(forest.predict(rows.X), rows, numbers)


def own_logit(said: NDArray[np.float64], rows: Table, numbers: bool) -> NDArray[np.float64]:
    """Return the logit of each row's own class, given a model's answers, float64, shape (n,).

    Of a numeric target minus the log of how far it is off the prediction: that is nearly normal,
    as `lira` takes it, and the error itself is not.
    """
    if numbers:
        off = np.abs(rows.y - said) + LEAST_OFF * rows.y.std() + 1e-30
        return np.asarray(-np.log(off), dtype=np.float64)
    return logit_of_own(said, rows.y)


def logit_of_own(scores: NDArray[np.float64], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logit of each row's own class, float64, shape (n,).

    `scores`: float64 array, shape (n,) of class 1, or (n, K).
    """
    p = scores[np.arange(len(y)), y] if scores.ndim == 2 else np.where(y == 1, scores, 1 - scores)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p), dtype=np.float64)
