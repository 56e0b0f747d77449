"""Reference models: the same training on random halves of the candidates, and likelihood ratios.

LiRA and RMIA compare the answer of the model under attack with the answers of reference models. The
comparison is meaningful only if the reference models are trained by the same learner. Every
function that ends in ``_trainer`` is the learner of one kind of protocol. `lira` implements the
online attack of Carlini et al. (2022), `rmia` the score of Zarifzadeh et al. (2024).
`ratio_weights` calibrates both to log-odds of membership, so that the attack can add them to the
posteriors of other tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedtrees.core.repeated import computed_once
from fedtrees.core.schema import Table
from fedtrees.core.streams import Streams
from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import grow_forest
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.losses import Objective, SquaredError, named_objective
from fedtrees.trees.boosted.params import TreeParams
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.forest.grower import grow_random_forest
from fedtrees.trees.forest.params import ForestParams
from fedtrees.trees.forest.random_decision import RandomDecisionForest

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

#: A learner. It is given all rows, of which the first n are candidates. The function that it
#: returns is given one mask of rows per model, shape (R, len(rows)). It trains a model on the rows
#: of each mask, and returns the logits of the candidates' true classes, shape (R, n).
Trainer = Callable[[Table, int], Callable[[Bools], Floats]]
#: Reference models by default. Half of them are trained on each candidate.
REFERENCES = 16
#: Errors of numeric targets below this share of the targets' standard deviation count as equal.
LEAST_ERROR = 0.03


@dataclass(frozen=True, eq=False)
class References:
    """Answers of reference models about candidates.

    Attributes
    ----------
    member : bool array, shape (R, n)
        Which candidates each model was trained on.
    logit : float64 array, shape (R, n)
        Logit that each model gives the true class of each candidate, as of `answer_logits`.
    numbers : bool
        Whether targets are numbers.
    """

    member: Bools
    logit: Floats
    numbers: bool = False


def halves(y: NDArray[Any], pairs: int, rng: np.random.Generator) -> Iterator[Bools]:
    """Yield complementary halves of rows, stratified by label.

    Parameters
    ----------
    y : array, shape (n,)
        Labels or numeric targets.
    pairs : int
        Number of pairs of halves.
    rng : numpy.random.Generator
        Draws the halves.

    Yields
    ------
    bool array, shape (n,)
        Two arrays per pair, so that each row is in exactly half of all sets.
    """
    for _ in range(pairs):
        order = rng.permutation(len(y))
        place = np.empty(len(y), dtype=np.int64)
        place[order[np.argsort(y[order], kind="stable")]] = np.arange(len(y))
        half = place % 2 == 0
        yield half
        yield ~half


def references(
    rows: Table, known_rows: Table | None, trainer: Trainer, models: int, rng: np.random.Generator,
    numbers: bool = False,
) -> References:  # fmt: skip
    """Train reference models on halves of the candidates.

    Parameters
    ----------
    rows : Table
        The n candidates.
    known_rows : Table or None
        Rows that the adversary knows to be members. They are in the training set of each model.
    trainer : Trainer
        The learner of the protocol.
    models : int
        Number of reference models, even.
    rng : numpy.random.Generator
        Draws the halves.
    numbers : bool
        Whether targets are numbers.

    Returns
    -------
    References
    """
    every = rows if known_rows is None else Table.concat([rows, known_rows])
    always = np.ones(len(every) - len(rows), dtype=bool)
    member = np.array([*halves(rows.y, models // 2, rng)])
    used = np.array([np.append(half, always) for half in member])
    return References(member, trainer(every, len(rows))(used), numbers)


def train_each(train: Callable[[Bools], Floats]) -> Callable[[Bools], Floats]:
    """Return a function that calls `train` for each of several masks, and stacks the results."""
    return lambda used: np.array([train(mask) for mask in used])


def boosted_trainer(params: TreeParams, objective: Objective, cuts: Cuts | None) -> Trainer:
    """Return the learner that boosts trees greedily, by the gain of their splits.

    Parameters
    ----------
    params : TreeParams
        Parameters of the trees.
    objective : Objective
        Loss of the boosting.
    cuts : Cuts or None
        Cut points of the model under attack. None: quantiles of candidates and known rows.
    """

    named = (objective.name, max(objective.n_outputs, 2))

    def trainer(every: Table, n: int) -> Callable[[Bools], Floats]:
        used_cuts = quantile_cuts(every.X, params.max_bin) if cuts is None else cuts
        borders = tuple(getattr(used_cuts, f.name) for f in fields(Cuts))
        return lambda used: boosted_logits(every, n, used, borders, asdict(params), named)

    return trainer


@computed_once
def boosted_logits(
    every: Table,
    n: int,
    used: Bools,
    borders: tuple[Any, ...],
    parameters: Mapping[str, Any],
    named: tuple[str, int],
) -> Floats:
    """Boost one reference model per mask of rows. The result does not depend on the messages.

    Parameters
    ----------
    every : Table
        The n candidates, followed by rows that the adversary knows to be members.
    n : int
        Number of candidates.
    used : bool array, shape (R, len(every))
        Rows that each model is trained on.
    borders : tuple
        Fields of `Cuts`.
    parameters : mapping
        Fields of `TreeParams`.
    named : tuple (str, int)
        Name of the objective and number of classes.

    Returns
    -------
    float64 array, shape (R, n)
        Logits of the candidates' true classes.
    """
    cuts, params, objective = Cuts(*borders), TreeParams(**parameters), named_objective(*named)
    bins, rows = bin_rows(every.X, cuts), every.take(np.arange(n))
    numbers = isinstance(objective, SquaredError)

    def train(mask: Bools) -> Floats:
        y = every.y[mask]
        classes = numbers or len(np.unique(y)) == max(objective.n_outputs, 2)
        started = params if classes else replace(params, base_score=0.5)
        forest = grow_forest(bins.take(mask), y, cuts, started, objective, streams=Streams(0))
        return forest_logits(forest, rows)

    return train_each(train)(used)


def random_forest_trainer(params: ForestParams, n_classes: int, cuts: Cuts | None) -> Trainer:
    """Return the learner that grows one random forest on all rows.

    Parameters
    ----------
    params : ForestParams
        Parameters of the forest.
    n_classes : int
        Number of classes, K.
    cuts : Cuts or None
        Cut points of the model under attack. None: quantiles of candidates and known rows.
    """

    def trainer(every: Table, n: int) -> Callable[[Bools], Floats]:
        used_cuts = quantile_cuts(every.X, params.max_bin) if cuts is None else cuts
        bins, rows = bin_rows(every.X, used_cuts), every.take(np.arange(n))

        def train(used: Bools) -> Floats:
            forest = grow_random_forest(
                bins.take(used), every.y[used], used_cuts, params, n_classes=n_classes
            )
            return class_logits(forest.probabilities(rows.X), rows.y)

        return train_each(train)

    return trainer


def assign_to_clients(rows: NDArray[np.intp], sizes: Floats) -> list[NDArray[np.intp]]:
    """Split rows into consecutive parts, one per client, in proportion to the sizes.

    Sizes that differ by at most one row count as equal.

    Examples
    --------
    >>> [len(part) for part in assign_to_clients(np.arange(10), np.array([300.0, 200.0]))]
    [6, 4]
    """
    if np.ptp(sizes) <= 1:
        return np.array_split(rows, len(sizes))
    ends = np.rint(np.cumsum(sizes) / np.sum(sizes) * len(rows)).astype(np.intp)
    return np.split(rows, ends[:-1])


def deal_rows(
    every: Table, n: int, used: Bools, sizes: Floats, rng: np.random.Generator
) -> list[Table]:
    """Return the local data of the clients of a simulated federation, without empty clients.

    Parameters
    ----------
    every : Table
        The n candidates, followed by rows that the adversary knows to be members. The latter form
        the local data of one further client.
    n : int
        Number of candidates.
    used : bool array, shape (len(every),)
        Rows that are trained on.
    sizes : float64 array, shape (c,)
        Relative numbers of rows of the clients that the adversary does not control. Candidates are
        assigned at random, in proportion to them.
    rng : numpy.random.Generator
        Draws the assignment.
    """
    dealt = assign_to_clients(rng.permutation(np.flatnonzero(used[:n])), sizes)
    return [every.take(at) for at in (*dealt, np.arange(n, len(every))) if len(at)]


def local_forest_trainer(params: ForestParams, n_classes: int, sizes: Floats) -> Trainer:
    """Return the learner in which each client grows a forest with cut points of its local data.

    The rows are distributed by `deal_rows`.

    Parameters
    ----------
    params : ForestParams
        Parameters of each forest.
    n_classes : int
        Number of classes, K.
    sizes : float64 array, shape (c,)
        Relative numbers of rows of the clients that the adversary does not control.
    """

    def trainer(every: Table, n: int) -> Callable[[Bools], Floats]:
        rng, rows = np.random.default_rng(0), every.take(np.arange(n))

        def train(used: Bools) -> Floats:
            parts = deal_rows(every, n, used, sizes, rng)
            scores = np.zeros((n, n_classes))
            for part in parts:
                cuts, seed = quantile_cuts(part.X, params.max_bin), int(rng.integers(2**31))
                forest = grow_random_forest(
                    part.X, part.y, cuts, params, n_classes=n_classes, seed=seed
                )
                scores += forest.probabilities(rows.X) / len(parts)
            return class_logits(scores, rows.y)

        return train_each(train)

    return trainer


def leaf_count_trainer(
    model: RandomDecisionForest,
    release: Callable[[NDArray[np.int64], np.random.Generator], NDArray[np.int64]],
) -> Trainer:
    """Return the learner that counts rows in the leaves of the trees of a model.

    Parameters
    ----------
    model : RandomDecisionForest
        The model under attack, whose tests were drawn without looking at data.
    release : callable
        Adds the noise of the protocol to counts of shape (T, 2^depth, K).
    """
    n_classes = model.counts.shape[2]

    def trainer(every: Table, n: int) -> Callable[[Bools], Floats]:
        leaves, rows = model.apply(every.X), every.take(np.arange(n))
        rng = np.random.default_rng(0)

        def train(used: Bools) -> Floats:
            cell = leaves[used] * n_classes + every.y[used, None]
            size = model.counts[0].size
            counts = [np.bincount(tree, minlength=size) for tree in cell.T]
            exact = np.array(counts, dtype=np.int64).reshape(model.counts.shape)
            forest = RandomDecisionForest(model.splits, release(exact, rng))
            return class_logits(forest.probabilities(rows.X), rows.y)

        return train_each(train)

    return trainer


def forest_logits(forest: Forest, rows: Table) -> Floats:
    """Return the logit that a boosted forest gives the true class of each row, shape (n,)."""
    numbers = isinstance(forest.objective, SquaredError)
    return answer_logits(forest.predict(rows.X), rows, numbers)


def answer_logits(answers: Floats, rows: Table, numbers: bool) -> Floats:
    """Return the logit of the true class of each row, given the predictions of a model.

    For a numeric target it is minus the log of the absolute error, which is nearly normal, as
    `lira` assumes. The error itself is not.

    Parameters
    ----------
    answers : float64 array, shape (n,) or (n, K)
        Predicted probabilities, or predicted targets.
    rows : Table
        The n rows with their true labels or targets.
    numbers : bool
        Whether targets are numbers.

    Returns
    -------
    float64 array, shape (n,)
    """
    if numbers:
        error = np.abs(rows.y - answers) + LEAST_ERROR * rows.y.std() + 1e-30
        return np.asarray(-np.log(error), dtype=np.float64)
    return class_logits(answers, rows.y)


def class_logits(scores: Floats, y: NDArray[np.int64]) -> Floats:
    """Return the logit of the true class of each row, float64, shape (n,).

    Parameters
    ----------
    scores : float64 array, shape (n,) or (n, K)
        Probability of class 1, or of every class. Probabilities are clipped to [1e-12, 1 - 1e-12].
    y : int64 array, shape (n,)
        Labels.

    Examples
    --------
    >>> class_logits(np.array([0.9, 0.9]), np.array([1, 0])).round(3).tolist()
    [2.197, -2.197]
    """
    p = scores[np.arange(len(y)), y] if scores.ndim == 2 else np.where(y == 1, scores, 1 - scores)
    p = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(p) - np.log1p(-p), dtype=np.float64)


#: Weight of the mean variance over all rows, in reference models, when it is pooled with the
#: variance of a single row. A variance that is estimated from eight models has a relative error of
#: about one half.
SHRINK = 8.0
#: Reference models below which weights are not fitted.
_FEWEST = 4


def lira(logit: Floats, refs: References) -> Floats:
    """Return log-likelihood ratios of membership (Carlini et al. 2022, Algorithm 1, online).

    The logits of models with the row, and of models without it, are modelled as normal. Means are
    estimated per row. Variances are shrunk towards their mean over all rows.

    Parameters
    ----------
    logit : float64 array, shape (n,)
        Logits that the model under attack gives the true classes of the candidates.
    refs : References
        Logits of the reference models.

    Returns
    -------
    float64 array, shape (n,)
        In nats; greater means more likely a member.
    """
    # one normal distribution per row for models with it, another for models without it
    with_row, without = (_log_normal(logit, refs.logit, of) for of in (refs.member, ~refs.member))
    return with_row - without


def _log_normal(x: Floats, logit: Floats, models: NDArray[np.bool_]) -> Floats:
    n = models.sum(axis=0)
    mean = np.where(models, logit, 0).sum(axis=0) / n
    squares = np.where(models, (logit - mean) ** 2, 0).sum(axis=0)
    pooled = float(squares.sum() / max(n.sum() - len(x), 1)) + 1e-12
    variance = (squares + SHRINK * pooled) / (n - 1 + SHRINK)
    return np.asarray(-0.5 * (np.log(variance) + (x - mean) ** 2 / variance), dtype=np.float64)


def rmia(logit: Floats, refs: References) -> Floats:
    """Return the log of p(x | model) over its mean (Zarifzadeh et al. 2024, Eq. 4).

    The comparison with the ratios of other rows is omitted, because it does not change the order of
    the candidates. Errors of numeric targets are assumed to be normal.

    Parameters
    ----------
    logit : float64 array, shape (n,)
        Logits that the model under attack gives the true classes of the candidates.
    refs : References
        Logits of the reference models. The mean is over all of them.

    Returns
    -------
    float64 array, shape (n,)
        In nats; greater means more likely a member.
    """
    if refs.numbers:
        squared, squared_refs = (np.exp(-2 * z) for z in (logit, refs.logit))
        log_p, log_refs = (-s / (2 * squared_refs.mean()) for s in (squared, squared_refs))
    else:
        log_p, log_refs = (-np.logaddexp(0, -z) for z in (logit, refs.logit))
    mean = np.logaddexp.reduce(log_refs, axis=0) - np.log(len(log_refs))
    return np.asarray(log_p - mean, dtype=np.float64)


def ratio_weights(refs: References) -> dict[str, float]:
    """Return the log-odds of membership that a nat of `lira` and of `rmia` is worth.

    Reference models take the place of the model under attack in turn, because their members are
    known. A logistic regression on both ratios is fitted to them (Platt 1999).

    Returns
    -------
    dict of str to float
        By name of the test. RMIA has weight 1 and LiRA 0 if there are too few reference models.
    """
    models = len(refs.member)
    if models < _FEWEST:
        return {"lira": 0.0, "rmia": 1.0}
    scores, members = list[Floats](), list[NDArray[np.bool_]]()
    for k in range(0, models, max(2, models // 8 * 2)):
        # The complement of a reference model was trained on exactly the rows that it lacks.
        other_models = ~np.isin(np.arange(models), (k, k ^ 1))
        rest = replace(refs, member=refs.member[other_models], logit=refs.logit[other_models])
        logit = refs.logit[k]
        scores.append(np.stack([lira(logit, rest), rmia(logit, rest)], axis=1))
        members.append(refs.member[k])
    x, sign = np.concatenate(scores), np.where(np.concatenate(members), 1.0, -1.0)
    spread = np.maximum(x.std(axis=0), 1e-12)
    x = x / spread

    def loss(line: Floats) -> float:
        odds = sign * (line[0] + x @ line[1:])
        return float(np.logaddexp(0, -odds).sum() + (line[1:] ** 2).sum() / 2)

    slopes = minimize(loss, np.zeros(3)).x[1:] / spread
    return {"lira": float(slopes[0]), "rmia": float(slopes[1])}
