"""Attribute inference: infer one column of rows whose other columns are known."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.attributes.sum_constraints import Sums, fit_probabilities
from fedtrees.attacks.membership.attack import model_in
from fedtrees.attacks.membership.references import class_logits, forest_logits
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.columns import Column, columns_of
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import cuts_are_of_rows, cuts_of
from fedtrees.attacks.observations.rows_from_columns import pool_columns
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Entries, Guess
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.sensitive import Told
from fedtrees.core.view import View
from fedtrees.guessing.tolerance import SIGMA_SHARE
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.imputer import Imputer, guessed

Floats = NDArray[np.float64]
#: Weights of the model's log confidence. The one that fits the prior's rows best is used.
_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
_TAUGHT = 2  # rounds of self-training on the target rows, without prior rows
_GAIN = 0.005  # smallest gain in nats per row for which a larger weight is preferred


@register.attack("attribute-inference")
@dataclass(frozen=True)
class AttributeInference(Attack):
    """Infer the sensitive attribute of rows whose other columns are known (``sensitive=0``).

    The probability of every value is estimated from local rows or from rows of the population
    (`fedtrees.trees.imputer.Imputer`). It is multiplied by the model's confidence in the known
    label (Fredrikson et al. 2014; Mehnaz et al. 2022), and fitted to the other evidence: values and
    counts of sketches, sums of nodes and bins, and leaf values (this part is not in a paper).
    Without such rows all values are equally likely at first. Estimates from the sums then replace
    this prior.
    """

    claims = (Entries,)

    threats: ClassVar[tuple[str, ...]] = tuple(
        f"{role}[sensitive=0]" for role in ("server", "client", "public")
    )

    def inapplicable(self, view: View) -> Reason | None:
        """Return the reason if no attribute is to be inferred or the view has no tree model."""
        if Told.of(view) is None:
            return Reason("not-all-but-one")
        return Reason("no-trees") if model_in(view) is None else None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return a value of the attribute for every row."""
        knowledge = Told.of(view)
        if knowledge is None:
            return Guess.none(Reason("not-all-but-one"))
        imputer = Imputer(view.prior_rows, view.schema, knowledge.columns)
        column = _read_column(view, knowledge)
        values = imputer.values if column is None else column.values[:, None]
        p = imputer.chances(knowledge.rows, values)
        if column is None and not imputer.taught:
            values, prior = _spread(view, knowledge, values)
            # without prior rows all rows have the same prior
            p = np.repeat(prior[None], len(knowledge.rows), axis=0)
        weight = 0.0
        model = model_in(view)
        if model is not None:
            weight = _weight(model, imputer, values, knowledge)
            p = p * np.exp(weight * _confidence(model, knowledge.rows, values, knowledge))
        p /= p.sum(axis=1, keepdims=True)
        seen = None if no_trees(view) else read_boosting(view)
        sums = None if seen is None else Sums.of(view, seen, knowledge, values)
        if sums is not None or column is not None:
            prior, p = p, fit_probabilities(p, sums, column)
            for _ in range(_TAUGHT if sums is not None and not imputer.taught else 0):
                p = fit_probabilities(
                    prior * _taught(knowledge, view.schema, values, p), sums, column
                )
        cells = guessed(knowledge, view.schema, p, values, SIGMA_SHARE)
        return Guess((Entries("", *cells),), {"confidence_weight": weight})


def _taught(knowledge: Told, schema: Schema, values: NDArray[np.float32], p: Floats) -> Floats:
    """Return the likelihood of every value according to rows with imputed values."""
    X = knowledge.rows.X.copy()
    _, _, cells = guessed(knowledge, schema, p, values, SIGMA_SHARE)
    X[:, knowledge.columns] = cells.reshape(len(X), -1)
    imputer = Imputer(Table(X, knowledge.rows.y), schema, knowledge.columns)
    # how to predict is chosen once, on all rows
    imputer.chances(knowledge.rows.take(slice(1)), values)
    held_out = imputer.held_out(values)
    return np.ones(p.shape) if held_out is None else held_out[1]


def _read_column(view: View, knowledge: Told) -> Column | None:
    """Return all values of the victims' column if their sketches reveal these, else None."""
    if len(knowledge.columns) > 1 or not columns_of(view):
        return None
    together = pool_columns(view)
    return (
        None
        if together is None or not together[knowledge.columns[0]].exact
        else (together[knowledge.columns[0]])
    )


def _spread(
    view: View, knowledge: Told, values: NDArray[np.float32]
) -> tuple[NDArray[np.float32], Floats]:
    """Return values and their probabilities from the thresholds, without prior rows.

    Models split a numeric column where rows are. Categories remain equally likely.
    """
    model = model_in(view)
    even = np.full(len(values), 1 / len(values))
    if len(knowledge.columns) > 1 or view.schema.categorical[knowledge.columns[0]] or model is None:
        return values, even
    (column,) = knowledge.columns
    trees = getattr(model, "trees", ())  # other models draw their tests without data
    used = [t.threshold[t.feature == column] for t in trees] or [np.zeros(0)]
    cuts = cuts_of(view)
    if cuts is not None and cuts_are_of_rows(view):
        used = [cuts.values[cuts.offsets[column] : cuts.offsets[column + 1]]]
    at = np.concatenate(used).astype(np.float64)
    if not len(at):
        return values, even
    low, high = at.min(), at.max()
    wide = at.std() if len(np.unique(at)) > 1 else float(np.ptp(values)) / 10
    line = np.unique(np.linspace(low - wide, high + wide, 201).astype(np.float32))
    near = np.exp(-0.5 * ((line[:, None] - at) / max(wide / 2, 1e-9)) ** 2).sum(axis=1) + 1e-9
    return line[:, None], near / near.sum()


def _confidence(model: object, rows: Table, values: NDArray[np.float32], knowledge: Told) -> Floats:
    """Return the log probability of each row's label for each value of the attribute, (n, K)."""
    log_chances = []
    for value in values:
        X = rows.X.copy()
        X[:, knowledge.columns] = value
        table = Table(X, rows.y)
        if isinstance(model, Forest):
            logit = forest_logits(model, table)
        else:
            logit = class_logits(model.probabilities(X), rows.y)  # type: ignore[attr-defined]
        # Log probability of the label. The logistic function itself would underflow.
        log_chances.append(-np.logaddexp(0, -logit))
    return np.column_stack(log_chances)


def _weight(model: object, imputer: Imputer, values: NDArray[np.float32], knowledge: Told) -> float:
    """Return the weight of the model's log confidence that fits the prior's rows best."""
    held_out = imputer.held_out(imputer.values)
    if held_out is None:
        return 1.0
    own_rows, p = held_out
    log_p, confidence = np.log(p + 1e-12), _confidence(model, own_rows, imputer.values, knowledge)
    # the candidate value closest to the true one counts as correct
    off = np.abs(own_rows.X[:, knowledge.columns][:, None] - imputer.values[None]).sum(axis=2)
    right, best = off.argmin(axis=1), (0.0, -np.inf)
    for w in _WEIGHTS:
        z = log_p + w * confidence
        z -= np.logaddexp.reduce(z, axis=1)[:, None]
        score = float(z[np.arange(len(z)), right].mean())
        # a larger weight must gain clearly, because there are few rows for validation
        # zero is the default, so that a useless model is ignored
        if score > best[1] + _GAIN:
            best = w, score
    return best[0]
